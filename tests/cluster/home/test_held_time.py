"""A core that is alone lets nothing fall due; afterwards clients have a lease to return (C3, C15, C34)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.cluster.home.sessions.held_time import HeldTime
from braidmq.mqtt.packets import Will
from braidmq.mqtt.properties import Properties
from tests.support.simulator.peer import Peer, payloads
from tests.support.simulator.world import World

LEASE_S = 10.0


@pytest.fixture
def world() -> Iterator[World]:
    with World() as made:
        yield made


@pytest.fixture
def held(world: World) -> HeldTime:
    return HeldTime(world.broker, LEASE_S, world.loop)


@pytest.fixture
def witness(world: World) -> Peer:
    client = world.connect("witness", expiry=0)
    client.subscribe("#", qos=1)
    return client


def leave_with_a_will(world: World, delay_s: int) -> None:
    will = Will("will", b"gone", 0, False, Properties(will_delay_interval=delay_s))
    world.connect("c", expiry=100, will=will).cut()


def test_wills_wait_until_the_core_is_back_and_its_clients_had_time_to_return(
    world: World, held: HeldTime, witness: Peer
) -> None:
    leave_with_a_will(world, 5)
    held.hold()
    world.tick(40)
    held.resume()
    world.tick(18)  # nine seconds

    assert payloads(witness.receive()) == []
    world.tick(4)
    assert payloads(witness.receive()) == [b"gone"]


def test_a_client_that_returns_in_this_time_has_no_will_published(world: World, held: HeldTime, witness: Peer) -> None:
    leave_with_a_will(world, 5)
    held.hold()
    world.tick(40)
    held.resume()

    assert world.connect("c", expiry=100).connack.session_present

    world.tick(60)
    assert payloads(witness.receive()) == []


def test_sessions_end_and_delayed_messages_are_published_after_it(world: World, held: HeldTime, witness: Peer) -> None:
    world.connect("c", expiry=3).cut()
    world.connect("d", expiry=0).publish("$delayed/2/t", b"late", qos=1)
    held.hold()
    world.tick(40)
    assert payloads(witness.receive()) == []
    assert world.broker.sessions.get("c") is not None

    held.resume()
    world.tick(22)

    assert payloads(witness.receive()) == [b"late"]
    assert world.broker.sessions.get("c") is None


def test_a_core_that_is_alone_again_begins_anew(world: World, held: HeldTime, witness: Peer) -> None:
    leave_with_a_will(world, 5)
    held.hold()
    held.resume()
    world.tick(10)
    held.hold()
    world.tick(60)

    assert payloads(witness.receive()) == []
    held.resume()
    world.tick(22)
    assert payloads(witness.receive()) == [b"gone"]
