"""The cluster clock on a core and a replicant, each composed as in production (R1, R4)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from braidmq.cluster.clock.cluster_clock import ClusterClock
from braidmq.mqtt.packets import MQTT5, MQTT311, Connack, Connect, Disconnect, Publish
from tests.node.core_cluster import Cluster, in_cluster
from tests.support.clients.wire import Wire
from tests.support.joined import port_of


def test_a_replicant_knows_the_time_of_its_core_before_it_serves(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        assert cluster.core._core_side is not None
        core, replicant = cluster.core._core_side.time.clock, cluster.replicant._side.clock

        one, other = core.reading(), replicant.reading()

        assert core.is_reference
        assert not replicant.is_reference
        assert abs(one.ms - other.ms) <= one.bound_ms + other.bound_ms + 50, "and the time between the two readings"
        members = {member.name: member.clock for member in (await cluster.operations.cluster()).members}
        assert members["core1"] is not None
        assert members["r1"] is not None
        assert members["core1"].is_reference
        assert members["r1"].bound_ms is not None
        figures = cluster.replicant.cluster_figures()
        assert figures.clock_bound_s is not None
        assert figures.clock_bound_s <= 1
        assert figures.clock_reference == 0

    in_cluster(tmp_path, scenario)


@pytest.mark.parametrize(("version", "code"), [(MQTT5, 0x89), (MQTT311, 3)])
def test_a_node_that_does_not_know_the_time_refuses_clients(tmp_path: Path, version: int, code: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        side = cluster.replicant._side
        known, side.time.clock = side.time.clock, ClusterClock()

        def refused() -> int:
            with Wire("127.0.0.1", port_of(cluster.replicant), version) as wire:
                wire.send_request(client_id="b")
                return wire.receive(Connack).reason

        assert await asyncio.to_thread(refused) == code
        assert cluster.replicant.cluster_figures().clock_refused == 1

        side.time.clock = known
        await cluster.connect(cluster.replicant, "b", version=version)

    in_cluster(tmp_path, scenario)


def give_up_while_stuck(cluster: Cluster, *packets: Connect | Publish | Disconnect) -> None:
    """A client connects, says this, and leaves, all while the loop of the replicant is stuck: this runs on that loop."""
    wire = Wire("127.0.0.1", port_of(cluster.replicant))
    wire.send(*packets)
    wire.close()


def test_a_client_that_has_left_before_its_connect_was_read_takes_nothing_over(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        wire = await cluster.connect(cluster.core, "b", "t")
        granted = cluster.core.cluster_figures().claims_granted

        give_up_while_stuck(cluster, Connect("b", MQTT5))

        await cluster.connect(cluster.replicant, "z")  # behind it
        assert cluster.replicant.broker.statistics.abandoned == 1
        await asyncio.to_thread(wire.ping)
        assert cluster.core.cluster_figures().claims_granted == granted + 1

    in_cluster(tmp_path, scenario)


def test_a_client_that_publishes_without_waiting_and_leaves_is_served(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        wire = await cluster.connect(cluster.replicant, "subscriber", "t")

        give_up_while_stuck(cluster, Connect("b", MQTT5), Publish("t", b"1"), Disconnect())

        assert (await asyncio.to_thread(wire.receive_publish)).payload == b"1"

    in_cluster(tmp_path, scenario)
