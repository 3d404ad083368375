"""The nodes under load: clusters of ``braidmq dev-cluster``, cores with workers, and the processor time of each process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.brokers import ROOT, START_TIMEOUT_S

BRAIDMQ = str(Path(sys.executable).parent / "braidmq")
READY_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Node(msgspec.Struct):
    """A node: its serving process and its ports."""

    name: str
    pid: int
    mqtt: int
    cluster: int | None = None


class Ready(msgspec.Struct):
    """What ``dev-cluster --json`` and ``start --ready-fd`` say; each has its own fields."""

    nodes: list[Node] = []
    mqtt: int = 0


class Group:
    """Nodes that are started together. The first is the core, or the only one."""

    def __init__(self, nodes: list[Node], folder: Path) -> None:
        self.nodes = nodes
        self.folder = folder

    def cpu_s(self) -> dict[str, float]:
        """Processor time that each process has used so far."""
        return {node.name: cpu_s(node.pid) for node in self.nodes}

    @property
    def core(self) -> Node:
        """The core."""
        return self.nodes[0]


def cpu_s(pid: int) -> float:
    """Processor time of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def memory_bytes(pid: int) -> int:
    """The memory that would be freed if the process ended."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(int(size) for size in re.findall(r"^Pss:\s+(\d+) kB", text, re.M))


def settings(is_recorded: bool) -> list[str]:
    """Keys and values of a node that records with fsync, or does not record."""
    values = ["history.durability=fsync", "log.level=error"] if is_recorded else ["history.topics=[]", "log.level=error"]
    return [word for value in values for word in ("--set", value)]


@contextlib.contextmanager
def dev_cluster(
    folder: Path, replicants: int, *, cores: int = 1, is_recorded: bool = False, keys: Sequence[str] = ()
) -> Iterator[Group]:
    """Cores and replicants, by name; a core without replicants is one node. ``keys``: settings, as KEY=VALUE."""
    given = [word for key in keys for word in ("--set", key)]
    counts = ["--cores", str(cores), "--replicants", str(replicants)]
    words = ["dev-cluster", *counts, "--data-dir", str(folder), *settings(is_recorded), *given, "--json"]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([BRAIDMQ, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the cluster did not start: {(folder / 'log').read_text()[-500:]}")
        yield Group(sorted(msgspec.json.decode(line, type=Ready).nodes, key=lambda node: node.name), folder)
    finally:
        _stop(process)


@contextlib.contextmanager
def with_workers(folder: Path, workers: int, *, core_listens: bool, is_recorded: bool = False) -> Iterator[Group]:
    """A core with workers on one port."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "config.toml"
    history = 'durability = "fsync"' if is_recorded else "topics = []"
    file.write_text(
        f'[node]\ndata_dir = "{folder / "data"}"\n[listeners.tcp.default]\nbind = "127.0.0.1:0"\n[api]\nbind = ""\n'
        f'[log]\nlevel = "error"\n[history]\nbind = ""\n{history}\n'
    )
    words = ["--workers", str(workers), *(() if core_listens else ("--no-core-listeners",))]
    with started(file, folder, words) as (process, port):
        nodes = [Node("core", process.pid, port)]
        nodes += [Node(f"worker{each}", pid, port) for each, pid in enumerate(_children(process.pid), 1)]
        if len(nodes) != workers + 1:
            raise RuntimeError(f"a core with {workers} workers has {len(nodes) - 1} children")
        yield Group(nodes, folder)


@contextlib.contextmanager
def started(file: Path, folder: Path, words: Sequence[str] = ()) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """``braidmq start``, once it is ready; the process and its port."""
    read_end, write_end = os.pipe()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "braidmq", "start", "-c", str(file), "--ready-fd", str(write_end), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            pass_fds=(write_end,),
        )
    os.close(write_end)
    try:
        with open(read_end) as pipe:
            line = pipe.readline()
        if not line:
            raise RuntimeError(f"a node did not start: {(folder / 'log').read_text()[-500:]}")
        yield process, msgspec.json.decode(line, type=Ready).mqtt
    finally:
        _stop(process)


def children(pid: int) -> list[int]:
    """The child processes that there are now."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextlib.contextmanager
def bare(folder: Path, kind: str) -> Iterator[int]:
    """The processes of ``bare.py``; their port."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "benchmarks.cluster.bare", kind, str(folder)]
    process = subprocess.Popen(
        words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("bare.py did not start")
        yield msgspec.json.decode(line, type=Ready).mqtt
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(STOP_TIMEOUT_S)


def _children(pid: int) -> list[int]:
    """The child processes, once each of them serves clients."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not (found := children(pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _stop(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
