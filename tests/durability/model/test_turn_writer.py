"""When cursors and rows are written that nobody waits for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.mqtt.packets import Disconnect, Puback, Publish
from braidmq.mqtt.properties import Properties
from tests.support.simulator.peer import Peer, payloads
from tests.support.simulator.world import World


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


def in_flight(world: World) -> dict[str, int]:
    """How much of each session is in flight, by what is on disk."""
    return {each.session.client_id: len(each.cursor.inflight) for each in world.broker.turn_writer.storage.sessions.load()}


def subscribers(world: World, count: int) -> list[Peer]:
    made = [world.connect(f"s{number}") for number in range(count)]
    for each in made:
        each.subscribe("t", qos=1)
    return made


def test_a_qos_1_delivery_is_stored_at_the_next_tick_and_not_before(world: World) -> None:
    (subscriber,) = subscribers(world, 1)

    world.connect("p", expiry=0).publish("t", b"m")
    assert payloads(subscriber.receive()) == [b"m"]
    assert in_flight(world) == {"s0": 0}
    world.tick()
    assert in_flight(world) == {"s0": 1}

    subscriber.send(Puback(1))
    world.settle()
    assert in_flight(world) == {"s0": 1}
    world.tick()
    assert in_flight(world) == {"s0": 0}


def test_a_tick_writes_a_bounded_number_of_cursors_and_later_ones_the_rest(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidmq.broker.session.cursors._CURSORS_PER_TICK", 2)
    subscribers(world, 5)
    world.tick(5)
    world.connect("p", expiry=0).publish("t", b"m")

    written: list[int] = []
    for _ in range(4):
        world.tick()
        written.append(sum(in_flight(world).values()))

    assert written == [2, 4, 5, 5]


def test_a_pending_cursor_does_not_recreate_an_ended_session(world: World) -> None:
    (subscriber,) = subscribers(world, 1)
    world.connect("p", expiry=0).publish("t", b"m")
    subscriber.send(Disconnect(0, Properties(session_expiry_interval=0)))
    world.settle()

    world.tick(3)

    assert in_flight(world) == {}


def test_a_new_session_of_the_same_client_id_inherits_nothing(world: World) -> None:
    (subscriber,) = subscribers(world, 1)
    world.connect("p", expiry=0).publish("t", b"m")
    assert payloads(subscriber.receive()) == [b"m"]

    world.connect("s0", clean=True)
    world.tick(3)

    assert in_flight(world) == {"s0": 0}
    world.crash(loses_power=True)
    assert world.connect("s0").receive() == []


def test_a_stopping_node_writes_all_pending_cursors(world: World) -> None:
    (subscriber,) = subscribers(world, 1)
    publisher = world.connect("p", expiry=0)
    publisher.publish("t", b"answered")
    publisher.publish("t", b"open")
    assert payloads(subscriber.receive()) == [b"answered", b"open"]
    subscriber.send(Puback(1))

    world.restart()

    (publish,) = world.connect("s0").receive()
    assert isinstance(publish, Publish)
    assert (publish.payload, publish.packet_id, publish.dup) == (b"open", 2, True)
