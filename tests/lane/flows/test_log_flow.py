"""The flow of a session beside the log: what it leaves there, and where it goes on."""

from __future__ import annotations

from typing import Any

import pytest

from braidmq.lane.flows.delivery import Delivery
from braidmq.lane.path.message import Message
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.codec import encode
from braidmq.mqtt.packets import MQTT5, Puback, Publish, Pubrel
from tests.lane.flows.log_flows import bench_of_a_log, commit, flow_of, received, recorded, stamps, write_cursor
from tests.support.simulator.lane import Bench


@pytest.fixture
def bench() -> Bench:
    return bench_of_a_log()


NOBODY: Any = None  # the flow of a subscription that is no longer there


# The cursor


def test_the_cursor_of_a_following_flow_is_the_position_of_the_log(bench: Bench) -> None:
    flow = flow_of(bench)
    bench.channel(flow)

    commit(bench, flow, recorded(101), recorded(102))

    assert flow.is_following
    assert flow.cursor() == [50, 102]


def test_a_recorded_message_for_an_offline_client_is_not_queued(bench: Bench) -> None:
    flow = flow_of(bench)

    commit(bench, flow, recorded(101), recorded(102))
    bench.state.marks[0] = 60

    assert not flow.is_following
    assert flow.cursor() == [50, 100], "it stays where it stopped, whatever others are offered"
    assert (flow.queue_messages(), flow.inflight_messages(), bench.drops) == (0, 0, [])


def test_a_recorded_message_beyond_the_window_is_left_to_the_log(bench: Bench) -> None:
    flow = flow_of(bench)
    channel = bench.channel(flow, MQTT5, window=2)

    commit(bench, flow, *(recorded(number) for number in range(101, 105)))

    assert stamps(received(bench, channel)) == [101, 102]
    assert flow.cursor() == [50, 102]
    assert flow.queue_messages() == 0
    channel.read(encode(Puback(1), MQTT5))
    assert channel.rooms == 1


def test_qos_0_needs_no_window_but_does_not_overtake_messages_left_to_the_log(bench: Bench) -> None:
    flow = flow_of(bench)
    channel = bench.channel(flow, MQTT5, window=1)

    commit(bench, flow, recorded(101), recorded(102, qos=0), recorded(103), recorded(104, qos=0))

    assert stamps(received(bench, channel)) == [101, 102]
    assert flow.cursor() == [50, 102]


def test_messages_that_are_not_recorded_are_queued(bench: Bench) -> None:
    flow = flow_of(bench)

    flow.deliver(Message(b"t", b"", 1, False, "p"), Subscription(flow, b"#", 2), 1, False)

    assert flow.is_following
    assert flow.queue_messages() == 1


def test_no_recorded_message_overtakes_the_queue(bench: Bench) -> None:
    flow = flow_of(bench)
    channel = bench.channel(flow, MQTT5, window=1)
    commit(bench, flow, recorded(101))
    flow.deliver(Message(b"t/0", b"", 1, False, "p"), Subscription(flow, b"#", 2), 1, False)

    commit(bench, flow, recorded(102))
    channel.read(encode(Puback(1), MQTT5))

    assert stamps(received(bench, channel)) == [101, 0]
    assert flow.cursor() == [50, 101]


def test_a_client_that_leaves_falls_behind_at_the_last_message_it_was_offered(bench: Bench) -> None:
    flow = flow_of(bench)
    bench.channel(flow)
    commit(bench, flow, recorded(101))

    flow.detach()
    commit(bench, flow, recorded(102))

    assert flow.cursor() == [50, 101]


# Reading


def test_records_are_sent_as_far_as_the_window_allows(bench: Bench) -> None:
    flow = flow_of(bench)
    flow.fall_behind()
    channel = bench.channel(flow, MQTT5, window=2)
    subscription = Subscription(flow, b"#", 2)

    taken = [flow.take(recorded(number), subscription, 1, False, -1) for number in (101, 102, 103)]

    assert taken == [True, True, False]
    assert stamps(received(bench, channel)) == [101, 102]


def test_nothing_is_read_for_an_absent_client_or_one_that_does_not_read() -> None:
    bench = Bench(outbox_bytes_max=100)
    bench.state.marks = [50, 100]
    flow = flow_of(bench)
    subscription = Subscription(flow, b"#", 2)
    assert not flow.take(recorded(101, 0), subscription, 0, False, -1)

    channel = bench.channel(flow, MQTT5)
    channel.pause_writing()

    assert flow.take(recorded(101, 0, bytes(120)), subscription, 0, False, -1)
    assert not flow.take(recorded(102, 0), subscription, 0, False, -1)
    assert bench.drops == []


