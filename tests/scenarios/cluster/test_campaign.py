"""Nodes of a cluster are killed and stopped at random under load: what was acknowledged arrives, QoS 2 once, in order."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.scenarios.cluster.campaign import ClusterCampaign
from tests.scenarios.cluster.cores_campaign import CoresCampaign

SEED = int(os.environ.get("BRAIDMQ_KILL_SEED", "20261118"))


def run(kind: type[ClusterCampaign] | type[CoresCampaign], seed: int, faults: int, folder: Path) -> None:
    """Run a campaign; every failure names its seed."""
    campaign = kind(seed, faults, folder)
    try:
        found = asyncio.run(campaign.run())
    except BaseException as problem:
        problem.add_note(f"BRAIDMQ_KILL_SEED={seed}: {campaign.done}")
        raise
    assert found == [], f"BRAIDMQ_KILL_SEED={seed}: {campaign.done}"
    assert campaign.ledger.acknowledged > 5 * faults  # a campaign in which little happened has shown nothing
    print(f"seed {seed}: {faults} faults, {campaign.ledger.acknowledged} acknowledged")


@pytest.mark.timeout(180)
def test_nothing_acknowledged_is_lost_or_duplicated_over_six_faults(tmp_path: Path) -> None:
    run(ClusterCampaign, SEED, 6, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", range(10))
def test_nothing_acknowledged_is_lost_or_duplicated_over_three_hundred_faults(number: int, tmp_path: Path) -> None:
    run(ClusterCampaign, SEED + number, 30, tmp_path)


@pytest.mark.row("F4")
@pytest.mark.needs("etcd")
@pytest.mark.timeout(180)
def test_the_same_with_several_cores_over_four_faults(tmp_path: Path) -> None:
    run(CoresCampaign, SEED, 4, tmp_path)


@pytest.mark.soak
@pytest.mark.needs("etcd")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", range(10))
def test_the_same_with_several_cores_over_three_hundred_faults(number: int, tmp_path: Path) -> None:
    run(CoresCampaign, SEED + number, 30, tmp_path)
