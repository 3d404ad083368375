"""The state of the log and its commits, for operators."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from time import time

from braidmq.base.config.settings import Settings
from braidmq.control.history import DurabilityInfo, DurableShard
from braidmq.storage.engine.health import Health
from braidmq.storage.log import DurableLog


async def durability_of(log: DurableLog, health: Health, settings: Settings) -> DurabilityInfo:
    """The current state; a thread examines the files."""
    disk_bytes = await asyncio.to_thread(_size_of, Path(settings.node.data_dir) / "log")
    stats = log.stats()
    store = stats.store
    marks = log.watermarks
    recent_max, age = store["commit_us_max_recent"], store["commit_age_us"]
    return DurabilityInfo(
        at=time(),
        mode=settings.history.durability,
        health=health.state.value,
        reason=health.reason,
        needs_restart=health.needs_restart,
        congested=log.is_congested,
        pending_bytes=stats.pending_bytes,
        refused=stats.refused,
        commits=store["commits"],
        commit_s_total=store["commit_us_total"] / 1e6,
        commit_s_max=store["commit_us_max"] / 1e6,
        commit_s_max_recent=recent_max / 1e6 if recent_max >= 0 else None,
        commit_age_s=age / 1e6 if age >= 0 else None,
        clock_alarm=log.clock_alarm.reason if log.clock_alarm is not None else "",
        disk_bytes=disk_bytes,
        disk_free_bytes=store["disk_free_bytes"],
        pending_compaction_bytes=store["pending_compaction_bytes"],
        shards=[DurableShard(shard=each.shard, watermark=marks[each.shard], floor=each.floor) for each in stats.shards],
    )


def _size_of(folder: Path) -> int:
    """Bytes of the files in a folder; files deleted meanwhile count as 0."""
    total = 0
    with os.scandir(folder) as files:
        for file in files:
            try:
                total += file.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                continue
    return total
