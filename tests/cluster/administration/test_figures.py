"""What the core's metrics and its operator see of a node that is slow, lost or dead."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.cluster.home.node_peer import OUTLET_BYTES_MAX, PeerView
from tests.support.simulator.cluster_world import ClusterWorld, Replicant


@pytest.fixture
def world() -> Iterator[ClusterWorld]:
    with ClusterWorld() as world:
        yield world


def view_of(world: ClusterWorld, node: Replicant) -> PeerView:
    peer = world.home.find(node.name)
    assert peer is not None
    return peer.view()


def hold_up(node: Replicant, size: int) -> None:
    """Let the core's connection for messages to a node have this many bytes that it has not written."""
    messages = node.core_wire
    messages.waiting_bytes = size
    peer = node.world.home.find(node.name)
    assert peer is not None
    peer.note_room()


def test_a_node_that_does_not_read_has_a_feed_that_is_behind(world: ClusterWorld) -> None:
    one = world.replicant("one")
    one.client("s", expiry=0).subscribe("a", qos=1)
    publisher = world.client("p", expiry=0)
    before = view_of(world, one)
    assert (before.is_feeding, before.is_behind, before.outlet_bytes) == (True, False, 0)

    hold_up(one, OUTLET_BYTES_MAX)
    publisher.publish("a", b"1", qos=1)
    publisher.publish("a", b"2", qos=1)

    slow = view_of(world, one)
    assert (slow.is_feeding, slow.is_behind) == (False, True)
    assert slow.feed_lag_us > 0
    assert slow.outlet_bytes == OUTLET_BYTES_MAX

    hold_up(one, 0)
    world.settle()

    after = view_of(world, one)
    assert (after.is_feeding, after.is_behind, after.feed_lag_us) == (True, False, 0)


def test_a_node_that_is_cut_off_is_not_connected_and_keeps_its_routes(world: ClusterWorld) -> None:
    one = world.replicant("one")
    one.client("s", expiry=0).subscribe("a", "b", qos=1)
    assert view_of(world, one).routes == 2

    one.cut()

    lost = view_of(world, one)
    assert (lost.is_connected, lost.is_feeding, lost.routes) == (False, False, 2)
    assert world.home.count_routes() == (0, 2)


def test_the_counters_of_a_dead_node_stay(world: ClusterWorld) -> None:
    one = world.replicant("one")
    peer = world.home.find("one")
    assert peer is not None
    peer._blocks.refused, peer._blocks.fenced = 3, 4

    one.die()

    assert (world.home.blocks_refused, world.home.entries_fenced) == (3, 4)
    assert world.home.find("one") is None


def test_subscriptions_that_the_core_keeps_for_nodes_are_counted_once(world: ClusterWorld) -> None:
    one = world.replicant("one")
    client = one.client("c", expiry=1000)
    client.subscribe("a", "b", qos=1)
    assert world.home.sessions.held_routes == 2
    assert world.broker.subscriptions.count() - world.home.sessions.held_routes == 0

    client.unsubscribe("a")
    assert world.home.sessions.held_routes == 1
    client.cut()
    world.settle()

    assert world.home.sessions.held_routes == 0
    assert world.broker.subscriptions.count() == 1