def test_nothing_is_read_before_inflight_messages_were_resent(bench: Bench) -> None:
    flow = flow_of(bench)
    bench.channel(flow, MQTT5, window=2)
    commit(bench, flow, recorded(101), recorded(102))
    flow.detach()

    channel = bench.channel(flow, MQTT5, window=1)
    assert not flow.take(recorded(103), Subscription(flow, b"#", 2), 1, False, -1)
    channel.read(encode(Puback(1), MQTT5))
    assert not flow.take(recorded(103), Subscription(flow, b"#", 2), 1, False, -1)

    assert stamps(received(bench, channel)) == [101, 102]


def test_a_flow_that_has_caught_up_gets_live_messages(bench: Bench) -> None:
    flow = flow_of(bench)
    flow.fall_behind()
    channel = bench.channel(flow, MQTT5)
    commit(bench, flow, recorded(101))
    assert received(bench, channel) == []

    flow.follow()
    commit(bench, flow, recorded(102))

    assert stamps(received(bench, channel)) == [102]
    assert flow.cursor() == [50, 102]


def test_a_message_read_from_the_log_has_its_remaining_expiry(bench: Bench) -> None:
    flow = flow_of(bench)
    flow.fall_behind()
    channel = bench.channel(flow, MQTT5)

    flow.take(recorded(101, expires_in=70), Subscription(flow, b"#", 2), 1, False, 7)

    (publish,) = received(bench, channel)
    assert isinstance(publish, Publish)
    assert publish.properties.message_expiry_interval == 7


# What is to be written down


def test_each_change_of_the_cursor_is_noted_once_until_it_is_written(bench: Bench) -> None:
    flow = flow_of(bench)
    channel = bench.channel(flow, MQTT5)
    assert bench.state.changed == []

    commit(bench, flow, recorded(101), recorded(102))
    assert bench.state.changed == [flow]
    flow.is_changed = False
    bench.state.changed.clear()
    channel.read(encode(Puback(1), MQTT5))

    assert bench.state.changed == [flow]


def test_a_memory_session_has_no_cursor_to_write(bench: Bench) -> None:
    flow = flow_of(bench, is_durable=False)
    bench.channel(flow, MQTT5)

    commit(bench, flow, recorded(101))
    flow.detach()

    assert bench.state.changed == []


# After a restart


def test_messages_inflight_before_a_restart_are_resent_in_order_with_their_ids(bench: Bench) -> None:
    flow = flow_of(bench)
    flow.fall_behind()
    released = Delivery(None, Subscription(NOBODY, b"#", 2), 2, False)
    released.is_released = True
    flow.restore(7, Delivery(recorded(90, 2), Subscription(flow, b"#", 2), 2, False))
    flow.restore(3, released)
    flow.restore(5, Delivery(recorded(91), Subscription(flow, b"#", 2), 1, True))

    channel = bench.channel(flow, MQTT5)

    first, second, third = received(bench, channel)
    assert isinstance(first, Publish)
    assert isinstance(third, Publish)
    assert (first.packet_id, first.dup, first.qos) == (7, True, 2)
    assert second == Pubrel(3)
    assert (third.packet_id, third.dup, third.qos, third.retain) == (5, True, 1, True)
    assert [packet_id for packet_id, _ in flow.inflight_items()] == [7, 3, 5]


def test_packet_ids_inflight_before_a_restart_are_not_reused(bench: Bench) -> None:
    flow = flow_of(bench)
    for packet_id in (2, 1):
        flow.restore(packet_id, Delivery(recorded(90), Subscription(flow, b"#", 2), 1, False))
    channel = bench.channel(flow, MQTT5)
    received(bench, channel)

    commit(bench, flow, recorded(101))

    (publish,) = received(bench, channel)
    assert isinstance(publish, Publish)
    assert publish.packet_id == 3


def test_messages_that_can_no_longer_be_read_are_released(bench: Bench) -> None:
    flow = flow_of(bench)
    flow.restore(1, Delivery(None, Subscription(NOBODY, b"#", 2), 1, False))

    flow.forget(1)
    flow.forget(2)

    assert flow.inflight_messages() == 0
    assert bench.state.counters.inflight_lost == 1
    assert bench.state.changed == [flow]


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_flow_that_is_handed_over_holds_nothing_and_has_lost_only_its_queue(bench: Bench, is_packed: bool) -> None:
    flow = flow_of(bench)
    bench.channel(flow)
    commit(bench, flow, recorded(101), recorded(102, qos=2))
    write_cursor(flow)
    flow.detach()
    if is_packed:
        flow.let_go_readable()
    flow.deliver(Message(b"t/1", b"queued", 1, False, "p"), Subscription(flow, b"#", 2), 1, False)
    assert (flow.inflight_messages(), flow.queue_messages()) == (2, 1)

    flow.hand_over()

    counters, state = bench.state.counters, bench.state
    assert (flow.inflight_messages(), flow.queue_messages(), flow.held_bytes, state.held_bytes) == (0, 0, 0, 0)
    assert (state.queued_messages, state.queued_bytes) == (0, 0)
    assert (counters.inflight_lost, counters.dropped_session_ended) == (0, 1)
    assert flow.is_over
