"""A core and a replicant, each composed as in production, and an operator at the core."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from braidmq.control.contract import PageRequest
from braidmq.mqtt.packets import MQTT5, Connack
from braidmq.node import Node, Replicant
from braidmq.operations import CoreOperations
from tests.support.clients.wire import Wire
from tests.support.joined import core_of, joined, port_of

ALL = PageRequest()


class Cluster:
    """A core, a replicant, and an operator at the core."""

    def __init__(self, core: Node, replicant: Replicant) -> None:
        self.core = core
        self.replicant = replicant
        self.operations = CoreOperations(core)
        self._wires: list[Wire] = []

    async def connect(self, node: Node | Replicant, client_id: str, *filters: str, expiry: int = 0, version: int = MQTT5) -> Wire:
        """A client with these subscriptions."""

        def work() -> Wire:
            wire = Wire("127.0.0.1", port_of(node), version)
            wire.connect(client_id, **({"session_expiry_interval": expiry} if version == MQTT5 else {}))
            if filters:
                wire.subscribe(*filters, qos=1)
            return wire

        wire = await asyncio.to_thread(work)
        self._wires.append(wire)
        return wire

    async def refusal(self, node: Node | Replicant, client_id: str) -> int:
        """The reason why a client is not accepted."""

        def work() -> int:
            with Wire("127.0.0.1", port_of(node)) as wire:
                wire.send_request(client_id=client_id)
                return wire.receive(Connack).reason

        return await asyncio.to_thread(work)

    def close(self) -> None:
        for wire in self._wires:
            wire.close()

    def hang(self) -> None:
        """Let the replicant not answer any more."""
        self.replicant._side.answer = self._hang

    async def _hang(self, operation: str, arguments: bytes) -> bytes:
        await asyncio.Event().wait()
        return b""


@asynccontextmanager
async def cluster_in(folder: Path, keys: dict[str, str]) -> AsyncIterator[Cluster]:
    async with core_of(folder) as core, joined(folder, core, cluster_keys=keys) as replicant:
        cluster = Cluster(core, replicant)
        assert await core.administration.wait_bans_known(20) == []
        try:
            yield cluster
        finally:
            cluster.close()


def in_cluster(folder: Path, scenario: Callable[[Cluster], Awaitable[None]], **keys: str) -> None:
    """``keys``: of the replicant's table ``cluster``."""

    async def run() -> None:
        async with cluster_in(folder, keys) as cluster:
            await scenario(cluster)

    asyncio.run(run())
