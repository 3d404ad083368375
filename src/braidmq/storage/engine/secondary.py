"""A RocksDB secondary: the database of a node, read by another process. It shows the log as of the last catch-up.

A secondary is not a prefix of what was written (H2): a catch-up may miss rows, and shows rows that are not committed. The reader
compares `log_files` before and after a catch-up to decide whether it is valid, and learns elsewhere what is committed. A row that
was visible once stays visible until the primary deletes it.

It writes nothing into the primary's directory except a file of rocksdict's settings, with unchanged content. Rows that the
primary adds to a family created after the opening make every later catch-up fail (H1): then it has to be reopened.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rocksdict import AccessType, Cache, Options, Rdict

from braidmq.base.errors import Corruption, Unavailable, UsageError
from braidmq.storage.engine.identity import LOG_ID_KEY, identify
from braidmq.storage.engine.reads import RocksReads
from braidmq.storage.engine.rocksdb import DEFAULT_FAMILY, MIB, Tuning, family_options, read_problem

# Only the blocks of indexes and of narrow searches are reread; a scan of everything would not fit any cache.
_TUNING: Final = Tuning(block_cache_bytes=64 * MIB)
# A table may be compacted away between the reading of its name and its opening.
_OPEN_TRIES: Final = 5


class Secondary(RocksReads):
    """A directory that another process has open for writing; created by `open`. Reads and `catch_up` may use any thread."""

    def __init__(self, db: Rdict, path: Path) -> None:
        """Use `Secondary.open`."""
        self.path = path
        self.log_id = identify(db, path)
        self._db = db
        self._families = {name: db.get_column_family(name) for name in Rdict.list_cf(str(path), Options(raw_mode=True))}

    @classmethod
    def open(cls, path: Path, scratch: Path, tuning: Tuning = _TUNING) -> Secondary:
        """Read the log in `path`; its own files go to `scratch`, which it creates. Raises Unavailable, Corruption, UsageError."""
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        problem: Exception | None = None
        for _ in range(_OPEN_TRIES):
            if not (path / "CURRENT").exists():
                break
            try:
                return cls._try_open(path, scratch, tuning)
            except (UsageError, Corruption):
                raise
            except Exception as found:  # rocksdict has no exception class for RocksDB's errors
                problem = found
        if problem is None:
            raise Unavailable(f"there is no log in {path} yet")
        raise problem if isinstance(problem, Unavailable) else read_problem(problem, path) from problem

    @classmethod
    def _try_open(cls, path: Path, scratch: Path, tuning: Tuning) -> Secondary:
        cache = Cache(tuning.block_cache_bytes)
        names = [name for name in Rdict.list_cf(str(path), Options(raw_mode=True)) if name != DEFAULT_FAMILY]
        options = family_options(tuning, cache)
        # Every table is kept open as soon as it is known: the primary deletes those that it has compacted.
        options.set_max_open_files(-1)
        # Every catch-up starts this many threads for each family, whether there is a table to open or not; the default is 16.
        options.set_max_file_opening_threads(1)
        options.set_keep_log_file_num(2)
        options.set_max_log_file_size(MIB)
        options.set_stats_dump_period_sec(0)
        families = {name: family_options(tuning, cache) for name in names}
        db = Rdict(str(path), options, families, AccessType.secondary(str(scratch)))
        try:
            # Like a catch-up, an opening may miss rows.
            if db.get(LOG_ID_KEY) is None:
                raise Unavailable(f"the log in {path} is still being created")
            return cls(db, path)
        except BaseException:
            db.close()
            raise

    @property
    def families(self) -> tuple[str, ...]:
        """The names of all families that existed when it was opened."""
        return tuple(self._families)

    def log_files(self) -> frozenset[str]:
        """The names of the current write-ahead log files."""
        return frozenset(each.name for each in self.path.glob("*.log"))

    def catch_up(self) -> None:
        """Read what the primary has written since. Raises Unavailable or Corruption and then still shows the old state."""
        try:
            self._db.try_catch_up_with_primary()
        except Exception as problem:
            raise read_problem(problem, self.path) from problem

    def close(self) -> None:
        """Release the directory. There must be no readers."""
        self._families.clear()
        self._db.close()

    def family(self, name: str) -> Rdict:
        """The rows of a column family; raises UsageError if it did not exist at the opening."""
        rows = self._families.get(name)
        if rows is None:
            raise UsageError(f"the log in {self.path} had no column family {name!r} when it was opened", "reopen it")
        return rows
