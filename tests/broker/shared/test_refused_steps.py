"""The disk rejects a write after earlier ones: the group takes back only what was rejected."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.mqtt.packets import Pubcomp, Publish, Pubrec
from tests.support.simulator.peer import Peer, payloads
from tests.support.simulator.world import World

FILTER = "$share/g/t"


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


def publish_until_assigned(world: World, publisher: Peer, *messages: bytes) -> None:
    """Messages are recorded and, as far as there is room, assigned to a member; the assignment is written and not synced."""
    publisher.send(*(Publish("t", payload, 2, packet_id=100 + place) for place, payload in enumerate(messages)))
    world.turn()
    world.sync()
    world.turn(2)
    assert world.is_writing


def test_a_written_lease_stays_with_its_member_when_a_later_step_is_rejected(world: World) -> None:
    member = world.connect("a")
    member.subscribe(FILTER)
    publisher = world.connect("p", expiry=0)
    publisher.publish("t", b"1", 2)
    assert payloads(member.receive()) == [b"1"]
    publish_until_assigned(world, publisher, b"2")

    world.fill_disk()
    member.send(Pubrec(1))
    world.turn(5)
    assert member.is_closed
    world.free_disk()
    world.open().request_connect("c")  # with whose row the member's are written again
    world.turn(5)
    world.crash()

    member = world.connect("a")
    assert b"2" in payloads(member.receive())


def test_a_written_reservation_is_sent_although_a_later_row_is_rejected(world: World) -> None:
    absent = world.connect("d")
    absent.subscribe(FILTER)
    absent.cut()
    member = world.connect("m", expiry=0, receive_maximum=2)
    member.subscribe(FILTER)
    publisher = world.connect("p", expiry=0)
    publisher.publish("t", b"1", 2)
    assert payloads(member.receive()) == [b"1"]
    publish_until_assigned(world, publisher, b"2", b"3")  # the third waits for room

    world.fill_disk()
    member.send(Pubrec(1), Pubcomp(1))
    world.turn(5)
    assert payloads(member.take()) == []

    assert payloads(member.receive()) == [b"2"]
    world.free_disk()
    world.wait(1.0)
    assert payloads(member.receive()) == [b"3"]
