"""Sessions that read the log: single rules that the model does not meet, or meets too seldom."""

from __future__ import annotations

from collections.abc import Iterator
from time import time

import pytest

from braidmq.broker.reading.matcher import Matcher
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel, SubscribeOption
from braidmq.mqtt.properties import Properties
from tests.support.simulator.peer import Peer, payloads
from tests.support.simulator.world import World


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


def publish_many(publisher: Peer, topic: str, count: int, qos: int = 1) -> list[bytes]:
    numbers = [b"%d" % number for number in range(count)]
    publisher.send(*(Publish(topic, number, qos, packet_id=place) for place, number in enumerate(numbers, 1)))
    publisher.receive()
    return numbers


# In flight before a restart


@pytest.mark.parametrize("qos", [1, 2])
def test_inflight_messages_of_a_removed_filter_are_resent_after_a_restart(world: World, qos: int) -> None:
    subscriber = world.connect("s")
    subscriber.subscribe("gone", "stays", qos=qos)
    publisher = world.connect("p")
    publisher.publish("gone", b"open", qos)
    assert payloads(subscriber.receive()) == [b"open"]
    subscriber.unsubscribe("gone")
    world.tick()

    world.crash(loses_power=True)
    world.connect("p").publish("stays", b"new", qos)
    subscriber = world.connect("s")

    got = [(packet.payload, packet.packet_id, packet.dup) for packet in subscriber.receive() if isinstance(packet, Publish)]
    assert got == [(b"open", 1, True), (b"new", 2, False)]


def test_inflight_messages_are_resent_after_a_restart_without_any_filter(world: World) -> None:
    subscriber = world.connect("s")
    subscriber.subscribe("gone")
    world.connect("p").publish("gone", b"open", 2)
    assert payloads(subscriber.receive()) == [b"open"]
    subscriber.unsubscribe("gone")

    world.crash(loses_power=True)

    assert payloads(world.connect("s").acknowledge_all()) == [b"open"]


def test_more_inflight_messages_than_one_read_are_resent_in_order(world: World) -> None:
    subscriber = world.connect("s")
    subscriber.subscribe("t")
    numbers = publish_many(world.connect("p"), "t", 600)
    assert payloads(subscriber.receive()) == numbers
    world.tick()

    world.crash(loses_power=True)
    subscriber = world.connect("s")

    packets = [packet for packet in subscriber.receive() if isinstance(packet, Publish)]
    assert payloads(packets) == numbers
    assert [packet.packet_id for packet in packets] == list(range(1, 601))
    assert all(packet.dup for packet in packets)


def test_inflight_messages_survive_a_second_crash_before_recall(world: World) -> None:
    subscriber = world.connect("s")
    subscriber.subscribe("t")
    publisher = world.connect("p")
    publisher.publish("t", b"one", 1)
    publisher.publish("t", b"two", 2)
    assert payloads(subscriber.receive()) == [b"one", b"two"]

    for _ in range(3):
        world.crash(loses_power=True)
        coming = world.open()
        coming.request_connect("s")
        world.turn(2)
        world.sync()  # its rows are written, and CONNACK is on its way; nothing was read

    world.crash(loses_power=True)
    assert sorted(payloads(world.connect("s").acknowledge_all())) == [b"one", b"two"]


def test_packet_ids_stay_the_same_with_another_receive_maximum(world: World) -> None:
    subscriber = world.connect("s")
    subscriber.subscribe("t")
    publisher = world.connect("p")
    for number in range(4):
        publisher.publish("t", b"%d" % number, 2)
    assert len(subscriber.receive()) == 4

    world.crash(loses_power=True)
    subscriber = world.connect("s", receive_maximum=1)

    for number in range(4):
        (publish,) = subscriber.receive()
        assert isinstance(publish, Publish)
        assert (publish.packet_id, publish.payload, publish.dup) == (number + 1, b"%d" % number, True)
        subscriber.send(Pubrec(number + 1))
        assert subscriber.expect(Pubrel) == Pubrel(number + 1)
        subscriber.send(Pubcomp(number + 1))
    assert subscriber.receive() == []


# The backlog


@pytest.mark.parametrize("window", [1, 7, 1000])
def test_a_backlog_of_many_slices_is_delivered_once_and_in_order(world: World, window: int) -> None:
    subscriber = world.connect("s")
    subscriber.subscribe("t", qos=1)
    subscriber.disconnect()
    publisher = world.connect("p", expiry=0)
    numbers = publish_many(publisher, "t", 700)

    subscriber = world.connect("s", receive_maximum=window)
    got = payloads(subscriber.acknowledge_all())

    assert got == numbers
    assert world.broker.sessions.get("s").flow.is_following  # type: ignore[union-attr]
    publisher.publish("t", b"live")
    assert payloads(subscriber.acknowledge_all()) == [b"live"]


