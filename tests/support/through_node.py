"""The tests' broker as a core and a replicant: clients connect to the replicant, everything durable happens at the core.

With ``BRAIDMQ_TEST_THROUGH=node`` in the environment, tests that use `braidmq.testing.Broker` get this one, and `Started` starts
nodes whose clients are left to a worker. What a client sees must be the same.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec

from braidmq import testing
from braidmq.base.config import sources as config
from braidmq.cluster.remote.replicant_side import CoreAddress, ReplicantSide
from braidmq.node import Node, Replicant, WorkerPlan
from braidmq.storage.log import DurableLog

VARIABLE = "BRAIDMQ_TEST_THROUGH"
WORKER_OPTIONS = ("--workers", "1", "--no-core-listeners")
SECRET = "a secret of the tests"


def is_chosen() -> bool:
    """Whether the tests are to run through a node."""
    return os.environ.get(VARIABLE) == "node"


def install() -> None:
    """Let tests that import `braidmq.testing.Broker` from now on have a broker of two nodes."""
    testing.Broker = BrokerThroughNode  # type: ignore[misc]


class BrokerThroughNode(testing.Broker):
    """A core that accepts no clients, and a replicant that does; ``node`` is the replicant."""

    core: Node | None = None

    async def _serve(self) -> None:
        assert self._folder is not None
        tables: dict[str, Any] = {
            "listeners": {"tcp": {"default": {"bind": "127.0.0.1:0"}}, "ws": {"default": {"bind": "127.0.0.1:0"}}},
            "api": {"bind": "127.0.0.1:0"},
            "sys": {"interval": 0},
            **self._tables,
        }
        tables["node"] = {"data_dir": self._folder.name, **tables.get("node", {})}
        tables["history"] = {"bind": "", **tables.get("history", {})}
        tables["cluster"] = {"rpc_bind": "127.0.0.1:0", "secret": SECRET, **tables.get("cluster", {})}
        loaded = config.from_tables(tables)
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self.core = Node(_of_core(loaded), WorkerPlan(0, core_listens=False))
        await self.core.start()
        try:
            await self._serve_clients(loaded)
        finally:
            await self.core.stop()

    async def _serve_clients(self, loaded: config.Config) -> None:
        assert self._over is not None
        assert self.core is not None
        own = _of_replicant(loaded)
        core = CoreAddress(SECRET.encode(), addresses=(str(self.core.cluster_address),))
        node = ReplicantOfTests(own, ReplicantSide(own.settings, Path(own.settings.node.data_dir), core))
        node.core = self.core
        self.node = node  # type: ignore[assignment]
        await node.start()
        self.ports = {name: port for name, (_, port) in node.addresses.items()}
        self._started.set()
        await self._over.wait()
        await node.stop()


class ReplicantOfTests(Replicant):
    """A replicant that is reloaded together with its core, as a worker is."""

    core: Node

    @property
    def log(self) -> DurableLog:
        """The log of the cluster."""
        return self.core.log

    async def reload(self, loaded: config.Config) -> list[str]:
        """Reload both; the keys that need a restart."""
        await self.core.reload(_of_core(loaded))
        return await super().reload(_of_replicant(loaded))


def _of_core(loaded: config.Config) -> config.Config:
    replace, settings = msgspec.structs.replace, loaded.settings
    own = replace(settings, node=replace(settings.node, name="core"), listeners=type(settings.listeners)(tcp={}))
    return replace(loaded, settings=own)


def _of_replicant(loaded: config.Config) -> config.Config:
    replace, settings = msgspec.structs.replace, loaded.settings
    own = replace(
        settings,
        node=replace(settings.node, role="replicant", data_dir=str(Path(settings.node.data_dir) / "replicant")),
        cluster=replace(settings.cluster, rpc_bind=""),
        history=replace(settings.history, bind=""),
    )
    return replace(loaded, settings=own)
