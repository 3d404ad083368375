"""Which connection has a client id, on a core and a replicant, each composed as in production."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from braidmq.mqtt.packets import Connack, Disconnect
from braidmq.node import Node, Replicant
from tests.node.core_cluster import Cluster, in_cluster
from tests.support.clients.wire import Wire
from tests.support.joined import port_of

TAKEN_OVER, BUSY = 0x8E, 0x89


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
