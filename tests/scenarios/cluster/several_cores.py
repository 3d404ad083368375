"""Several cores, their etcd, and replicants as processes, with a network that can be cut and stalled between them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from tests.scenarios.cluster.cluster import SECRET, NodeProcess
from tests.support.cutting_proxy import CuttingProxy
from tests.support.etcd import Etcd, running_etcd
from tests.support.ports import free_port


class CoresOfProcesses:
    """A context manager. All nodes reach a core through its proxy in ``lines``, and keep their ports over restarts."""

    def __init__(
        self,
        folder: Path,
        replicants: int,
        *,
        cores: int = 3,
        etcd_members: int = 1,
        serves_history: bool = False,
        **tables: Mapping[str, object],
    ) -> None:
        """``serves_history``: each core has a history service, on its port of ``history_ports``."""
        self._folder = folder
        self._etcd_members = etcd_members
        self._stack = ExitStack()
        self._replicants = replicants
        self._names = [f"core{number + 1}" for number in range(cores)]
        self.history_ports = {name: free_port() for name in self._names} if serves_history else {}
        self._shared: dict[str, object] = {"secret": SECRET, **tables.pop("cluster", {})}
        self._tables = tables
        self.etcd: Etcd
        self.cores: list[NodeProcess] = []
        self.replicants: list[NodeProcess] = []
        self.lines: dict[str, CuttingProxy] = {}

    def _make(self) -> None:
        folder = self._folder / "etcd"
        folder.mkdir()
        self.etcd = self._stack.enter_context(running_etcd(folder, count=self._etcd_members))
        for name in self._names:
            self.cores.append(self._core(name))
        for number in range(self._replicants):
            self.replicants.append(self.replicant(f"r{number + 1}"))

    def _core(self, name: str, **keys: object) -> NodeProcess:
        port = free_port()
        line = self.lines[name] = self._stack.enter_context(CuttingProxy(port))
        table: dict[str, object] = {
            **self._shared,
            "store": "etcd",
            "etcd": self.etcd.addresses,
            "initial_cores": self._names,
            "rpc_bind": f"127.0.0.1:{port}",
            "rpc_address": f"127.0.0.1:{line.port}",
            **keys,
        }
        history = f"127.0.0.1:{self.history_ports[name]}" if self.history_ports else ""
        return NodeProcess(self._folder, name, {**self._tables, "cluster": table}, free_port(), history)

    def replicant(self, name: str, folder: Path | None = None, **keys: object) -> NodeProcess:
        """Another node, not started, with its files in ``folder``; ``keys`` replaces keys of its table ``cluster``."""
        addresses = [f"127.0.0.1:{line.port}" for line in self.lines.values()]
        tables = {name: table for name, table in self._tables.items() if name != "history"}
        cluster = {**self._shared, "core_nodes": addresses, **keys}
        return NodeProcess(
            folder or self._folder, name, {**tables, "node": {"role": "replicant"}, "cluster": cluster}, free_port()
        )

    @property
    def nodes(self) -> list[NodeProcess]:
        """All nodes."""
        return [*self.cores, *self.replicants]

    def __enter__(self) -> CoresOfProcesses:
        try:
            self._make()
            for each in self.nodes:
                each.launch()
            for each in self.nodes:
                each.process.await_port()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for line in self.lines.values():
            line.go_on()
        for each in [*self.replicants, *self.cores]:
            each.close()
        self._stack.close()
