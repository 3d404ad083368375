"""What one destination gets of a message: QoS, RETAIN, its own messages, and those that it will read in the log."""

from __future__ import annotations

import itertools

import pytest

from braidmq.lane.path.message import Message
from braidmq.lane.path.subscription import Subscription, merge
from tests.support.simulator.lane import Bench

QOS = (0, 1, 2)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize(("published", "granted"), list(itertools.product(QOS, QOS)))
def test_a_copy_has_the_lower_qos_of_the_message_and_the_subscription(bench: Bench, published: int, granted: int) -> None:
    subscription = Subscription(bench.flow(), b"t", granted)

    assert subscription.qos_for(Message(b"t", b"", published, False, "p")) == min(published, granted)


@pytest.mark.parametrize(("retain", "as_published"), list(itertools.product((False, True), (False, True))))
def test_a_copy_keeps_the_retain_flag_only_if_its_subscription_asked_for_it(
    bench: Bench, retain: bool, as_published: bool
) -> None:
    subscription = Subscription(bench.flow(), b"t", 1, retain_as_published=as_published)

    assert subscription.retain_for(Message(b"t", b"", 1, retain, "p")) == (retain and as_published)


def test_no_local_goes_by_the_client_id_of_the_publisher(bench: Bench) -> None:
    asked = Subscription(bench.flow("own"), b"t", 1, no_local=True)
    other = Subscription(bench.flow("own"), b"t", 1)

    assert asked.for_publisher("own") is None
    assert asked.for_publisher("another") is asked
    assert asked.for_publisher("") is asked  # the broker itself
    assert other.for_publisher("own") is other


def test_a_clients_own_messages_come_by_what_it_subscribed_to_without_no_local(bench: Bench) -> None:
    flow = bench.flow("own")
    asked, other = Subscription(flow, b"#", 2, no_local=True), Subscription(flow, b"t", 0)
    merged = merge([asked, other])
    assert merged is not None

    assert merged.for_publisher("own") is other
    assert merged.for_publisher("another") is merged


def test_a_subscriber_that_is_behind_reads_what_is_recorded_and_gets_the_rest_live(bench: Bench) -> None:
    flow = bench.flow()
    reading, prompt = Subscription(flow, b"#", 2), Subscription(flow, b"t", 1)
    reading.is_behind = True
    merged = merge([reading, prompt])
    assert merged is not None
    live, recorded = Message(b"t", b"", 1, False, "p"), Message(b"t", b"", 1, False, "p")
    recorded.set_position(0, 7)

    assert reading.live_for(live) is reading
    assert reading.live_for(recorded) is None
    assert merged.live_for(live) is merged
    assert merged.live_for(recorded) is prompt
    assert prompt.live_for(recorded) is prompt


@pytest.mark.parametrize(
    ("no_local", "identifiers", "passes"), [(False, b"", True), (True, b"", False), (False, b"\x0b\x01", False)]
)
def test_a_frame_is_passed_on_only_where_nothing_about_it_can_differ(
    bench: Bench, no_local: bool, identifiers: bytes, passes: bool
) -> None:
    assert Subscription(bench.flow(), b"t", 2, no_local=no_local, identifiers=identifiers).passes_frames == passes
