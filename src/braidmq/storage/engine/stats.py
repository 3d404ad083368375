"""What a store measures of its engine, its disk and its commits: for its own health, and for operators."""

from __future__ import annotations

from time import monotonic

from braidmq.storage.engine.committer import Committer
from braidmq.storage.engine.database import Database
from braidmq.storage.engine.health import Measurements
from braidmq.storage.engine.rocksdb import Disk


def measure(database: Database, disk: Disk, committer: Committer | None) -> Measurements:
    """The measurements that decide the health of a store. Raises OSError if the disk is unavailable."""
    return Measurements(
        free_bytes=disk.free_bytes(database.path),
        is_write_stopped=bool(database.number("rocksdb.is-write-stopped")),
        delayed_write_rate=database.number("rocksdb.actual-delayed-write-rate"),
        level0_files=database.max_of("rocksdb.num-files-at-level0"),
        waiting_memtables=database.max_of("rocksdb.num-immutable-mem-table"),
        pending_compaction_bytes=database.max_of("rocksdb.estimate-pending-compaction-bytes"),
        commit_running_s=committer.running_s() if committer else 0.0,
    )


def commit_stats(committer: Committer | None) -> dict[str, int]:
    """Counts and times of commits, in microseconds; -1 if unknown."""
    return {
        "commits": committer.commits if committer else 0,
        "commit_us_total": int(committer.commit_s_total * 1e6) if committer else 0,
        "commit_us_max": int(committer.commit_s_max * 1e6) if committer else 0,
        "commit_us_max_recent": int(committer.recent_s_max() * 1e6) if committer else -1,
        "commit_age_us": int((monotonic() - committer.committed_at) * 1e6) if committer and committer.committed_at else -1,
    }


def size_stats(database: Database, disk: Disk) -> dict[str, int]:
    """Sizes, summed over all families."""
    return {
        "memtable_bytes": database.sum_of("rocksdb.cur-size-all-mem-tables"),
        "table_bytes": database.sum_of("rocksdb.live-sst-files-size"),
        "rows_estimate": database.sum_of("rocksdb.estimate-num-keys"),
        "pending_compaction_bytes": database.sum_of("rocksdb.estimate-pending-compaction-bytes"),
        "disk_free_bytes": disk.free_bytes(database.path),
    }
