"""Reading epochs through the lane: each one in the order of its keys, one epoch after another, as batches of columns.

The order of steps is a rule (S14): the watermark that bounds a read was taken first, then its filters are planned, then iterators
are opened. Retention may remove an epoch at any time, and a catch-up may show that at any time. An iterator does not notice;
hence the floor is looked at after it was opened: if the epoch was there then, all of it is there for this iterator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from braidmq.history.planning.searches import SEEK_STEPS, KeyRange
from braidmq.history.view.shard_view import EpochLost, read_row
from braidmq.lane.records.columns import RAN_OUT, Columns
from braidmq.lane.records.scan import ENDED, FAR
from braidmq.storage.engine.secondary import Secondary
from braidmq.storage.format.rows import EpochRow

# Pairs between two looks around; the lane holds the interpreter lock for so long.
_STEPS: Final = 2048
# An iterator keeps tables and memtables alive that the primary has let go of, so that a slow reader gets a new one now and then.
_ITERATOR_AGE_MAX_S: Final = 10.0


class BatchLimits(Struct, frozen=True, gc=False):
    """When a batch is full."""

    rows: int
    size_bytes: int


UNLIMITED: Final = BatchLimits(1 << 62, 1 << 62)


class EpochReading:
    """The records of one epoch in these ranges that are in (after, upto]; `collect` until it says that it is done.

    `steps` is what it has cost so far, in pairs looked at at most, seeks counted as some.
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
        """Go on until the columns are full or the epoch is done; True if it is done. Raises EpochLost, Corruption."""
        while len(columns) < limits.rows and columns.size_bytes < limits.size_bytes:
            if self._range is None and not self._begin_range():
                # Only the last iterator saw everything that it was to find if the floor was below the epoch after it was opened.
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
                # The iterator does not say why it ended, and damage ends it, too.
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
