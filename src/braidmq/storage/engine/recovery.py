"""Reopening a database after a fault, while the node runs.

After a file that cannot be opened (no free descriptor), a failed write or a failed fsync, RocksDB rejects every further write,
and rocksdict has no call to resume it. Reopening the database does, once the cause is gone: RocksDB then reads what was written
from the write-ahead log and moves it to table files, which it syncs; a failed fsync is never retried.

    in the thread                               on the loop
    open a read-only view                 ->    reads use the view
    wait for readers in threads, close the failed database
    open it for writing, compare, sync    ->    reads and writes use it; everything written counts as committed
    close the view

The failed database may still compact, and delete files, while the view is opened: what looks like damage then counts only if it
is found again and again. Once the failed database is closed, it counts at once.

The database must then hold exactly the rows that were written: if rows are missing or added, the state in memory differs from
the disk, and only a restart helps.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from braidmq.base.backoff import Backoff
from braidmq.base.errors import Corruption, Unavailable
from braidmq.storage.engine.database import Database
from braidmq.storage.engine.rocksdb import Disk, Tuning

log = logging.getLogger("braidmq.storage")

_FIRST_PAUSE_S: Final = 0.5
_PAUSE_MAX_S: Final = 5.0
_LOOP_WAIT_S: Final = 0.05
_CLOSE_TIMEOUT_S: Final = 30.0
# How often a view may look damaged while the failed database is still open.
_DAMAGED_VIEWS_MAX: Final = 10


class Recovering(Protocol):
    """The store, as its recovery sees it."""

    def read_from(self, view: Database) -> None:
        """On the loop: use this view for all reads until `resume`."""

    def let_go(self) -> None:
        """In the thread: stop all use of the failed database. Raises Unavailable if that takes too long."""

    def resume(self, database: Database) -> None:
        """On the loop: continue with this database, which contains exactly the rows written."""

    def give_up(self, database: Database | None, reason: str) -> None:
        """On the loop: recovery is impossible. Reads may use the database, if there is one."""


class _Stopped(Exception):
    """The store is being closed."""


class Recovery:
    """One recovery; it retries until it succeeds. `start`, then `stop` if the store is closed before that."""

    def __init__(
        self,
        store: Recovering,
        failed: Database,
        tuning: Tuning,
        disk: Disk,
        loop_call: Callable[[Callable[[], None]], object],
    ) -> None:
        self._store = store
        self._failed: Database | None = failed
        self._path: Path = failed.path
        self._sequence = failed.sequence
        self._view: Database | None = None
        self._tuning = tuning
        self._disk = disk
        self._loop_call = loop_call
        self._is_stopped = threading.Event()
        self._told = ""
        self._thread = threading.Thread(target=self._run, name="braidmq-recovery", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> bool:
        """End it; False if it did not end in time. Then the store must close the last database passed to `read_from`."""
        self._is_stopped.set()
        self._thread.join(_CLOSE_TIMEOUT_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._try_until_it_works()
        finally:
            if self._is_stopped.is_set() and self._view is not None and self._failed is not None:
                self._close_failed()

    def _try_until_it_works(self) -> None:
        backoff = Backoff(_FIRST_PAUSE_S, _PAUSE_MAX_S)
        pause_s = 0.0
        damaged_views = 0
        while not self._is_stopped.wait(pause_s):
            try:
                self._try()
                return
            except _Stopped:
                return
            except Corruption as problem:
                damaged_views += 1
                if self._failed is None or damaged_views == _DAMAGED_VIEWS_MAX:
                    self._end(None, str(problem))
                    return
            except Exception as problem:  # whatever it is, it is retried and must be logged
                if str(problem) != self._told:
                    log.warning("cannot reopen the log in %s yet: %s", self._path, problem)
                    self._told = str(problem)
            pause_s = backoff.next()

    def _try(self) -> None:
        self._disk.free_bytes(self._path)
        if self._view is None:
            view = Database.open_read_only(self._path, self._tuning)
            self._on_loop(lambda: self._store.read_from(view), view)
            self._view = view
        if self._failed is not None:
            self._store.let_go()
            self._close_failed()
        database = Database.open(self._path, (), self._tuning)
        try:
            self._disk.flush(database.db)
        except BaseException:
            database.close()
            raise
        difference = database.sequence - self._sequence
        if difference:
            self._end(
                database,
                f"after a disk fault the log in {self._path} differs by {difference:+} rows from the rows written",
            )
        else:
            self._on_loop(lambda: self._store.resume(database), database)
        self._view.close()

    def _close_failed(self) -> None:
        assert self._failed is not None
        try:
            self._failed.close()
        except Exception as problem:  # it reports its fault once more
            log.debug("the failed database in %s was closed: %s", self._path, problem)
        self._failed = None

    def _end(self, database: Database | None, reason: str) -> None:
        self._on_loop(lambda: self._store.give_up(database, reason), database)

    def _on_loop(self, call: Callable[[], None], opened: Database | None) -> None:
        """Call on the loop and wait for it; closes `opened` if the store is closed instead."""
        done = threading.Event()

        def run() -> None:
            if not self._is_stopped.is_set():
                call()
                done.set()

        try:
            self._loop_call(run)
            while not done.wait(_LOOP_WAIT_S):
                if self._is_stopped.is_set():
                    raise _Stopped
        except (RuntimeError, _Stopped):  # the loop is closed, or about to be
            if opened is not None:
                opened.close()
            raise _Stopped from None


def waits_too_long(path: Path) -> Unavailable:
    """What `Recovering.let_go` raises."""
    return Unavailable(f"the failed log in {path} is still in use")
