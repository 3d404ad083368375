"""The clusters under load, one for each mode, and the processor time of all of their processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.cluster.nodes import Group, Node, children, cpu_s, dev_cluster, started

MODES = ("linear", "eventual")
CORES, REPLICANTS = 3, 3
LEASE_S = 10  # the default of `cluster.lease`


class Cluster:
    """Three cores, each with a worker, and three replicants; or one node."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._processes = {node.name: node.pid for node in group.nodes}
        for node in group.nodes:
            for number, pid in enumerate(children(node.pid), 1):
                self._processes[f"{node.name}/w{number}"] = pid

    @property
    def ports(self) -> list[int]:
        """Where clients connect, one for each node."""
        return [node.mqtt for node in self._group.nodes]

    def node(self, name: str) -> Node:
        """A node by its name."""
        return next(node for node in self._group.nodes if node.name == name)

    def port(self, name: str) -> int:
        """Where clients of a node connect."""
        return self.node(name).mqtt

    def cpu_s(self) -> dict[str, float]:
        """Processor time that each process has used so far."""
        return {name: cpu_s(pid) for name, pid in self._processes.items()}

    def signal(self, name: str, number: signal.Signals) -> None:
        """Stop, continue or kill the process of a node."""
        os.kill(self.node(name).pid, number)

    def restarted(self, name: str) -> contextlib.AbstractContextManager[tuple[subprocess.Popen[bytes], int]]:
        """Start a node again that was killed; its process and its port, once it is ready."""
        folder = self._group.folder / name
        return started(folder / "braidmq.toml", folder)


@contextlib.contextmanager
def clusters(folder: Path, *, with_one: bool) -> Iterator[dict[str, Cluster]]:
    """A cluster in each mode, and "one": a node without a cluster. They are started at the same time."""

    def make(name: str) -> contextlib.AbstractContextManager[Group]:
        if name == "one":
            return dev_cluster(folder / name, 0)
        return dev_cluster(folder / name, REPLICANTS, cores=CORES, keys=[f"registry.mode={name}"])

    names = [*MODES, *(["one"] if with_one else [])]
    with contextlib.ExitStack() as stack, ThreadPoolExecutor() as pool:
        managers = [make(name) for name in names]
        groups = list(pool.map(lambda manager: stack.enter_context(manager), managers))
        yield {name: Cluster(group) for name, group in zip(names, groups, strict=True)}
