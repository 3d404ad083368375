"""How RocksDB is opened: its options, its column families, and readable errors.

rocksdict raises a bare ``Exception`` for everything RocksDB reports, so only the text distinguishes errors. Only this module
parses those texts; ``test_store_faults.py`` and ``test_store_disk.py`` provoke all of them except those of a failing fsync.
"""

from __future__ import annotations

import enum
import fcntl
import os
import struct
from pathlib import Path

import msgspec
from rocksdict import BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, Env, Options, Rdict

from braidmq.base.errors import BraidError, ConfigError, Corruption, Unavailable, UsageError
from braidmq.storage.engine import health

MIB = 1024**2
DEFAULT_FAMILY = "default"


class Tuning(msgspec.Struct, frozen=True):
    """Resource limits of the engine: all memtables, all cached blocks, and the disk space to leave free."""

    memtables_bytes: int = 128 * MIB
    block_cache_bytes: int = 128 * MIB
    open_files_max: int = 1024
    # When the disk is down to the reserve, every memtable may still have to be flushed, and a compaction may be running.
    reserve_bytes: int = 512 * MIB


class Disk:
    """The disk operations of the store; tests pass one that fails."""

    def flush(self, db: Rdict) -> None:
        """Sync everything written before this call, without the interpreter lock; raises if it may not be on disk."""
        db.flush_wal(True)

    def free_bytes(self, path: Path) -> int:
        """The free space for this process on the disk of ``path``."""
        numbers = os.statvfs(path)
        return numbers.f_bavail * numbers.f_frsize


class Fault(enum.Enum):
    """What an engine error means for the writer."""

    STALL = "stall"  # no fault, but it cannot keep up
    FULL = "full"  # no space left; RocksDB resumes by itself once there is some
    LASTING = "lasting"  # it rejects all writes until it is reopened


def classify(problem: Exception) -> Fault:
    """Classify the error of a write."""
    text = str(problem)
    if "Write stall" in text:
        return Fault.STALL
    # A file system may report a full disk only in fsync; then the writes are in doubt, as after any failed fsync.
    if "No space left on device" in text and "sync" not in text:
        return Fault.FULL
    return Fault.LASTING


def is_damage(problem: Exception) -> bool:
    """Whether the engine has found its own files damaged: reopening them does not help."""
    return "Corruption" in str(problem)


def read_problem(problem: Exception, path: Path) -> BraidError:
    """The error to raise for a failed read."""
    text = str(problem)
    if "Corruption" in text:
        return Corruption(f"the log in {path} is damaged: {text}")
    return Unavailable(f"the log in {path} cannot be read: {text}")


def open_engine(path: Path, tuning: Tuning, cache: Cache, *, salvage: bool) -> Rdict:
    """Open the database with its families, or create an empty one in a directory that only its owner can enter."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        families = {name: family_options(tuning, cache) for name in _families_on_disk(path)}
        return Rdict(str(path), _database_options(tuning, cache, salvage=salvage), families)
    except Exception as problem:
        raise open_problem(problem, path) from problem


def _families_on_disk(path: Path) -> list[str]:
    if not (path / "CURRENT").exists():
        return []
    return [name for name in Rdict.list_cf(str(path), Options(raw_mode=True)) if name != DEFAULT_FAMILY]


def family_options(tuning: Tuning, cache: Cache) -> Options:
    """Options of one column family; the block cache is shared by all of them."""
    tables = BlockBasedOptions()
    tables.set_block_cache(cache)
    tables.set_cache_index_and_filter_blocks(True)  # otherwise their memory grows with the log, without a bound
    tables.set_pin_l0_filter_and_index_blocks_in_cache(True)
    tables.set_block_size(16 * 1024)  # records are read in runs; fewer, larger blocks compress better and need less index
    tables.set_bloom_filter(10, False)

    options = Options(raw_mode=True)
    options.set_block_based_table_factory(tables)
    options.set_optimize_filters_for_hits(True)  # no filters in the last level: it is most of the log, and point reads mostly hit
    options.set_compression_type(DBCompressionType.lz4())
    options.set_bottommost_compression_type(DBCompressionType.zstd())
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_write_buffer_size(max(tuning.memtables_bytes // 4, 64 * 1024))
    options.set_max_write_buffer_number(health.MEMTABLES_MAX)
    options.set_level_zero_file_num_compaction_trigger(health.LEVEL0_COMPACT)
    options.set_level_zero_slowdown_writes_trigger(health.LEVEL0_DELAY)
    options.set_level_zero_stop_writes_trigger(health.LEVEL0_STOP)
    options.set_soft_pending_compaction_bytes_limit(health.DEBT_DELAY_BYTES)
    options.set_hard_pending_compaction_bytes_limit(health.DEBT_STOP_BYTES)
    return options


def _database_options(tuning: Tuning, cache: Cache, *, salvage: bool) -> Options:
    options = family_options(tuning, cache)
    options.create_if_missing(True)
    options.set_db_write_buffer_size(tuning.memtables_bytes)
    # A family without traffic keeps the log files of all others until its memtable is flushed; this forces the flush.
    options.set_max_total_wal_size(2 * tuning.memtables_bytes)
    options.set_max_open_files(tuning.open_files_max)
    options.set_max_background_jobs(2)
    # Compaction has time; the event loop and the thread that syncs the log have not, and all of them may share two processors.
    background = Env()
    background.lower_thread_pool_cpu_priority()
    options.set_env(background)
    # Table files are synced while they are written: otherwise an fsync of the log would wait for a whole file at once.
    options.set_bytes_per_sync(MIB)
    options.set_avoid_unnecessary_blocking_io(True)  # files are deleted in the background, not by the loop that drops a cursor
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(4 * MIB)
    options.set_stats_dump_period_sec(0)
    # A record truncated by a crash is the only normal kind of damage. Any other may have hit acknowledged records.
    mode = DBRecoveryMode.point_in_time() if salvage else DBRecoveryMode.tolerate_corrupted_tail_records()
    options.set_wal_recovery_mode(mode)
    return options


def open_problem(problem: Exception, path: Path) -> BraidError:
    """The error to raise for a failed opening."""
    text = str(problem)
    if "lock hold by current process" in text:
        return UsageError(f"the log in {path} is already open in this process", "close it and drop all its cursors first")
    if "While lock file" in text:
        return UsageError(
            f"the log in {path} is in use by {_holder(path)}", "stop it first, or use another data_dir for this node"
        )
    if "Corruption" in text:
        return Corruption(
            f"the log in {path} is damaged and was not changed: {text}. "
            "Restore a backup, or use `braidmq salvage` to keep only the data before the damage"
        )
    if "No space left on device" in text:
        return Unavailable(f"the disk of {path} is full", 60)
    if "Permission denied" in text or "Read-only file system" in text:
        return ConfigError("node.data_dir", f"no permission to write in {path}", "make it writable for the node's user")
    if isinstance(problem, (FileExistsError, NotADirectoryError)) or "(os error 17)" in text or "Not a directory" in text:
        return ConfigError("node.data_dir", f"{path} is not a directory", "use a directory that exists or can be created")
    return Unavailable(f"the log in {path} cannot be opened: {text}")


def _holder(path: Path) -> str:
    # Only safe while this process has no lock of its own on the file: closing the descriptor would drop that as well.
    query = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        with open(path / "LOCK", "rb") as lock:
            answer = fcntl.fcntl(lock, fcntl.F_GETLK, query)
    except OSError:
        return "another process"
    return f"process {struct.unpack('hhqqi', answer)[4]}"
