"""The database of a node: rows in column families, written in batches, committed in groups.

rocksdict is known here and in the modules beside (``engine``, ``identity``, ``batch``, ``cursor``), and nowhere else. It holds
the interpreter lock while it writes, so that a stalled engine would stop the whole node: every write is told to fail instead
(``no_slowdown``), and fsync is left to the committer's thread, where the lock is free.

Once stopped, how does the store go on?

- after a failed fsync, or an error that nothing is known about: not before the directory is opened again. Reads go on;
- after a full disk: as soon as there is space again. No flush may be tried in between, because RocksDB takes one that fails on
  an unfinished log file for the end; left alone, it starts a new file by itself;
- after a stall: with the next write that is accepted.

``write``, ``check`` and ``close`` belong to one thread, the loop's. Reads may come from any.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Literal, NoReturn, cast

from rocksdict import Cache, Checkpoint, ColumnFamily, Rdict, ReadOptions, WriteBatch, WriteOptions

from braidmq.base.errors import BraidError, Unavailable, UsageError
from braidmq.lane.rows import Rows
from braidmq.storage.batch import Batch
from braidmq.storage.committer import Committer
from braidmq.storage.cursor import Cursor
from braidmq.storage.engine import Disk, Fault, Tuning, classify, family_options, open_engine, open_problem, read_problem
from braidmq.storage.health import HEALTHY, Figures, Health, State, judge
from braidmq.storage.identity import identify

__all__ = ["Batch", "Cursor", "Durability", "Store"]

log = logging.getLogger(__name__)

Durability = Literal["fsync", "os"]

_RETRY_AFTER_STALL_S = 0.1
_RETRY_AFTER_FULL_S = 10.0
_RETRY_AFTER_RESTART_S = 60.0


class Store:
    """One directory, opened by one process. Make it with ``Store.open``, then ``start``; ``close`` ends it."""

    def __init__(self, db: Rdict, path: Path, log_id: bytes, durability: Durability, tuning: Tuning, disk: Disk) -> None:
        """Use ``Store.open``."""
        self.path = path
        self.log_id = log_id
        self.committed = 0
        self._db = db
        self._families: dict[str, Rdict] = {}
        self._handles: dict[str, ColumnFamily] = {}
        self._durability = durability
        self._tuning = tuning
        self._disk = disk
        self._written = 0
        self._write_options = WriteOptions()
        self._write_options.no_slowdown = True
        self._committer: Committer | None = None
        self._loop_call: Callable[[Callable[[], None]], object] | None = None
        self._on_commit: Callable[[int], None] | None = None
        self._is_telling = False
        self._is_full = False
        self._must_not_flush = False  # the engine itself ran into the end of the disk, and has not recovered yet
        self._failure: Health | None = None  # set once, by either thread, and never taken back
        self._health = HEALTHY
        self._is_closed = False
        self._users = 0  # threads in `kept_open`
        self._users_changed = threading.Condition()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        families: Sequence[str],
        *,
        durability: Durability = "fsync",
        tuning: Tuning | None = None,
        disk: Disk | None = None,
        salvage: bool = False,
    ) -> Store:
        """Open the directory, or make it (0700), with these families at least. Blocks while the write-ahead log is read.

        Raises UsageError (in use, or of a newer format), ConfigError (no directory, not writable), Corruption, Unavailable.
        ``salvage`` accepts a damaged write-ahead log and keeps what comes before the damage: acknowledged records may be gone.
        """
        place = Path(path)
        tuning = tuning or Tuning()
        cache = Cache(tuning.block_cache_bytes)
        db = open_engine(place, tuning, cache, salvage=salvage)
        try:
            store = cls(db, place, identify(db, place), durability, tuning, disk or Disk())
            present = Rdict.list_cf(str(place))
            for name in dict.fromkeys([*present, *families]):
                if name not in present:
                    db.create_column_family(name, family_options(tuning, cache))
                store._families[name] = db.get_column_family(name)
                store._handles[name] = db.get_column_family_handle(name)
        except BraidError:
            db.close()
            raise
        except Exception as problem:
            db.close()
            raise open_problem(problem, place) from problem
        return store

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def written(self) -> int:
        """The number of the last write."""
        return self._written

    @property
    def families(self) -> tuple[str, ...]:
        """The names of all families."""
        return tuple(self._families)

    @property
    def health(self) -> Health:
        """The state as of the last ``check`` or of a failure since then."""
        return self._failure or self._health

    def start(self, loop_call: Callable[[Callable[[], None]], object], on_commit: Callable[[int], None]) -> None:
        """Commit by itself from now on; ``on_commit(number)`` is called through ``loop_call`` (``loop.call_soon_threadsafe``)."""
        if self._loop_call is not None:
            raise UsageError("the store is started already")
        self._loop_call = loop_call
        self._on_commit = on_commit
        if self._durability == "fsync":
            self._committer = Committer(
                partial(self._disk.flush, self._db), self.committed, self._have_committed, self._fail_commit
            )
            if self._must_not_flush:
                self._committer.hold()
            self._committer.start()
            self._committer.wrote(self._written)

    def batch(self) -> Batch:
        """An empty batch."""
        return Batch(self._handles)

    def write(self, batch: Batch, *, frees_space: bool = False) -> int:
        """Write without waiting for the disk, and return the write's number; it counts once ``committed`` has reached it.

        Raises Unavailable if the store is stopped or stalled: then nothing was written, and the batch is used up all the same.
        A small batch that removes much (``frees_space``) is also written when only the reserve of the disk is left.
        """
        changes = batch.take()
        has_reserve = frees_space and not self._must_not_flush
        if self._failure is not None or (self._is_full and not has_reserve) or self._is_closed:
            self._refuse_write()
        try:
            self._db.write(changes, self._write_options)
        except Exception as problem:  # rocksdict has no class of its own for what RocksDB reports
            raise self._write_problem(problem) from problem
        self._written = number = self._written + 1
        if self._committer is not None:
            self._committer.wrote(number)
        elif self._durability == "os":
            self.committed = number
            if self._loop_call is not None and not self._is_telling:
                self._is_telling = True
                self._loop_call(self._tell_written)
        return number

    def sync(self) -> int:
        """Commit everything written, here and now, and return ``committed``; only before ``start``. Blocks."""
        if self._loop_call is not None:
            raise UsageError("the store commits by itself once it is started", "wait for on_commit")
        if self._failure is not None or self._must_not_flush or self._is_closed:
            self._refuse_write()
        try:
            self._disk.flush(self._db)
        except Exception as problem:
            self._fail_commit(problem)
            self._refuse_write()
        self.committed = self._written
        return self.committed

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of a row, committed or not."""
        rows = self._family(family)
        try:
            value: bytes | None = rows.get(key)
        except Exception as problem:
            raise read_problem(problem, self.path) from problem
        return value

    def cursor(self, family: str, lower: bytes, upper: bytes) -> Cursor:
        """A cursor over ``lower <= key < upper``."""
        options = ReadOptions()
        options.set_iterate_upper_bound(upper)
        return Cursor(self._family(family).iter(options), lower, self.path)

    def items(self, family: str, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every row with ``lower <= key < upper``, in order; of rows written meanwhile, any or none.

        The fastest way to read a run.
        """
        rows = self._family(family)
        options = ReadOptions()
        options.set_iterate_upper_bound(upper)

        def run_from(key: bytes) -> Iterator[tuple[bytes, bytes]]:
            return cast("Iterator[tuple[bytes, bytes]]", rows.items(read_opt=options, from_key=key))

        start = lower

        def next_run(last: tuple[bytes, bytes] | None) -> Iterator[tuple[bytes, bytes]] | None:
            # The iterator does not say why it ended. A cursor does: it raises on damage, and finds what a passing error hid.
            nonlocal start
            found = self._first_from(family, start if last is None else last[0] + b"\x00", upper)
            if found is None:
                return None
            start = found
            return run_from(found)

        return Rows(next_run, run_from(lower))

    def _first_from(self, family: str, key: bytes, upper: bytes) -> bytes | None:
        cursor = self.cursor(family, key, upper)
        cursor.seek(key)
        return cursor.key() if cursor.valid else None

    def check(self) -> Health:
        """Look at the engine and the disk, stop or resume accordingly, and return the health.

        Takes well under a millisecond; call it every second.
        """
        if self._failure is not None or self._is_closed:
            return self.health
        try:
            figures = self._measure()
        except OSError as problem:
            self._fail(f"the disk of {self.path} is gone ({problem}); the log takes no writes until a restart")
            return self.health
        reserve = self._tuning.reserve_bytes
        if self._is_full:
            # A quarter more than the reserve, or a disk at the edge would flap with every record.
            if figures.free_bytes >= reserve + reserve // 4 and self._can_write():
                self._is_full = self._must_not_flush = False
                log.warning("the disk of %s has space again; the log takes writes", self.path)
                if self._committer is not None:
                    self._committer.release()
        elif figures.free_bytes < reserve:
            self._stop_full(
                f"the disk of {self.path} has only {figures.free_bytes >> 20} MiB left, {reserve >> 20} MiB are reserved"
            )
        if not self._is_full and self._failure is None:
            self._health = judge(figures)
        return self.health

    def stats(self) -> dict[str, int]:
        """Counters and sizes, those of all families added up; times in microseconds, -1 for what is not known."""
        committer = self._committer
        return {
            "written": self._written,
            "committed": self.committed,
            "commits": committer.commits if committer else 0,
            "commit_us_total": int(committer.commit_s_total * 1e6) if committer else 0,
            "commit_us_max": int(committer.commit_s_max * 1e6) if committer else 0,
            "commit_us_max_recent": int(committer.recent_s_max() * 1e6) if committer else -1,
            "commit_age_us": int((monotonic() - committer.committed_at) * 1e6) if committer and committer.committed_at else -1,
            "memtable_bytes": self._sum("rocksdb.cur-size-all-mem-tables"),
            "table_bytes": self._sum("rocksdb.live-sst-files-size"),
            "rows_estimate": self._sum("rocksdb.estimate-num-keys"),
            "pending_compaction_bytes": self._sum("rocksdb.estimate-pending-compaction-bytes"),
            "disk_free_bytes": self._disk.free_bytes(self.path),
        }

    def compact(self, family: str, lower: bytes, upper: bytes) -> None:
        """Rewrite the tables of a range, which frees the space of what was removed from it. Takes its time: for a thread.

        Closing the store waits for it.
        """
        with self.kept_open():
            try:
                self._family(family).compact_range(lower, upper)
            except Exception as problem:
                raise Unavailable(f"the log in {self.path} could not be compacted: {problem}") from problem

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """For a thread beside the loop: closing waits until it is done. Raises UsageError if the store is closed."""
        with self._users_changed:
            if self._is_closed:
                raise UsageError(f"the log in {self.path} is closed")
            self._users += 1
        try:
            yield
        finally:
            with self._users_changed:
                self._users -= 1
                self._users_changed.notify_all()

    def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Make a directory with the database as it is now, tables as hard links; it can be opened as a store. For a thread."""
        place = Path(path)
        if place.exists():
            raise UsageError(f"{place} is there already", "name a directory that is not there yet")
        if self._failure is not None or self._must_not_flush or self._is_closed:
            self._refuse_write()
        with self.kept_open():
            try:
                place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                # A checkpoint flushes too, but with the interpreter lock held, so that the loop would wait for it.
                for rows in self._families.values():
                    rows.flush(True)
                Checkpoint(self._db).create_checkpoint(str(place))
                place.chmod(0o700)
            except Exception as problem:
                raise Unavailable(f"no checkpoint could be made in {place}: {problem}") from problem

    def close(self) -> None:
        """Commit what is written, if that is possible, and release the directory; blocks until done.

        Cursors that are still alive keep it locked.
        """
        with self._users_changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._users_changed.wait_for(lambda: self._users == 0)
        if self._committer is not None and not self._committer.close():
            raise Unavailable(f"the disk of {self.path} does not answer; the log is left open")
        is_broken = self._failure is not None or self._must_not_flush
        try:
            if self._committer is None and not is_broken:
                self._disk.flush(self._db)
            self._db.close()
        except Exception as problem:
            if not is_broken:
                raise Unavailable(
                    f"the log in {self.path} was not closed well, its last records may be lost: {problem}"
                ) from problem
            log.warning("the log in %s was closed after a failure: %s", self.path, problem)
        finally:
            # Each of these keeps the directory locked.
            self._families.clear()
            self._handles.clear()

    def _family(self, name: str) -> Rdict:
        rows = self._families.get(name)
        if rows is None:
            raise UsageError(f"the store has no family {name!r}", "name it when the store is opened")
        return rows

    def _sum(self, name: str) -> int:
        return sum(rows.property_int_value(name) or 0 for rows in self._families.values())

    def _max(self, name: str) -> int:
        return max(rows.property_int_value(name) or 0 for rows in self._families.values())

    def _measure(self) -> Figures:
        return Figures(
            free_bytes=self._disk.free_bytes(self.path),
            is_write_stopped=bool(self._db.property_int_value("rocksdb.is-write-stopped")),
            delayed_write_rate=self._db.property_int_value("rocksdb.actual-delayed-write-rate") or 0,
            level0_files=self._max("rocksdb.num-files-at-level0"),
            waiting_memtables=self._max("rocksdb.num-immutable-mem-table"),
            pending_compaction_bytes=self._max("rocksdb.estimate-pending-compaction-bytes"),
            commit_running_s=self._committer.running_s() if self._committer else 0.0,
        )

    def _have_committed(self, number: int) -> None:
        """In the commit thread."""
        assert self._loop_call is not None
        assert self._on_commit is not None
        self.committed = number
        try:
            self._loop_call(partial(self._on_commit, number))
        except RuntimeError:
            log.error("the log in %s is committed, but the event loop that waits for it is closed", self.path)

    def _tell_written(self) -> None:
        assert self._on_commit is not None
        self._is_telling = False
        self._on_commit(self.committed)

    def _fail_commit(self, problem: Exception) -> None:
        """In the commit thread, or in that of ``sync``."""
        self._fail(
            f"what was written to the log in {self.path} could not be committed ({problem}); it is read-only until a restart"
        )

    def _fail(self, reason: str) -> None:
        if self._failure is None:
            self._failure = Health(State.STOPPED, reason, needs_restart=True)
            log.critical("%s", reason)

    def _stop_full(self, reason: str) -> None:
        self._is_full = True
        self._health = Health(State.STOPPED, reason)
        log.error("%s; the log takes no writes until there is space", reason)

    def _write_problem(self, problem: Exception) -> Unavailable:
        match classify(problem):
            case Fault.STALL:
                self._health = Health(State.STOPPED, "the storage engine is stalled until compaction catches up")
                return Unavailable(self._health.reason, _RETRY_AFTER_STALL_S)
            case Fault.FULL:
                self._must_not_flush = True
                if self._committer is not None:
                    self._committer.hold()
                self._stop_full(f"the disk of {self.path} is full")
                return Unavailable(self._health.reason, _RETRY_AFTER_FULL_S)
            case Fault.LASTING:
                self._must_not_flush = True
                if self._committer is not None:
                    self._committer.hold()
                self._fail(f"the log in {self.path} cannot be written ({problem}); it is read-only until a restart")
                return Unavailable(self.health.reason, _RETRY_AFTER_RESTART_S)

    def _can_write(self) -> bool:
        """Ask the engine with a write of nothing, which it refuses as long as it is stopped."""
        try:
            self._db.write(WriteBatch(raw_mode=True), self._write_options)
        except Exception as problem:
            if classify(problem) is Fault.LASTING:
                self._write_problem(problem)
            return False
        return True

    def _refuse_write(self) -> NoReturn:
        if self._is_closed:
            raise UsageError(f"the log in {self.path} is closed")
        health = self.health
        raise Unavailable(health.reason, _RETRY_AFTER_RESTART_S if health.needs_restart else _RETRY_AFTER_FULL_S)
