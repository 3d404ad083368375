"""Scans of one epoch for one set of filters: their result is a list in order of time, shared by all readers that ask for it.

An epoch is clustered by topic, so that reading it in order of time means to find its matches first. A scan does that in slices.
Its list holds the values, or the keys if the values are too large; a reader that stops and resumes asks for the next chunk of
the list and never scans the epoch again while the list is kept (S12).

Memory is bounded by the number of lists and by their bytes. A list that was finished and not read yet waits some seconds for its
reader; a reader that finds no room helps the oldest unfinished scan along and comes again. So each call does useful work, and no
number of readers can make each other start again and again.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from braidmq.base.errors import Corruption
from braidmq.lane.records import Record, TopicFilters, key_offset
from braidmq.lane.scan import ENDED, FAR, Matches
from braidmq.storage.format.rows import EpochRow
from braidmq.storage.layouts.contract import Query
from braidmq.storage.ports import Reads


class ScanLimits(NamedTuple):
    """How a scan works: steps between two looks at the clock, and up to which size a list holds values.

    A larger list holds keys, and its values are fetched one by one when they are read. An ordinary epoch is not that large.
    """

    steps: int = 256
    values_bytes_max: int = 40 * 1024 * 1024


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
        self._store = store
        self._family = family
        self._filters = filters
        self._offset_max = upto - epoch.start
        self._prefix = epoch.start.to_bytes(8, "big")
        self._end = (epoch.start + 1).to_bytes(8, "big")
        self._queries: list[Query | None] = [None] if queries is None else [*queries]
        self._limits = limits
        self._has_values = True
        self._begin()

    def _begin(self) -> None:
        self._matches = Matches(self._has_values)
        self._waiting = iter(self._queries)
        self._query: Query | None = None
        self._next_key = b""  # empty: the next query's first key

    @property
    def size_bytes(self) -> int:
        """Bytes that the list takes."""
        return self._matches.size_bytes

    def advance(self, is_over: Callable[[], bool]) -> bool:
        """Work until the list is whole or the time is over; True if it is whole."""
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
        """Follow the present query; True if the time was over before it came to its end."""
        pairs = self._store.items(self._family, self._next_key, self._end)
        while True:
            state, place = self._matches.collect(pairs, self._query, self._filters, self._offset_max, self._limits.steps)
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

    def read(self, position: int, count_max: int, bytes_max: int) -> tuple[list[Record], int]:
        """The next records later than the position, at least one if there is one, and the bytes of their values.

        The caller has looked at the floor in this turn of the loop: a value that is not there is Corruption.
        """
        self.is_read = True
        if self._has_values:
            return self._matches.read(self.epoch_start, position, count_max, bytes_max)
        records: list[Record] = []
        size = 0
        for key in self._matches.read_keys(self.epoch_start, position, count_max):
            value = self._store.get(self._family, key)
            if value is None:
                raise Corruption(f"a record of the epoch {self.epoch_start} of {self._family} is gone")
            records.append(Record(self.epoch_start + key_offset(key), value))
            size += len(value)
            if size >= bytes_max:
                break
        return records, size


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
