"""A rolling restart with ``braidmq ctl node drain`` loses nothing acknowledged, and publishes no will of a client that moves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.scenarios.cluster.campaign import CLUSTER
from tests.scenarios.cluster.cluster import ClusterOfProcesses
from tests.scenarios.cluster.cores_campaign import CLUSTER as SEVERAL
from tests.scenarios.cluster.rolling_restart import MOVERS, RollingRestart
from tests.scenarios.cluster.several_cores import CoresOfProcesses

SEED = 20261119


def check(campaign: RollingRestart) -> None:
    assert asyncio.run(campaign.run()) == [], campaign.done
    assert campaign.moved >= MOVERS  # else nobody was there when a node was drained
    assert campaign.ledger.acknowledged > 100
    print(f"{campaign.done}: {campaign.moved} clients were sent away, {campaign.ledger.acknowledged} messages acknowledged")


@pytest.mark.timeout(300)
def test_a_rolling_restart_of_a_core_and_two_replicants(tmp_path: Path) -> None:
    cluster = ClusterOfProcesses(tmp_path, 2, keeps_ports=True, cluster=CLUSTER)

    check(RollingRestart(cluster, lambda: [cluster.core], 3, SEED, tmp_path))


@pytest.mark.soak
@pytest.mark.needs("etcd")
@pytest.mark.timeout(300)
def test_a_rolling_restart_of_three_cores_and_three_replicants(tmp_path: Path) -> None:
    cluster = CoresOfProcesses(tmp_path, 3, cluster=SEVERAL)

    check(RollingRestart(cluster, lambda: cluster.cores, 6, SEED, tmp_path))


@pytest.mark.soak
@pytest.mark.needs("etcd")
@pytest.mark.timeout(600)
def test_a_cluster_goes_from_eventual_over_both_to_linear_node_by_node_under_load(tmp_path: Path) -> None:
    cluster = CoresOfProcesses(tmp_path, 3, cluster=SEVERAL, registry={"mode": "eventual"})

    check(RollingRestart(cluster, lambda: cluster.cores, 6, SEED, tmp_path, modes=("both", "linear")))
