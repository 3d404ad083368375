"""Large retained messages are on disk only, and are read when they are served; all of them together have a bound in bytes."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic

import pytest

from braidmq.base.errors import Corruption
from braidmq.broker.messages import retained
from braidmq.broker.messages.retained import LEVEL_BYTES
from braidmq.broker.ports import StoredMessage
from braidmq.mqtt.packets import Puback, Publish, Suback, Subscribe, SubscribeOption
from braidmq.mqtt.properties import Properties
from tests.support.held import message_bytes
from tests.support.simulator.peer import Peer, payloads
from tests.support.simulator.world import World

KIB = 1024
LARGE = 64 * KIB


@pytest.fixture
def world() -> Iterator[World]:
    with World() as made:
        yield made


def large(number: int) -> bytes:
    return b"%02d" % number + bytes(LARGE - 2)


def answer_to(sender: Peer, topic: str, payload: bytes) -> int:
    """The reason code that a retained QoS 1 message is answered with."""
    sender.send(Publish(topic, payload, 1, True, packet_id=999))
    return sender.expect(Puback).reason


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("history", [["#"], []], ids=["recorded", "not recorded"])
def test_large_payloads_are_served_and_are_not_in_memory(qos: int, history: list[str]) -> None:
    with World(history={"topics": history}) as world:
        sender = world.connect("sender", expiry=0)
        before = message_bytes()

        for number in range(20):
            sender.publish(f"r/{number:02}", large(number), qos, retain=True)

        assert message_bytes() - before < LARGE
        store = world.broker.retained
        assert (len(store), store.payload_bytes, store.memory_bytes) == (20, 20 * LARGE, 0)
        reader = world.connect("reader", expiry=0)
        got = [*reader.subscribe("r/#", qos=1), *reader.acknowledge_all()]
        assert sorted(payloads(got)) == [large(number) for number in range(20)]
        assert all(packet.retain for packet in got if isinstance(packet, Publish))


def test_a_restart_does_not_load_large_payloads(world: World) -> None:
    for number in range(20):
        world.connect("sender").publish(f"r/{number:02}", large(number), retain=True)
    world.connect("sender").publish("small", b"small", retain=True)

    before = message_bytes()
    world.restart()

    assert message_bytes() - before < LARGE
    assert (world.broker.retained.payload_bytes, world.broker.retained.memory_bytes) == (20 * LARGE + 5, 5)
    reader = world.connect("reader")
    got = [*reader.subscribe("#", qos=1), *reader.acknowledge_all()]
    assert sorted(payloads(got)) == [*(large(number) for number in range(20)), b"small"]


def test_a_large_message_keeps_its_properties_and_its_publisher(world: World) -> None:
    properties = Properties(user_properties=(("a", "b"),), content_type="t", message_expiry_interval=100)
    sender = world.connect("sender")
    sender.send(Publish("r", bytes(LARGE), 1, True, packet_id=7, properties=properties))
    sender.expect(Puback)

    held = world.broker.retained.get(b"r")
    (got,) = world.connect("reader").subscribe("r")

    assert held is not None
    assert (held.is_on_disk, held.message.publisher, held.message.payload, held.message.properties) == (True, "sender", b"", b"")
    assert isinstance(got, Publish)
    assert (got.payload, got.retain, got.properties) == (bytes(LARGE), True, properties)


def test_a_large_message_expires_on_disk_and_in_memory(world: World) -> None:
    sender = world.connect("sender")
    properties = Properties(message_expiry_interval=1)
    sender.send(Publish("r", bytes(LARGE), 1, True, packet_id=7, properties=properties))
    sender.expect(Puback)

    world.broker.retained.expire(monotonic() + 2, 10)
    world.settle()

    assert (len(world.broker.retained), world.broker.retained.size_bytes) == (0, 0)
    assert list(world.broker.turn_writer.storage.retained.load()) == []


def test_small_messages_leave_memory_when_there_are_too_many(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained, "MEMORY_BYTES_MAX", 10_000)
    sender = world.connect("sender")

    for number in range(20):
        sender.publish(f"r/{number:02}", b"%02d" % number + bytes(998), number % 3, retain=True)

    assert world.broker.retained.memory_bytes == 10_000
    reader = world.connect("reader")
    got = [*reader.subscribe("r/#", qos=1), *reader.acknowledge_all()]
    assert sorted(each[:2] for each in payloads(got)) == [b"%02d" % number for number in range(20)]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("second", [0, 1])
@pytest.mark.parametrize("sizes", [(LARGE, 5), (5, LARGE), (LARGE, LARGE)])
def test_the_last_of_two_messages_is_retained_and_both_are_delivered_in_order(
    world: World, first: int, second: int, sizes: tuple[int, int]
) -> None:
    listener = world.connect("listener", expiry=0)
    listener.subscribe("r", qos=0)
    sender = world.connect("sender")
    one, two = b"1" * sizes[0], b"2" * sizes[1]

    sender.send(Publish("r", one, first, True, packet_id=1 if first else None))
    sender.send(Publish("r", two, second, True, packet_id=2 if second else None))
    world.settle()

    assert payloads(listener.receive()) == [one, two]
    assert payloads(world.connect("reader").subscribe("r")) == [two]
    world.crash()
    assert payloads(world.connect("reader").subscribe("r")) == [two]


def test_a_large_retained_message_without_qos_is_not_overtaken_by_the_next(world: World) -> None:
    listener = world.connect("listener", expiry=0)
    listener.subscribe("r", qos=0)

    world.connect("sender").send(Publish("r", bytes(LARGE), 0, True), Publish("r", b"next", 0, False))

    assert payloads(listener.receive()) == [bytes(LARGE), b"next"]


@pytest.mark.parametrize("payload", [b"2" * LARGE, b"2", b""], ids=["large", "small", "removed"])
def test_a_retained_message_is_not_delivered_before_it_is_on_disk(world: World, payload: bytes) -> None:
    sender, reader = world.connect("sender"), world.connect("reader", expiry=0)
    sender.publish("r", b"1" * LARGE, retain=True)
    sender.send(Publish("r", payload, 1, True, packet_id=7))
    world.turn(3)
    assert world.is_writing

    reader.send(Subscribe(1, [SubscribeOption("r", 0)]))
    world.turn(3)
    before = reader.take()
    world.settle()
    world.wait(0.1)

    assert [type(packet) for packet in before] == [Suback], "neither the old message, which is gone, nor the new one"
    after = [packet for packet in reader.receive() if isinstance(packet, Publish)]
    retained_ones = [packet.payload for packet in after if packet.retain]
    assert [packet.payload for packet in after if not packet.retain] == [payload]
    assert retained_ones == ([payload] if payload else [])


def test_a_message_that_waits_for_the_disk_holds_back_only_its_own_topic(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = world.connect("sender")
    sender.publish("r/1", b"1" * LARGE, retain=True)
    sender.publish("r/2", b"2" * LARGE, retain=True)
    waiting = {b"r/1"}
    monkeypatch.setattr(world.broker.pipeline, "is_retaining", lambda topic: topic in waiting)
    reader = world.connect("reader", expiry=0)

    assert payloads(reader.subscribe("r/#", qos=0)) == [b"2" * LARGE]

    waiting.clear()
    world.wait(0.1)
    assert payloads(reader.receive()) == [b"1" * LARGE]


def test_a_topic_that_changes_constantly_is_left_to_live_delivery(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = world.connect("sender")
    sender.publish("r", b"1" * LARGE, retain=True)
    monkeypatch.setattr(world.broker.pipeline, "is_retaining", lambda topic: True)
    reader = world.connect("reader", expiry=0)

    assert payloads(reader.subscribe("r", qos=0)) == []

    for _ in range(30):
        world.wait(0.1)
    session = world.broker.sessions.get("reader")
    assert session is not None
    assert session.feeds is None


def test_a_message_beyond_the_bound_in_bytes_is_refused_and_counted() -> None:
    with World(retained={"bytes_max": 2 * LARGE + 4 * KIB}) as world:
        sender = world.connect("sender")

        assert answer_to(sender, "r/1", large(1)) == 0x10
        assert answer_to(sender, "r/2", large(2)) == 0x10
        assert answer_to(sender, "r/3", large(3)) == 0x97
        assert answer_to(sender, "r/1", large(4)) == 0x10, "it takes the place of the one before"
        assert answer_to(sender, "r/3", b"small") == 0x10
        assert answer_to(sender, "r/2", b"") == 0x10
        assert answer_to(sender, "r/4", large(4)) == 0x10, "there is place again"
        assert world.broker.statistics.drops["retained_full"] == 1


def test_messages_on_their_way_to_the_disk_count_for_the_bound() -> None:
    with World(retained={"bytes_max": 2 * LARGE}) as world:
        sender = world.connect("sender")

        sender.send(*(Publish(f"r/{number}", large(number), 1, True, packet_id=number) for number in (1, 2, 3)))

        answers = [packet for packet in sender.receive() if isinstance(packet, Puback)]
        assert sorted((answer.packet_id, answer.reason) for answer in answers) == [(1, 0x10), (2, 0x97), (3, 0x97)]


def test_many_small_messages_reach_the_bound_by_their_overhead() -> None:
    with World(retained={"bytes_max": 100 * KIB}) as world:
        sender = world.connect("sender")

        answers = [answer_to(sender, f"r/{number}", b"1") for number in range(200)]

        assert 100 <= answers.count(0x10) < 150


def test_a_message_that_could_not_be_stored_leaves_the_one_before(world: World) -> None:
    sender = world.connect("sender", expiry=0)
    sender.publish("r", large(1), retain=True)
    world.fill_disk()

    sender.publish("r", large(2), 0, retain=True)
    assert answer_to(sender, "r", large(3)) == 0x97

    assert payloads(world.connect("reader", expiry=0).subscribe("r")) == [large(1)]
    assert world.broker.statistics.drops["not_stored"] == 2
    assert world.broker.retained.reserved_bytes == 0


def test_the_counts_of_the_store_return_to_zero_with_the_messages(world: World) -> None:
    sender = world.connect("sender")
    topics = ["a/b/c", "a/b/d", "a/b", "a//", "x"]
    for size in (5, LARGE):
        for topic in topics:
            sender.publish(topic, bytes(size), retain=True)
    store = world.broker.retained
    least = 5 * LARGE + sum(map(len, topics))
    assert least < store.size_bytes < least + 5 * 500 + 7 * 320 + 1

    for topic in topics:
        sender.publish(topic, b"", retain=True)

    assert (store.size_bytes, store.memory_bytes, store.payload_bytes, store.reserved_bytes) == (0, 0, 0, 0)


def test_a_topic_with_many_levels_counts_for_what_it_takes_in_memory(world: World) -> None:
    world.connect("sender").publish("/".join("x" * 100), b"1", retain=True)

    # 16 levels have nodes of their own, and the rest has one.
    assert world.broker.retained.size_bytes > 17 * LEVEL_BYTES


@pytest.mark.parametrize("is_broken", [True, False], ids=["broken", "gone"])
def test_an_unreadable_row_is_reported_and_the_others_are_served(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_broken: bool
) -> None:
    for number in range(3):
        world.connect("sender").publish(f"r/{number}", large(number), retain=True)
    rows = world.broker.turn_writer.storage.retained
    real = rows.read

    def read(topic: bytes) -> StoredMessage | None:
        if topic != b"r/1":
            return real(topic)
        if is_broken:
            raise Corruption("the retained message of topic 'r/1' cannot be read")
        return None

    monkeypatch.setattr(rows, "read", read)
    reader = world.connect("reader", expiry=0)

    assert sorted(payloads(reader.subscribe("r/#", qos=0))) == [large(0), large(2)]
    assert "r/1" in caplog.text
    assert not reader.is_closed
