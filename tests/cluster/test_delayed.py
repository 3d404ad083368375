"""Delayed messages of clients of nodes: the core keeps them, and its bounds hold for all nodes together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.mqtt.packets import Puback, Publish, Pubrec
from tests.support.simulator.cluster_world import ClusterWorld
from tests.support.simulator.peer import Peer, payloads


@pytest.fixture
def world() -> Iterator[ClusterWorld]:
    with ClusterWorld(delayed={"messages_max": 2}) as world:
        yield world


def delay(sender: Peer, *numbers: int, qos: int = 1) -> list[tuple[int, int]]:
    """Send delayed messages at once; the packet ids and reasons of what they are answered with."""
    sender.send(*(Publish("$delayed/5/t", b"%d" % number, qos, packet_id=number) for number in numbers))
    return sorted((packet.packet_id, packet.reason) for packet in sender.receive() if isinstance(packet, Puback | Pubrec))


@pytest.mark.parametrize("qos", [1, 2])
def test_the_bound_counts_the_messages_of_all_nodes(world: ClusterWorld, qos: int) -> None:
    left, right = world.replicant("one").client("l"), world.replicant("two").client("r")

    assert delay(left, 1, qos=qos) == [(1, 0)]
    assert delay(right, 1, 2, qos=qos) == [(1, 0), (2, 0x97)]
    assert delay(world.client("c"), 1, qos=qos) == [(1, 0x97)]

    assert len(world.broker.delayed) == 2
    assert world.broker.statistics.drops["delayed_full"] == 2
    world.wait(5.1)
    assert delay(left, 3, qos=qos) == [(3, 0)], "what was published takes no place any more"


def test_what_the_core_refuses_is_not_published(world: ClusterWorld) -> None:
    subscriber = world.client("s", expiry=0)
    subscriber.subscribe("t")
    sender = world.replicant("one").client("l")

    assert delay(sender, 1, 2, 3, 4) == [(1, 0), (2, 0), (3, 0x97), (4, 0x97)]

    world.wait(5.1)
    assert payloads(subscriber.acknowledge_all()) == [b"1", b"2"]


def test_a_client_of_mqtt_3_is_disconnected_if_there_is_no_room(world: ClusterWorld) -> None:
    one = world.replicant("one")
    delay(one.client("l"), 1, 2)
    sender = world.open(4, node=one.broker).connect("old", clean=True)

    assert delay(sender, 1) == []

    assert sender.is_closed


def test_a_message_that_waited_for_the_core_is_counted_once(world: ClusterWorld) -> None:
    one = world.replicant("one")
    sender = one.client("l")
    one.cut()
    assert delay(sender, 1) == []

    one.connect()

    assert [packet.packet_id for packet in sender.receive() if isinstance(packet, Puback)] == [1]
    assert len(world.broker.delayed) == 1
