"""Replicants and the core are killed and paused while producers publish through replicants: each row is recorded once."""

from __future__ import annotations

import random
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.durability.campaigns.node import read_data
from tests.durability.producers.writer import Writer, count_of, judge
from tests.scenarios.cluster.cluster import ClusterOfProcesses, NodeProcess

CLUSTER: dict[str, object] = {"lease": "5s", "home_wait": "15s"}
PAUSE_S = 1.5  # longer than a takeover waits, shorter than a lease


def kill(cluster: ClusterOfProcesses, node: NodeProcess) -> None:
    """kill -9 at whatever it does, and start it again."""
    node.kill()
    node.start()


def pause(cluster: ClusterOfProcesses, node: NodeProcess) -> None:
    """Its producers move on; then it wakes up with their messages, which must not count again (C32)."""
    node.process.pause()
    time.sleep(PAUSE_S)  # the fault itself
    node.process.send(signal.SIGCONT)


def kill_core(cluster: ClusterOfProcesses, node: NodeProcess) -> None:
    """Blocks that it has and has not answered come again (C18)."""
    kill(cluster, cluster.core)


def wait_for(work: threading.Semaphore, chunks: int, writers: list[Writer]) -> None:
    """Until this much was given to producers, or all are done."""
    for _ in range(chunks):
        while not work.acquire(timeout=0.1):
            if not any(writer.is_alive() for writer in writers):
                return


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("qos", "keys"), [(1, False), (2, False), (1, True)])
def test_rows_are_recorded_once_and_in_order_over_faults_of_replicants_and_the_core(tmp_path: Path, qos: int, keys: bool) -> None:
    chance = random.Random(qos + 10 * keys)
    faults = [kill, kill_core, pause, kill, pause, kill_core]
    done = 0
    with ClusterOfProcesses(tmp_path, 2, keeps_ports=True, cluster=CLUSTER) as cluster:
        servers = ",".join(f"127.0.0.1:{node.port}" for node in cluster.replicants)
        work = threading.Semaphore(0)
        rows = 40_000 if keys else 120_000  # enough for all faults
        writers = [Writer(servers, partition, qos, chance, work, keys=keys, rows=rows) for partition in range(2)]
        for writer in writers:
            writer.start()
        for fault in faults:
            wait_for(work, chance.randrange(1, 40), writers)
            if any(writer.is_alive() for writer in writers):
                fault(cluster, chance.choice(cluster.replicants))
                done += 1
        for writer in writers:
            writer.join(120)
        counts = [count_of(writer, servers) for writer in writers]

    assert done >= 3  # else this has shown nothing
    judge(writers, read_data(tmp_path / "core"), counts)
