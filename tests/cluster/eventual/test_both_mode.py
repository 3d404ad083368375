"""Nodes in the mode "both": they decide as linear ones, and write the bag."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.mqtt.packets import Disconnect
from braidmq.mqtt.reasons import Reason
from tests.support.simulator.many_cores import ManyCores, SimNode


@pytest.fixture
def cluster() -> Iterator[ManyCores]:
    with ManyCores(registry={"mode": "both"}) as cluster:
        yield cluster


def named(node: SimNode, client_id: str) -> list[str]:
    """The other nodes that this one finds in the bag."""
    assert node.link.front is not None
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
    assert one.link.front is not None
    assert two.link.front is not None
    assert not one.link.front.bag.has_other("eventual")

    two.link.front.bag.announce("eventual")
    cluster.settle()

    assert one.link.front.bag.has_other("eventual")
    assert len(two.link.front.bag) == 0, "the announcement is no client"
    for core in cluster.cores.values():
        core.home.bury(two.member)
    cluster.settle()
    assert not one.link.front.bag.has_other("eventual"), "it ends with its node"
