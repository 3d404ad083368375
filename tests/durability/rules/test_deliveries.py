"""QoS 2 on its way to durable sessions: a packet id that a client may know never comes back with another message."""

from __future__ import annotations

import pytest

from braidmq.broker.messages.hooks import Hook
from braidmq.lane.path.message import Message
from braidmq.mqtt.packets import (
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeOption,
)
from braidmq.storage.format.rows import EpochLimits
from braidmq.storage.log import LogOptions
from tests.support.simulator.peer import Peer, payloads
from tests.support.simulator.world import World

MONTH_S = 30 * 86400
HOUR_US = 3_600_000_000


def sent(packets: list[Packet]) -> list[tuple[int | None, bytes, bool]]:
    """Packet id, payload and DUP of packets that must all be PUBLISH."""
    found = [(each.packet_id, each.payload, each.dup) for each in packets if isinstance(each, Publish)]
    assert len(found) == len(packets), packets
    return found


# What is not in the log


def test_a_retained_qos_2_message_goes_out_when_its_packet_id_is_on_disk() -> None:
    with World() as world:
        world.connect("p").publish("r/1", b"old", 2, retain=True)
        subscriber = world.connect("s")
        (publish,) = subscriber.subscribe("r/#")

        world.crash(loses_power=True)
        subscriber = world.connect("s")
        world.connect("p").publish("r/2", b"new", 2)

        (first, again, is_dup), (second, new, _) = sent(subscriber.receive())
        assert (first, again, is_dup) == (publish.packet_id, b"old", True)  # type: ignore[union-attr]
        assert new == b"new"
        assert second != first


def test_a_retained_qos_1_message_in_flight_is_written_down_by_the_next_tick() -> None:
    with World() as world:
        world.connect("p").publish("r/1", b"m", 1, retain=True)
        (publish,) = world.connect("s").subscribe("r/#", qos=1)
        world.tick(2)

        world.crash(loses_power=True)

        assert sent(world.connect("s").receive()) == [(publish.packet_id, b"m", True)]  # type: ignore[union-attr]


# Steps that were refused


def publish_through_window_of_one(world: World) -> Peer:
    """A durable subscriber with the first of two QoS 2 messages in flight and no room for the second."""
    subscriber = world.connect("s", receive_maximum=1)
    subscriber.subscribe("t")
    publisher = world.connect("p")
    publisher.publish("t", b"first", 2)
    publisher.publish("t", b"second", 2)
    assert payloads(subscriber.receive()) == [b"first"]
    return subscriber


def test_a_pubrel_whose_row_was_refused_follows_when_the_client_is_back() -> None:
    with World() as world:
        subscriber = publish_through_window_of_one(world)
        world.fill_disk()
        subscriber.send(Pubrec(1))
        assert [type(packet) for packet in subscriber.receive()] == [Disconnect]

        world.free_disk()
        subscriber = world.connect("s", receive_maximum=1)

        assert subscriber.receive() == [Pubrel(1)]
        subscriber.send(Pubcomp(1))
        assert payloads(subscriber.receive()) == [b"second"], "the window is short of one"


def test_a_publish_whose_packet_id_was_refused_follows_when_the_client_is_back() -> None:
    with World() as world:
        subscriber = publish_through_window_of_one(world)
        subscriber.send(Pubrec(1))
        assert subscriber.receive() == [Pubrel(1)]
        world.fill_disk()
        subscriber.send(Pubcomp(1))
        assert [type(packet) for packet in subscriber.receive()] == [Disconnect]

        world.free_disk()
        subscriber = world.connect("s", receive_maximum=1)

        assert payloads(subscriber.acknowledge_all()) == [b"second"]


# What is sent again, and in which order [MQTT-4.6.0-1]


def let_qos_1_overtake(world: World) -> Peer:
    """A durable subscriber whose window opens for a QoS 2 message, which waits for the disk, and one of QoS 1 behind it."""
    subscriber = world.connect("s", receive_maximum=2)
    subscriber.subscribe("t")
    publisher = world.connect("p")
    for payload, qos in ((b"a", 1), (b"b", 1), (b"qos 2", 2), (b"qos 1", 1)):
        publisher.publish("t", payload, qos)
    assert payloads(subscriber.receive()) == [b"a", b"b"]
    subscriber.send(Puback(1), Puback(2))
    return subscriber


def test_messages_the_client_has_seen_are_resent_before_a_publish_whose_packet_id_was_refused() -> None:
    with World() as world:
        subscriber = let_qos_1_overtake(world)
        world.fill_disk()
        overtaking, refusal = subscriber.receive()
        assert sent([overtaking]) == [(4, b"qos 1", False)]
        assert isinstance(refusal, Disconnect)

        world.free_disk()
        subscriber = world.connect("s", receive_maximum=2)

        assert sent(subscriber.receive()) == [(4, b"qos 1", True), (3, b"qos 2", False)]


