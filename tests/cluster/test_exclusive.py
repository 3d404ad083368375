"""Exclusive topics over several nodes: one client has a topic, wherever it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.mqtt.packets import Suback, Subscribe, SubscribeOption
from tests.support.simulator.cluster_world import ClusterWorld, Replicant
from tests.support.simulator.peer import Peer, payloads

TOPIC = "$exclusive/t"


@pytest.fixture
def world() -> Iterator[ClusterWorld]:
    with ClusterWorld() as world:
        yield world


def asks(client: Peer, *filters: str) -> list[int]:
    """SUBSCRIBE; the reason codes of SUBACK."""
    client.send(Subscribe(77, [SubscribeOption(each, 1) for each in filters]))
    return list(client.expect(Suback).reasons)


@pytest.mark.parametrize(("owner", "others"), [("one", ["one", "two", "core"]), ("core", ["one", "two"])])
@pytest.mark.parametrize("expiry", [0, 1000], ids=["memory", "durable"])
def test_a_topic_that_a_client_of_any_node_has_is_refused_everywhere(
    world: ClusterWorld, owner: str, others: list[str], expiry: int
) -> None:
    places: dict[str, Replicant | ClusterWorld] = {
        "one": world.replicant("one"),
        "two": world.replicant("two"),
        "core": world,
    }
    first = places[owner].client("c", expiry=expiry)
    assert asks(first, TOPIC) == [1]

    for place in others:
        other = places[place].client(f"at {place}", expiry=0)
        assert asks(other, TOPIC, "t", "$exclusive/u") == [0x97, 1, 1]
        other.disconnect()

    assert asks(first, TOPIC) == [1], "its owner may subscribe again"
    world.client("p", expiry=0).publish("t", b"m", qos=1)
    assert payloads(first.acknowledge_all()) == [b"m"]


@pytest.mark.parametrize("how", ["unsubscribe", "disconnect", "cut", "die"])
def test_a_topic_is_free_when_its_client_has_gone(world: ClusterWorld, how: str) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    first, second = one.client("c", expiry=0), two.client("d", expiry=0)
    assert asks(first, TOPIC) == [1]
    assert asks(second, TOPIC) == [0x97]

    if how == "unsubscribe":
        first.unsubscribe(TOPIC)
    elif how == "disconnect":
        first.disconnect()
    elif how == "cut":
        first.cut()
    else:
        one.die()
    world.settle()

    assert asks(second, TOPIC) == [1]


@pytest.mark.parametrize("how", ["cut", "die"])
def test_a_durable_session_keeps_its_topic_while_its_client_is_away(world: ClusterWorld, how: str) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    first, second = one.client("c", expiry=100), two.client("d", expiry=0)
    assert asks(first, TOPIC) == [1]
    if how == "cut":
        first.cut()
    else:
        one.die()
    world.settle()
    assert asks(second, TOPIC) == [0x97]

    back = two.client("c", expiry=100)
    assert asks(second, TOPIC) == [0x97]
    assert asks(back, TOPIC) == [1]
    back.cut()
    world.settle()
    world.wait(101)

    assert asks(second, TOPIC) == [1]


def test_a_topic_that_was_granted_and_not_used_is_free_again() -> None:
    with ClusterWorld(session={"subscriptions_max": 1}) as world:
        one = world.replicant("one")
        full, other = one.client("c", expiry=0), one.client("d", expiry=0)
        full.subscribe("a")

        assert asks(full, TOPIC) == [0x97]

        assert asks(other, TOPIC) == [1]


def test_of_two_clients_that_ask_at_once_one_gets_the_topic(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    first, second = one.client("c", expiry=0), two.client("d", expiry=0)
    for client in (first, second):
        client.send(Subscribe(77, [SubscribeOption(TOPIC, 1)]))

    answers = [list(client.expect(Suback).reasons) for client in (first, second)]

    assert sorted(answers) == [[1], [0x97]]
