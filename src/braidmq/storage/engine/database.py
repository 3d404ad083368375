"""An open database with its column families: the store's own, or a read-only view of it.

`sequence` is RocksDB's number of the last row written. It rises by one for every row, in the order of the writes, and is part of
the write-ahead log: two databases with the same number hold the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rocksdict import AccessType, Cache, ColumnFamily, Options, Rdict

from braidmq.base.errors import BraidError, UsageError
from braidmq.storage.engine.identity import identify
from braidmq.storage.engine.reads import RocksReads
from braidmq.storage.engine.rocksdb import DEFAULT_FAMILY, Tuning, family_options, open_engine, open_problem


class Database(RocksReads):
    """Created by `open` or `open_read_only`; reads may come from any thread."""

    def __init__(self, db: Rdict, path: Path, log_id: bytes) -> None:
        """Use `open` or `open_read_only`."""
        self.db = db
        self.path = path
        self.log_id = log_id
        self.families: dict[str, Rdict] = {}
        self.handles: dict[str, ColumnFamily] = {}

    @classmethod
    def open(cls, path: Path, families: Sequence[str], tuning: Tuning, *, salvage: bool = False, log_id: bytes = b"") -> Database:
        """Open or create the directory for writing, with at least these families; see `Store.open`."""
        cache = Cache(tuning.block_cache_bytes)
        db = open_engine(path, tuning, cache, salvage=salvage)
        try:
            opened = cls(db, path, identify(db, path, log_id))
            present = Rdict.list_cf(str(path))
            for name in dict.fromkeys([*present, *families]):
                if name not in present:
                    db.create_column_family(name, family_options(tuning, cache))
            opened._find_families(dict.fromkeys([*present, *families]))
        except BraidError:
            db.close()
            raise
        except Exception as problem:
            db.close()
            raise open_problem(problem, path) from problem
        return opened

    @classmethod
    def open_read_only(cls, path: Path, tuning: Tuning) -> Database:
        """Open the directory as it is now, without a lock and without changing it. Reads the write-ahead log into memory."""
        cache = Cache(tuning.block_cache_bytes // 8)
        try:
            names = Rdict.list_cf(str(path), Options(raw_mode=True))
            families = {name: family_options(tuning, cache) for name in names if name != DEFAULT_FAMILY}
            options = family_options(tuning, cache)
            options.set_max_open_files(tuning.open_files_max // 2)
            db = Rdict(str(path), options, families, AccessType.read_only(False))
        except Exception as problem:
            raise open_problem(problem, path) from problem
        try:
            opened = cls(db, path, identify(db, path))
            opened._find_families(names)
        except BaseException:
            db.close()
            raise
        return opened

    def _find_families(self, names: Sequence[str] | dict[str, None]) -> None:
        for name in names:
            self.families[name] = self.db.get_column_family(name)
            self.handles[name] = self.db.get_column_family_handle(name)

    @property
    def sequence(self) -> int:
        """The number of the last row written."""
        return self.db.latest_sequence_number()

    def family(self, name: str) -> Rdict:
        """A family by its name."""
        rows = self.families.get(name)
        if rows is None:
            raise UsageError(f"the store has no family {name!r}", "open the store with it")
        return rows

    def number(self, name: str) -> int:
        """A property of the whole database, 0 if it is unknown."""
        return self.db.property_int_value(name) or 0

    def sum_of(self, name: str) -> int:
        """The sum of a property over all families."""
        return sum(rows.property_int_value(name) or 0 for rows in self.families.values())

    def max_of(self, name: str) -> int:
        """The maximum of a property over all families."""
        return max(rows.property_int_value(name) or 0 for rows in self.families.values())

    def close(self) -> None:
        """Release the directory; raises what RocksDB reports, after releasing it."""
        # Each of these keeps the directory locked.
        self.families.clear()
        self.handles.clear()
        self.db.close()
