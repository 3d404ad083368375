"""Messages on their way through the log: blocks, and what happens at their commit or refusal."""

from __future__ import annotations

from functools import partial
from zlib import crc32

import pytest

from braidmq.lane.flows.flow import Flow
from braidmq.lane.flows.log_flow import LogFlow
from braidmq.lane.path.channel_reader import HOLD_LOG
from braidmq.lane.path.message import Message
from braidmq.lane.path.outlet import Outlet
from braidmq.lane.path.ports import Change
from braidmq.lane.recording.recorder import Producer
from braidmq.lane.records.records import Record, encode_record
from braidmq.lane.routing.routes import HISTORY, Route
from braidmq.mqtt.codec import encode
from braidmq.mqtt.packets import MQTT5, MQTT311, Packet, Puback, Publish, Pubrec
from tests.lane.recording.published import RecordingBench, RecordingChannel, Row
from tests.support.simulator.lane import FakeChannel


class Refusal:
    """What a log says that stores nothing."""

    reason = "the disk is full"

    def __init__(self, is_in_doubt: bool) -> None:
        self.is_in_doubt = is_in_doubt


@pytest.fixture
def bench() -> RecordingBench:
    return RecordingBench()


def send(channel: FakeChannel, *packets: Packet) -> None:
    channel.read(b"".join(encode(packet, channel.version) for packet in packets))


def publish(number: int, qos: int = 1, **fields: object) -> Publish:
    return Publish("t", b"%d" % number, qos, packet_id=number if qos else None, **fields)  # type: ignore[arg-type]


def reconnected(bench: RecordingBench, old: FakeChannel) -> RecordingChannel:
    """A new connection of the session that has lost the old one."""
    flow = old.flow
    assert flow is not None
    old.is_open = False
    flow.detach()
    new = RecordingChannel(bench, MQTT5)
    new.flow = flow
    new.is_greeted = new.is_open = True
    flow.attach(new, 100)
    return new


# Blocks


def test_a_turn_collects_one_block_with_the_records_of_each_shard_in_order(bench: RecordingBench) -> None:
    first, second = bench.client("first", home_shard=0), bench.client("second", home_shard=1)

    send(first, publish(1))
    send(second, publish(2))
    send(first, publish(3, 2))

    assert bench.begun == 1
    block = bench.take()
    payloads = {shard: [Record(1, value).payload for _, value in entries] for shard, entries in block.entries.items()}
    assert payloads == {0: [b"1", b"3"], 1: [b"2"]}
    assert {topic for entries in block.entries.values() for topic, _ in entries} == {b"t"}
    assert block.size_bytes > sum(len(value) for entries in block.entries.values() for _, value in entries)
    assert bench.recorder.take() is None


