"""The named schedules about sessions (S1-S3, S13): each is a row of events that once broke a promise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.mqtt.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.support.simulator.peer import Peer, payloads
from tests.support.simulator.world import World

CRASHES = [pytest.param(False, id="the process dies"), pytest.param(True, id="the machine loses power")]


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


def inflight_of(world: World, client_id: str) -> list[tuple[int, int]]:
    """Packet ids and states of what is in flight, as the rows on disk have it."""
    (stored,) = [each for each in world.broker.turn_writer.storage.sessions.load() if each.session.client_id == client_id]
    return [(each.packet_id, each.state) for each in stored.cursor.inflight]


# S1: QoS 2 from the client


@pytest.mark.parametrize("loses_power", CRASHES)
def test_s1_a_qos_2_message_resent_after_a_crash_before_pubrec_is_stored_once(world: World, loses_power: bool) -> None:
    world.connect("s").subscribe("t")
    publisher = world.connect("p")
    publisher.send(Publish("t", b"m", 2, packet_id=7))
    world.turn(2)
    assert world.is_writing
    assert publisher.take() == [], "PUBREC before the message is on disk"

    world.crash(loses_power=loses_power)
    publisher = world.connect("p")
    assert publisher.connack.session_present
    publisher.send(Publish("t", b"m", 2, dup=True, packet_id=7))
    assert publisher.expect(Pubrec).packet_id == 7
    publisher.send(Pubrel(7))
    assert publisher.expect(Pubcomp) == Pubcomp(7)

    assert payloads(world.connect("s").acknowledge_all()) == [b"m"]


@pytest.mark.parametrize("loses_power", CRASHES)
@pytest.mark.parametrize("is_told", [True, False])
def test_s1_a_released_packet_id_does_not_suppress_the_next_message(world: World, loses_power: bool, is_told: bool) -> None:
    world.connect("s").subscribe("t")
    publisher = world.connect("p")
    publisher.send(Publish("t", b"old", 2, packet_id=7))
    assert publisher.expect(Pubrec) == Pubrec(7)
    publisher.send(Pubrel(7))
    world.turn(2)
    assert world.is_writing
    assert publisher.take() == [], "PUBCOMP before the removal of the packet id is on disk"
    if is_told:
        assert publisher.expect(Pubcomp) == Pubcomp(7)

    world.crash(loses_power=loses_power)
    publisher = world.connect("p")
    if not is_told:
        publisher.send(Pubrel(7))
        assert publisher.expect(Pubcomp).packet_id == 7
    publisher.send(Publish("t", b"new", 2, packet_id=7))
    assert publisher.expect(Pubrec) == Pubrec(7)

    assert payloads(world.connect("s").acknowledge_all()) == [b"old", b"new"]


# S2: QoS 2 to the client


@pytest.mark.parametrize("loses_power", CRASHES)
def test_s2_a_qos_2_message_released_by_the_client_is_not_resent(world: World, loses_power: bool) -> None:
    subscriber = world.connect("s")
    subscriber.subscribe("t")
    world.connect("p").publish("t", b"m", 2)
    (publish,) = subscriber.receive()
    assert isinstance(publish, Publish)
    subscriber.send(Pubrec(1))
    assert subscriber.expect(Pubrel) == Pubrel(1)
    subscriber.send(Pubcomp(1))
    world.turn(2)  # nothing is written for PUBCOMP

    world.crash(loses_power=loses_power)
    subscriber = world.connect("s")

    packets = subscriber.receive()
    assert packets in ([], [Pubrel(1)]), "the client has forgotten the message and would take it for another one"
    subscriber.send(*(Pubcomp(1) for _ in packets))
    assert subscriber.receive() == []


@pytest.mark.parametrize("loses_power", CRASHES)
def test_s2_a_completed_qos_2_message_is_not_reread_below_an_inflight_qos_1_message(world: World, loses_power: bool) -> None:
    subscriber = world.connect("s")
    subscriber.subscribe("t")
    publisher = world.connect("p")
    publisher.publish("t", b"open", 1)
    publisher.publish("t", b"done", 2)
    assert [packet.packet_id for packet in subscriber.receive() if isinstance(packet, Publish)] == [1, 2]
    subscriber.send(Pubrec(2))
    assert subscriber.expect(Pubrel) == Pubrel(2)
    subscriber.send(Pubcomp(2))
    world.turn(2)

    world.crash(loses_power=loses_power)
    subscriber = world.connect("s")

    assert payloads(subscriber.acknowledge_all()) == [b"open"]


def test_s2_neither_publish_nor_pubrel_is_on_the_wire_before_it_is_on_disk(world: World) -> None:
    subscriber = world.connect("s")
    subscriber.subscribe("t")
    publisher = world.connect("p")
    publisher.send(Publish("t", b"m", 2, packet_id=1))
    world.turn(2)
    world.sync()  # the record
    world.turn(2)
    assert world.is_writing
    assert subscriber.take() == []

    world.sync()  # the packet id
    world.turn(2)
    (publish,) = subscriber.take()
    assert isinstance(publish, Publish)
    assert inflight_of(world, "s") == [(1, 0)]
    subscriber.send(Pubrec(1))
    world.turn(2)
    assert world.is_writing
    assert subscriber.take() == []

    world.sync()  # the receipt
    world.turn(2)
    assert subscriber.take() == [Pubrel(1)]
    assert inflight_of(world, "s") == [(1, 1)]


def test_s2_a_lost_pubrec_row_resends_the_same_message_with_the_same_packet_id(world: World) -> None:
    subscriber = world.connect("s")
    subscriber.subscribe("t")
    world.connect("p").publish("t", b"m", 2)
    assert len(subscriber.receive()) == 1
    subscriber.send(Pubrec(1))
    world.turn(2)
    assert subscriber.take() == []

    world.crash(loses_power=True)
    subscriber = world.connect("s")

    (publish,) = subscriber.receive()
    assert isinstance(publish, Publish)
    assert (publish.payload, publish.dup, publish.packet_id) == (b"m", True, 1)


@pytest.mark.parametrize("loses_power", CRASHES)
def test_s2_the_packet_id_of_a_retained_message_is_not_reused_after_a_crash(world: World, loses_power: bool) -> None:
    world.connect("p").publish("kept", b"retained", 2, retain=True)
    subscriber = world.connect("s")
    (publish,) = [*subscriber.subscribe("#"), *subscriber.receive()]
    assert isinstance(publish, Publish)

    world.crash(loses_power=loses_power)
    world.connect("p").publish("live", b"m", 2)
    subscriber = world.connect("s")

    first, second = [packet for packet in subscriber.receive() if isinstance(packet, Publish)]
    assert (first.payload, first.packet_id, first.dup, first.retain) == (b"retained", publish.packet_id, True, True)
    assert (second.payload, second.dup) == (b"m", False)
    assert second.packet_id != publish.packet_id


# S3: one cursor, many subscriptions


def fill(publisher: Peer, topic: str, *numbers: int) -> None:
    for number in numbers:
        publisher.publish(topic, b"%s %d" % (topic.encode(), number))


@pytest.mark.parametrize("crashes", [False, True])
def test_s3_a_slow_session_gets_no_messages_older_than_its_subscribe(world: World, crashes: bool) -> None:
    subscriber = world.connect("s", receive_maximum=1)
    subscriber.subscribe("a")
    publisher = world.connect("p")
    fill(publisher, "a", 1, 2)
    fill(publisher, "c", 1, 2)

    before: list[Packet] = subscriber.subscribe("c")
    fill(publisher, "c", 3)
    fill(publisher, "a", 3)
    assert payloads(before) == [b"a 1"], "more than the client takes at once"
    if crashes:
        world.crash(loses_power=True)
        subscriber = world.connect("s", receive_maximum=1)
        assert payloads(subscriber.take()) == [b"a 1"]
    subscriber.send(Puback(1))

    assert payloads(subscriber.acknowledge_all()) == [b"a 2", b"c 3", b"a 3"]


@pytest.mark.parametrize("crashes", [False, True])
def test_s3_a_replaying_subscription_does_not_rewind_the_others(world: World, crashes: bool) -> None:
    subscriber = world.connect("s")
    subscriber.subscribe("a", qos=1)
    publisher = world.connect("p")
    fill(publisher, "a", 1, 2)
    fill(publisher, "b", 1, 2)
    assert payloads(subscriber.acknowledge_all()) == [b"a 1", b"a 2"]
    world.tick()

    packets: list[Packet] = subscriber.subscribe("b", qos=1, user_properties=(("stream-offset", "earliest"),))
    if crashes:
        world.crash(loses_power=True)
        packets = []
        subscriber = world.connect("s")
    got = payloads(packets) + payloads(subscriber.acknowledge_all())

    assert got == [b"b 1", b"b 2"]
    fill(world.connect("p"), "b", 3)
    assert payloads(subscriber.acknowledge_all()) == [b"b 3"]


# S13: idle sessions


def test_s13_an_idle_connected_session_stores_its_position_once_a_minute(world: World) -> None:
    world.connect("idle").subscribe("never")
    fill(world.connect("p"), "t", *range(20))
    marks = tuple(world.broker.state.marks)

    world.tick(2 * 120)

    (stored,) = [each for each in world.broker.turn_writer.storage.sessions.load() if each.session.client_id == "idle"]
    assert stored.cursor.positions == marks
    world.crash(loses_power=True)
    session = world.broker.sessions.get("idle")
    assert session is not None
    assert session.flow.cursor() == list(marks)


def test_s13_a_session_stores_its_position_on_disconnect(world: World) -> None:
    idle = world.connect("idle")
    idle.subscribe("never")
    fill(world.connect("p"), "t", *range(20))
    marks = list(world.broker.state.marks)

    idle.cut()
    world.settle()
    world.crash(loses_power=True)

    session = world.broker.sessions.get("idle")
    assert session is not None
    assert session.flow.cursor() == marks


def test_s13_a_step_of_qos_2_writes_the_cursor_and_no_filter(world: World) -> None:
    subscriber = world.connect("s")
    subscriber.subscribe(*(f"t/{number}" for number in range(100)))
    session = world.broker.sessions.get("s")
    assert session is not None

    assert len(world.broker.session_storage.cursor_changes(session)) == 1
