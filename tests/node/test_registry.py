"""Which connection has a client id, on a core and a replicant, each composed as in production."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from braidmq.cluster.home.node_calls import NodeCalls
from braidmq.cluster.registry import declaring
from braidmq.mqtt.packets import Connack, Disconnect
from braidmq.net.proto_v1_claims import Declare
from braidmq.node import Node, Replicant
from braidmq.operations.replicant import ReplicantOperations
from tests.node.core_cluster import Cluster, in_cluster
from tests.support.clients.wire import Wire
from tests.support.joined import port_of

TAKEN_OVER, BUSY, KICKED = 0x8E, 0x89, 0x98


async def open_early(cluster: Cluster, node: Node | Replicant) -> Wire:
    """A connection that says nothing yet; what connects from now on is certainly newer."""
    wire = await asyncio.to_thread(Wire, "127.0.0.1", port_of(node))
    assert cluster.core._core_side is not None
    clocks = cluster.core._core_side.time.clock, cluster.replicant._side.clock
    began = [clock.reading() for clock in clocks]
    latest = max(each.ms + each.bound_ms for each in began) + 50  # for the kernel's ticks, and what the bounds grow by meanwhile
    while (missing_ms := latest - min(clock.reading().ms - clock.reading().bound_ms for clock in clocks)) >= 0:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep((missing_ms + 1) / 1000)
    return wire


def ask(wire: Wire, client_id: str) -> int:
    wire.send_request(client_id=client_id)
    return wire.receive(Connack).reason


@pytest.mark.parametrize("places", [("core", "replicant"), ("replicant", "core"), ("replicant", "replicant"), ("core", "core")])
def test_r4_an_older_connection_that_speaks_late_does_not_end_a_newer_one(tmp_path: Path, places: tuple[str, str]) -> None:
    async def scenario(cluster: Cluster) -> None:
        older, newer = (cluster.core if place == "core" else cluster.replicant for place in places)
        late = await open_early(cluster, older)
        wire = await cluster.connect(newer, "b")

        assert await asyncio.to_thread(ask, late, "b") == BUSY

        await asyncio.to_thread(wire.ping)
        late.close()

    in_cluster(tmp_path, scenario)


@pytest.mark.parametrize("places", [("core", "replicant"), ("replicant", "core"), ("replicant", "replicant"), ("core", "core")])
def test_the_newer_connection_wins_wherever_it_is(tmp_path: Path, places: tuple[str, str]) -> None:
    async def scenario(cluster: Cluster) -> None:
        older, newer = (cluster.core if place == "core" else cluster.replicant for place in places)
        wire = await cluster.connect(older, "b")

        last = await cluster.connect(newer, "b")

        assert (await asyncio.to_thread(wire.receive, Disconnect)).reason == TAKEN_OVER
        await asyncio.to_thread(last.ping)

    in_cluster(tmp_path, scenario)


def test_every_node_names_the_channel_of_a_client_id(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.connect(cluster.core, "b")
        await cluster.connect(cluster.replicant, "b")

        for operations in (cluster.operations, ReplicantOperations(cluster.replicant)):
            found = await operations.registry_show("b")

            assert found is not None
            assert [(each.node, each.state) for each in found.channels] == [("r1", "registered")]
            assert (found.home, found.waiting) == ("core1", 0)
            stats = (await operations.registry_stats()).cores[0]
            assert (stats.clients, stats.outcomes["happy_ending"], sum(count for _, count in stats.takeovers)) == (1, 2, 1)
            assert await operations.registry_show("nobody") is None

    in_cluster(tmp_path, scenario)


def test_a_sweep_removes_what_no_node_knows_and_finds_what_the_table_lacks(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.connect(cluster.replicant, "lost")
        kept = await cluster.connect(cluster.replicant, "kept")
        home = cluster.core._home
        assert home is not None
        member = home.claims.nodes()[-1]
        channels = {entry.client_id: entry for name in ("lost", "kept") for entry, _ in home.claims.channels_of(name)}
        del home.claims._peers[member].channels[channels["kept"].channel]
        del home.claims._table["kept"]
        node_claims = cluster.replicant._side.link.registry._claims
        forgotten = node_claims._channels.pop(channels["lost"].channel)

        report = await cluster.operations.registry_sweep()

        assert [(each.is_complete, each.removed, each.found) for each in report.cores] == [(True, 1, 1)]
        await cluster.operations.registry_sweep()  # its answers are behind what the first one has asked for
        node_claims._channels[channels["lost"].channel] = forgotten
        await asyncio.to_thread(kept.ping)
        found = await cluster.operations.registry_show("kept")
        assert found is not None
        assert [each.state for each in found.channels] == ["registered"]
        left = await cluster.operations.registry_show("lost")
        assert left is not None
        assert [each.state for each in left.channels] == ["ended lately"]

    in_cluster(tmp_path, scenario)


def test_a_kick_ends_the_channel_that_is_registered(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        wire = await cluster.connect(cluster.replicant, "b", expiry=100)

        assert await cluster.operations.kick("b")

        assert (await asyncio.to_thread(wire.receive, Disconnect)).reason == KICKED
        assert await cluster.operations.client("b") is None
        assert not await cluster.operations.kick("b")
        assert cluster.replicant.broker.statistics.kicked == 1

    in_cluster(tmp_path, scenario)


def test_a_node_that_declares_in_parts_keeps_its_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declaring, "PART_BYTES", 1)

    async def scenario(cluster: Cluster) -> None:
        wires = [await cluster.connect(cluster.replicant, name) for name in ("a", "b")]
        home = cluster.core._home
        assert home is not None
        parts: list[int] = []
        take, calls = NodeCalls.declare, next(iter(home)).calls

        def declare(self: NodeCalls, message: Declare) -> None:
            parts.append(len(self._declared))
            take(self, message)

        monkeypatch.setattr(NodeCalls, "declare", declare)
        calls_of_replicant = cluster.replicant._side._reaches["core1"]._calls
        assert calls_of_replicant is not None

        calls_of_replicant.connection.abort("the test cuts it")
        last = await cluster.connect(cluster.replicant, "c")  # behind the declaration

        assert parts in ([2], [3]), "the two clients, and perhaps the claim of the third one"
        assert calls.is_connected
        for wire in (*wires, last):
            await asyncio.to_thread(wire.ping)
        await cluster.connect(cluster.core, "a")
        assert (await asyncio.to_thread(wires[0].receive, Disconnect)).reason == TAKEN_OVER

    in_cluster(tmp_path, scenario)
