"""Reads epochs through the lane, one after the other, each in the order of its keys, into batches of columns.

The order of steps matters (S14): first the watermark that bounds the read is taken, then its filters are planned, then iterators
are opened. Retention may remove an epoch at any time, and a catch-up may reveal that at any time. An iterator does not notice, so
the floor is checked after the iterator is opened: if the epoch still existed then, the iterator sees all of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from braidmq.history.planning.searches import SEEK_STEPS, KeyRange
from braidmq.history.view.shard_view import EpochLost, read_row
from braidmq.lane.records.columns import RAN_OUT, Columns
from braidmq.lane.records.seek import ENDED, FAR
from braidmq.storage.engine.secondary import Secondary
from braidmq.storage.format.rows import EpochRow

# Pairs examined between two checks; the lane holds the GIL for that long.
_STEPS: Final = 2048
# An iterator keeps tables and memtables alive that the primary has dropped, so a slow reader reopens it from time to time.
_ITERATOR_AGE_MAX_S: Final = 10.0


class BatchLimits(Struct, frozen=True, gc=False):
    """The size at which a batch is full."""

    rows: int
    size_bytes: int


UNLIMITED: Final = BatchLimits(1 << 62, 1 << 62)


class EpochReading:
    """Reads the records of one epoch in these key ranges with positions in (after, upto]; call `collect` until it returns True.

    `steps` is an upper bound of the pairs examined so far; a seek counts as several.
    """

    def __init__(
        self,
        store: Secondary,
        family: str,
        epoch: EpochRow,
        ranges: Sequence[KeyRange],
        after: int,
        upto: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.steps = 0
        self._store = store
        self._family = family
        self._epoch = epoch
        self._after = after
        self._upto = upto
        self._now = now
        self._prefix = epoch.start.to_bytes(8, "big")
        self._end = (epoch.start + 1).to_bytes(8, "big")
        self._waiting = iter(ranges)
        self._range: KeyRange | None = None
        self._pairs: Iterator[tuple[bytes, bytes]] = iter(())
        self._next_key = b""
        self._opened = 0
        self._opened_at = 0.0

    def collect(self, columns: Columns, limits: BatchLimits) -> bool:
        """Read until the columns are full or the epoch ends; True at the end. Raises EpochLost, Corruption."""
        while len(columns) < limits.rows and columns.size_bytes < limits.size_bytes:
            if self._range is None and not self._begin_range():
                # The last iterator saw all records only if the floor was still below the epoch after the iterator was opened.
                if self._opened > 1:
                    self._check_floor()
                return True
            self._step(columns, limits)
        return False

    def _step(self, columns: Columns, limits: BatchLimits) -> None:
        found = self._range
        assert found is not None
        if self._now() - self._opened_at > _ITERATOR_AGE_MAX_S:
            self._open(self._next_key)
        state, place = columns.collect(
            self._pairs,
            found.query,
            found.wanted,
            found.excluded,
            self._after,
            self._upto,
            limits.rows,
            limits.size_bytes,
            _STEPS,
        )
        if state == FAR:
            self._open(self._prefix + place)
        elif state == ENDED:
            self._range = None
        else:
            if place:
                self._next_key = place + b"\0"
            if state == RAN_OUT:
                # The iterator does not say why it ended; corruption ends it, too.
                further = self._store.first_from(self._family, self._next_key, self._end)
                if further is None:
                    self._range = None
                else:
                    self._open(further)
            else:
                self.steps += _STEPS

    def _begin_range(self) -> bool:
        self._range = next(self._waiting, None)
        if self._range is None:
            return False
        query = self._range.query
        self._open(self._prefix if query is None else self._prefix + query.first())
        return True

    def _open(self, key: bytes) -> None:
        self._next_key = key
        self._pairs = self._store.run(self._family, key, self._end)
        self._opened += 1
        self._opened_at = self._now()
        self.steps += SEEK_STEPS
        if self._opened == 1:
            self._check_floor()

    def _check_floor(self) -> None:
        floor = read_row(self._store, self._family).floor
        if floor > self._epoch.start:
            raise EpochLost(floor)