def test_a_record_has_all_fields_of_the_message(bench: RecordingBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidmq.lane.path.expiry.time", lambda: 1400.0)
    monkeypatch.setattr("braidmq.lane.path.expiry.monotonic", lambda: 400.0)
    message = Message(b"t", b"x", 2, True, "p")
    message.set_properties(b"\x02\x00\x00\x00\x05", 500.0, 1)

    bench.recorder.record(message, None, None, 0, 0, True)

    ((_, value),) = bench.take().entries[0]
    record = Record(7, value)
    assert (record.topic, record.payload, record.qos, record.retain, record.publisher) == (b"t", b"x", 2, True, "p")
    assert (record.session_only, record.expires_at) == (True, 1_500_000_000)
    assert (record.properties, record.expiry_offset) == (b"\x02\x00\x00\x00\x05", 1)


def test_rows_are_in_the_block_of_their_turn(bench: RecordingBench) -> None:
    bench.recorder.change(Row("row"))
    send(bench.client(), publish(1))

    block = bench.take()

    assert block.changes == [Row("row")]
    assert len(block.entries[0]) == 1


def test_an_unrecorded_qos_0_message_is_delivered_at_once(bench: RecordingBench) -> None:
    subscriber = bench.subscriber()

    send(bench.client(), publish(1, 0))

    assert len(subscriber.sent()) == 1
    assert bench.recorder.take() is None


# Commits


def test_s6_a_message_is_neither_delivered_nor_acknowledged_before_its_commit(bench: RecordingBench) -> None:
    subscriber, publisher = bench.subscriber(), bench.client()

    send(publisher, publish(1), publish(2, 2))
    assert (subscriber.sent(), publisher.sent()) == ([], [])
    bench.take().committed({0: [101, 102]})

    assert [packet.payload for packet in subscriber.sent() if isinstance(packet, Publish)] == [b"1", b"2"]
    assert publisher.sent() == [Puback(1), Pubrec(2)]


def test_messages_of_all_shards_are_shown_in_the_order_of_their_arrival(bench: RecordingBench) -> None:
    subscriber = bench.subscriber()
    first, second = bench.client("first", home_shard=0), bench.client("second", home_shard=1)
    send(first, publish(1))
    send(second, publish(2))
    send(first, publish(3))

    bench.take().committed({0: [101, 102], 1: [55]})

    assert [packet.payload for packet in subscriber.sent() if isinstance(packet, Publish)] == [b"1", b"2", b"3"]
    assert bench.state.marks == [102, 55]


def test_while_a_message_is_shown_its_shard_is_marked_below_it(bench: RecordingBench) -> None:
    seen: list[tuple[int, int, list[int]]] = []

    def deliver(message: Message, route: Route, flow: Flow | None) -> int:
        seen.append((message.shard, message.timestamp, list(bench.state.marks)))
        return 1

    bench.routes.inspector = lambda topic: HISTORY | 2
    bench.recorder.outcomes.deliver = deliver
    first, second = bench.flow("first"), bench.flow("second")
    second.home_shard = 1
    for flow in (first, second):
        bench.recorder.record(Message(b"t", b"", 1, False, "p"), flow, None, 0, 0, False)

    bench.take().committed({0: [101], 1: [55]})

    assert seen == [(0, 101, [100, 20]), (1, 55, [101, 54])]


@pytest.mark.parametrize(("version", "code"), [(MQTT5, 0x10), (MQTT311, 0)])
def test_a_publisher_learns_that_there_are_no_subscribers_if_its_version_allows(
    bench: RecordingBench, version: int, code: int
) -> None:
    publisher = bench.client(version=version)
    send(publisher, publish(1), publish(2, 2))

    bench.take().committed({0: [101, 102]})

    assert publisher.sent() == [Puback(1, code), Pubrec(2, code)]


def test_commit_callbacks_run_before_the_message_is_shown(bench: RecordingBench) -> None:
    subscriber = bench.subscriber()
    seen: list[list[Packet]] = []
    pending = bench.recorder.record(Message(b"t", b"", 1, False, "p"), None, None, 0, 0, False)
    pending.on_commit = lambda: seen.append(subscriber.sent())

    bench.take().committed({0: [101]})

    assert seen == [[]]
    assert len(subscriber.sent()) == 1


def test_a_message_kept_for_later_is_acknowledged_and_not_shown(bench: RecordingBench) -> None:
    subscriber, publisher = bench.subscriber(), bench.client()
    pending = publisher.record(Message(b"t", b"", 1, False, "p"), 1, 9, False, False)
    pending.is_delivered = False

    block = bench.take()
    assert block.entries == {}
    block.committed({})

    assert subscriber.sent() == []
    assert publisher.sent() == [Puback(9)]
    assert bench.state.marks == [10, 20]


def test_a_message_that_waited_for_rows_alone_is_shown_as_one_that_is_not_recorded(bench: RecordingBench) -> None:
    bench.subscriber()
    message = Message(b"t", b"", 1, False, "p")

    bench.recorder.await_rows(message, None, None, 0, 0)
    bench.take().committed({})

    assert message.timestamp == 0


def test_a_delivery_that_fails_does_not_affect_other_messages(bench: RecordingBench) -> None:
    subscriber, publisher = bench.subscriber(), bench.client()
    problem = ValueError("broken")

    def fail() -> None:
        raise problem

    publisher.record(Message(b"t", b"bad", 1, False, "p"), 1, 1, False).on_commit = fail
    publisher.record(Message(b"t", b"good", 1, False, "p"), 1, 2, False)
    bench.take().committed({0: [101, 102]})

    assert bench.faults == [problem]
    assert [packet.payload for packet in subscriber.sent() if isinstance(packet, Publish)] == [b"good"]
    assert [packet.packet_id for packet in publisher.sent() if isinstance(packet, Puback)] == [1, 2]
    assert bench.state.marks == [102, 20]


# QoS 2 from the client


def test_a_qos_2_duplicate_before_the_commit_is_recorded_once_and_each_is_answered(bench: RecordingBench) -> None:
    publisher = bench.client()

    send(publisher, publish(7, 2), publish(7, 2, dup=True))
    block = bench.take()
    assert len(block.entries[0]) == 1
    block.committed({0: [101]})

    assert [packet.packet_id for packet in publisher.sent() if isinstance(packet, Pubrec)] == [7, 7]


def test_s1_the_packet_id_of_a_durable_session_is_a_row_beside_its_record(bench: RecordingBench) -> None:
    publisher = bench.client()
    publisher.flow = LogFlow("p", bench.state, 1000, 1_000_000, False, True)
    publisher.flow.attach(publisher, 100)

    send(publisher, publish(7, 2))

    block = bench.take()
    assert block.changes == [Row("received", 7)]
    assert len(block.entries[0]) == 1


def test_s6_a_reconnected_publisher_is_answered_on_its_new_connection(bench: RecordingBench) -> None:
    bench.subscriber()
    old = bench.client()
    send(old, publish(1), publish(7, 2))
    block = bench.take()
    new = reconnected(bench, old)
    send(new, publish(7, 2, dup=True))

    block.committed({0: [101, 102]})

    assert old.sent() == []
    assert new.sent() == [Pubrec(7)], "one PUBREC for each PUBLISH of this connection"
    assert bench.recorder.take() is None, "recorded a second time"


def test_a_reconnected_publisher_gets_no_pubrec_before_it_resends(bench: RecordingBench) -> None:
    old = bench.client()
    send(old, publish(7, 2))
    block = bench.take()
    second = reconnected(bench, old)
    send(second, publish(7, 2, dup=True))
    third = reconnected(bench, second)

    block.committed({0: [101]})
    assert (old.sent(), second.sent(), third.sent()) == ([], [], [])
    send(third, publish(7, 2, dup=True))

    assert third.sent() == [Pubrec(7)]
    assert bench.recorder.take() is None, "recorded a second time"


# Refusals


@pytest.mark.parametrize("is_in_doubt", [False, True])
def test_a_rejected_message_is_not_delivered_and_is_counted(bench: RecordingBench, is_in_doubt: bool) -> None:
    subscriber, publisher = bench.subscriber(), bench.client()
    send(publisher, publish(1), publish(2, 2))

    bench.take().refused(Refusal(is_in_doubt))

    assert (subscriber.sent(), publisher.sent()) == ([], [])
    assert publisher.refused == [(1, 1, is_in_doubt), (2, 2, is_in_doubt)]
    assert bench.state.counters.dropped_not_stored == 2
    assert bench.drops == [("not_stored", "p", b"t")] * 2
    assert bench.state.marks == [10, 20]


def test_a_rejected_qos_2_message_can_be_resent_with_its_packet_id(bench: RecordingBench) -> None:
    publisher = bench.client()
    send(publisher, publish(7, 2))
    bench.take().refused(Refusal(False))

    send(publisher, publish(7, 2))

    assert len(bench.take().entries[0]) == 1


def test_a_message_rejected_after_it_was_resent_is_rejected_on_the_new_connection(bench: RecordingBench) -> None:
    old = bench.client()
    send(old, publish(7, 2))
    block = bench.take()
    new = reconnected(bench, old)
    send(new, publish(7, 2, dup=True))

    block.refused(Refusal(False))

    assert (old.refused, new.refused) == ([], [(2, 7, False)])


def test_a_message_rejected_before_it_is_resent_is_not_answered_on_the_new_connection(bench: RecordingBench) -> None:
    old = bench.client()
    send(old, publish(7, 2))
    block = bench.take()
    new = reconnected(bench, old)

    block.refused(Refusal(False))
    assert new.refused == []
    send(new, publish(7, 2, dup=True))

    assert len(bench.take().entries[0]) == 1


# Congestion


def test_publishers_are_held_while_the_log_is_congested(bench: RecordingBench) -> None:
    publisher = bench.client()
    bench.recorder.is_congested = True

    send(publisher, publish(1), publish(2))
    assert publisher.holds == [HOLD_LOG]
    assert len(bench.take().entries[0]) == 1, "what comes behind the first waits unread"
    bench.recorder.is_congested = False
    publisher.resume(HOLD_LOG)

    assert len(bench.take().entries[0]) == 1
    assert publisher.transport.is_reading


# Records that another node has encoded


@pytest.mark.parametrize("was", [True, False])
@pytest.mark.parametrize("session_only", [True, False])
def test_a_record_of_another_node_is_taken_as_it_is_except_for_whom_it_was_recorded(
    bench: RecordingBench, was: bool, session_only: bool
) -> None:
    value = encode_record(b"t", b"x" * 50, 2, True, "p", b"\x03\x00\x01y", session_only=was)
    expected = encode_record(b"t", b"x" * 50, 2, True, "p", b"\x03\x00\x01y", session_only=session_only)
    subscriber = bench.subscriber()

    bench.recorder.record_value(Message(b"t", b"x" * 50, 2, True, "p"), value, 1, session_only, None, None, 0, 0)

    block = bench.take()
    assert block.entries == {1: [(b"t", expected)]}
    block.committed({1: [55]})
    assert len(subscriber.sent()) == 1
    assert bench.state.marks == [10, 55]


def test_a_record_of_another_node_is_settled_on_the_outlet_that_stands_for_its_publisher(bench: RecordingBench) -> None:
    settled: list[tuple[int, int, int]] = []
    refused: list[int] = []

    class Entry(Outlet):
        def settle(self, flow: Flow | None, qos: int, packet_id: int, code: int) -> None:
            settled.append((qos, packet_id, code))

        def refuse_publish(self, flow: Flow | None, qos: int, packet_id: int, is_in_doubt: bool) -> None:
            refused.append(packet_id)

    value = encode_record(b"t", b"", 1, False, "p")
    for number in (7, 8):
        bench.recorder.record_value(Message(b"t", b"", 1, False, "p"), value, 0, False, None, Entry(), 1, number)
        block = bench.take()
        if number == 7:
            block.committed({0: [101]})
        else:
            block.refused(Refusal(False))

    assert (settled, refused) == ([(1, 7, 0x10)], [8])


# A log on another node


@pytest.fixture
def remote(bench: RecordingBench) -> RecordingBench:
    bench.recorder.is_remote = True
    return bench


def test_a_message_for_a_log_elsewhere_is_acknowledged_with_the_answers_code_and_not_delivered(remote: RecordingBench) -> None:
    subscriber, publisher = remote.subscriber(), remote.client(home_shard=1)
    send(publisher, publish(1), publish(2, 2), publish(3))
    block = remote.take()
    assert [(each.shard, each.place, each.ack_qos, each.packet_id) for each in block.pendings] == [
        (1, 0, 1, 1),
        (1, 1, 2, 2),
        (1, 2, 1, 3),
    ]
    assert [each.channel is publisher and each.flow is publisher.flow for each in block.pendings] == [True] * 3

    remote.recorder.outcomes.answer(block.pendings[:2], [0, 0x10])

    assert publisher.sent() == [Puback(1), Pubrec(2, 0x10)]
    remote.recorder.outcomes.answer(block.pendings[2:], [0x97])
    assert (publisher.sent(), publisher.refused) == ([], [(1, 3, False)])
    assert subscriber.sent() == []
    assert remote.state.marks == [10, 20]


def test_rows_that_are_answered_run_their_callbacks_and_deliver_what_waited_for_them(remote: RecordingBench) -> None:
    subscriber = remote.subscriber()
    seen: list[str] = []
    pendings = []
    for name in ("good", "bad"):
        pending = remote.recorder.await_rows(Message(b"t", name.encode(), 0, False, "p"), None, None, 0, 0)
        pending.on_commit = partial(seen.append, f"{name} committed")
        pending.on_refused = partial(seen.append, f"{name} refused")
        pendings.append(pending)

    remote.recorder.outcomes.answer(pendings, [0, 0x97])

    assert seen == ["good committed", "bad refused"]
    assert [packet.payload for packet in subscriber.sent() if isinstance(packet, Publish)] == [b"good"]


def test_a_refused_qos_2_message_may_come_again_under_its_id(remote: RecordingBench) -> None:
    publisher = remote.client()
    send(publisher, publish(5, 2))
    remote.recorder.outcomes.answer(remote.take().pendings, [0x97])

    send(publisher, publish(5, 2))

    assert len(remote.take().pendings) == 1


# Blocks of and for other nodes


def test_a_block_names_the_producer_of_each_of_its_messages(bench: RecordingBench) -> None:
    client, other = bench.client("p"), bench.client("q")
    client.producer = Producer(b"name", 0, 6, True)

    send(client, publish(1))
    send(other, publish(1))
    send(client, publish(2))

    block = bench.take()
    checks = [crc32(b"%d" % number, crc32(b"t")) for number in (1, 2)]
    assert block.producer_marks() == {0: (client.producer, 7, checks[0], None), 2: (client.producer, 8, checks[1], None)}
    assert block.marks() == [(0, b"name", 8, checks[1])]


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_key_is_a_row_of_the_block_or_goes_with_its_message_to_another_node(bench: RecordingBench, is_remote: bool) -> None:
    bench.recorder.is_remote = is_remote
    client = bench.client("p")
    client.producer = Producer(b"name", 0, 6, False)
    message, key = Message(b"t", b"1", 1, False, "p"), Change()

    client.record(message, 1, 1, False, True, message, key)

    block = bench.take()
    (mark,) = block.producer_marks().values()
    assert (block.changes, mark[3]) == (([], key) if is_remote else ([key], None))


def test_a_block_has_the_marks_of_producers_of_other_nodes(bench: RecordingBench) -> None:
    bench.recorder.mark_entry(1, b"far", 9, 77)
    bench.recorder.mark_entry(1, b"far", 10, 78)

    block = bench.take()

    assert block.marks() == [(1, b"far", 9, 77), (1, b"far", 10, 78)]
    assert block.producer_marks() == {}
