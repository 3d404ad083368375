"""A core and its replicants as processes, each of which can be killed, paused and started again."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import tomli_w

from tests.support.clients.wire import Wire
from tests.support.ports import free_port
from tests.support.started import COMMAND, Started

SECRET = "a-secret-of-the-tests"


class NodeProcess:
    """One node: its configuration, and the process that runs it now."""

    def __init__(
        self,
        folder: Path,
        name: str,
        tables: Mapping[str, Mapping[str, object]],
        port: int = 0,
        history_bind: str = "",
        *,
        host: str = "127.0.0.1",
        within: Sequence[str] = (),
    ) -> None:
        """``port``: for its clients; 0: another one at each start. ``history_bind``: empty for no history service.

        ``within``: the command that runs it on this host.
        """
        self.name = name
        self.host = host
        self._command = [*within, *COMMAND]
        self.port = port
        self._variables = {"BRAIDMQ_HISTORY__BIND": history_bind}
        folder.mkdir(exist_ok=True)
        self._file = folder / f"{name}.toml"
        own: dict[str, object] = {
            "node": {"name": name, "data_dir": str(folder / name), **tables.get("node", {})},
            "listeners": {"tcp": {"default": {"bind": f"{host}:{port}", "allow_anonymous": True}}},
            "api": tables.get("api", {"bind": ""}),
        }
        self._file.write_text(tomli_w.dumps({**tables, **own}))
        self._started: Started | None = None

    @property
    def process(self) -> Started:
        """The process that runs."""
        assert self._started is not None, f"{self.name} does not run"
        return self._started

    def start(self) -> None:
        """Start it, and wait until it serves clients."""
        self.launch()
        self.port = self.process.await_port()

    def configure(self, key: str, value: str) -> None:
        """Set a key from the next start on, such as ``registry.mode``."""
        self._variables["BRAIDMQ_" + key.upper().replace(".", "__")] = value

    def launch(self) -> None:
        """Start it."""
        self._started = Started(self._file, self._variables, self._command)

    def kill(self) -> None:
        """kill -9."""
        self.process.send(signal.SIGKILL)
        self.process.await_end()
        self.close()

    def close(self) -> None:
        """End it if it runs."""
        if self._started is not None:
            self._started.__exit__(None, None, None)
            self._started = None

    def await_loss_of(self, *cores: str) -> None:
        """Wait until it has said, from now on, that it has lost each of these cores."""
        left = set(cores)
        while left:
            left.discard(self.process.await_line(r"the connection to core (\w+) has ended")[1])

    def client(self, client_id: str, **fields: object) -> Wire:
        """A connected client."""
        return Wire(self.host, self.port).connect(client_id, **fields)


class ClusterOfProcesses:
    """A core and replicants; a context manager.

    ``tables`` are for all of them, but ``history`` and ``api`` for the core alone. ``keeps_ports``: also over restarts.
    """

    def __init__(self, folder: Path, replicants: int, *, keeps_ports: bool = False, **tables: Mapping[str, object]) -> None:
        self.rpc = f"127.0.0.1:{free_port()}"  # a core that starts again must be found there
        self._folder = folder
        self._keeps_ports = keeps_ports
        shared = tables.pop("cluster", {})
        own: dict[str, Mapping[str, object]] = {name: tables.pop(name) for name in ("history", "api") if name in tables}
        self._tables = tables
        self._shared: dict[str, object] = {"secret": SECRET, **shared}
        self.core = NodeProcess(folder, "core", {**tables, **own, "cluster": {**self._shared, "rpc_bind": self.rpc}})
        self.replicants = [self.replicant(f"r{number + 1}") for number in range(replicants)]

    def replicant(
        self, name: str, folder: Path | None = None, *, node: Mapping[str, object] | None = None, **cluster: object
    ) -> NodeProcess:
        """Another node, not started, with its files in ``folder``; ``node`` and ``cluster`` replace keys of these tables."""
        table: dict[str, object] = {**self._shared, "core_nodes": [self.rpc], **cluster}
        tables = {**self._tables, "node": {"role": "replicant", **(node or {})}, "cluster": table}
        return NodeProcess(folder or self._folder, name, tables, free_port() if self._keeps_ports else 0)

    def __enter__(self) -> ClusterOfProcesses:
        try:
            self.core.start()
            for each in self.replicants:
                each.launch()
            for each in self.replicants:
                each.port = each.process.await_port()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for each in [*self.replicants, self.core]:
            each.close()
