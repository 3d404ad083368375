"""A core and its replicants, each composed as in production, in one process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from braidmq.base.config import sources
from braidmq.base.listening.sockets import PortSharing
from braidmq.cluster.remote.replicant_side import CoreAddress, ReplicantSide
from braidmq.node import Node, Replicant

SECRET = "test-secret"


@asynccontextmanager
async def core_of(folder: Path, **more: Any) -> AsyncIterator[Node]:
    """A core that replicants can join; ``more``: tables of its configuration."""
    tables = {
        "node": {"data_dir": str(folder / "core")},
        "listeners": {"tcp": {"default": {"bind": "127.0.0.1:0"}}},
        "cluster": {"rpc_bind": "127.0.0.1:0", "secret": SECRET},
        "history": {"bind": ""},
        "api": {"bind": ""},
        "sys": {"interval": 0},
        **more,
    }
    core = Node(sources.from_tables(tables).settings)
    await core.start()
    try:
        yield core
    finally:
        await core.stop()


def replicant_of(
    folder: Path,
    core: Node,
    name: str = "r1",
    *,
    port: int = 0,
    sharing: PortSharing = PortSharing.NONE,
    cluster_keys: Mapping[str, str] | None = None,
) -> Replicant:
    """A replicant of this core, not started. ``cluster_keys``: more of its table ``cluster``."""
    address = str(core.cluster_address)
    run_dir = folder / name
    run_dir.mkdir()
    tables = {
        "node": {"role": "replicant", "name": name, "data_dir": str(run_dir)},
        "listeners": {"tcp": {"default": {"bind": f"127.0.0.1:{port}"}}},
        "cluster": {"core_nodes": [address], "secret": SECRET, **(cluster_keys or {})},
        "sys": {"interval": 0},
        "api": {"bind": "127.0.0.1:0"},
    }
    config = sources.from_tables(tables)
    side = ReplicantSide(config.settings, run_dir, CoreAddress(SECRET.encode(), addresses=(address,)))
    return Replicant(config, side, sharing)


@asynccontextmanager
async def joined(folder: Path, core: Node, name: str = "r1", **more: Any) -> AsyncIterator[Replicant]:
    """A replicant of this core that serves clients."""
    node = replicant_of(folder, core, name, **more)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


def port_of(node: Node | Replicant) -> int:
    """The port of the default TCP listener."""
    return node.addresses["tcp:default"][1]
