"""What one destination gets of a message: QoS, RETAIN, its own messages, and those that it will read in the log."""

from __future__ import annotations

import itertools

import pytest

from braidmq.lane.path.message import Message
from braidmq.lane.routing.delivery_rules import copy_qos, copy_retain, for_publisher, live_for, merge
from braidmq.lane.routing.subscription import Subscription
from tests.support.simulator.lane import Bench

QOS = (0, 1, 2)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize(("published", "granted"), list(itertools.product(QOS, QOS)))
def test_a_copy_has_the_lower_qos_of_the_message_and_the_subscription(bench: Bench, published: int, granted: int) -> None:
    subscription = Subscription(bench.flow(), b"t", granted)

    assert copy_qos(Message(b"t", b"", published, False, "p"), subscription) == min(published, granted)


@pytest.mark.parametrize(("retain", "as_published"), list(itertools.product((False, True), (False, True))))
def test_a_copy_keeps_the_retain_flag_only_if_its_subscription_asked_for_it(
    bench: Bench, retain: bool, as_published: bool
) -> None:
    subscription = Subscription(bench.flow(), b"t", 1, retain_as_published=as_published)

    assert copy_retain(Message(b"t", b"", 1, retain, "p"), subscription) == (retain and as_published)


def test_no_local_compares_the_publishers_client_id(bench: Bench) -> None:
    asked = Subscription(bench.flow("own"), b"t", 1, no_local=True)
    other = Subscription(bench.flow("own"), b"t", 1)

    assert for_publisher(asked, "own") is None
    assert for_publisher(asked, "another") is asked
    assert for_publisher(asked, "") is asked  # the broker itself
    assert for_publisher(other, "own") is other


def test_an_overlapping_subscription_without_no_local_delivers_the_clients_own_messages(bench: Bench) -> None:
    flow = bench.flow("own")
    asked, other = Subscription(flow, b"#", 2, no_local=True), Subscription(flow, b"t", 0)
    merged = merge([asked, other])
    assert merged is not None

    assert for_publisher(merged, "own") is other
    assert for_publisher(merged, "another") is merged


def test_a_subscriber_that_is_behind_reads_what_is_recorded_and_gets_the_rest_live(bench: Bench) -> None:
    flow = bench.flow()
    reading, prompt = Subscription(flow, b"#", 2), Subscription(flow, b"t", 1)
    reading.is_behind = True
    merged = merge([reading, prompt])
    assert merged is not None
    live, recorded = Message(b"t", b"", 1, False, "p"), Message(b"t", b"", 1, False, "p")
    recorded.set_position(0, 7)

    assert live_for(reading, live) is reading
    assert live_for(reading, recorded) is None
    assert live_for(merged, live) is merged
    assert live_for(merged, recorded) is prompt
    assert live_for(prompt, recorded) is prompt
