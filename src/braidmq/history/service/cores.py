"""The view that a history service serves: of its log or, with several cores, of the whole cluster's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from braidmq.base.config.addresses import Address
from braidmq.history import messages
from braidmq.history.service.node_link import NodeLink
from braidmq.history.view.core_requests import OwnShards
from braidmq.history.view.log_view import LogView
from braidmq.history.view.whole_log import WholeLog


def open_views(setup: messages.Setup, node: NodeLink, port: Callable[[], int]) -> tuple[LogView | WholeLog, OwnShards | None]:
    """The view of everything, and that of this core's own shards, if there are other cores. ``port``: of the service."""
    log_dir, scratch_dir = Path(setup.log_dir), Path(setup.scratch_dir)
    cluster = setup.cluster
    if cluster is None:
        return LogView.open(log_dir, scratch_dir), None
    scheme, host, fixed_port = "grpc+tls" if setup.tls else "grpc", cluster.host, cluster.port

    def location() -> str:
        return f"{scheme}://{Address(host, fixed_port or port())}"

    def ask(core: str, request: bytes) -> bytes:
        return node.ask(messages.AskCore(core, request), messages.CoreTold).answer

    own = OwnShards(LogView.open(log_dir, scratch_dir, led=frozenset(cluster.cores.get(cluster.core, ()))), location)
    return WholeLog(own, cluster.core, cluster.cores, ask), own
