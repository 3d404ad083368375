"""kill -9 at random moments under load, and power lost with it: what was acknowledged is kept, QoS 2 comes once, order holds."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.durability.campaigns.campaign import Campaign, Plan

SEED = int(os.environ.get("BRAIDMQ_KILL_SEED", "20241107"))

# What a campaign varies beside its random choices.
KINDS: dict[str, Plan] = {
    "history of everything": Plan(0, 0),
    "history of nothing": Plan(0, 0, {"topics": []}),
    "hashed layout, one shard": Plan(0, 0, {"layout": "hashed", "shards": 1}),
    "shared subscription": Plan(0, 0, has_group=True),
}


def run(kind: str, seed: int, kills: int, work_max: int, folder: Path) -> None:
    """Run a campaign; every failure names its seed."""
    plan = replace(KINDS[kind], seed=seed, kills=kills, work_max=work_max)
    try:
        outcome = asyncio.run(Campaign(plan, folder).run())
    except BaseException as problem:
        problem.add_note(f"campaign {kind!r}, BRAIDMQ_KILL_SEED={seed}")
        raise
    assert outcome.faults == [], f"campaign {kind!r}, BRAIDMQ_KILL_SEED={seed}"
    assert outcome.acknowledged > 5 * kills  # a campaign in which little happened has shown nothing
    print(f"{kind}: seed {seed}, {kills} kills, {outcome.acknowledged} acknowledged, {outcome.lost_bytes} unsynced bytes lost")


@pytest.mark.row("D1", "D2")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_acknowledged_is_lost_or_duplicated_over_ten_kills(kind: str, tmp_path: Path) -> None:
    run(kind, SEED, 10, 3000, tmp_path)


@pytest.mark.timeout(240)
def test_a_node_that_acknowledges_unsynced_messages_is_detected(tmp_path: Path) -> None:
    """The campaign itself is on trial: losing power must show what kill -9 alone cannot."""
    plan = Plan(SEED, 5, has_lying_disk=True, damages=("zeros",), patience_s=3.0)

    outcome = asyncio.run(Campaign(plan, tmp_path).run())

    assert any("the log lacks acknowledged messages" in fault for fault in outcome.faults)


@pytest.mark.row("D1", "D2")
@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_acknowledged_is_lost_or_duplicated_over_five_hundred_kills(kind: str, number: int, tmp_path: Path) -> None:
    run(kind, SEED + 1 + number, 25, 20_000, tmp_path)