def test_the_clock_is_checked_after_every_fetched_record(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    subscriber = world.connect("s")
    subscriber.subscribe("t/+", "u", qos=1)
    subscriber.disconnect()
    publisher = world.connect("p", expiry=0)
    for number in range(30):
        publisher.publish(f"t/{number % 7}", b"%d" % number)
    looked_for = [0]  # records between two looks at the clock
    find = Matcher.find

    def counted_find(matcher: Matcher, shard: int, timestamp: int, topic: bytes, publisher: str) -> Subscription | None:
        looked_for[-1] += 1
        return find(matcher, shard, timestamp, topic, publisher)

    def slow_clock() -> float:
        looked_for.append(0)
        return float(sum(looked_for))  # a second for each record

    monkeypatch.setattr(Matcher, "find", counted_find)
    for module in ("catch_up", "cursor", "matcher"):
        monkeypatch.setattr(f"braidmq.broker.reading.{module}.monotonic", slow_clock)
    subscriber = world.connect("s")

    assert payloads(subscriber.acknowledge_all()) == [b"%d" % number for number in range(30)]
    assert sum(looked_for) >= 30
    assert max(looked_for) == 1


def test_messages_published_during_catch_up_are_neither_lost_nor_repeated(world: World) -> None:
    subscriber = world.connect("s")
    subscriber.subscribe("t", qos=1)
    subscriber.disconnect()
    publisher = world.connect("p", expiry=0)
    numbers = publish_many(publisher, "t", 50)

    subscriber = world.connect("s", receive_maximum=3)
    got: list[bytes] = []
    for extra in range(100):
        packets = subscriber.receive()
        got += payloads(packets)
        for packet in packets:
            assert isinstance(packet, Publish)
            assert packet.packet_id is not None
            subscriber.send(Puback(packet.packet_id))
        if extra % 5 == 0:
            numbers.append(b"late %d" % extra)
            publisher.publish("t", numbers[-1])

    assert got + payloads(subscriber.acknowledge_all()) == numbers


def test_a_message_that_expired_while_offline_is_not_delivered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    subscriber = world.connect("s")
    subscriber.subscribe("t", qos=1)
    subscriber.disconnect()
    publisher = world.connect("p", expiry=0)
    publisher.send(Publish("t", b"over", 1, packet_id=1, properties=Properties(message_expiry_interval=5)))
    publisher.send(Publish("t", b"valid", 1, packet_id=2, properties=Properties(message_expiry_interval=500)))
    assert len(publisher.receive()) == 2

    monkeypatch.setattr("braidmq.lane.path.expiry.time", lambda: time() + 100)
    subscriber = world.connect("s")

    (publish,) = subscriber.receive()
    assert isinstance(publish, Publish)
    assert publish.payload == b"valid"
    assert publish.properties.message_expiry_interval is not None
    assert 390 <= publish.properties.message_expiry_interval <= 401
    assert world.broker.state.counters.dropped_expired == 1


def test_no_local_applies_to_messages_read_from_the_log(world: World) -> None:
    own = world.connect("own")
    own.subscribe(SubscribeOption("t", 1, no_local=True))
    own.send(Publish("t", b"own", 1, packet_id=1))
    own.receive()
    own.disconnect()
    world.connect("p", expiry=0).publish("t", b"other")

    assert payloads(world.connect("own").acknowledge_all()) == [b"other"]


def test_a_session_without_subscriptions_reads_nothing_and_is_live(world: World) -> None:
    subscriber = world.connect("s")
    subscriber.disconnect()
    world.connect("p", expiry=0).publish("t", b"m")

    subscriber = world.connect("s")

    session = world.broker.sessions.get("s")
    assert session is not None
    assert session.flow.is_following
    subscriber.subscribe("t")
    assert subscriber.receive() == []


def test_two_matching_filters_deliver_one_copy_with_the_higher_qos(world: World) -> None:
    subscriber = world.connect("s")
    subscriber.subscribe("t/+", qos=1)
    subscriber.subscribe("t/1", qos=2)
    subscriber.disconnect()
    world.connect("p", expiry=0).publish("t/1", b"m", 2)

    (publish,) = world.connect("s").acknowledge_all()

    assert publish.qos == 2
