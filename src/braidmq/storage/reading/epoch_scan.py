"""Scans of one epoch for one set of filters: their result is a list in order of time, shared by all readers that need it.

An epoch is clustered by topic, so reading it in order of time means finding its matches first. A scan does that in slices. Its
list holds the values, or the keys if the values are too large; a reader that stops and resumes reads the next chunk of the list
and never scans the epoch again while the list is in memory (S12).

Memory is bounded by the number of lists and by their bytes, apart from what the last slice of a scan has added. An unfinished
list counts with its expected size. When there is no room left, readers are served by seniority, the one that started first before
all others, so that they neither wait for each other in a circle nor evict each other's lists again and again:

- First to go is a list that no reader is in the middle of: its readers have reached its end, are gone, or pause for long.
- Then the list of the youngest reader goes, but only for an older one; a younger one has to wait. A reader of several shards has
  one seniority.
- A reader that has used a list for long makes room for others too, and is then the youngest: a slow reader keeps its list only
  while no other reader needs the room.
- Wide filters leave a part of the room to narrow ones, so that looking up a topic does not wait for readers of everything.

A reader that has to wait is woken when room appears: a list was left by its last reader, or turned out smaller than expected.
Only the oldest few are woken, because most room is for one list; each that finds room wakes the next. Rights that come with time
alone, and readers that were dropped without `close`, are noticed by `tick`, which wakes all.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from heapq import nsmallest
from math import inf
from typing import Final, NamedTuple, Protocol
from weakref import WeakSet

from braidmq.base.errors import Corruption
from braidmq.lane.records.records import Record, TopicFilters, key_offset
from braidmq.lane.records.scan import Matches
from braidmq.lane.records.seek import ENDED, FAR
from braidmq.storage.format.rows import EpochRow
from braidmq.storage.layouts.contract import Query
from braidmq.storage.ports import Reads


class ScanLimits(NamedTuple):
    """Limits of a scan: steps between two checks of the clock, and the size up to which a list holds values.

    A larger list holds keys, and its values are fetched one by one when they are read. An ordinary epoch is smaller.
    """

    steps: int = 256
    values_bytes_max: int = 40 * 1024 * 1024


DEFAULT_SCAN_LIMITS: Final = ScanLimits()

# For how many claim periods a list is kept for a reader that reads it slowly while others wait.
_TERM_CLAIMS: Final = 5
# The part of all bytes that wide filters leave to narrow ones, and the maximum expected size of a list of the latter.
_NARROW_PART: Final = 8
_NARROW_BYTES: Final = 1024 * 1024
# The overhead in bytes of a stored record.
_COST: Final = 53
# The most bytes between two checks of the clock: large values take time to copy.
_STEP_BYTES: Final = 256 * 1024
# The number of values that are fetched one by one between two checks of the clock.
_FETCHES: Final = 16
# Waiting readers that are woken when room appears.
_WAKES: Final = 8


class Seniority:
    """The rank of a reader among all readers; a lower number is older."""

    __slots__ = ("number",)

    def __init__(self, number: float) -> None:
        self.number = number


NO_READER: Final = Seniority(inf)


def _age(seniority: Seniority) -> float:
    return seniority.number


class ListReader(Protocol):
    """A reader of lists. It must support weak references."""

    @property
    def seniority(self) -> Seniority:
        """Shared by all replays that are read as one."""


class EpochScan:
    """The matches of one epoch up to the timestamp `upto`; `advance` until `is_whole`, then read."""

    def __init__(
        self,
        store: Reads,
        family: str,
        epoch: EpochRow,
        upto: int,
        queries: list[Query] | None,
        filters: TopicFilters,
        limits: ScanLimits = DEFAULT_SCAN_LIMITS,
        is_narrow: bool = False,
    ) -> None:
        """`queries` None means that every topic index may match, `is_narrow` that only a few topics do."""
        self.epoch_start = epoch.start
        self.upto = upto
        self.is_whole = False
        self.used_at = self.whole_at = 0.0
        self.readers: WeakSet[ListReader] = WeakSet()  # those that have not reached the end of the list
        self._seniority = NO_READER  # of the oldest of them, or of one that has left
        self._is_left = False  # by a reader, perhaps the oldest
        self._store = store
        self._family = family
        self._filters = filters
        self._offset_max = upto - epoch.start
        self._prefix = epoch.start.to_bytes(8, "big")
        self._end = (epoch.start + 1).to_bytes(8, "big")
        self._queries: list[Query | None] = [None] if queries is None else [*queries]
        self._limits = limits
        self._has_values = True
        self.is_narrow = is_narrow
        size_max = min(epoch.size_bytes + epoch.count * _COST, limits.values_bytes_max)
        self._expected_bytes = min(size_max, _NARROW_BYTES) if is_narrow else size_max
        self._begin()

    def _begin(self) -> None:
        self._matches = Matches(self._has_values)
        self._waiting = iter(self._queries)
        self._query: Query | None = None
        self._next_key = b""  # empty: the next query's first key

    @property
    def seniority(self) -> Seniority:
        """That of its oldest reader."""
        if self._is_left:
            self._is_left = False
            self._seniority = min((each.seniority for each in self.readers), key=_age, default=NO_READER)
        return self._seniority

    def join(self, reader: ListReader) -> None:
        """The reader is in the middle of the list."""
        self.readers.add(reader)
        if reader.seniority.number < self._seniority.number:
            self._seniority = reader.seniority

    def leave(self, reader: ListReader) -> None:
        """The reader has no need of the list any more."""
        self.readers.discard(reader)
        self.note_leavers()

    def note_leavers(self) -> None:
        """Readers may have gone: look for the oldest again when it matters, since a list may have thousands of them."""
        self._is_left = True

    @property
    def size_bytes(self) -> int:
        """The memory of the list, in bytes."""
        return self._matches.size_bytes

    @property
    def is_empty(self) -> bool:
        """Whether nothing was found so far."""
        return not len(self._matches)

    @property
    def claimed_bytes(self) -> int:
        """The bytes of the list or, while it grows, its expected size."""
        return self.size_bytes if self.is_whole else max(self.size_bytes, self._expected_bytes)

    def advance(self, is_over: Callable[[], bool]) -> bool:
        """Work until the list is complete or the time is over; True if it is complete."""
        while not self.is_whole:
            if not self._next_key and not self._begin_query():
                self._matches.order()
                self.is_whole = True
            elif self._run(is_over):
                break
        return self.is_whole

    def _begin_query(self) -> bool:
        for query in self._waiting:
            self._query = query
            self._next_key = self._prefix if query is None else self._prefix + query.first()
            return True
        return False

    def _run(self, is_over: Callable[[], bool]) -> bool:
        """Run the current query; True if the time was over before its end."""
        pairs = self._store.items(self._family, self._next_key, self._end)
        while True:
            state, place = self._matches.collect(
                pairs, self._query, self._filters, self._offset_max, self._limits.steps, _STEP_BYTES
            )
            if self._has_values and self.size_bytes > self._limits.values_bytes_max:
                self._has_values = False
                self._begin()
                return is_over()
            if state == ENDED:
                self._next_key = b""
                return is_over()
            if state == FAR:
                self._next_key = self._prefix + place
                pairs = self._store.items(self._family, self._next_key, self._end)
            else:
                self._next_key = place + b"\0"
            if is_over():
                return True

    def read(self, position: int, count_max: int, bytes_max: int, is_over: Callable[[], bool]) -> tuple[list[Record], int, bool]:
        """The next records after the position, the bytes of their values, and whether the list has no more.

        Returns at least one record, if there is one, up to the first bound that is reached. The caller has checked the floor in
        this turn of the loop: a missing value is Corruption.
        """
        if self._has_values:
            records, size = self._matches.read(self.epoch_start, position, count_max, bytes_max)
            return records, size, len(records) < count_max and size < bytes_max
        return self._fetch(self._matches.read_keys(self.epoch_start, position, count_max), count_max, bytes_max, is_over)

    def _fetch(
        self, keys: list[bytes], count_max: int, bytes_max: int, is_over: Callable[[], bool]
    ) -> tuple[list[Record], int, bool]:
        records: list[Record] = []
        size = checked = 0
        for key in keys:
            is_due = records and (len(records) % _FETCHES == 0 or size - checked >= _STEP_BYTES)
            if size >= bytes_max or (is_due and is_over()):
                return records, size, False
            if is_due:
                checked = size
            value = self._store.get(self._family, key)
            if value is None:
                raise Corruption(f"a record of epoch {self.epoch_start} of {self._family} is missing")
            records.append(Record(self.epoch_start + key_offset(key), value))
            size += len(value)
        return records, size, len(keys) < count_max


class ScanCache:
    """The scans that readers share; bounded in number and bytes."""

    def __init__(
        self,
        scans_max: int = 256,
        bytes_max: int = 64 * 1024 * 1024,
        claim_s: float = 1.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """A reader that has not read for `claim_s` loses the claim to its list."""
        self.scans_max = scans_max
        self.bytes_max = bytes_max
        self._claimed_bytes = 0
        self._claim_s = claim_s
        self._now = now
        self._scans: OrderedDict[object, EpochScan] = OrderedDict()  # least recently used first
        self._left: OrderedDict[object, None] = OrderedDict()  # those that all readers have left, in that order
        self._began = 0
        self._waiting: dict[Seniority, Callable[[], None]] = {}  # readers that wait for room

    def __len__(self) -> int:
        return len(self._scans)

    @property
    def size_bytes(self) -> int:
        """The memory of all lists, in bytes."""
        return sum(scan.size_bytes for scan in self._scans.values())

    def seniority(self) -> Seniority:
        """The seniority of a reader that starts now: after all others."""
        self._began += 1
        return Seniority(self._began)

    def find(self, key: object, reader: ListReader) -> EpochScan | None:
        """The scan with this key, if it is cached; then this reader also claims it, until it leaves."""
        scan = self._scans.get(key)
        if scan is not None:
            self._join(key, scan, reader)
            self._scans.move_to_end(key)
        return scan

    def add(self, key: object, scan: EpochScan, reader: ListReader) -> bool:
        """Add a new scan for this reader; False if there is no room for it and no other reader must make room."""
        seniority = reader.seniority
        while len(self._scans) >= self.scans_max or self._is_full(scan, seniority, scan.claimed_bytes):
            if not self._let_one_go(seniority):
                return False
        self._scans[key] = scan
        self._claimed_bytes += scan.claimed_bytes
        self._join(key, scan, reader)
        self._wake(1)
        return True

    def when_room(self, seniority: Seniority, callback: Callable[[], None]) -> None:
        """Call back once, when there may be room for this reader, later and perhaps within a call of another reader."""
        self._waiting[seniority] = callback

    def wait_no_more(self, seniority: Seniority) -> None:
        """The reader is closed: it is not called back."""
        self._waiting.pop(seniority, None)

    def tick(self) -> None:
        """Time has passed: wake every reader that waits."""
        for scan in self._scans.values():
            scan.note_leavers()
        self._wake(len(self._waiting))

    def _wake(self, count_max: int) -> None:
        if not self._waiting:
            return
        for seniority in nsmallest(count_max, self._waiting, key=_age):
            callback = self._waiting.pop(seniority, None)
            if callback is not None:
                callback()

    def leave(self, key: object, reader: ListReader) -> None:
        """The reader no longer needs the scan with this key."""
        scan = self._scans.get(key)
        if scan is not None:
            scan.leave(reader)
            if not scan.readers:
                self._left[key] = None
                self._wake(_WAKES)

    def may_grow(self, scan: EpochScan) -> bool:
        """Whether there is room for a cached scan to grow; makes room if others must give it."""
        # While it is smaller than expected, its room is already reserved.
        while scan.size_bytes >= scan.claimed_bytes and self._is_full(scan, scan.seniority, 1):
            if not self._let_one_go(scan.seniority):
                return False
        return True

    def advance(self, scan: EpochScan, is_over: Callable[[], bool]) -> bool:
        """Work on a scan until it is complete or the time is over; True if it is complete. Check `may_grow` first."""
        claimed_bytes = scan.claimed_bytes
        self._claimed_bytes -= claimed_bytes
        if scan.advance(is_over):
            scan.whole_at = self._now()
        self._claimed_bytes += scan.claimed_bytes
        if scan.claimed_bytes < claimed_bytes:
            self._wake(_WAKES)
        return scan.is_whole

    def _is_full(self, scan: EpochScan, seniority: Seniority, more_bytes: int) -> bool:
        bytes_max = self.bytes_max if scan.is_narrow else self.bytes_max - self.bytes_max // _NARROW_PART
        if self._claimed_bytes + more_bytes <= bytes_max:
            return False
        # A single reader may exceed the bound: otherwise a list larger than the bound could never be read.
        return any(each.seniority is not seniority or not each.readers for each in self._scans.values())

    def _join(self, key: object, scan: EpochScan, reader: ListReader) -> None:
        self._left.pop(key, None)
        scan.used_at = self._now()
        scan.join(reader)

    def _let_one_go(self, seniority: Seniority) -> bool:
        """Drop a list for a reader of this seniority; False if all others have precedence."""
        if self._left:
            self._drop(next(iter(self._left)))
            return True
        now = self._now()
        youngest: tuple[object, EpochScan] | None = None
        for key, scan in self._scans.items():
            if scan.seniority is seniority and scan.readers:
                continue
            if not scan.readers or scan.used_at < now - self._claim_s:
                self._drop(key)
                return True
            if youngest is None or scan.seniority.number > youngest[1].seniority.number:
                youngest = key, scan
        if youngest is not None and youngest[1].seniority.number > seniority.number:
            self._drop(youngest[0])
            return True
        return self._end_a_term(seniority, now - _TERM_CLAIMS * self._claim_s)

    def _end_a_term(self, seniority: Seniority, whole_before: float) -> bool:
        for key, scan in self._scans.items():
            if scan.seniority is not seniority and scan.is_whole and scan.whole_at < whole_before:
                for reader in scan.readers:
                    self._began += 1
                    reader.seniority.number = self._began
                self._drop(key)
                return True
        return False

    def _drop(self, key: object) -> None:
        self._left.pop(key, None)
        self._claimed_bytes -= self._scans.pop(key).claimed_bytes
