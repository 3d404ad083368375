"""Opens the secondary of a log on first use, keeps it up to date, and closes it when it has been idle for a while.

An open secondary needs a second set of memtables and work for every write, so it is open only while there are readers. All
methods may be called from any thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from braidmq.base.errors import BraidError, Corruption, Unavailable, UsageError
from braidmq.history.view.served_positions import ServedPositions
from braidmq.history.view.shard_view import FamilyView, ShardView
from braidmq.storage.engine.open import family_of
from braidmq.storage.engine.rocksdb import DEFAULT_FAMILY
from braidmq.storage.engine.secondary import Secondary
from braidmq.storage.shard.classes import CLASS_PREFIX, CLASSES_END, ClassTable, LogClass, decode_class

log = logging.getLogger("braidmq.history")

_CATCH_UP_EVERY_S: Final = 1.0
# The pause after a catch-up that did not count.
_AGAIN_AFTER_S: Final = 0.01
_BEGIN_MAX_S: Final = 5.0
# Directories for the secondary's own files; a second one is in use for a moment while readers of the old one finish.
_SCRATCHES: Final = 4


class OpenLog:
    """A secondary with the state of its shards as of the last catch-up that counts. `lock` guards the shards."""

    def __init__(self, store: Secondary) -> None:
        self.store = store
        self.log_id = store.log_id.hex()
        self.lock = threading.RLock()
        self.shards: list[ShardView] = []  # empty before the first such catch-up
        self.users = 0
        self.served: Mapping[int, int] = {}  # replaced as a whole

    def follow(self, served: Mapping[int, int]) -> None:
        """Update the shards after a catch-up that counts; `served` may be served now."""
        with self.lock:
            if not self.shards:
                self.shards = _make_shards(self.store)
            for shard in self.shards:
                shard.follow()
            self.served = dict(served)


class Follower:
    """Opens and closes the secondary; readers get it from `using`."""

    def __init__(self, log_dir: Path, scratch_dir: Path, idle_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._log_dir = log_dir
        self._scratch_dir = scratch_dir
        self._idle_s = idle_s
        self._now = now
        self._following = ServedPositions()
        # Guards the fields below and the watermarks; notified of new watermarks and of the end.
        self._changed = threading.Condition()
        self._catching_up = threading.Lock()
        self._opening = threading.Lock()
        self._current: OpenLog | None = None
        self._opened = 0
        self._used_at = 0.0
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        """Whether a secondary is open."""
        return self._current is not None

    def hear(self, watermarks: Mapping[int, int]) -> None:
        """Take the watermarks that the node reports."""
        with self._changed:
            self._following.hear(watermarks)
            self._changed.notify_all()

    @contextmanager
    def using(self) -> Iterator[OpenLog]:
        """The log, opened if necessary and kept open during the context. Raises Unavailable, Corruption, UsageError."""
        opened = self._enter()
        try:
            yield opened
        finally:
            with self._changed:
                self._used_at = self._now()
            self._leave(opened)

    def refresh(self, opened: OpenLog, timeout_s: float) -> None:
        """Serve everything committed before this call, if that is possible within the time limit."""
        with self._changed:
            wanted = dict(self._following.held)
        self.reach(opened, wanted, timeout_s)

    def reach(self, opened: OpenLog, watermarks: Mapping[int, int], timeout_s: float) -> bool:
        """Catch up until everything up to these watermarks may be served; False if the time limit is reached first."""
        deadline = self._now() + timeout_s
        while not _reaches(opened.served, watermarks):
            left_s = deadline - self._now()
            if left_s <= 0:
                return False
            with self._changed:
                if not _reaches(self._following.held, watermarks):
                    self._changed.wait(left_s)
                    continue
            if not self._catch_up(opened, watermarks):
                time.sleep(min(_AGAIN_AFTER_S, left_s))
        return True

    def close(self) -> None:
        """Close the secondary as soon as it is unused."""
        with self._opening:
            self._is_closed = True
        self._retire(self._current)

    def _enter(self) -> OpenLog:
        with self._opening:
            if self._is_closed:
                raise UsageError("the history is closed")
            with self._changed:
                opened = self._current
                if opened is not None:
                    opened.users += 1
                    return opened
                self._opened += 1
                scratch = self._scratch_dir / str(self._opened % _SCRATCHES)
            opened = OpenLog(Secondary.open(self._log_dir, scratch))
            try:
                self._begin(opened)
            except BaseException:
                opened.store.close()
                raise
            with self._changed:
                opened.users = 1
                self._current = opened
        threading.Thread(target=self._attend, args=(opened,), name="history-follower", daemon=True).start()
        return opened

    def _begin(self, opened: OpenLog) -> None:
        """Do the first catch-up that counts: opening the secondary may miss rows like a catch-up that does not count."""
        deadline = self._now() + _BEGIN_MAX_S
        while not self._catch_up(opened, None):
            if self._now() >= deadline:
                raise Unavailable(f"the log in {self._log_dir} is changing too fast to be opened; try again")
            time.sleep(_AGAIN_AFTER_S)

    def _leave(self, opened: OpenLog) -> None:
        with self._changed:
            opened.users -= 1
            is_over = opened.users == 0 and opened is not self._current
        if is_over:
            opened.store.close()

    def _retire(self, opened: OpenLog | None) -> None:
        """Make the next reader reopen it; it is closed when its current readers have finished."""
        if opened is None:
            return
        with self._changed:
            if self._current is not opened:
                return
            self._current = None
            self._changed.notify_all()
            is_over = opened.users == 0
        if is_over:
            opened.store.close()

    def _attend(self, opened: OpenLog) -> None:
        """Runs in its own thread: catch up every second, and close the secondary when it is idle."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: opened is not self._current, _CATCH_UP_EVERY_S)
                if opened is not self._current:
                    return
                is_idle = opened.users == 0 and self._now() - self._used_at >= self._idle_s
                if not is_idle:
                    opened.users += 1  # does not count as a use that keeps it open
            if is_idle:
                self._retire(opened)
                return
            try:
                self._catch_up(opened, None)
            except BraidError as problem:
                log.warning("the history service cannot follow the log now: %s", problem)
            finally:
                self._leave(opened)

    def _catch_up(self, opened: OpenLog, wanted: Mapping[int, int] | None) -> bool:
        """Catch up once; True if it counted, or another thread has reached what is wanted in the meantime."""
        with self._catching_up:
            if wanted is not None and _reaches(opened.served, wanted):
                return True
            with self._changed:
                self._following.begin(opened.store.log_files())
            try:
                opened.store.catch_up()
            except BraidError:
                self._retire(opened)
                raise
            with self._changed:
                counts = self._following.end(opened.store.log_files())
                served = self._following.served
            if counts:
                opened.follow(served)
            return counts


def _reaches(watermarks: Mapping[int, int], wanted: Mapping[int, int]) -> bool:
    # 1 is before all records: readers use it for a shard that was empty, because 0 means "from the earliest" to the log.
    return all(watermarks.get(shard, 1) >= position or position <= 1 for shard, position in wanted.items())


def _make_shards(store: Secondary) -> list[ShardView]:
    names = set(store.families)
    rows = store.items(DEFAULT_FAMILY, CLASS_PREFIX, CLASSES_END)
    classes = [LogClass(key[len(CLASS_PREFIX) :].decode(), (), decode_class(value)) for key, value in rows]
    table = ClassTable(classes)
    shards: list[ShardView] = []
    while family_of(len(shards)) in names:
        number = len(shards)
        views = [FamilyView(store, family_of(number, name), name) for name in ["", *(each.name for each in classes)]]
        if not names.issuperset(view.family for view in views):
            raise Corruption(f"the log in {store.path} lacks a column family of shard {number}")
        shards.append(ShardView(views, table))
    return shards
