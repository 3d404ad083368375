"""The settings of a core's workers, and of the core itself if it has workers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from braidmq.base.config.addresses import Address, parse_address
from braidmq.base.config.settings import Listeners, ListenerSettings, Settings

KINDS = ("tcp", "tls", "ws", "wss")


def share_of(settings: Settings, processes: int) -> Settings:
    """The settings of one of several processes that serve clients: limits on the node's rates are divided among them (C33)."""
    limits = settings.limits
    if processes <= 1 or not limits.connections_per_s:
        return settings
    divided = msgspec.structs.replace(limits, connections_per_s=limits.connections_per_s / processes)
    return msgspec.structs.replace(settings, limits=divided)


def worker_settings(
    settings: Settings, number: int, run_dir: Path, addresses: Mapping[str, tuple[str, int]], processes: int
) -> Settings:
    """The settings of a worker: it listens where its core does, and has no database, no API port and no history service.

    ``addresses``: where the core's listeners are bound, with the ports that the system chose.
    """
    node, cluster, replace = settings.node, settings.cluster, msgspec.structs.replace
    # With several cores a worker is a node of the whole cluster, and proves itself to the other cores.
    secret = cluster.secret if cluster.store == "etcd" else ""
    return replace(
        share_of(settings, processes),
        node=replace(node, name=worker_name(node.name, number), role="replicant", data_dir=str(run_dir)),
        listeners=bound_listeners(settings.listeners, addresses),
        api=replace(settings.api, bind=""),
        history=replace(settings.history, bind=""),
        cluster=replace(cluster, secret=secret, rpc_bind="", etcd_username="", etcd_password_file=""),
    )


def bound_listeners(listeners: Listeners, addresses: Mapping[str, tuple[str, int]]) -> Listeners:
    """The listeners of a node at the ports where they are bound, which the system may have chosen."""
    return type(listeners)(**{kind: _bound(kind, getattr(listeners, kind), addresses) for kind in KINDS})


def worker_name(core: str, number: int) -> str:
    """The name of a worker; no other node has a slash in its name."""
    return f"{core}/w{number}"


def _bound(
    kind: str, listeners: Mapping[str, ListenerSettings], addresses: Mapping[str, tuple[str, int]]
) -> dict[str, ListenerSettings]:
    bound: dict[str, ListenerSettings] = {}
    for name, listener in listeners.items():
        address = addresses.get(f"{kind}:{name}")
        if listener.enabled and address is not None:
            bind = str(Address(parse_address(listener.bind).host, address[1]))
            bound[name] = msgspec.structs.replace(listener, bind=bind)
    return bound
