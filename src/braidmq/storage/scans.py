"""Scans of one epoch for one set of filters: their result is a list in order of time, shared by all readers that ask for it.

An epoch is clustered by topic, so that reading it in order of time means to find its matches first. A scan does that in slices.
Its list holds the keys, and the values too if they are few; a reader that stops and resumes asks for the next chunk of the list
and never scans the epoch again while the list is kept (S12).

Memory is bounded by the number of lists and by their bytes. A list that was finished and not read yet waits some seconds for its
reader; a reader that finds no room helps the oldest unfinished scan along and comes again. So each call does useful work, and no
number of readers can make each other start again and again.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from braidmq.base.errors import Corruption
from braidmq.lane.records import ENDED, FAR, Record, TopicFilters, collect, in_time_order, key_offset, make_records
from braidmq.storage.format.rows import EpochRow
from braidmq.storage.layouts.contract import Query
from braidmq.storage.ports import Reads

# What a key in a list costs beside its bytes.
_KEY_COST: Final = 41


class ScanLimits(NamedTuple):
    """How a scan works: steps between two looks at the clock, and up to which size a list holds its values.

    The values of a larger list are fetched again when they are read.
    """

    steps: int = 256
    values_bytes_max: int = 16 * 1024 * 1024


DEFAULT_SCAN_LIMITS: Final = ScanLimits()


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
    ) -> None:
        """`queries` None means that every topic index may match."""
        self.epoch_start = epoch.start
        self.upto = upto
        self.is_whole = False
        self.is_read = False
        self.used_at = 0.0
        self.size_bytes = 0
        self._store = store
        self._family = family
        self._filters = filters
        self._offset_max = upto - epoch.start
        self._prefix = epoch.start.to_bytes(8, "big")
        self._end = (epoch.start + 1).to_bytes(8, "big")
        self._queries: Iterator[Query | None] = iter([None] if queries is None else queries)
        self._query: Query | None = None
        self._next_key = b""  # empty: the next query's first key
        self._limits = limits
        self._keys: list[bytes] = []
        self._values: list[bytes] | None = []

    def advance(self, is_over: Callable[[], bool]) -> bool:
        """Work until the list is whole or the time is over; True if it is whole."""
        while not self.is_whole:
            if not self._next_key and not self._begin_query():
                self._keys, self._values = in_time_order(self._keys, self._values)
                self.is_whole = True
            elif self._run(is_over):
                break
        return self.is_whole

    def _begin_query(self) -> bool:
        for query in self._queries:
            self._query = query
            self._next_key = self._prefix if query is None else self._prefix + query.first()
            return True
        return False

    def _run(self, is_over: Callable[[], bool]) -> bool:
        """Follow the present query; True if the time was over before it came to its end."""
        pairs = self._store.items(self._family, self._next_key, self._end)
        while True:
            known = len(self._keys)
            state, place = collect(
                pairs, self._query, self._filters, self._offset_max, self._limits.steps, self._keys, self._values
            )
            self._account(known)
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

    def _account(self, known: int) -> None:
        self.size_bytes += sum(map(len, self._keys[known:])) + _KEY_COST * (len(self._keys) - known)
        if self._values is not None:
            self.size_bytes += sum(map(len, self._values[known:])) + _KEY_COST * (len(self._values) - known)
            if self.size_bytes > self._limits.values_bytes_max:
                self._values = None
                self.size_bytes = sum(map(len, self._keys)) + _KEY_COST * len(self._keys)

    def read(self, position: int, count_max: int, bytes_max: int) -> list[Record]:
        """The next records later than the position, and at least one if there is one; empty at the end.

        The caller has looked at the floor in this turn of the loop: a value that is not there is Corruption.
        """
        self.is_read = True
        begin = bisect_right(self._keys, position - self.epoch_start, key=key_offset)
        keys = self._keys[begin : begin + count_max]
        values = self._fetch(keys, bytes_max) if self._values is None else self._values[begin : begin + count_max]
        count = _fitting(values, bytes_max)
        return make_records(self.epoch_start, keys[:count], values[:count])

    def _fetch(self, keys: list[bytes], bytes_max: int) -> list[bytes]:
        values: list[bytes] = []
        size = 0
        for key in keys:
            value = self._store.get(self._family, key)
            if value is None:
                raise Corruption(f"a record of the epoch {self.epoch_start} of {self._family} is gone")
            values.append(value)
            size += len(value)
            if size >= bytes_max:
                break
        return values


def _fitting(values: list[bytes], bytes_max: int) -> int:
    """How many values it takes to reach this many bytes."""
    size = 0
    for number, value in enumerate(values, 1):
        size += len(value)
        if size >= bytes_max:
            return number
    return len(values)


class ScanCache:
    """The scans that readers share; bounded in number and bytes, least recently used first out."""

    def __init__(
        self,
        scans_max: int = 64,
        bytes_max: int = 64 * 1024 * 1024,
        claim_s: float = 5.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """An unread list is kept `claim_s` for its reader."""
        self.scans_max = scans_max
        self.bytes_max = bytes_max
        self._claim_s = claim_s
        self._now = now
        self._scans: OrderedDict[object, EpochScan] = OrderedDict()

    def __len__(self) -> int:
        return len(self._scans)

    @property
    def size_bytes(self) -> int:
        """Bytes that the lists take."""
        return sum(scan.size_bytes for scan in self._scans.values())

    def find(self, key: object) -> EpochScan | None:
        """The scan with this key, if it is kept."""
        scan = self._scans.get(key)
        if scan is not None:
            scan.used_at = self._now()
            self._scans.move_to_end(key)
        return scan

    def has_room(self) -> bool:
        """Whether another scan may be added; makes room if something can go."""
        while self._scans and (len(self._scans) >= self.scans_max or self.size_bytes >= self.bytes_max):
            idle_before = self._now() - self._claim_s
            gone = next((key for key, scan in self._scans.items() if _may_go(scan, idle_before)), None)
            if gone is None:
                return False
            del self._scans[gone]
        return True

    def add(self, key: object, scan: EpochScan) -> None:
        """Keep a new scan; ask `has_room` before."""
        scan.used_at = self._now()
        self._scans[key] = scan

    def help(self, is_over: Callable[[], bool]) -> None:
        """Work on the oldest unfinished scan, whoever asked for it."""
        for scan in self._scans.values():
            if not scan.is_whole:
                scan.advance(is_over)
                return


def _may_go(scan: EpochScan, idle_before: float) -> bool:
    return (scan.is_whole and scan.is_read) or scan.used_at < idle_before
