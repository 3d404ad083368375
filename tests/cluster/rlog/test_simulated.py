"""The replication log under random faults: whatever happens, all tables equal what their owners have in the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from braidmq.cluster.rlog.agent import AgentPace
from braidmq.cluster.rlog.origin_log import Entry
from tests.cluster.rlog.nodes import RlogCluster

SEEDS = 40  # in each test of the table below
FAULTS_S = 0.5
PACE = AgentPace(switchover_entries_max=3, credit_bytes=150, batch_bytes=60, part_rows=2)  # everything takes many steps


def change(cluster: RlogCluster) -> None:
    """A node's routes change."""
    random = cluster.network.random
    node = random.choice(list(cluster.nodes.values()))
    keys = [b"t/%d" % random.randrange(12) for _ in range(random.choice((1, 1, 2, 30)))]
    node.write([Entry(key, random.choice((None, b"", b"group"))) for key in keys])


def cut(cluster: RlogCluster) -> None:
    """A connection breaks."""
    random = cluster.network.random
    links = [link for node in cluster.nodes.values() for link in node.links.values()]
    if links:
        random.choice(links).cut()


def pause(cluster: RlogCluster) -> None:
    """A node stands still."""
    random = cluster.network.random
    cluster.network.pause(random.choice(list(cluster.nodes.values())), random.random() * 0.3)


def restart(cluster: RlogCluster) -> None:
    """A node dies and is back, sometimes before another node has noticed."""
    random = cluster.network.random
    origin = random.choice(list(cluster.nodes))
    is_core = cluster.nodes[origin].is_core
    cluster.kill(origin)
    cluster.network.after(random.choice((0.0, 0.1)), partial(cluster.start_again, origin, is_core))


def move(cluster: RlogCluster) -> None:
    """A replicant goes on at another core."""
    random = cluster.network.random
    edges = [node for node in cluster.nodes.values() if not node.is_core]
    if edges:
        random.choice(edges).watch_another()


def strike(cluster: RlogCluster, fault: Callable[[RlogCluster], None]) -> None:
    """Let it happen, unless every node is dead."""
    if cluster.nodes:
        fault(cluster)


FAULTS = (change, change, change, cut, pause, restart, move)


@pytest.mark.row("F7")
@pytest.mark.parametrize("block", range(25))
@pytest.mark.parametrize(("cores", "replicants", "entries_max"), [(1, 3, 1000), (2, 2, 20), (3, 3, 20), (1, 1, 3)])
def test_all_tables_converge_after_any_faults(block: int, cores: int, replicants: int, entries_max: int) -> None:
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        cluster = RlogCluster(seed, cores, replicants, entries_max=entries_max, pace=PACE)
        random = cluster.network.random
        for _ in range(random.randrange(10, 60)):
            cluster.network.at(random.random() * FAULTS_S, partial(strike, cluster, random.choice(FAULTS)))
        cluster.network.run()

        try:
            cluster.check_converged()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.row("F7")
def test_a_thousand_replicas_converge_after_faults_of_their_cores() -> None:
    cluster = RlogCluster(20261119, 3, 1000)
    random = cluster.network.random
    for _ in range(200):
        cluster.network.at(random.random() * FAULTS_S, partial(strike, cluster, random.choice((change, change, cut, move))))
    cluster.network.at(0.2, partial(cluster.kill, "core1"))
    cluster.network.at(0.3, partial(cluster.start_again, "core1", is_core=True))
    cluster.network.run()

    cluster.check_converged()
    assert len(cluster.nodes) == 1003