@pytest.mark.parametrize("restarts", [False, True])
def test_messages_that_overtook_a_qos_2_message_are_resent_before_it(restarts: bool) -> None:
    with World() as world:
        subscriber = let_qos_1_overtake(world)
        assert sent(subscriber.receive()) == [(4, b"qos 1", False), (3, b"qos 2", False)], "nothing was overtaken"

        subscriber.cut()
        if restarts:
            world.restart()
        subscriber = world.connect("s", receive_maximum=2)

        assert sent(subscriber.receive()) == [(4, b"qos 1", True), (3, b"qos 2", True)]


# Hooks


class Shouting(Hook):
    """Gives every subscriber a message of its own making."""

    def deliver(self, message: Message, client_id: str) -> Message:
        return Message(message.topic, message.payload + b"!", message.qos, message.retain, message.publisher)


def test_a_message_changed_by_a_hook_reaches_an_absent_session_once() -> None:
    with World() as world:
        world.broker.hooks.add(Shouting())
        subscriber = world.connect("s")
        subscriber.subscribe("t")
        subscriber.disconnect()

        world.connect("p").publish("t", b"m", 2)

        assert payloads(world.connect("s").acknowledge_all()) == [b"m!"]


def test_a_record_changed_by_a_hook_is_still_that_record() -> None:
    with World() as world:
        world.broker.hooks.add(Shouting())
        subscriber = world.connect("s")
        subscriber.subscribe("t", qos=1)
        subscriber.disconnect()
        world.connect("p").publish("t", b"m")

        subscriber = world.connect("s")
        assert payloads(subscriber.receive()) == [b"m!"]

        # So memory need not hold it: it is read again, and does not count as a message that is nowhere else.
        session = world.broker.sessions.get("s")
        assert session is not None
        ((_, delivery),) = session.flow.inflight_items()
        assert delivery.place()[1] > 0
        subscriber.disconnect()
        session.flow.drop_unrecorded()
        assert session.flow.let_go_readable() == 1
        assert payloads(world.connect("s").acknowledge_all()) == [b"m!"]


@pytest.mark.parametrize("expiry", [0, 1000], ids=["memory", "durable"])
def test_a_message_changed_by_a_hook_reaches_a_replay_once_and_in_order(expiry: int) -> None:
    with World(mqtt={"inflight_max": 65535}) as world:
        world.broker.hooks.add(Shouting())
        publisher = world.connect("p")
        count = 2000  # more than is read in one go
        publisher.send(*(Publish("t", b"%d" % number, 1, packet_id=number) for number in range(1, count)))
        world.settle()
        subscriber = world.connect("s", expiry=expiry)

        subscriber.send(Subscribe(1, [SubscribeOption("$replay/earliest/t", 1)]))
        publisher.send(Publish("t", b"%d" % count, 1, packet_id=count))
        suback, *packets = subscriber.receive()

        assert isinstance(suback, Suback)
        assert payloads(packets) == [b"%d!" % number for number in range(1, count + 1)]


# After a restart


def test_pubrel_releases_the_packet_id_of_a_qos_2_message_deleted_by_retention() -> None:
    single = LogOptions(limits=EpochLimits(count_max=1), tail_bytes_max=0)
    with World(single, history={"retention": "1h"}) as world:
        subscriber = world.connect("s", expiry=MONTH_S)
        subscriber.subscribe("t")
        publisher = world.connect("p", expiry=0)
        publisher.publish("t", b"taken", 2)
        ((packet_id, *_),) = sent(subscriber.receive())
        subscriber.cut()
        world.settle()
        publisher.publish("t", b"later", 2)

        world.log.retain(max(world.log.watermarks.values()) + HOUR_US)
        world.settle()
        world.crash()
        subscriber = world.connect("s", expiry=MONTH_S)

        released, later = subscriber.receive()
        assert released == Pubrel(packet_id)  # type: ignore[arg-type]
        assert isinstance(later, Publish)
        assert later.payload == b"later"
        assert later.packet_id != packet_id
        session = world.broker.sessions.get("s")
        assert session is not None
        assert session.lost == 1


@pytest.mark.parametrize("others", [[], ["b/#"]], ids=["no other subscription", "another subscription"])
def test_a_delivery_begun_before_an_unsubscribe_is_finished_after_a_crash(others: list[str]) -> None:
    with World() as world:
        subscriber = world.connect("s")
        subscriber.subscribe("a/#", *others)
        world.connect("p").publish("a/1", b"m", 2)
        ((packet_id, *_),) = sent(subscriber.receive())
        subscriber.unsubscribe("a/#")

        world.crash(loses_power=True)
        subscriber = world.connect("s")

        assert sent(subscriber.receive()) == [(packet_id, b"m", True)]
        world.connect("p").publish("a/2", b"unwanted", 2)
        assert subscriber.receive() == []
