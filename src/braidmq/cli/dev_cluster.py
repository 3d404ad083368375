"""``braidmq dev-cluster``: a cluster on this machine, for trying it out and for tests."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import click
import msgspec

from braidmq.base.config.sources import PREFIX, parse_override, to_toml
from braidmq.base.errors import UsageError
from braidmq.cli.dev_etcd import DevEtcd
from braidmq.cli.errors import EXIT_INTERRUPTED, CommandFailed
from braidmq.client.errors import EXIT_FAILED

HOST: Final = "127.0.0.1"
_READY_S: Final = 60.0
_STOP_S: Final = 15.0
_NODES_MAX: Final = 100
_CORES_MAX: Final = 9


class NodePlan(msgspec.Struct, frozen=True):
    """A node of the cluster and its ports; 0: the system chooses one. ``cluster``: None for a replicant."""

    name: str
    role: str
    mqtt: int
    api: int
    cluster: int | None


class ReadyLine(msgspec.Struct, frozen=True):
    """What ``braidmq start`` writes when a node is ready."""

    mqtt: int | None
    api: int | None
    cluster: int | None


@click.command("dev-cluster")
@click.option("--cores", default=1, show_default=True, help="Nodes that keep state.")
@click.option("--etcd", type=click.Choice(["1", "3"]), help="Members of the etcd that several cores need.  [default: 1]")
@click.option("--replicants", default=2, show_default=True, help="Nodes that only carry connections.")
@click.option("--base-port", type=click.IntRange(1, 65000), help="First of consecutive ports.  [default: free ports]")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Directory of the nodes' files.  [default: a temporary one]")
@click.option("--set", "given", metavar="KEY=VALUE", multiple=True, help="Set a configuration key on every node that has it.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON when all nodes are ready.")
def dev_cluster(
    cores: int,
    etcd: str | None,
    replicants: int,
    base_port: int | None,
    data_dir: Path | None,
    given: tuple[str, ...],
    as_json: bool,
) -> int:
    """Run a cluster on this machine. SIGTERM or Ctrl-C stops it."""
    if not 1 <= cores <= _CORES_MAX:
        raise click.UsageError(f"--cores must be from 1 to {_CORES_MAX}")
    if cores == 1 and etcd is not None:
        raise click.UsageError("--etcd belongs to several cores")
    if not 0 <= replicants <= _NODES_MAX:
        raise click.UsageError(f"--replicants must be from 0 to {_NODES_MAX}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="braidmq-"))) if data_dir is None else data_dir
        members = int(etcd or 1) if cores > 1 else 0
        plans, etcd_ports = plan_nodes(cores, replicants, members, base_port)
        store = DevEtcd(folder.absolute(), HOST, etcd_ports)
        cluster = DevCluster(folder.absolute(), plans, parse_settings(given), store)
        return asyncio.run(cluster.run(as_json))


def plan_nodes(cores: int, replicants: int, etcd: int, base_port: int | None) -> tuple[list[NodePlan], list[int]]:
    """The nodes: cores, then replicants, on consecutive ports if there is a first one; and two ports for each member of etcd."""
    ports = iter(range(base_port, 65536) if base_port else [0] * (3 * cores + 2 * replicants + 2 * etcd))
    try:
        nodes = [NodePlan(f"core{each}", "core", next(ports), next(ports), next(ports)) for each in range(1, cores + 1)]
        nodes += [NodePlan(f"replicant{each}", "replicant", next(ports), next(ports), None) for each in range(1, replicants + 1)]
        members = [next(ports) for _ in range(2 * etcd)]
    except StopIteration:
        raise UsageError(f"there are too few ports above {base_port}", "choose a lower --base-port") from None
    return nodes, members


def parse_settings(given: Sequence[str]) -> dict[str, object]:
    """The values of ``--set``, by key; raises UsageError."""
    found: dict[str, object] = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not equals:
            raise UsageError(f"{each!r} is not KEY=VALUE")
        key, value = parse_override(name.strip(), text.strip())
        found[key] = value
    return found


class DevCluster:
    """The processes of a cluster."""

    def __init__(self, folder: Path, plans: Sequence[NodePlan], given: Mapping[str, object], etcd: DevEtcd) -> None:
        self._folder = folder
        self._etcd = etcd
        self._plans = plans
        self._given = given
        self._secret = secrets.token_urlsafe(32)
        self._nodes: list[_Child] = []
        self._stopping = asyncio.Event()

    async def run(self, as_json: bool) -> int:
        """Start all nodes, report them, and stop them when told to; returns the exit status."""
        loop = asyncio.get_running_loop()
        status = 0

        def stop(number: signal.Signals) -> None:
            nonlocal status
            status = EXIT_INTERRUPTED if number is signal.SIGINT else 0
            self._stopping.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop, number)
        try:
            if await self._start():
                click.echo(self._json() if as_json else self._table())
                sys.stdout.flush()
                await self._watch()
        finally:
            await self._stop()
        return status

    async def _start(self) -> bool:
        """Start all nodes; False if the cluster is to stop meanwhile. Raises CommandFailed."""
        starting = asyncio.ensure_future(self._start_all())
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({starting, stopping}, timeout=_READY_S, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if starting.done():
            starting.result()
            return True
        starting.cancel()
        if self._stopping.is_set():
            return False
        late = ", ".join(node.plan.name for node in self._nodes if node.ready is None)
        raise CommandFailed(f"not ready within {_READY_S:g} s: {late}", EXIT_FAILED)

    async def _start_all(self) -> None:
        await self._etcd.start()
        failing = asyncio.ensure_future(self._etcd.wait_failed())
        nodes = asyncio.ensure_future(self._start_nodes())
        try:
            await asyncio.wait({failing, nodes}, return_when=asyncio.FIRST_COMPLETED)
            (nodes if nodes.done() else failing).result()
        finally:
            for task in (failing, nodes):
                task.cancel()

    async def _start_nodes(self) -> None:
        """Start the cores, then the replicants."""
        cores = [plan for plan in self._plans if plan.role == "core"]
        several: dict[str, object] = {}
        if len(cores) > 1:
            names = [plan.name for plan in cores]
            several = {"cluster.store": "etcd", "cluster.etcd": self._etcd.addresses, "cluster.initial_cores": names}
        ready = await asyncio.gather(*(self._start_node(plan, several) for plan in cores))
        more = {"cluster.core_nodes": [f"{HOST}:{each.cluster}" for each in ready]}
        await asyncio.gather(*(self._start_node(plan, more) for plan in self._plans if plan.role != "core"))

    async def _start_node(self, plan: NodePlan, more: Mapping[str, object]) -> ReadyLine:
        file = await asyncio.to_thread(self._write_config, plan, more)
        node = _Child(plan)
        self._nodes.append(node)
        return await node.start(file)

    def _write_config(self, plan: NodePlan, more: Mapping[str, object]) -> Path:
        folder = self._folder / plan.name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_core = plan.role == "core"
        given = {key: value for key, value in self._given.items() if is_core or not key.startswith("history.")}
        values: dict[str, object] = {
            "node.name": plan.name,
            "node.role": plan.role,
            "node.data_dir": str(folder / "data"),
            "listeners.tcp.default.bind": f"{HOST}:{plan.mqtt}",
            "api.bind": f"{HOST}:{plan.api}",
            "cluster.secret": self._secret,
            **({"cluster.rpc_bind": f"{HOST}:{plan.cluster}", "history.bind": ""} if is_core else {}),
            **more,
            **given,
        }
        file = folder / "braidmq.toml"
        file.unlink(missing_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
            out.write(to_toml(values))
        return file

    async def _watch(self) -> None:
        """Report nodes that end, until the cluster is to stop or no node is left."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        waiting = {asyncio.ensure_future(node.wait()): node for node in self._nodes}
        while waiting and not stopping.done():
            done, _ = await asyncio.wait({stopping, *waiting}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                node = waiting.pop(task)
                if not self._stopping.is_set():
                    click.echo(f"{node.plan.name} ended with status {task.result()}", err=True)
        for task in (stopping, *waiting):
            task.cancel()
        if not self._stopping.is_set():
            raise CommandFailed("all nodes have ended", EXIT_FAILED)

    async def _stop(self) -> None:
        """Stop the replicants, then the cores, which take what their clients leave behind, then etcd."""
        for role in ("replicant", "core"):
            await asyncio.gather(*(node.stop() for node in self._nodes if node.plan.role == role))
        await self._etcd.stop()

    def _json(self) -> str:
        return json.dumps({"nodes": [node.shown() for node in self._nodes], "etcd": self._etcd.shown()})

    def _table(self) -> str:
        rows: list[tuple[str, ...]] = [("name", "role", "pid", "mqtt", "api", "cluster")]
        rows += [tuple("-" if value is None else str(value) for value in node.shown().values()) for node in self._nodes]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, f"All ports are on {HOST}. Files: {self._folder}. Ctrl-C stops the cluster."])


