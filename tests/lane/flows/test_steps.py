"""QoS 2 steps of durable sessions: they wait for the disk, and keep their order."""

from __future__ import annotations

import pytest

from braidmq.mqtt.codec import encode
from braidmq.mqtt.packets import MQTT5, Pubcomp, Publish, Pubrec, Pubrel
from tests.lane.flows.log_flows import bench_of_a_log, commit, flow_of, received, recorded, stamps, write_cursor
from tests.support.simulator.lane import Bench


@pytest.fixture
def bench() -> Bench:
    return bench_of_a_log()


def test_s2_qos_2_of_a_durable_session_is_not_on_the_wire_before_its_packet_id_is_on_disk(bench: Bench) -> None:
    flow = flow_of(bench)
    channel = bench.channel(flow, MQTT5)

    commit(bench, flow, recorded(101, 2))
    assert received(bench, channel) == []
    assert bench.state.unready == [flow]
    unready = flow.take_unready()
    assert unready == [1]
    flow.make_ready(unready)

    (publish,) = received(bench, channel)
    assert isinstance(publish, Publish)
    assert (publish.packet_id, publish.dup, publish.qos) == (1, False, 2)


def test_s2_pubrel_is_not_on_the_wire_before_the_receipt_is_on_disk(bench: Bench) -> None:
    flow = flow_of(bench)
    channel = bench.channel(flow, MQTT5)
    commit(bench, flow, recorded(101, 2))
    write_cursor(flow)
    received(bench, channel)

    channel.read(encode(Pubrec(1), MQTT5))
    assert received(bench, channel) == []
    write_cursor(flow)

    assert received(bench, channel) == [Pubrel(1)]
    channel.read(encode(Pubcomp(1), MQTT5))
    assert flow.inflight_messages() == 0


def test_qos_2_of_a_memory_session_does_not_wait_for_the_disk(bench: Bench) -> None:
    flow = flow_of(bench, is_durable=False)
    channel = bench.channel(flow, MQTT5)

    commit(bench, flow, recorded(101, 2))
    assert len(received(bench, channel)) == 1
    channel.read(encode(Pubrec(1), MQTT5))

    assert received(bench, channel) == [Pubrel(1)]
    assert (bench.state.unready, bench.state.changed) == ([], [])


def test_messages_waiting_for_the_disk_keep_their_place_in_the_window(bench: Bench) -> None:
    flow = flow_of(bench)
    bench.channel(flow, MQTT5, window=1)

    commit(bench, flow, recorded(101, 2), recorded(102, 2))

    assert (flow.inflight_messages(), flow.outstanding) == (1, 1)
    assert flow.cursor() == [50, 101]


def test_the_owner_is_asked_once_to_write_waiting_messages(bench: Bench) -> None:
    asked: list[int] = []
    bench.state.on_unready = lambda: asked.append(1)
    flow = flow_of(bench)
    bench.channel(flow, MQTT5)

    commit(bench, flow, recorded(101, 2), recorded(102, 2))
    assert asked == [1]
    assert flow.take_unready() == [1, 2]
    assert flow.take_unready() == []
    commit(bench, flow, recorded(103, 2))

    assert asked == [1, 1]


def test_a_step_stored_while_the_client_was_offline_is_sent_on_the_next_connection(bench: Bench) -> None:
    flow = flow_of(bench)
    bench.channel(flow, MQTT5)
    commit(bench, flow, recorded(101, 2))
    flow.detach()
    write_cursor(flow)

    channel = bench.channel(flow, MQTT5)

    (publish,) = received(bench, channel)
    assert isinstance(publish, Publish)
    assert (publish.packet_id, publish.dup) == (1, False), "this is the first time that it is sent [MQTT-3.3.1-1]"


