"""A log that cannot take what it is given: who is told what, who must send again, and how everything goes on by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.lane.path.channel_reader import HOLD_LOG
from braidmq.mqtt.packets import (
    MQTT5,
    MQTT311,
    Connack,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    SubscribeOption,
    Will,
)
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.reasons import Reason
from braidmq.storage.log import LogOptions
from tests.support.simulator.peer import Peer, payloads
from tests.support.simulator.world import World
from tests.support.stage import wait_until

FULL = Reason.QUOTA_EXCEEDED


class Frail(World):
    """A world whose disk can fail."""

    def break_disk(self) -> None:
        """What is written now may be on disk or not; returns when that is known."""
        self.disk.is_broken = True
        self.turn(3)
        wait_until(lambda: self.log.check().needs_restart, "the commit has failed")


@pytest.fixture
def world() -> Iterator[Frail]:
    with Frail() as world:
        yield world


def reasons(packets: list[Packet]) -> list[tuple[type, int]]:
    return [(type(packet), packet.reason) for packet in packets]  # type: ignore[union-attr]


# A log that refuses


@pytest.mark.parametrize(("qos", "answer"), [(1, Puback), (2, Pubrec)])
def test_mqtt_5_clients_get_a_reason_if_a_message_cannot_be_stored(world: Frail, qos: int, answer: type) -> None:
    subscriber = world.connect("s", expiry=0)
    subscriber.subscribe("t")
    publisher = world.connect("p")
    world.fill_disk()

    publisher.send(Publish("t", b"refused", qos, packet_id=7))

    assert reasons(publisher.receive()) == [(answer, FULL)]
    assert not publisher.is_closed
    assert subscriber.receive() == []
    assert world.broker.statistics.drops["not_stored"] == 1


@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_3_clients_are_closed_without_an_answer_so_that_they_resend(world: Frail, qos: int) -> None:
    world.connect("s").subscribe("t")
    publisher = world.connect("p", version=MQTT311)
    world.fill_disk()
    publisher.send(Publish("t", b"m", qos, packet_id=7))
    assert publisher.receive() == []
    assert publisher.is_closed

    world.free_disk()
    publisher = world.connect("p", version=MQTT311)
    publisher.send(Publish("t", b"m", qos, dup=True, packet_id=7))

    assert publisher.receive() == [Puback(7) if qos == 1 else Pubrec(7)]
    assert payloads(world.connect("s").acknowledge_all()) == [b"m"]


def test_a_rejected_qos_2_message_frees_its_packet_id(world: Frail) -> None:
    world.connect("s").subscribe("t")
    publisher = world.connect("p")
    world.fill_disk()
    publisher.send(Publish("t", b"refused", 2, packet_id=7))
    assert reasons(publisher.receive()) == [(Pubrec, FULL)]

    world.free_disk()
    publisher.send(Publish("t", b"stored", 2, packet_id=7))

    assert publisher.expect(Pubrec) == Pubrec(7)
    assert payloads(world.connect("s").acknowledge_all()) == [b"stored"]


def test_a_rejected_retained_message_is_not_retained(world: Frail) -> None:
    publisher = world.connect("p")
    publisher.publish("t", b"old", retain=True)
    world.fill_disk()
    publisher.send(Publish("t", b"new", 1, True, packet_id=7))
    assert reasons(publisher.receive()) == [(Puback, FULL)]

    world.free_disk()

    assert payloads(world.connect("s").subscribe("t")) == [b"old"]


def test_a_full_disk_rejects_durable_sessions_and_accepts_memory_sessions(world: Frail) -> None:
    world.fill_disk()

    durable = world.open()
    durable.request_connect("durable")

    assert reasons(durable.receive()) == [(Connack, FULL)]
    assert durable.is_closed
    world.connect("memory", expiry=0)
    world.free_disk()
    assert not world.connect("durable").connack.session_present


def test_a_subscription_that_cannot_be_stored_is_not_acknowledged(world: Frail) -> None:
    subscriber = world.connect("s")
    world.fill_disk()

    subscriber.send(Subscribe(1, [SubscribeOption("t", 1)]))

    assert reasons(subscriber.receive()) == [(Disconnect, FULL)]
    world.free_disk()
    subscriber = world.connect("s")
    assert subscriber.connack.session_present
    subscriber.subscribe("t")


def test_a_packet_id_whose_release_cannot_be_stored_is_kept(world: Frail) -> None:
    publisher = world.connect("p")
    publisher.send(Publish("t", b"m", 2, packet_id=7))
    assert publisher.expect(Pubrec).packet_id == 7
    world.fill_disk()

    publisher.send(Pubrel(7))
    assert reasons(publisher.receive()) == [(Disconnect, FULL)]

    world.free_disk()
    publisher = world.connect("p")
    publisher.send(Pubrel(7))
    assert publisher.expect(Pubcomp) == Pubcomp(7)


def test_a_delivery_step_that_cannot_be_stored_is_repeated_on_reconnect(world: Frail) -> None:
    subscriber = world.connect("s")
    subscriber.subscribe("t")
    world.connect("p").publish("t", b"m", 2)
    assert payloads(subscriber.receive()) == [b"m"]
    world.fill_disk()

    subscriber.send(Pubrec(1))
    assert reasons(subscriber.receive()) == [(Disconnect, FULL)]

    world.free_disk()
    subscriber = world.connect("s")
    packets = subscriber.receive()
    assert packets == [Pubrel(1)] or [(packet.packet_id, packet.dup) for packet in packets] == [(1, True)]  # type: ignore[union-attr]
    subscriber.send(*(Pubrec(1) for packet in packets if isinstance(packet, Publish)))
    subscriber.acknowledge_all()


def test_a_rejected_cursor_is_written_when_there_is_space(world: Frail) -> None:
    subscriber = world.connect("s")
    subscriber.subscribe("t", qos=1)
    world.connect("p").publish("t", b"m")
    assert payloads(subscriber.receive()) == [b"m"]
    world.fill_disk()
    subscriber.send(Puback(1))
    world.tick(2)

    world.free_disk()
    world.tick(2)
    world.crash(loses_power=True)

    assert world.connect("s").receive() == []


def test_a_session_that_ended_on_a_full_disk_does_not_reappear(world: Frail) -> None:
    client = world.connect("c")
    client.subscribe("t")
    world.fill_disk()
    client.send(Disconnect(0, Properties(session_expiry_interval=0)))
    world.settle()

    world.free_disk()
    world.tick(2)
    world.crash(loses_power=True)

    assert not world.connect("c").connack.session_present


def test_subscriptions_ended_by_a_rejected_clean_start_do_not_reappear(world: Frail) -> None:
    client = world.connect("c")
    client.subscribe("old")
    client.disconnect()
    world.fill_disk()
    refused = world.open()
    refused.request_connect("c", clean=True)
    assert reasons(refused.receive()) == [(Connack, FULL)]

    world.free_disk()
    world.connect("c", clean=True).subscribe("new")
    world.crash(loses_power=True)

    session = world.broker.sessions.get("c")
    assert session is not None
    assert list(session.subscriptions) == ["new"]


def test_a_will_that_cannot_be_stored_affects_nothing_else(world: Frail) -> None:
    leaving = world.connect("leaving", will=Will("w", b"gone", 1, False))
    world.fill_disk()
    leaving.cut()
    world.settle()
    world.free_disk()

    assert world.connect("leaving").connack.session_present


# A log that does not know


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
@pytest.mark.parametrize("qos", [1, 2])
def test_messages_in_doubt_are_neither_acknowledged_nor_rejected(version: int, qos: int) -> None:
    with Frail(history={"durability": "fsync"}) as world:
        publisher = world.connect("p", expiry=0, clean=True, version=version)
        subscriber = world.connect("s", expiry=0, clean=True)
        subscriber.subscribe("t")

        publisher.send(Publish("t", b"m", qos, packet_id=7))
        world.break_disk()

        packets = publisher.receive()
        assert reasons(packets) == ([(Disconnect, FULL)] if version == MQTT5 else [])
        assert publisher.is_closed
        assert subscriber.receive() == []


# A log with too much to do


def test_publishers_wait_while_the_log_is_congested_and_then_resume() -> None:
    with World(LogOptions(pending_bytes_max=20_000)) as world:
        publishers = [world.connect(f"p{number}", expiry=0) for number in range(3)]
        large = bytes(3000)

        def publish(publisher: Peer, packet_id: int) -> None:
            publisher.send(Publish("t", large, 1, packet_id=packet_id))
            world.turn(2)

        for packet_id in range(1, 7):
            publish(publishers[packet_id % 3], packet_id)
        assert world.log.is_congested
        held = [each for each in publishers if each.connection.hold_bits & HOLD_LOG]
        assert held
        assert not any(each.is_read for each in held)
        assert [packet for each in publishers for packet in each.take()] == []

        world.settle()

        assert all(each.is_read and not each.connection.hold_bits for each in publishers)
        acknowledged = [packet.packet_id for each in publishers for packet in each.take() if isinstance(packet, Puback)]
        assert sorted(acknowledged) == [1, 2, 3, 4, 5, 6]


def test_data_of_a_waiting_publisher_is_read_when_there_is_room() -> None:
    with World(LogOptions(pending_bytes_max=20_000)) as world:
        publisher = world.connect("p", expiry=0)

        publisher.send(*(Publish("t", bytes(3000), 1, packet_id=number) for number in range(1, 11)))
        packets = publisher.receive()

        answers = [(packet.packet_id, packet.reason) for packet in packets if isinstance(packet, Puback)]
        assert answers == [(number, Reason.NO_MATCHING_SUBSCRIBERS) for number in range(1, 11)]
