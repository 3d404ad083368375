"""Producers on several nodes: their home counts their messages and knows their keys, wherever they are connected."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.mqtt.packets import Connack, Disconnect, Puback, Publish
from braidmq.mqtt.reasons import Reason
from tests.support.simulator.cluster_world import ClusterWorld, Replicant
from tests.support.simulator.peer import Peer
from tests.support.simulator.producers import answers, connect, publishes, recorded, request, sequence, told

NAME = "keys"
BATCH = 1 << 32


@pytest.fixture
def world() -> Iterator[ClusterWorld]:
    with ClusterWorld() as world:
        yield world


def join(world: ClusterWorld, place: Replicant | None, client_id: str = "p", base: int = 0, **more: str) -> Peer:
    """A producer that is connected to a replicant; None: to the core."""
    return connect(world, client_id, base, node=None if place is None else place.broker, **more)


def keyed(world: ClusterWorld, place: Replicant | None, stem: str, batch: int = 1, **more: str) -> Peer:
    """A producer with keys, whose client id begins with ``stem``."""
    shard_of = world.log.shard_of
    client_id = next(f"{stem}{number}" for number in range(100) if shard_of(f"{stem}{number}") == shard_of(NAME))
    return join(world, place, client_id, batch * BATCH, producer_keys=NAME, **more)


@pytest.mark.parametrize("places", ["one two", "one core", "core one"])
def test_messages_on_their_way_are_counted_when_a_producer_moves_to_another_node(world: ClusterWorld, places: str) -> None:
    nodes: dict[str, Replicant | None] = {"one": world.replicant("one"), "two": world.replicant("two"), "core": None}
    before, after = (nodes[name] for name in places.split())
    old = join(world, before)
    old.send(*publishes([b"1", b"2", b"3"]))
    world.turn()

    new = join(world, after)

    assert sequence(new) == 3
    assert "producer-check" in told(new)
    new.send(*publishes([b"4"]))
    assert answers(new.receive()) == [0]
    assert recorded(world) == [b"1", b"2", b"3", b"4"]


def test_a_producer_that_a_node_did_not_let_go_in_time_has_nothing_more_recorded(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    old = join(world, one)
    one.cut()
    old.send(*publishes([b"1", b"2"]))
    world.settle()
    new = world.open(node=two.broker)
    request(new, "p")
    world.settle()
    world.wait(3)
    new.connack = new.expect(Connack)
    assert sequence(new) == 0

    new.send(*publishes([b"1"]))
    one.connect()

    assert recorded(world) == [b"1"]
    assert old.is_closed


def test_a_key_that_was_recorded_through_one_node_is_known_to_all(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    left, right, own = keyed(world, one, "a"), keyed(world, two, "b"), keyed(world, None, "c")
    left.send(*publishes([b"k", b"l"], keys="kl"))
    left.receive()

    right.send(*publishes([b"l", b"m"], keys="lm"))
    found = right.receive()
    own.send(*publishes([b"m", b"n"], keys="mn"))

    assert answers(found) == [0, 0]
    assert answers(own.receive()) == [0, 0]
    assert recorded(world) == [b"k", b"l", b"m", b"n"]


def test_the_same_key_on_two_nodes_at_once_is_recorded_once_and_acknowledged_twice(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    left, right = keyed(world, one, "a"), keyed(world, two, "b")

    left.send(*publishes([b"k"], keys="k"))
    right.send(*publishes([b"k"], keys="k"))

    assert answers(left.receive()) == [0]
    assert answers(right.receive()) == [0]
    assert recorded(world) == [b"k"]


def test_a_later_batch_on_one_node_disconnects_producers_of_an_earlier_one_on_another(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    zombie = keyed(world, one, "a")

    keyed(world, two, "b", 2)

    (goodbye,) = zombie.receive()
    assert isinstance(goodbye, Disconnect)
    assert goodbye.reason == Reason.SESSION_TAKEN_OVER


def test_a_later_batch_is_not_mixed_with_messages_that_come_late(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    zombie = keyed(world, one, "a")
    one.cut()
    zombie.send(*publishes([b"late"], keys="k"))
    keyed(world, two, "b", 2).send(*publishes([b"new"], keys="k"))
    world.settle()

    one.connect()

    assert recorded(world) == [b"new"]
    (goodbye,) = zombie.receive()
    assert isinstance(goodbye, Disconnect)
    assert goodbye.reason == Reason.SESSION_TAKEN_OVER


def test_the_parts_of_a_producer_are_counted_over_all_nodes(world: ClusterWorld) -> None:
    places = [world.replicant("one"), world.replicant("two"), None]

    parts = [
        told(join(world, place, f"p{part}", producer_name="n", producer_part=str(part)))["producer-parts"]
        for part, place in enumerate(places)
    ]

    assert parts == ["1", "2", "3"]


def test_nothing_is_recorded_after_a_message_that_the_home_has_rejected_while_others_were_on_their_way() -> None:
    with ClusterWorld(retained={"messages_max": 1}) as world:
        one = world.replicant("one")
        world.client("r", expiry=0).publish("full", b"r", qos=1, retain=True)
        producer = join(world, one, producer_refusals="stop")

        for number in (1, 2, 3):
            producer.send(Publish("t", b"%d" % number, 1, number == 2, packet_id=number))
            world.turn()

        acks = [packet for packet in producer.receive() if isinstance(packet, Puback)]
        assert (acks[-1].packet_id, acks[-1].reason) == (2, Reason.QUOTA_EXCEEDED)
        assert producer.is_closed
        assert recorded(world, "t") == [b"1"]
        assert sequence(join(world, one, producer_refusals="stop")) == 1


def test_a_producer_that_goes_on_uses_up_the_number_of_a_message_that_the_home_has_rejected() -> None:
    with ClusterWorld(retained={"messages_max": 1}) as world:
        one = world.replicant("one")
        world.client("r", expiry=0).publish("full", b"r", qos=1, retain=True)
        producer = join(world, one)

        for number in (1, 2, 3):
            producer.send(Publish("t", b"%d" % number, 1, number == 2, packet_id=number))
        producer.receive()

        assert recorded(world, "t") == [b"1", b"3"]
        assert sequence(join(world, one)) == 3


def test_a_message_that_is_not_recorded_is_not_counted_on_disk() -> None:
    with ClusterWorld(history={"topics": ["kept/#"]}) as world:
        one = world.replicant("one")
        world.client("s", expiry=0).subscribe("#", qos=1)
        producer = join(world, one)
        producer.send(*publishes([b"1"], topic="kept/a"), *publishes([b"2"], topic="live", first_id=2))

        assert answers(producer.receive()) == [0, 0]
        assert sequence(join(world, one)) == 1


def test_a_message_that_a_node_rejects_can_be_skipped_after_messages_that_are_not_recorded() -> None:
    with ClusterWorld(history={"topics": ["kept/#"]}, mqtt={"topic_levels_max": 3}) as world:
        one = world.replicant("one")
        producer = join(world, one, producer_refusals="stop")
        rejected = Publish("a/b/c/d/e", b"3", 1, packet_id=3)

        producer.send(*publishes([b"1", b"2"], topic="live"), rejected, *publishes([b"4"], topic="live", first_id=4))

        assert [(packet.packet_id, packet.reason) for packet in producer.receive() if isinstance(packet, Puback)] == [
            (3, Reason.TOPIC_NAME_INVALID)
        ], "the node rejects it before the core has answered"
        again = join(world, one, producer_refusals="stop", producer_skip="3")
        assert sequence(again) == 3
