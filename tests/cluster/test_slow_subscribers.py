"""Publishers on other nodes are held for a slow subscriber, as they are on one node (decision 5)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.mqtt.packets import Puback, Publish
from tests.support.simulator.cluster_world import ClusterWorld, Replicant
from tests.support.simulator.peer import Peer, payloads

QUEUE = 20
WINDOW = 5  # messages that a publisher has under way


@pytest.fixture
def world() -> Iterator[ClusterWorld]:
    with ClusterWorld(history={"topics": []}, session={"queue_messages_max": QUEUE, "queue_wait": "5s"}) as world:
        yield world


def slow_subscriber(where: Replicant | ClusterWorld, topic: str = "t") -> Peer:
    """It acknowledges nothing unless the test does."""
    subscriber = where.client("slow", expiry=0, receive_maximum=1)
    subscriber.subscribe(topic, qos=1)
    return subscriber


def publish_windows(publisher: Peer, count: int, topic: str = "t") -> list[bytes]:
    """Publish this many messages, a window at a time; their payloads."""
    for first in range(1, count + 1, WINDOW):
        publisher.send(*(Publish(topic, b"%d" % number, 1, False, False, number) for number in range(first, first + WINDOW)))
        publisher.settle()
    return [b"%d" % number for number in range(1, count + 1)]


def is_held(client: Peer) -> bool:
    """Whether its node reads nothing from it."""
    return not client.is_read


def dropped(*nodes: Replicant | ClusterWorld) -> int:
    return sum(node.broker.state.counters.dropped_queue_full for node in nodes)


@pytest.mark.parametrize("to", ["other", "same", "core"])
def test_a_publisher_waits_for_a_slow_subscriber_and_nothing_is_lost(world: ClusterWorld, to: str) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    places: dict[str, Replicant | ClusterWorld] = {"same": one, "other": two, "core": world}
    where = places[to]
    slow = slow_subscriber(where)
    publisher, bystander = one.client("p", expiry=0), one.client("b", expiry=0)

    bystander.publish("other", b"")
    for _ in range(3):  # a window after the other, each when the one before is acknowledged
        sent: list[bytes] = []
        while not is_held(publisher) and len(sent) < 2 * QUEUE:
            sent += publish_windows(publisher, WINDOW)
            assert len([packet for packet in publisher.take() if isinstance(packet, Puback)]) == WINDOW
        assert is_held(publisher)
        assert not is_held(bystander)
        assert payloads(slow.acknowledge_all()) == sent
        assert not is_held(publisher)

    assert dropped(world, one, two) == 0


def test_a_publisher_waits_for_a_bounded_time_and_once(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    slow = slow_subscriber(two)
    publisher = one.client("p", expiry=0)
    publish_windows(publisher, 40)
    world.wait(4)
    assert is_held(publisher)

    world.wait(2)

    assert not is_held(publisher)
    assert dropped(two) == 40 - QUEUE - 1, "one in flight, the queue full, the newest dropped"
    publish_windows(publisher, 10)
    assert not is_held(publisher)
    assert len(slow.acknowledge_all()) == QUEUE + 1
    publish_windows(publisher, 40)
    assert is_held(publisher), "the queue has moved, so publishers wait again"


@pytest.mark.parametrize("ends", ["subscriber", "connection", "death"])
def test_a_publisher_does_not_wait_for_a_subscriber_that_is_gone(world: ClusterWorld, ends: str) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    slow = slow_subscriber(two)
    publisher = one.client("p", expiry=0)
    publish_windows(publisher, 40)
    assert is_held(publisher)

    {"subscriber": slow.cut, "connection": two.cut, "death": two.die}[ends]()
    world.settle()

    assert not is_held(publisher)


def test_a_publisher_does_not_wait_for_a_node_that_lags(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    slow_subscriber(two)
    publisher, other = one.client("p", expiry=0), one.client("q", expiry=0)
    publish_windows(publisher, 40)
    two.messages_wire.pause_reading()

    other.send(Publish("t", b"", 1, False, False, 1))
    world.settle()
    assert is_held(publisher)
    world.wait(1.5)

    assert not is_held(publisher)


def test_clients_that_fill_each_others_queues_do_not_wait_for_each_other(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    left = one.client("left", expiry=0, receive_maximum=1)
    right = two.client("right", expiry=0, receive_maximum=1)
    left.subscribe("to/left", qos=1)
    right.subscribe("to/right", qos=1)

    for _ in range(4):
        for sender, topic in ((left, "to/right"), (right, "to/left")):
            sender.send(*(Publish(topic, b"", 1, False, False, number) for number in range(1, 1 + WINDOW)))
        world.settle()

    assert not (is_held(left) and is_held(right))


def test_a_producer_of_unheard_messages_is_not_told_to_wait(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    slow_subscriber(two)
    publisher = one.client("p", expiry=0)
    publish_windows(publisher, 5)

    publish_windows(publisher, 40, topic="nobody")

    assert not is_held(publisher)
