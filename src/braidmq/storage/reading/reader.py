"""Reads a shard forwards from any position, in order of time, by topic filters: `start_replay`, then `next` as often as needed.

A position is one timestamp: everything at or below it has been read. So a reader may stop anywhere, and another can continue from
its position with its filters. The order of steps is a rule (S14), repeated for every epoch: first take the watermark, then plan
the filters on the layout, then open iterators; records above that watermark are not shown. What a layout learns later belongs to
later records only, so nothing can be missed.

A reader that has caught up with the tail reads from the tail. Both are ordered by the same timestamps, so nothing is lost or
repeated in between. A call that fails may have moved the position past
records that it did not return: start another scan then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from braidmq.base.errors import UsageError
from braidmq.lane.records.records import Record, TopicFilters
from braidmq.storage.format.rows import EpochRow
from braidmq.storage.layouts.contract import Query
from braidmq.storage.ports import Reads
from braidmq.storage.reading.epoch_scan import DEFAULT_SCAN_LIMITS, EpochScan, ScanCache, ScanLimits, Seniority
from braidmq.storage.reading.positions import EARLIEST
from braidmq.storage.shard.epoch_topics import TopicDirectory
from braidmq.storage.shard.shard import Shard
from braidmq.storage.shard.tail_block import TopicSearch

# The event loop waits at most 2 ms for a reader, in addition to the last piece of work and the sorting of a full list.
SLICE_S: Final = 0.0012
CHUNK_BYTES: Final = 1024 * 1024

# A query costs a seek, about as much as this many steps. With more queries than that, examining every record is cheaper.
_SEEK_STEPS: Final = 32
# The tail is read in pieces of this many records, so that filters that match little do not block the loop.
_TAIL_CHUNK: Final = 512


class RetentionGap(Struct, frozen=True, gc=False):
    """Records later than `wanted` and earlier than `floor` were removed by retention before they were read."""

    wanted: int
    floor: int

    def widened(self, other: RetentionGap | None) -> RetentionGap:
        """One gap that covers both; they are in the same shard."""
        return self if other is None else RetentionGap(min(self.wanted, other.wanted), max(self.floor, other.floor))


class LogReader:
    """Starts replays of one shard; they share what they find."""

    def __init__(
        self,
        store: Reads,
        shard: Shard,
        scans: ScanCache | None = None,
        now: Callable[[], float] = time.monotonic,
        limits: ScanLimits = DEFAULT_SCAN_LIMITS,
    ) -> None:
        """Readers of several shards may share one cache."""
        self.shard = shard
        self.scans = scans if scans is not None else ScanCache(now=now)
        self.topics = TopicDirectory(store, shard.family, now)
        self.now = now
        self._store = store
        self._limits = limits

    def start_replay(
        self, filters: Sequence[str], start: int, *, with_session_only: bool = False, seniority: Seniority | None = None
    ) -> ShardScan:
        """Read records after the position `start`, or all from EARLIEST on, that match one of the filters.

        Replays that are read as one share a seniority of `scans`. Session-only records are hidden unless requested. Filters must
        be valid, without `$share`.
        """
        if not filters or start < 0:
            raise UsageError("a replay needs at least one filter and a non-negative position")
        return ShardScan(self, tuple(sorted(set(filters))), start, with_session_only, seniority or self.scans.seniority())

    def plan(self, epoch: EpochRow, filters: tuple[str, ...]) -> list[Query] | None:
        """The queries to run over an epoch; None if examining every record is as good."""
        layout = self.shard.generations.of(epoch.start).layout
        queries: list[Query] = []
        for topic_filter in filters:
            queries += (query for query in layout.plan(topic_filter) if _may_hold(epoch, query))
            # A query that begins with the empty index begins with the first record: `#` for example.
            if len(queries) * _SEEK_STEPS > epoch.count or (queries and not queries[-1].first()):
                return None
        return queries

    def is_closed(self, epoch: EpochRow) -> bool:
        """Whether nothing more will be added to it."""
        opened = self.shard.epochs.open
        return opened is None or opened.start != epoch.start

    def scan(
        self, epoch: EpochRow, upto: int, filters: tuple[str, ...], queries: list[Query] | None, matcher: TopicFilters
    ) -> EpochScan:
        """A scan of an epoch for these queries; the watermark was taken before they were planned."""
        is_narrow = not any("+" in each or "#" in each for each in filters)
        return EpochScan(self._store, self.shard.family, epoch, upto, queries, matcher, self._limits, is_narrow)


def _may_hold(epoch: EpochRow, query: Query) -> bool:
    return epoch.static_ids is None or query.static is None or query.static in epoch.static_ids


class ShardScan:
    """One reader: `position` tells how far it has read, matches or not.

    `is_waiting` means that the last call of `next` ended early because older readers use all the room for lists.
    """

    def __init__(
        self, reader: LogReader, filters: tuple[str, ...], start: int, with_session_only: bool, seniority: Seniority
    ) -> None:
        self.filters = filters
        self.position = max(start, reader.shard.floor - 1) if start == EARLIEST else start
        self._reader = reader
        self._shard = reader.shard
        self._with_session_only = with_session_only
        self._matcher = TopicFilters([each.encode() for each in filters], with_session_only)
        search = TopicSearch(filters, self._matcher)
        self._search = search if search.is_selective else None
        self.seniority = seniority
        self.is_waiting = False
        self._gap: RetentionGap | None = None
        self._upto = 0  # the end of the list that it reads
        self._list_key: object | None = None  # of the list that it was given last

    @property
    def is_caught_up(self) -> bool:
        """Whether everything committed was read."""
        return self.position >= self._shard.watermark

    def when_ready(self, callback: Callable[[], None]) -> None:
        """Call back once, when there may be room; only while `is_waiting`. Scans that are read as one wait as one."""
        self._reader.scans.when_room(self.seniority, callback)

    def close(self) -> None:
        """The reader is gone: others may use its room, and it waits for none."""
        self._reader.scans.wait_no_more(self.seniority)
        if self._list_key is not None:
            self._reader.scans.leave(self._list_key, self)
            self._list_key = None

    def take_gap(self) -> RetentionGap | None:
        """The records that retention deleted before they were read, reported once."""
        gap, self._gap = self._gap, None
        return gap

    def next(self, count_max: int, *, slice_s: float = SLICE_S, bytes_max: int = CHUNK_BYTES) -> list[Record]:
        """The next records in order of time, at most this many and about ``bytes_max`` bytes.

        An empty list means that nothing was found within the slice; `is_caught_up` tells whether there can be more.
        """
        deadline = self._reader.now() + slice_s
        self.is_waiting = False
        records: list[Record] = []
        size = 0

        def is_over() -> bool:
            return self._reader.now() >= deadline

        while len(records) < count_max and size < bytes_max:
            self._heed_floor()
            watermark = self._shard.watermark
            if self.position >= watermark:
                break
            found = self._from_tail(watermark, count_max - len(records), bytes_max - size, is_over)
            if found is None:
                found = self._from_epochs(watermark, count_max - len(records), bytes_max - size, is_over)
            if found is None:
                break
            records += found[0]
            size += found[1]
            if is_over():
                break
        self._shard.replayed_records += len(records)
        return records

    def _heed_floor(self) -> None:
        floor = self._shard.floor
        if self.position < floor - 1:
            self._gap = RetentionGap(self._gap.wanted if self._gap is not None else self.position, floor)
            self.position = floor - 1

    def _from_tail(
        self, watermark: int, count_max: int, bytes_max: int, is_over: Callable[[], bool]
    ) -> tuple[list[Record], int] | None:
        """Matches of the next piece of the tail and their bytes; None if the tail does not reach back to the position."""
        piece = self._tail_piece(watermark, is_over)
        if piece is None:
            return None
        matches = self._matcher.matches
        found: list[Record] = []
        size = 0
        for record in piece[0]:
            if matches(record.value):
                found.append(record)
                size += len(record.value)
                if len(found) == count_max or size >= bytes_max:
                    self.position = record.timestamp
                    return found, size
        self.position = piece[1]
        return found, size

    def _tail_piece(self, watermark: int, is_over: Callable[[], bool]) -> tuple[list[Record], int] | None:
        """The next records of the tail that may match, and how far they reach."""
        tail = self._shard.tail
        if self._search is not None:
            return tail.search(self._search, self.position, watermark, is_over)
        records = tail.since(self.position, _TAIL_CHUNK)
        if records is None:
            return None
        return records, records[-1].timestamp if len(records) == _TAIL_CHUNK else watermark

    def _from_epochs(
        self, watermark: int, count_max: int, bytes_max: int, is_over: Callable[[], bool]
    ) -> tuple[list[Record], int] | None:
        """The next matches of the epoch after the position and their bytes; None if the list was not complete in time."""
        epoch = self._shard.epochs.after(self.position)
        if epoch is None or epoch.start > watermark:
            self.position = watermark
            return [], 0
        scan = self._known_scan(epoch, watermark)
        if scan is None:
            queries = self._reader.plan(epoch, self.filters)
            if queries and self._reader.is_closed(epoch):
                queries = self._reader.topics.narrow(epoch, queries, is_over)
                if queries is None:
                    return None
            if queries is not None and not queries:
                self.position = self._upto
                return [], 0
            scan = self._reader.scan(epoch, self._upto, self.filters, queries, self._matcher)
            if not self._reader.scans.add(self._key(epoch), scan, self):
                self.is_waiting = True
                return None
        self._list_key = self._key(epoch)
        if not self._is_whole(scan, epoch, is_over):
            return None
        found, size, is_end = scan.read(self.position, count_max, bytes_max, is_over)
        self.position = self._upto if is_end else found[-1].timestamp
        if self.position == self._upto:
            self._reader.scans.leave(self._key(epoch), self)
        return found, size

    def _known_scan(self, epoch: EpochRow, watermark: int) -> EpochScan | None:
        scans = self._reader.scans
        # A list that this reader is in the middle of stays valid, although the watermark has risen.
        if self.position < self._upto:
            scan = scans.find(self._key(epoch), self)
            if scan is not None:
                return scan
        self._upto = min(epoch.end, watermark)
        return scans.find(self._key(epoch), self)

    def _is_whole(self, scan: EpochScan, epoch: EpochRow, is_over: Callable[[], bool]) -> bool:
        """Whether the list can be read; works on it if there is time and room."""
        scans = self._reader.scans
        if scan.is_whole:
            return True
        self.is_waiting = not scans.may_grow(scan)
        if self.is_waiting or not scans.advance(scan, is_over):
            return False
        if scan.is_empty and self._reader.is_closed(epoch):
            self._reader.topics.note_miss(epoch)
        return True

    def _key(self, epoch: EpochRow) -> object:
        return (self._shard.family, epoch.start, self._upto, self.filters, self._with_session_only)
