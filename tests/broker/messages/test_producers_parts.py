"""Producers of one name: which batch of it is open, and how many parts came for that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from braidmq.mqtt.packets import Connack
from braidmq.mqtt.reasons import Reason
from tests.support.simulator.peer import Peer
from tests.support.simulator.producers import connect, publishes, request, told
from tests.support.simulator.world import World
from tests.support.simulator.world_through_node import WorldThroughNode

NAME = "query"


@pytest.fixture(params=[World, WorldThroughNode], ids=["one", "through"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with request.param() as world:
        yield world


def join(world: World, part: int = 0, batch: int = 1) -> Peer:
    return connect(world, f"{NAME}-{part}", batch << 32, producer_name=NAME, producer_part=str(part))


def refusal(world: World, client_id: str = "p", base: int = 1 << 32, **more: Any) -> Peer:
    peer = world.open()
    request(peer, client_id, base, **more)
    peer.connack = peer.expect(Connack)
    assert peer.connack.reason == Reason.IMPLEMENTATION_SPECIFIC_ERROR
    assert peer.connack.properties.reason_string
    return peer


@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_highest_part_of_the_open_batch_is_reported_whether_it_published_or_not(world: World, is_restarted: bool) -> None:
    assert told(join(world, 0))["producer-parts"] == "1"
    assert told(join(world, 3))["producer-parts"] == "4"
    if is_restarted:
        world.crash()

    assert told(join(world, 1))["producer-parts"] == "4"


def test_parts_that_come_at_once_are_all_counted(world: World) -> None:
    peers = [world.open() for _ in range(3)]
    for part, peer in enumerate(peers):
        request(peer, f"{NAME}-{part}", 1 << 32, producer_name=NAME, producer_part=str(part))
    world.settle()

    assert told(join(world, 0))["producer-parts"] == "3"


def test_the_next_batch_counts_its_parts_anew(world: World) -> None:
    join(world, 3, batch=1)

    assert told(join(world, 0, batch=2))["producer-parts"] == "1"


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_part_of_an_earlier_batch_is_rejected_and_learns_the_current_one(world: World, is_restarted: bool) -> None:
    join(world, 0, batch=1)
    join(world, 0, batch=7)
    if is_restarted:
        world.crash()

    peer = refusal(world, f"{NAME}-5", 6 << 32, producer_name=NAME, producer_part="5")

    assert told(peer) == {"shards": "2", "producer-sequence": str(7 << 32)}
    assert told(join(world, 0, batch=7))["producer-parts"] == "1"


def test_names_are_independent_and_sequences_belong_to_the_client_id(world: World) -> None:
    producer = join(world, 0, batch=7)
    producer.send(*publishes([b"a", b"b"]))
    producer.receive()

    other = connect(world, f"{NAME}-0", 6 << 32, producer_name="other", producer_part="0")

    assert told(other)["producer-sequence"] == str((7 << 32) + 2)
    assert told(other)["producer-parts"] == "1"


def test_a_name_may_be_given_without_a_part(world: World) -> None:
    join(world, 1)

    assert told(connect(world, "p", 1 << 32, producer_name=NAME))["producer-parts"] == "2"


@pytest.mark.parametrize(
    "more",
    [
        {"producer_name": ""},
        {"producer_name": "x" * 513},
        {"producer_name": NAME, "producer_keys": NAME},
        {"producer_part": "0"},
        {"producer_name": NAME, "producer_part": "x"},
        {"producer_name": NAME, "producer_part": "-1"},
        {"producer_name": NAME, "producer_part": str(2**31)},
    ],
)
def test_invalid_names_and_parts_are_rejected_with_a_clear_message(world: World, more: dict[str, Any]) -> None:
    refusal(world, **more)
