"""Whether the store accepts writes, and if not why: an assessment of measurements of the engine and the disk.

It reacts early on purpose. RocksDB slows writers down and then stops them, on the thread that calls it, which here is the event
loop; so SLOW begins well below the engine's own limits, while pausing publishers still helps.
"""

from __future__ import annotations

import enum

import msgspec

GIB = 1024**3


class HealthState(enum.Enum):
    """OK: writes are accepted. SLOW: write less. STOPPED: writes are rejected."""

    OK = "ok"
    SLOW = "slow"
    STOPPED = "stopped"


class Health(msgspec.Struct, frozen=True):
    """The store's state, the reason as text, and whether only a restart of the node can end it."""

    state: HealthState
    reason: str = ""
    needs_restart: bool = False


HEALTHY = Health(HealthState.OK)


class Measurements(msgspec.Struct, frozen=True):
    """The measurements of one check; counts are those of the most loaded column family."""

    free_bytes: int
    is_write_stopped: bool
    delayed_write_rate: int
    level0_files: int
    waiting_memtables: int
    pending_compaction_bytes: int
    commit_running_s: float


# Table files of level 0 before compaction starts, before the engine delays writers, and before it stops them. The latter two
# are far above the engine's defaults: publishers are paused at LEVEL0_SLOW, and only messages already under way are added.
LEVEL0_COMPACT = 4
LEVEL0_SLOW = 16
LEVEL0_DELAY = 32
LEVEL0_STOP = 48

# Full memtables of one family that wait to be flushed; at MEMTABLES_MAX the engine stops writers.
MEMTABLES_SLOW = 3
MEMTABLES_MAX = 6

# Compaction debt. At most half an hour of it at 16 MiB/s may build up; the engine's limits are higher.
DEBT_SLOW_BYTES = 28 * GIB
DEBT_DELAY_BYTES = 64 * GIB
DEBT_STOP_BYTES = 256 * GIB

# A disk that takes this long for one fsync is failing or overloaded.
COMMIT_SLOW_S = 1.0


def judge(figures: Measurements) -> Health:
    """Assess the engine; the store itself handles a full disk, because it must remember that the disk was full."""
    if figures.is_write_stopped:
        return Health(HealthState.STOPPED, "the storage engine has stopped writes until compaction catches up")
    if figures.commit_running_s >= COMMIT_SLOW_S:
        return Health(HealthState.SLOW, f"the disk has not finished a commit for {figures.commit_running_s:.1f} s")
    if figures.delayed_write_rate > 0:
        return Health(HealthState.SLOW, f"the storage engine limits writes to {figures.delayed_write_rate} bytes/s")
    if figures.level0_files >= LEVEL0_SLOW:
        return Health(HealthState.SLOW, f"{figures.level0_files} table files are waiting for compaction")
    if figures.waiting_memtables >= MEMTABLES_SLOW:
        return Health(HealthState.SLOW, f"{figures.waiting_memtables} memtables are waiting to be flushed")
    if figures.pending_compaction_bytes >= DEBT_SLOW_BYTES:
        return Health(HealthState.SLOW, f"{figures.pending_compaction_bytes // GIB} GiB are waiting for compaction")
    return HEALTHY