class _Child:
    """The process of a node."""

    def __init__(self, plan: NodePlan) -> None:
        self.plan = plan
        self.ready: ReadyLine | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, file: Path) -> ReadyLine:
        """Start the process and wait for its line. Raises CommandFailed."""
        read_end, write_end = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "braidmq", "start", "-c", str(file)),
                *("--ready-fd", str(write_end), "--child-of", str(os.getpid())),
                pass_fds=(write_end,),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if not (name.startswith(PREFIX) and "__" in name)},
                start_new_session=True,  # Ctrl-C is for this process, which stops the nodes in order
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        line = await _read_line(read_end)
        if not line:
            raise CommandFailed(f"{self.plan.name} ended with status {await self._process.wait()}", EXIT_FAILED)
        self.ready = msgspec.json.decode(line, type=ReadyLine)
        return self.ready

    async def wait(self) -> int:
        """The exit status."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        """End the process: in order, or by force if that takes too long."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    def shown(self) -> dict[str, str | int | None]:
        """What the user is told."""
        assert self._process is not None
        assert self.ready is not None
        ready = self.ready
        return {
            "name": self.plan.name,
            "role": self.plan.role,
            "pid": self._process.pid,
            "mqtt": ready.mqtt,
            "api": ready.api,
            "cluster": ready.cluster,
        }


async def _read_line(descriptor: int) -> bytes:
    """A line of a pipe, which is closed then; empty if its writer has ended."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb"))
    try:
        return await reader.readline()
    finally:
        transport.close()
