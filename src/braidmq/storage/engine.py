"""How RocksDB is opened: its options, its column families, and its complaints put into words.

rocksdict raises a bare ``Exception`` for everything RocksDB reports, so the text is all there is to tell one from another. This
module alone reads those texts; ``tests/storage/test_store_faults.py`` brings each of them about.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rocksdict import BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, Options, Rdict

from braidmq.base.errors import BraidError, ConfigError, Corruption, Unavailable, UsageError
from braidmq.storage import health

MIB = 1024**2
DEFAULT_FAMILY = "default"


class Tuning(msgspec.Struct, frozen=True):
    """What the engine may use. All memtables together, all cached blocks together, and the disk space it leaves free."""

    memtables_bytes: int = 128 * MIB
    block_cache_bytes: int = 128 * MIB
    open_files_max: int = 1024
    # Every memtable may have to be written out when the disk is at the reserve, and a compaction may be under way.
    reserve_bytes: int = 512 * MIB


class Disk:
    """What the store asks of the disk itself; a test passes one that fails."""

    def flush(self, db: Rdict) -> None:
        """Bring everything written before this call to the disk. Blocks without the interpreter lock; raises if it may not be there."""
        db.flush_wal(True)

    def free_bytes(self, path: Path) -> int:
        """Space that this process may still use on the disk of ``path``."""
        numbers = os.statvfs(path)
        return numbers.f_bavail * numbers.f_frsize


class Fault(enum.Enum):
    """What a complaint of the engine means for the one who writes."""

    STALL = "stall"  # nothing is wrong, it cannot keep up
    FULL = "full"  # no space left; RocksDB goes on by itself once there is some
    LASTING = "lasting"  # nothing it says from now on can be relied on


def classify(problem: Exception) -> Fault:
    """What the complaint of a write means."""
    text = str(problem)
    if "Write stall" in text:
        return Fault.STALL
    # A file system may report a full disk as late as in fsync. What was written before is then in doubt, as after any failed fsync.
    if "No space left on device" in text and "sync" not in text:
        return Fault.FULL
    return Fault.LASTING


def read_problem(problem: Exception, path: Path) -> BraidError:
    """The error to raise for what a read reported."""
    text = str(problem)
    if "Corruption" in text:
        return Corruption(f"the log in {path} is damaged: {text}")
    return Unavailable(f"the log in {path} cannot be read: {text}")


def open_engine(path: Path, families: Sequence[str], tuning: Tuning, *, salvage: bool) -> Rdict:
    """Open the database with the families that it has, or make it with none; the caller adds what is missing."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        present = _families_on_disk(path)
        options = {name: family_options(tuning) for name in [*present, *families]}
        return Rdict(str(path), _database_options(tuning, salvage=salvage), {name: options[name] for name in present})
    except Exception as problem:
        raise _open_problem(problem, path) from problem


def _families_on_disk(path: Path) -> list[str]:
    if not (path / "CURRENT").exists():
        return []
    return [name for name in Rdict.list_cf(str(path), Options(raw_mode=True)) if name != DEFAULT_FAMILY]
