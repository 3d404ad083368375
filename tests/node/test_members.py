"""Nodes that join and leave a cluster, as an operator lets them, on its core."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError, UsageError
from braidmq.cluster.cores import core_side
from braidmq.cluster.remote import replicant_side
from braidmq.cluster.remote.core_reach import CoreReach
from braidmq.control.cluster import DrainRequest, ShardLeader
from braidmq.mqtt.packets import Disconnect
from braidmq.net.handshake import hello
from tests.node.core_cluster import Cluster, in_cluster
from tests.support.joined import replicant_of


async def left(cluster: Cluster) -> str:
    """What ends the process of the replicant."""
    async with asyncio.timeout(20):
        return await cluster.replicant.wait_ended()


def test_a_replicant_leaves_when_its_clients_are_elsewhere(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        wire = await cluster.connect(cluster.replicant, "b")
        with pytest.raises(UsageError, match="has clients"):
            await cluster.operations.finish_leaving("r1")

        await cluster.operations.leave(DrainRequest(node="r1", rate=1000))
        assert (await asyncio.to_thread(wire.receive, Disconnect)).reason == 0x9C
        async with asyncio.timeout(20):
            await cluster.replicant.drain.wait_done()
        await cluster.operations.finish_leaving("r1")

        assert await left(cluster) == ""  # it ends, and does not come back as a new member
        assert [each.name for each in (await cluster.operations.cluster()).members] == ["core1"]

    in_cluster(tmp_path, scenario)


def test_a_core_cannot_leave_and_neither_can_a_node_that_is_not_there(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        with pytest.raises(UsageError, match="core1 is a core and leads shard 0, 1, 2, 3, which cannot move"):
            await cluster.operations.leave(DrainRequest(node="core1"))
        with pytest.raises(UsageError, match="there is no node 'r9'"):
            await cluster.operations.leave(DrainRequest(node="r9"))

        assert not cluster.replicant.drain.is_begun

    in_cluster(tmp_path, scenario)


def test_a_plan_for_joining_names_what_the_new_node_needs(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        plan = await cluster.operations.plan_joining("r2", "replicant")

        assert plan.core_nodes == [str(cluster.core.cluster_address)]
        assert (plan.name, plan.cluster, plan.needs_secret, plan.needs_certificate) == ("r2", "braid", True, False)
        for taken in ("r1", "core1"):
            with pytest.raises(UsageError, match="there is a node"):
                await cluster.operations.plan_joining(taken, "replicant")
        with pytest.raises(ConfigError, match="is not a name"):
            await cluster.operations.plan_joining("r/2", "replicant")
        with pytest.raises(UsageError, match=r"fixed \(core1\), because shards cannot move"):
            await cluster.operations.plan_joining("core2", "core")

    in_cluster(tmp_path, scenario)


def test_c35_a_cluster_uses_a_version_once_all_speak_it_and_refuses_older_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_side, "VERSION", 2)
    monkeypatch.setattr(replicant_side, "hello", partial(hello, versions=(1, 2)))

    async def scenario(cluster: Cluster) -> None:
        side = cluster.replicant._side
        told = asyncio.Event()
        on_registered = side.on_registered

        def note(reach: CoreReach, is_new: bool) -> None:
            on_registered(reach, is_new)
            if side.cluster_version == 2:
                told.set()

        side.on_registered = note  # type: ignore[method-assign]
        if side.cluster_version < 2:
            async with asyncio.timeout(20):
                await told.wait()
        assert (await cluster.operations.cluster()).version == 2
        monkeypatch.undo()

        with pytest.raises(UsageError, match=r"this node speaks version 1 .* the cluster has used version 2"):
            await replicant_of(tmp_path, cluster.core, "old").start()

    in_cluster(tmp_path, scenario)


def test_all_shards_of_a_single_core_are_its_own(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        found = await cluster.operations.shards()

        assert found == [ShardLeader(shard=shard, core="core1", state="serving", term=0) for shard in range(4)]

    in_cluster(tmp_path, scenario)
