"""Nodes in the mode "both" (R5): they decide as linear ones, and write the bag."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator

import pytest

from braidmq.cluster.eventual.bag import UNKNOWN
from braidmq.cluster.membership.registry_modes import BOTH, EVENTUAL
from braidmq.cluster.registry.versions import Version
from braidmq.mqtt.packets import Disconnect
from braidmq.mqtt.reasons import Reason
from tests.support.simulator.many_cores import ManyCores, SimNode


@pytest.fixture
def cluster() -> Iterator[ManyCores]:
    with ManyCores(registry={"mode": "both"}) as cluster:
        yield cluster


def named(node: SimNode, client_id: str) -> list[str]:
    """The other nodes that this one finds in the bag."""
    assert node.link.front.bag is not None
    return [entry.node for entry in node.link.front.bag.others(client_id)]


def test_the_newest_connection_wins_without_a_lock_and_the_bag_follows(cluster: ManyCores) -> None:
    one, two, three = (cluster.node(name) for name in ("one", "two", "three"))
    old = one.client("c")
    assert named(three, "c") == ["one"]

    new = two.client("c")

    assert new.connack.session_present
    assert [packet.reason for packet in old.receive() if isinstance(packet, Disconnect)] == [Reason.SESSION_TAKEN_OVER]
    assert named(three, "c") == ["two"]
    assert not any(core.home.eventual.locks.table for core in cluster.cores.values() if core.home.eventual.locks is not None)


def test_nodes_know_while_another_one_is_eventual(cluster: ManyCores) -> None:
    one, two = cluster.node("one"), cluster.node("two")
    assert one.link.front.bag is not None
    assert two.link.front.bag is not None
    assert not one.link.front.bag.has_other("eventual")

    two.link.front.bag.announce("eventual")
    cluster.settle()

    assert one.link.front.bag.has_other("eventual")
    assert len(two.link.front.bag) == 0, "the announcement is no client"
    for core in cluster.cores.values():
        core.home.bury(two.member)
    cluster.settle()
    assert not one.link.front.bag.has_other("eventual"), "it ends with its node"


def test_r21_a_node_that_changes_to_both_fills_the_bag_with_the_clients_that_it_has() -> None:
    with ManyCores() as cluster:
        one, two = cluster.node("one"), cluster.node("two")
        for number in range(1200):  # more than are written in a turn
            one.client(f"c{number}")
        for node in (one, two):
            cluster.loop.run_until_complete(node.link.fill_bag())
            node.link.front.use(BOTH)
        cluster.settle()

        assert [named(two, f"c{number}") for number in (0, 700, 1199)] == [["one"]] * 3

        two.client("c700")
        assert named(one, "c700") == ["two"]
        assert named(two, "c700") == []


def test_r21_a_node_that_changes_from_both_to_eventual_takes_locks_from_then_on(cluster: ManyCores) -> None:
    one, two = cluster.node("one"), cluster.node("two")
    old = one.client("c")
    for node in (one, two):
        node.link.front.use(EVENTUAL)
    cluster.settle()

    asked: list[str] = []
    assert two.link.front.node is not None
    lock = two.link.front.node.lock

    def note(client_id: str) -> Awaitable[int | None]:
        asked.append(client_id)
        return lock(client_id)

    two.link.front.node.lock = note  # type: ignore[method-assign,assignment]
    new = two.client("c")

    assert asked == ["c"]
    assert new.connack.session_present
    assert [packet.reason for packet in old.receive() if isinstance(packet, Disconnect)] == [Reason.SESSION_TAKEN_OVER]
    assert named(one, "c") == ["two"]


def test_r5_a_channel_that_the_home_does_not_know_is_ended_if_it_is_older(cluster: ManyCores) -> None:
    one, two = cluster.node("one"), cluster.node("two")
    two.link.front.use(EVENTUAL)
    bag = two.link.front.bag
    assert bag is not None
    newer = Version(2**60, 1, 1)
    for client_id, version in (("old", Version(1, 1, 1)), ("new", newer), ("nobody", UNKNOWN)):
        bag.add(client_id, 77, version)
    cluster.settle()
    ended: list[tuple[str, int]] = []
    assert two.link.front.node is not None
    two.link.front.node._close = lambda client_id, channel: ended.append((client_id, channel))

    for client_id in ("old", "new", "nobody"):
        assert one.client(client_id).connack.reason == 0
    cluster.settle()

    assert ended == [("old", 77), ("nobody", 77)]


def test_r5_without_eventual_nodes_nobody_is_asked_to_end_a_channel(cluster: ManyCores) -> None:
    one, two = cluster.node("one"), cluster.node("two")
    assert one.link.front.node is not None
    asked: list[str] = []
    one.link.front.node.ask_ends = lambda client_id, others: asked.append(client_id)  # type: ignore[method-assign,assignment,return-value]
    two.client("c")

    one.client("c")

    assert asked == []
    assert named(two, "c") == ["one"]
