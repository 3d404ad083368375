"""The database of a node: rows in column families, written in batches, committed in groups.

Only this module and those beside it (``database``, ``identity``, ``batch``, ``cursor`` ...) use rocksdict. It holds the
interpreter lock while it writes, so a stalled engine would stop the whole node: every write is set to fail instead
(``no_slowdown``), and the committer's thread calls fsync, which releases the lock.

``availability`` decides whether writes are accepted; while a thread reopens a stopped store (``recovery``), earlier writes wait.

``write``, ``check`` and ``close`` belong to one thread, the loop's. Reads may come from any.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal, NoReturn

from rocksdict import Checkpoint, Rdict, WriteBatch, WriteOptions

from braidmq.base.errors import Unavailable, UsageError
from braidmq.storage.engine.availability import Availability
from braidmq.storage.engine.batch import Batch
from braidmq.storage.engine.committer import Committer
from braidmq.storage.engine.cursor import Cursor
from braidmq.storage.engine.database import Database
from braidmq.storage.engine.health import Health
from braidmq.storage.engine.mark import MarkFile, check_before, check_opened, mark_path, read_mark
from braidmq.storage.engine.recovery import Recovery, waits_too_long
from braidmq.storage.engine.rocksdb import Disk, Fault, Tuning, classify, is_damage
from braidmq.storage.engine.stats import commit_stats, measure, size_stats
from braidmq.storage.engine.threads import StoreThreads

__all__ = ["Batch", "Cursor", "Durability", "Store"]

log = logging.getLogger(__name__)

Durability = Literal["fsync", "os"]

_THREADS_TIMEOUT_S = 10.0


class Store:
    """One directory, opened by one process. Create it with ``Store.open``, then ``start``; ``close`` ends it."""

    def __init__(
        self, database: Database, durability: Durability, tuning: Tuning, disk: Disk, mark: MarkFile | None = None
    ) -> None:
        """Use ``Store.open``."""
        self.path = database.path
        self.log_id = database.log_id
        self.committed = 0
        self.recoveries = 0
        self._database = database
        self._mark = mark
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
        self._availability = Availability(self.path, tuning.reserve_bytes, self._hold_commits)
        self._recovery: Recovery | None = None
        self._is_closed = False
        self._threads = StoreThreads()  # in ``kept_open``

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
        is_marked: bool = False,
        log_id: bytes = b"",
    ) -> Store:
        """Open or create the directory (0700) with at least these families. Blocks while the write-ahead log is read.

        Raises UsageError (in use, or a newer format), ConfigError (no directory, not writable), Corruption, Unavailable.
        ``salvage`` accepts a damaged write-ahead log and keeps the data before the damage: acknowledged records may be lost.
        ``is_marked``: maintain the mark, and raise Corruption for a log that has less than its mark says, unless salvaged.
        ``log_id``: which the directory must have, and gets if it is new; empty: any.
        """
        place = Path(path)
        tuning = tuning or Tuning()
        mark = read_mark(mark_path(place)) if is_marked and not salvage else None
        if mark is not None:
            check_before(place, mark, tuning)
        database = Database.open(place, families, tuning, salvage=salvage, log_id=log_id)
        try:
            if mark is not None:
                check_opened(database, mark)
            # The content of the write-ahead log is now in synced tables.
            marker = MarkFile(place, database.log_id, database.sequence) if is_marked else None
        except BaseException:
            database.close()
            raise
        return cls(database, durability, tuning, disk or Disk(), marker)

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
        return tuple(self._database.families)

    @property
    def _families(self) -> dict[str, Rdict]:
        return self._database.families

    @property
    def health(self) -> Health:
        """The state as of the last ``check`` or of a failure since then."""
        return self._availability.health

    def start(self, loop_call: Callable[[Callable[[], None]], object], on_commit: Callable[[int], None]) -> None:
        """Start the commit thread; ``on_commit(number)`` is called through ``loop_call`` (``loop.call_soon_threadsafe``)."""
        if self._loop_call is not None:
            raise UsageError("the store has already been started")
        self._loop_call = loop_call
        self._availability.can_recover = True
        self._on_commit = on_commit
        if self._durability == "fsync":
            self._start_committer()

    def _start_committer(self) -> None:
        self._committer = Committer(
            self._flush, self.committed, self._have_committed, self._fail_commit, self._committer, self._have_time
        )
        if self._availability.must_not_flush:
            self._committer.hold()
        self._committer.start()
        self._committer.wrote(self._written)

    def batch(self) -> Batch:
        """An empty batch."""
        return Batch(self._database.handles)

    def write(self, batch: Batch, *, frees_space: bool = False) -> int:
        """Write without waiting for the disk, and return the write's number; it is durable once ``committed`` has reached it.

        Raises Unavailable if the store is stopped or stalled: then nothing was written, but the batch cannot be used again.
        A small batch that removes much (``frees_space``) may use the reserve of the disk.
        """
        changes = batch.take()
        if self._is_closed or not self._availability.accepts(frees_space=frees_space):
            self._refuse_write()
        try:
            self._database.db.write(changes, self._write_options)
        except Exception as problem:  # rocksdict has no exception class for RocksDB's errors
            raise self._availability.note_failed_write(problem) from problem
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
        """Commit everything written in this call and return ``committed``; only before ``start``. Blocks."""
        if self._loop_call is not None:
            raise UsageError("a started store commits by itself", "wait for on_commit")
        if self._is_closed or not self._availability.may_flush():
            self._refuse_write()
        try:
            self._disk.flush(self._database.db)
        except Exception as problem:
            self._fail_commit(problem)
            self._refuse_write()
        self.committed = self._written
        return self.committed

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of a row, committed or not."""
        return self._database.get(family, key)

    def cursor(self, family: str, lower: bytes, upper: bytes) -> Cursor:
        """A cursor over ``lower <= key < upper``."""
        return self._database.cursor(family, lower, upper)

    def items(self, family: str, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every row with ``lower <= key < upper``, in order; rows written meanwhile may or may not appear.

        The fastest way to read a run.
        """
        return self._database.items(family, lower, upper)

    def check(self) -> Health:
        """Check the engine and the disk, stop or resume accordingly, and return the health.

        Takes well under a millisecond; call it every second.
        """
        availability = self._availability
        if availability.failure is not None or self._is_closed:
            self._recover()
            return self.health
        try:
            figures = measure(self._database, self._disk, self._committer)
        except OSError as problem:
            availability.fail(f"the disk of {self.path} is unavailable ({problem})")
            return self.health
        was_full = availability.is_full
        availability.note(figures, self._can_write)
        if was_full and not availability.is_full and self._committer is not None:
            self._committer.release()
        return self.health

    def stats(self) -> dict[str, int]:
        """Counters and sizes, summed over all families; times in microseconds, -1 if unknown."""
        return {
            "written": self._written,
            "committed": self.committed,
            **commit_stats(self._committer),
            "recoveries": self.recoveries,
            **size_stats(self._database, self._disk),
        }

    def compact(self, family: str, lower: bytes, upper: bytes) -> None:
        """Rewrite the tables of a range, which frees the space of its removed rows. Slow: call it from a thread.

        Closing the store waits for it.
        """
        with self.kept_open():
            try:
                self._database.family(family).compact_range(lower, upper)
            except Exception as problem:
                raise Unavailable(f"the log in {self.path} could not be compacted: {problem}") from problem

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """For threads other than the loop's: closing waits until the block ends.

        Raises UsageError if the store is closed, Unavailable while it recovers from a failure.
        """
        with self._threads.use(self._check_usable):
            yield

    def _check_usable(self) -> None:
        if self._is_closed:
            raise UsageError(f"the log in {self.path} is closed")
        if self._availability.failure is not None:
            self._refuse_write()

    def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Create a directory with the database as it is now, tables as hard links; it can be opened as a store. For a thread."""
        place = Path(path)
        if place.exists():
            raise UsageError(f"{place} already exists", "use a directory that does not exist yet")
        if self._is_closed or not self._availability.may_flush():
            self._refuse_write()
        with self.kept_open():
            try:
                place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                # A checkpoint flushes as well, but it holds the interpreter lock, so the loop would wait for it.
                for rows in self._database.families.values():
                    rows.flush(True)
                Checkpoint(self._database.db).create_checkpoint(str(place))
                place.chmod(0o700)
            except Exception as problem:
                raise Unavailable(f"cannot create a checkpoint in {place}: {problem}") from problem

    def close(self) -> None:
        """Commit everything written, if possible, and release the directory; blocks until done.

        Live cursors keep it locked.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._threads.wait()
        if self._recovery is not None and not self._recovery.stop():
            raise Unavailable(f"the disk of {self.path} does not answer; the log is left open")
        if self._committer is not None and not self._committer.close():
            raise Unavailable(f"the disk of {self.path} does not answer; the log is left open")
        is_broken = not self._availability.may_flush()
        sequence = None if is_broken else self._database.sequence
        try:
            if self._committer is None and not is_broken:
                self._disk.flush(self._database.db)
            if self._mark is not None:
                self._mark.close(sequence)
            self._database.close()
        except Exception as problem:
            if not is_broken:
                raise Unavailable(
                    f"the log in {self.path} was not closed cleanly, its last records may be lost: {problem}"
                ) from problem
            log.warning("the log in %s was closed after a failure: %s", self.path, problem)

    # Recovery

    def _recover(self) -> None:
        """Start to reopen the database, unless that is in progress or cannot help."""
        failure = self._availability.failure
        if failure is None or failure.needs_restart or self._is_closed or self._recovery is not None:
            return
        assert self._loop_call is not None  # without it a failure needs a restart
        self._recovery = Recovery(self, self._database, self._tuning, self._disk, self._loop_call)
        self._recovery.start()

    def read_from(self, view: Database) -> None:
        """For the recovery: see ``Recovering``."""
        self._database = view

    def let_go(self) -> None:
        """For the recovery: see ``Recovering``."""
        if self._committer is not None and not self._committer.close():
            raise waits_too_long(self.path)
        if not self._threads.wait(_THREADS_TIMEOUT_S):
            raise waits_too_long(self.path)

    def resume(self, database: Database) -> None:
        """For the recovery: see ``Recovering``."""
        self._database = database
        self._recovery = None
        self._availability.resume()
        self.recoveries += 1
        self.committed = self._written
        log.warning("the log in %s was reopened after a fault and accepts writes; no data was lost", self.path)
        if self._durability == "fsync":
            self._start_committer()
        assert self._on_commit is not None
        self._on_commit(self.committed)

    def give_up(self, database: Database | None, reason: str) -> None:
        """For the recovery: see ``Recovering``."""
        if database is not None:
            self._database = database
        self._recovery = None
        self._availability.give_up(reason)

    def _flush(self) -> None:
        """In the commit thread."""
        database, mark = self._database, self._mark
        sequence = database.sequence
        self._disk.flush(database.db)
        if mark is not None:
            mark.synced(sequence)

    def _have_time(self, is_idle: bool) -> None:
        """In the commit thread."""
        if self._mark is not None:
            self._mark.catch_up(is_idle=is_idle)

    def _have_committed(self, number: int) -> None:
        """In the commit thread."""
        assert self._loop_call is not None
        assert self._on_commit is not None
        self.committed = number
        try:
            self._loop_call(partial(self._on_commit, number))
        except RuntimeError:
            log.error("the log in %s was committed, but the event loop that waited for it is closed", self.path)

    def _tell_written(self) -> None:
        assert self._on_commit is not None
        self._is_telling = False
        self._on_commit(self.committed)

    def _fail_commit(self, problem: Exception) -> None:
        """In the commit thread, or in that of ``sync``."""
        self._availability.fail(
            f"the last writes to the log in {self.path} could not be committed ({problem})", is_damage(problem)
        )

    def _hold_commits(self) -> None:
        if self._committer is not None:
            self._committer.hold()

    def _can_write(self) -> bool:
        """Test the engine with an empty write, which it rejects while it is stopped."""
        try:
            self._database.db.write(WriteBatch(raw_mode=True), self._write_options)
        except Exception as problem:
            if classify(problem) is Fault.LASTING:
                self._availability.note_failed_write(problem)
            return False
        return True

    def _refuse_write(self) -> NoReturn:
        if self._is_closed:
            raise UsageError(f"the log in {self.path} is closed")
        self._availability.refuse()
