"""What is in memory for clients that are away or slow: what the log has is let go, the rest has a bound for the whole node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from braidmq.broker import persistence
from braidmq.broker.messages.hooks import Hook
from braidmq.broker.reading import slots
from braidmq.lane.flows.packed_deliveries import PACKED_BYTES
from braidmq.lane.path.message import Message
from braidmq.mqtt.packets import Puback, Publish, Pubrec
from tests.support.held import message_bytes
from tests.support.present import present
from tests.support.simulator.peer import Peer, payloads
from tests.support.simulator.world import World

KIB = 1024
MIB = 1024 * KIB
LARGE = 64 * KIB


@pytest.fixture
def world() -> Iterator[World]:
    with World() as made:
        yield made


def large(number: int) -> bytes:
    return b"%02d" % number + bytes(LARGE - 2)


def publishes(peer: Peer) -> list[Publish]:
    return [packet for packet in peer.receive() if isinstance(packet, Publish)]


def numbers(packets: list[Publish]) -> list[int]:
    return [int(packet.payload[:2]) for packet in packets]


def take(peer: Peer) -> list[Publish]:
    """What comes and is not acknowledged."""
    got: list[Publish] = []
    while some := publishes(peer):
        got += some
    return got


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("topic_filter", ["t", "$replay/earliest/t"])
@pytest.mark.parametrize("ends", ["cut", "crash"])
def test_recorded_inflight_messages_of_an_offline_client_leave_memory_and_are_resent_in_order(
    world: World, qos: int, topic_filter: str, ends: str
) -> None:
    sender = world.connect("sender", expiry=0)
    for number in range(20):
        sender.publish("t", large(number), 2)
    reader = world.connect("reader")
    before = message_bytes()
    at_once = reader.subscribe(topic_filter, qos=qos)
    if topic_filter == "t":
        for number in range(20):
            sender.publish("t", large(number), 2)
    first = [*(packet for packet in at_once if isinstance(packet, Publish)), *take(reader)]
    assert numbers(first) == list(range(20))
    assert message_bytes() - before > 10 * LARGE

    reader.cut()
    world.settle()

    assert message_bytes() - before < LARGE
    assert (world.broker.state.held_bytes, world.broker.holdings.let_go) == (20 * PACKED_BYTES, 20)
    if ends == "crash":
        world.crash()
    again = take(world.connect("reader"))
    assert [(packet.packet_id, packet.payload) for packet in again] == [(packet.packet_id, packet.payload) for packet in first]
    assert all(packet.dup for packet in again)


@pytest.mark.parametrize("qos", [1, 2])
def test_inflight_messages_of_an_offline_client_take_a_few_counted_bytes(world: World, qos: int) -> None:
    sender = world.connect("sender", expiry=0)
    reader = world.connect("reader")
    reader.subscribe("t", qos=qos, subscription_identifiers=(7,))
    for number in range(500):
        sender.publish("t", b"%d " % number + bytes(200), 2)
    first = take(reader)
    if qos == 2:  # of these the client has only to release the packet ids
        for packet in first[:100]:
            assert packet.packet_id is not None
            reader.send(Pubrec(packet.packet_id))
        world.settle()
    reader.cut()
    world.settle()

    session = present(world.broker.sessions.get("reader"))
    assert session.flow.inflight_messages() == 500
    assert world.broker.state.held_bytes == session.flow.held_bytes == 500 * PACKED_BYTES
    again = take(world.connect("reader"))
    expected = first[100:] if qos == 2 else first
    assert [(packet.packet_id, packet.payload, packet.properties) for packet in again] == [
        (packet.packet_id, packet.payload, packet.properties) for packet in expected
    ]


@pytest.mark.parametrize("end", ["expired", "settled", "restarted"])
def test_bytes_of_deliveries_to_an_absent_client_are_released_with_them(world: World, end: str) -> None:
    reader = world.connect("reader", expiry=100)
    reader.subscribe("t", qos=1)
    for number in range(20):
        world.connect("sender", expiry=0).publish("t", large(number))
    assert numbers(take(reader)) == list(range(20))
    reader.cut()
    world.settle()

    if end == "expired":
        world.wait(200)
    else:
        if end == "restarted":
            world.crash()
            assert world.broker.state.held_bytes == 20 * PACKED_BYTES
        world.connect("reader").acknowledge_all()

    assert world.broker.state.held_bytes == 0


def test_a_client_that_reconnects_and_reads_nothing_uses_little_memory(world: World) -> None:
    reader = world.connect("reader")
    reader.subscribe("t", qos=1)
    for number in range(40):
        world.connect("sender", expiry=0).publish("t", large(number))
    take(reader)
    reader.cut()
    world.settle()
    before = message_bytes()

    back = world.connect("reader", receive_maximum=2)
    world.settle()

    assert message_bytes() - before < 8 * LARGE
    assert numbers(back.acknowledge_all()) == list(range(40))


def test_a_reconnected_client_gets_its_messages_as_it_acknowledges_them(world: World) -> None:
    reader = world.connect("reader")
    reader.subscribe("t", qos=1)
    for number in range(40):
        world.connect("sender", expiry=0).publish("t", large(number))
    assert numbers(take(reader)) == list(range(40))
    reader.cut()
    world.settle()
    before = message_bytes()

    back = world.connect("reader", receive_maximum=3)
    got: list[Publish] = []
    while some := publishes(back):
        assert len(some) <= 3
        assert message_bytes() - before < 12 * LARGE
        got += some
        for packet in some:
            assert packet.packet_id is not None
            back.send(Puback(packet.packet_id))

    assert numbers(got) == list(range(40))
    assert world.broker.state.held_bytes == 0


def test_few_bytes_in_flight_stay_in_memory_while_the_node_has_room(world: World) -> None:
    reader = world.connect("reader")
    reader.subscribe("t", qos=1)
    world.connect("sender").publish("t", b"small")
    first = take(reader)

    reader.cut()
    world.settle()

    assert (len(first), world.broker.holdings.let_go) == (1, 0)
    assert world.broker.state.held_bytes > 0
    assert payloads(world.connect("reader").acknowledge_all()) == [b"small"]
    assert world.broker.state.held_bytes == 0


def test_small_inflight_messages_leave_memory_when_the_node_holds_half_its_limit() -> None:
    with World(limits={"held_bytes_max": MIB}) as world:
        for number in range(40):
            world.connect(f"reader{number}").subscribe("t", qos=1)
        readers = [world.connect(f"reader{number}") for number in range(40)]
        world.connect("sender", expiry=0).publish("t", bytes(32 * KIB))
        assert all(len(take(reader)) == 1 for reader in readers)

        for reader in readers:
            reader.cut()
        world.settle()

        assert 0 < world.broker.state.held_bytes <= MIB // 2 + 33 * KIB
        for number in range(40):
            assert payloads(world.connect(f"reader{number}").acknowledge_all()) == [bytes(32 * KIB)]


@pytest.mark.parametrize("expiry", [1000, 0], ids=["durable", "not durable"])
@pytest.mark.parametrize("qos", [1, 2])
def test_messages_that_connected_clients_do_not_acknowledge_leave_memory_above_the_bound(qos: int, expiry: int) -> None:
    with World(limits={"held_bytes_max": 4 * MIB}) as world:
        sender = world.connect("sender", expiry=0)
        readers = [world.connect(f"reader{number}", expiry=expiry) for number in range(4)]
        for reader in readers:
            reader.subscribe("t", qos=qos)
        before = message_bytes()

        for number in range(40):
            sender.publish("t", large(number), 2)
        got = [take(reader) for reader in readers]

        assert world.broker.holdings.let_go > 0
        assert world.broker.state.held_bytes <= 4 * MIB
        assert message_bytes() - before <= 4 * MIB
        for reader, packets in zip(readers, got, strict=True):
            for packet in packets:
                assert packet.packet_id is not None
                reader.send(Puback(packet.packet_id) if qos == 1 else Pubrec(packet.packet_id))
            assert numbers([*packets, *reader.acknowledge_all()]) == list(range(40))
        assert [world.broker.sessions.get(f"reader{number}").flow.inflight_messages() for number in range(4)] == [0] * 4  # type: ignore[union-attr]
        assert world.broker.state.held_bytes == 0


def test_a_durable_client_gets_again_what_left_memory_while_it_was_connected() -> None:
    with World(limits={"held_bytes_max": MIB}) as world:
        reader = world.connect("reader")
        reader.subscribe("t", qos=1)
        for number in range(40):
            world.connect("sender", expiry=0).publish("t", large(number))
        first = take(reader)
        assert world.broker.holdings.let_go > 0

        reader.cut()
        again = take(world.connect("reader"))

        assert numbers(again)[: len(first)] == numbers(first)
        assert [packet.packet_id for packet in again][: len(first)] == [packet.packet_id for packet in first]


def test_a_node_that_holds_too_much_sends_little_at_a_time_and_loses_nothing() -> None:
    with World(limits={"held_bytes_max": MIB}, history={"topics": []}) as world:
        sender = world.connect("sender", expiry=0)
        for number in range(40):
            sender.publish(f"r/{number:02}", large(number), retain=True)
        readers = [world.connect(f"reader{number}") for number in range(5)]

        got = [[packet for packet in reader.subscribe("r/#", qos=1) if isinstance(packet, Publish)] for reader in readers]

        # Retained messages in flight are not in the log: each client has no more than one beyond 64 KiB when there is no room.
        assert world.broker.state.held_bytes < MIB + 5 * (2 * LARGE + KIB)
        for reader, packets in zip(readers, got, strict=True):
            for packet in packets:
                assert packet.packet_id is not None
                reader.send(Puback(packet.packet_id))
            assert sorted(numbers([*packets, *reader.acknowledge_all()])) == list(range(40))
        assert world.broker.state.held_bytes == 0


def test_retained_messages_in_flight_to_absent_clients_are_bounded_and_counted() -> None:
    with World(limits={"held_bytes_max": MIB}, session={"queue_bytes_max": MIB}) as world:
        for number in range(16):
            world.connect("sender", expiry=0).publish(f"r/{number:02}", large(number), retain=True)

        for number in range(8):
            reader = world.connect(f"reader{number}")
            reader.subscribe("r/#", qos=1 + number % 2)
            take(reader)
            reader.cut()
            world.settle()

        assert world.broker.state.held_bytes <= MIB
        assert world.broker.statistics.drops["memory_full"] > 0
        again = world.connect("reader7")
        assert not any(packet.packet_id == 0 for packet in again.acknowledge_all())


def test_the_absent_session_with_the_longest_queue_loses_its_newest_messages_first() -> None:
    tables: dict[str, Any] = {"limits": {"held_bytes_max": MIB}, "session": {"queue_qos0": True}, "history": {"topics": []}}
    with World(**tables) as world:
        for name in ("much", "little"):
            client = world.connect(name)
            client.subscribe(name, qos=0)
            client.cut()
        sender = world.connect("sender", expiry=0)

        for number in range(14):
            sender.publish("much", large(number), 0)
        sender.publish("little", b"00", 0)
        for number in range(14, 40):
            sender.publish("much", large(number), 0)
        sender.publish("little", b"01", 0)

        assert world.broker.state.held_bytes <= MIB
        lost = world.broker.statistics.drops["memory_full"]
        assert lost == world.broker.state.counters.dropped_memory_full > 0
        assert numbers(world.connect("little").acknowledge_all()) == [0, 1]
        kept = numbers(world.connect("much").acknowledge_all())
        assert kept == list(range(len(kept)))
        assert len(kept) + lost == 40


def test_one_session_with_a_long_queue_does_not_keep_others_from_having_one() -> None:
    tables: dict[str, Any] = {"limits": {"held_bytes_max": 4 * MIB}, "session": {"queue_qos0": True}, "history": {"topics": []}}
    with World(**tables) as world:
        for name in ("first", "second", "third"):
            client = world.connect(name)
            client.subscribe(name, qos=0)
            client.cut()
        sender = world.connect("sender", expiry=0)

        for name in ("first", "second", "third"):
            for number in range(80):
                sender.publish(name, large(number), 0)

        sizes = [world.broker.sessions.get(name).flow.queue_messages() for name in ("first", "second", "third")]  # type: ignore[union-attr]
        assert min(sizes) >= 8
        assert sum(sizes) <= 64


def test_returned_messages_of_a_shared_group_without_members_are_not_in_memory(world: World) -> None:
    sender = world.connect("sender", expiry=0)
    member = world.connect("member")
    member.subscribe("$share/g/t", qos=1)
    before = message_bytes()
    for number in range(20):
        sender.publish("t", large(number))
    assert numbers(take(member)) == list(range(20))

    member.cut()
    world.settle()

    assert message_bytes() - before < LARGE
    assert numbers(world.connect("member").acknowledge_all()) == list(range(20))


def test_leases_that_left_memory_go_to_another_member_when_theirs_is_gone() -> None:
    with World(limits={"held_bytes_max": MIB}) as world:
        sender = world.connect("sender", expiry=0)
        slow = world.connect("slow")
        slow.subscribe("$share/g/t", qos=1)
        for number in range(40):
            sender.publish("t", large(number))
        first = take(slow)
        assert world.broker.holdings.let_go > 0
        assert first[0].packet_id is not None
        slow.send(Puback(first[0].packet_id))
        other = world.connect("other")
        other.subscribe("$share/g/t", qos=1)

        slow.cut()

        assert sorted(set(numbers(other.acknowledge_all()))) == list(range(1, 40))


class Redacted(Hook):
    """Shows nobody more than the first two bytes."""

    def deliver(self, message: Message, client_id: str) -> Message:
        return Message(message.topic, message.payload[:2], message.qos, message.retain, message.publisher)


@pytest.mark.parametrize("crashes", [False, True])
def test_records_that_are_read_again_pass_the_hooks_again(world: World, crashes: bool) -> None:
    reader = world.connect("reader")
    reader.subscribe("t", qos=1)
    for number in range(3):
        world.connect("sender").publish("t", large(number))
    world.broker.hooks.add(Redacted())
    assert numbers(take(reader)) == [0, 1, 2]
    reader.cut()
    world.settle()
    assert world.broker.holdings.let_go == 3
    if crashes:
        world.crash()
        world.broker.hooks.add(Redacted())

    assert payloads(world.connect("reader").acknowledge_all()) == [b"00", b"01", b"02"]


def test_an_acknowledgement_of_what_was_not_sent_again_yet_settles_it(world: World) -> None:
    reader = world.connect("reader")
    reader.subscribe("t", qos=1)
    for number in range(4):
        world.connect("sender").publish("t", large(number))
    first = take(reader)
    reader.cut()
    world.settle()

    back = world.connect("reader", receive_maximum=1)
    assert first[3].packet_id is not None
    back.send(Puback(first[3].packet_id))

    assert numbers(back.acknowledge_all()) == [0, 1, 2]


def test_only_a_bounded_number_of_stalled_clients_keep_records_read_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "IDLE_MAX", 3)
    with World() as world:
        names = [f"reader{number}" for number in range(8)]
        for name in names:
            world.connect(name).subscribe("t", qos=1)
        for number in range(10):
            world.connect("sender").publish("t", b"%02d" % number)
        for name in names:
            world.connect(name).cut()

        readers = [world.connect(name, receive_maximum=1) for name in names]
        world.settle()

        sessions = [world.broker.sessions.get(name) for name in names]
        assert sum(session is not None and session.catch_up is not None for session in sessions) <= 3
        assert [numbers(reader.acknowledge_all()) for reader in readers] == [list(range(10))] * 8
        for reader in readers:
            reader.cut()
        assert len(world.broker.idle_readers) == 0


def test_rows_that_wait_for_a_full_disk_take_a_bounded_number_of_bytes(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(persistence, "_REFUSED_BYTES_MAX", 10 * KIB)
    sender = world.connect("sender", expiry=0)
    world.fill_disk()

    for number in range(20):
        sender.publish(f"r/{number:02}", b"%02d" % number + bytes(998), 0, retain=True)
    world.free_disk()
    world.tick(2)

    assert "discarded rows that could not be written" in caplog.text
    stored = sorted(each.message.payload[:2] for each in world.broker.turn_writer.storage.retained.load())
    assert stored == [b"%02d" % number for number in range(len(stored))]
    assert 5 <= len(stored) <= 10
    sender.publish("r/99", b"99", retain=True)
    assert len(list(world.broker.turn_writer.storage.retained.load())) == len(stored) + 1
