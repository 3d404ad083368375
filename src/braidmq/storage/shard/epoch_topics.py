"""An in-memory list of the topic indexes of a closed epoch, for many readers that mostly find nothing in it.

Finding out that an epoch has nothing for a filter takes a seek for each query. Thousands of sessions that return at once, each
with a topic of its own, would seek in every epoch. So an epoch in which many searches have found nothing within a short time is
walked once, in slices, and further searches are answered from the list of its indexes. Closed epochs do not change.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from braidmq.storage.format.rows import EpochRow
from braidmq.storage.layouts.contract import EPOCH_BYTES, Query, index_of
from braidmq.storage.ports import Reads

# An epoch is walked after this many searches without a match within this many seconds.
MISSES: Final = 100
MISSES_WITHIN_S: Final = 1.0

# For all lists of a directory together; one epoch may use a quarter of it.
_BYTES_MAX: Final = 4 * 1024 * 1024
_MISSED_MAX: Final = 1024
# The overhead in memory of an index.
_INDEX_COST: Final = 41
# After this many records of one topic a seek to the next topic is cheaper.
_SAME_MAX: Final = 24
# The number of records between two checks of the clock.
_STEPS: Final = 64
# A query with gaps is checked across at most this many of them; beyond that, running it costs no more.
_GAPS_MAX: Final = 16


class EpochTopics:
    """The indexes of one epoch; `advance` until `is_whole`, then query."""

    def __init__(self, store: Reads, family: str, epoch: EpochRow, bytes_max: int) -> None:
        self.is_whole = False
        self.size_bytes = 0
        self._store = store
        self._family = family
        self._next_key = epoch.start.to_bytes(EPOCH_BYTES, "big")
        self._end = (epoch.start + 1).to_bytes(EPOCH_BYTES, "big")
        self._bytes_max = bytes_max
        self._indexes: list[bytes] = []
        self._is_complete = True

    def advance(self, is_over: Callable[[], bool]) -> bool:
        """Walk until the end of the epoch or of the time; True at the end of the epoch."""
        while not self.is_whole and not is_over():
            self._walk(is_over)
        return self.is_whole

    def _walk(self, is_over: Callable[[], bool]) -> None:
        """Continue until a seek is due; a failed read is repeated from where it began."""
        count, size_bytes = len(self._indexes), self.size_bytes
        try:
            self._walk_on(is_over)
        except BaseException:
            del self._indexes[count:]
            self.size_bytes = size_bytes
            raise

    def _walk_on(self, is_over: Callable[[], bool]) -> None:
        last = self._indexes[-1] if self._indexes else None
        same = 0
        for step, (key, _) in enumerate(self._store.items(self._family, self._next_key, self._end), 1):
            index = index_of(key)
            if index != last:
                last = index
                same = 0
                self._indexes.append(index)
                self.size_bytes += len(index) + _INDEX_COST
                if self.size_bytes > self._bytes_max:
                    break
            same += 1
            if same > _SAME_MAX:
                self._next_key = key[:-4] + b"\xff\xff\xff\xff\0"  # no index is a prefix of another
                return
            if step % _STEPS == 0 and is_over():
                self._next_key = key + b"\0"
                return
        self.is_whole = True
        if self.size_bytes > self._bytes_max:
            self._is_complete = False
            self._indexes = []
            self.size_bytes = 0

    def may_hold(self, query: Query) -> bool:
        """Whether a record of the epoch may match the query."""
        if not self._is_complete:
            return True
        indexes = self._indexes
        wanted: bytes | None = query.first()
        for _ in range(_GAPS_MAX):
            if wanted is None:
                return False
            place = bisect_left(indexes, wanted)
            if place == len(indexes):
                return False
            if query.matches(indexes[place]):
                return True
            wanted = query.ratchet(indexes[place])
        return True


class TopicDirectory:
    """The lists of those closed epochs of a family for which they pay off; bounded in bytes."""

    def __init__(self, store: Reads, family: str, now: Callable[[], float] = time.monotonic, bytes_max: int = _BYTES_MAX) -> None:
        self._store = store
        self._family = family
        self._now = now
        self._bytes_max = bytes_max
        self._missed: OrderedDict[int, tuple[float, int]] = OrderedDict()  # by epoch: since when, and how often
        self._known: OrderedDict[int, EpochTopics] = OrderedDict()  # least recently used first

    @property
    def size_bytes(self) -> int:
        """The memory of the lists, in bytes."""
        return sum(each.size_bytes for each in self._known.values())

    def note_miss(self, epoch: EpochRow) -> None:
        """A search of this closed epoch has found nothing."""
        since, count = self._missed.pop(epoch.start, (0.0, 0))
        now = self._now()
        if now - since > MISSES_WITHIN_S:
            since, count = now, 0
        self._missed[epoch.start] = since, count + 1
        if len(self._missed) > _MISSED_MAX:
            self._missed.popitem(last=False)
        if count + 1 >= MISSES and epoch.start not in self._known:
            self._known[epoch.start] = EpochTopics(self._store, self._family, epoch, self._bytes_max // 4)

    def narrow(self, epoch: EpochRow, queries: Iterable[Query], is_over: Callable[[], bool]) -> list[Query] | None:
        """The queries that may find something in this closed epoch; None if the time was over before that was known."""
        topics = self._known.get(epoch.start)
        if topics is None:
            return [*queries]
        if not topics.is_whole:
            if not topics.advance(is_over):
                return None
            self._make_room()
        self._known.move_to_end(epoch.start)
        return [query for query in queries if topics.may_hold(query)]

    def _make_room(self) -> None:
        while self.size_bytes > self._bytes_max:
            self._known.popitem(last=False)