def test_a_cursor_on_disk_makes_all_earlier_steps_ready_in_their_order(bench: Bench) -> None:
    flow = flow_of(bench)
    channel = bench.channel(flow, MQTT5)
    commit(bench, flow, recorded(101, 2))
    first = flow.take_unready()
    commit(bench, flow, recorded(102, 2))
    second = flow.take_unready()

    flow.make_ready(second)
    assert stamps(received(bench, channel)) == [101, 102]
    flow.make_ready(first)
    assert received(bench, channel) == []


def test_steps_of_an_earlier_connection_make_none_of_a_later_one_ready(bench: Bench) -> None:
    flow = flow_of(bench)
    bench.channel(flow, MQTT5)
    commit(bench, flow, recorded(101, 2))
    stale = flow.take_unready()
    flow.detach()
    flow.make_all_ready()
    channel = bench.channel(flow, MQTT5)
    assert stamps(received(bench, channel)) == [101]
    flow.on_pubrec(1, 0)
    assert flow.take_unready() == [1]

    flow.make_ready(stale)

    assert received(bench, channel) == []


def test_a_client_that_reconnects_before_the_commit_gets_the_message_once(bench: Bench) -> None:
    flow = flow_of(bench)
    bench.channel(flow, MQTT5)
    commit(bench, flow, recorded(101, 2))
    unready = flow.take_unready()
    flow.detach()
    channel = bench.channel(flow, MQTT5)
    assert received(bench, channel) == []

    flow.make_ready(unready)

    (publish,) = received(bench, channel)
    assert isinstance(publish, Publish)
    assert (publish.packet_id, publish.dup) == (1, False)
    assert flow.outstanding == 1


def test_inflight_order_is_wire_order_with_unsent_messages_last(bench: Bench) -> None:
    flow = flow_of(bench)
    channel = bench.channel(flow, MQTT5)
    commit(bench, flow, recorded(101, 2))
    first = flow.take_unready()
    commit(bench, flow, recorded(102, 1), recorded(103, 2))
    second = flow.take_unready()
    assert [packet_id for packet_id, _ in flow.inflight_items()] == [2, 1, 3]

    flow.make_ready(first)
    commit(bench, flow, recorded(104, 1))
    assert [packet_id for packet_id, _ in flow.inflight_items()] == [2, 1, 4, 3]
    flow.make_ready(second)

    assert stamps(received(bench, channel)) == [102, 101, 104, 103]
    assert [packet_id for packet_id, _ in flow.inflight_items()] == [2, 1, 4, 3]
    flow.detach()
    assert stamps(received(bench, bench.channel(flow, MQTT5))) == [102, 101, 104, 103]


def test_unsent_messages_follow_resent_messages(bench: Bench) -> None:
    flow = flow_of(bench)
    bench.channel(flow, MQTT5)
    commit(bench, flow, recorded(101, 2), recorded(102, 1), recorded(103, 2))
    flow.detach()
    flow.make_all_ready()

    packets = received(bench, bench.channel(flow, MQTT5))

    assert [(packet.packet_id, packet.dup) for packet in packets if isinstance(packet, Publish)] == [
        (2, True),
        (1, False),
        (3, False),
    ]


def test_messages_settled_or_discarded_meanwhile_are_not_sent_after_the_commit(bench: Bench) -> None:
    flow = flow_of(bench)
    channel = bench.channel(flow, MQTT5)
    commit(bench, flow, recorded(101, 2))
    unready = flow.take_unready()

    flow.discard()
    flow.make_ready(unready)

    assert received(bench, channel) == []


def test_a_message_that_turns_out_too_large_frees_its_packet_id(bench: Bench) -> None:
    flow = flow_of(bench)
    channel = bench.channel(flow, MQTT5)
    channel.frame_max_out = 50

    commit(bench, flow, recorded(101, 2, bytes(60)))
    write_cursor(flow)

    assert received(bench, channel) == []
    assert bench.drops == [("too_large", "c", b"t/101")]
    assert (flow.inflight_messages(), flow.outstanding) == (0, 0)
