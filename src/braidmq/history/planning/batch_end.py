"""Where a batch with limits on rows and bytes ends. The same request always gets the same answer.

The limits are divided among the shards in proportion to their backlog; what one shard does not need goes to the others. Each
share is at least one record. If the limit is too small for that, the shards furthest behind come first, so that no shard starves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from braidmq.flight.wire import OnLoss, ShardGap
from braidmq.history.planning.ranges import ShardRange, fail_for_loss
from braidmq.history.planning.searches import Searches
from braidmq.history.scanning.epoch_reading import UNLIMITED, BatchLimits, EpochReading
from braidmq.history.view.follower import OpenLog
from braidmq.history.view.shard_view import EpochLost, FamilyView
from braidmq.lane.records.columns import Columns
from braidmq.storage.format.rows import EpochRow

if TYPE_CHECKING:
    from braidmq.lane.records.arrow_buffers import Taken

# Maximum number of pairs examined for one answer; about 2 s. The batch ends there, even if it has no rows.
_STEPS_MAX: Final = 2_000_000
_NO_LIMIT: Final = 1 << 62


Key = TypeVar("Key")


class Size(Struct, frozen=True, array_like=True):
    """Rows and bytes, as far as they are known without reading."""

    rows: int
    size_bytes: int


class AdvanceLimits(Struct, frozen=True):
    """The limits of a batch; None: unlimited. ``may_exceed``: its first record may be larger than the limit."""

    rows: int | None
    size_bytes: int | None
    may_exceed: bool = True


class AdvanceSteps(Struct, frozen=True):
    """Where a batch ends in each shard, its maximum of rows and bytes, and at most what is left behind it."""

    ends: dict[int, int]
    rows: int
    size_bytes: int
    left: Size


class _Window:
    """A part (start, end] of a shard's range with at most one epoch of each family."""

    __slots__ = ("end", "epochs", "start")

    def __init__(self, start: int, end: int, epochs: list[tuple[FamilyView, EpochRow]]) -> None:
        self.start = start
        self.end = end
        self.epochs = epochs

    @property
    def rows_max(self) -> int:
        return min(sum(epoch.count for _, epoch in self.epochs), self.end - self.start)

    @property
    def bytes_max(self) -> int:
        return sum(epoch.size_bytes for _, epoch in self.epochs)

    @property
    def is_one_whole(self) -> bool:
        """Whether the window is exactly one whole epoch."""
        return len(self.epochs) == 1 and self.start < self.epochs[0][1].start and self.epochs[0][1].end <= self.end


class _Matches:
    """The matching records of a window in order of time; `position` is that of the last record taken."""

    __slots__ = ("_ends", "_next", "_positions", "position")

    def __init__(self, columns: Columns) -> None:
        rows = len(columns)
        taken = columns.take()
        positions, sizes = (_numbers(kind, rows, taken[name]) for kind, name in ((pa.int64(), "position"), (pa.int32(), "size")))
        order = pc.sort_indices(positions)
        self._positions = positions.take(order)
        self._ends = pc.cumulative_sum(sizes.take(order).cast(pa.int64()))
        self._next = 0
        self.position = 0

    def __len__(self) -> int:
        return len(self._positions) - self._next

    def take(self, rows_max: int, bytes_max: int, first_bytes_max: int) -> tuple[int, int]:
        """Take as many records as fit, and return their number and bytes; a separate limit applies to the first."""
        done = self._ends[self._next - 1].as_py() if self._next else 0
        most = min(self._next + rows_max, len(self._positions))
        end = bisect_right(range(most), done + bytes_max, lo=self._next, key=lambda place: self._ends[place].as_py())
        if end == self._next < most and self._ends[end].as_py() - done <= first_bytes_max:
            end += 1
        if end == self._next:
            return 0, 0
        rows, self._next = end - self._next, end
        self.position = self._positions[end - 1].as_py()
        return rows, self._ends[end - 1].as_py() - done


def _numbers(kind: pa.DataType, rows: int, column: Taken) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(column[1][1])])


class ShardWalk:
    """Walks through one shard, record by record in order of time, up to `position` so far."""

    def __init__(self, log: OpenLog, wanted: ShardRange, searches: Searches, on_loss: OnLoss) -> None:
        """Requires the lock of the log."""
        self.shard = wanted.shard
        self.position = wanted.start
        self.rows = 0
        self.steps = 0
        self._log = log
        self._end = wanted.end
        self._searches = searches
        self._on_loss = on_loss
        self._windows = deque(_windows(wanted))
        self._matches: _Matches | None = None  # of the first window, once it has been read
        if not self._windows:
            self.position = self._end

    @property
    def is_done(self) -> bool:
        """Whether the end is reached."""
        return not self._windows

    @property
    def rows_max(self) -> int:
        """The maximum number of rows left."""
        return sum(window.rows_max for window in self._windows)

    @property
    def bytes_max(self) -> int:
        """The maximum number of bytes left."""
        return sum(window.bytes_max for window in self._windows)

    def take_all(self) -> None:
        """Go to the end without reading records."""
        self.rows += self.rows_max
        self._windows.clear()
        self.position = self._end

    def take(self, rows_max: int, bytes_max: int, first_bytes_max: int, steps_max: int) -> tuple[int, int]:
        """Advance within these limits of rows, bytes and total work, and return the rows and bytes taken.

        The first record may exceed the limit, up to a limit of its own.
        """
        rows = size_bytes = 0
        while rows < rows_max and not self.is_done:
            window = self._windows[0]
            if self._matches is None:
                fits = window.rows_max <= rows_max - rows and window.bytes_max <= bytes_max - size_bytes
                if fits and self._searches.is_everything and window.is_one_whole:
                    # Session-only records count too, but not if there are no others.
                    if len(self._look_into(window, BatchLimits(1, _NO_LIMIT))):
                        rows += window.rows_max
                        size_bytes += window.bytes_max
                    self._pass_window()
                    continue
                if self.steps >= steps_max:
                    break
                self._matches = _Matches(self._look_into(window, UNLIMITED))
            taken, size = self._matches.take(rows_max - rows, bytes_max - size_bytes, 0 if rows else first_bytes_max)
            rows += taken
            size_bytes += size
            if not len(self._matches):
                self._pass_window()
            elif not taken:
                break
            else:
                self.position = self._matches.position
        self.rows += rows
        return rows, size_bytes

    def _look_into(self, window: _Window, limits: BatchLimits) -> Columns:
        """Count the records of the first window."""
        columns = Columns(("position", "size"))
        for family, epoch in window.epochs:
            try:
                with self._log.lock:
                    ranges = family.ranges(epoch, self._searches)
                after = max(window.start, self.position)
                reading = EpochReading(self._log.store, family.family, epoch, ranges, after, window.end)
                reading.collect(columns, limits)
                self.steps += reading.steps
            except EpochLost as lost:
                if self._on_loss == "fail":
                    fail_for_loss({self.shard: ShardGap(max(self.position, epoch.start - 1), lost.floor)})
        return columns

    def _pass_window(self) -> None:
        passed = self._windows.popleft()
        self._matches = None
        self.position = passed.end if self._windows else self._end


def whole(log: OpenLog, wanted: Sequence[ShardRange], searches: Searches, on_loss: OnLoss) -> AdvanceSteps:
    """A batch without records yet, and at most what there is for it. Call without the lock of the log."""
    with log.lock:
        return _summed([ShardWalk(log, each, searches, on_loss) for each in wanted], 0)


def _summed(walks: Sequence[ShardWalk], size_bytes: int) -> AdvanceSteps:
    ends = {walk.shard: walk.position for walk in walks}
    return AdvanceSteps(ends, sum(walk.rows for walk in walks), size_bytes, _left(walks))


def _left(walks: Sequence[ShardWalk]) -> Size:
    return Size(sum(walk.rows_max for walk in walks), sum(walk.bytes_max for walk in walks))


def advance(
    log: OpenLog, wanted: Sequence[ShardRange], searches: Searches, limits: AdvanceLimits, on_loss: OnLoss
) -> AdvanceSteps:
    """The end of a batch. Call without the lock of the log."""
    with log.lock:
        walks = [ShardWalk(log, each, searches, on_loss) for each in wanted]
    rows_left = _NO_LIMIT if limits.rows is None else max(limits.rows, 1)
    bytes_left = _NO_LIMIT if limits.size_bytes is None else max(limits.size_bytes, 1)
    left = _left(walks)
    size_bytes = left.size_bytes
    if left.rows <= rows_left and left.size_bytes <= bytes_left:
        for walk in walks:
            walk.take_all()
    else:
        size_bytes = _take_shares(walks, rows_left, bytes_left, has_any=not limits.may_exceed)
    return _summed(walks, size_bytes)


def _take_shares(walks: Sequence[ShardWalk], rows_left: int, bytes_left: int, *, has_any: bool) -> int:
    """Divide the batch among the shards; its bytes. ``has_any``: it has a record already, so none may exceed the limit."""
    total = 0
    going = [walk for walk in walks if not walk.is_done]
    steps_max = _STEPS_MAX // max(len(going), 1)
    while going and rows_left:
        going.sort(key=_behind)
        rows = shares_of(rows_left, {walk.shard: walk.rows_max for walk in going})
        sizes = shares_of(bytes_left, {walk.shard: walk.bytes_max for walk in going})
        moved = 0
        for walk in going:
            first_bytes_max = bytes_left if has_any else _NO_LIMIT
            before = walk.position
            # A record larger than its share has used up part of what is left for the others.
            taken, size = walk.take(rows[walk.shard], min(sizes[walk.shard], bytes_left), first_bytes_max, steps_max)
            rows_left -= taken
            total += size
            bytes_left = max(bytes_left - size, 0)
            has_any = has_any or taken > 0
            moved += walk.position != before
        if not moved:
            break
        going = [walk for walk in going if not walk.is_done and walk.steps < steps_max]
    return total


def shares_of(total: int, backlogs: Mapping[Key, int]) -> dict[Key, int]:
    """Divide the total in proportion to the backlogs. Each gets at least one, in their order, as long as any is left."""
    shares = {}
    left = total
    for shard in backlogs:
        shares[shard] = min(left, 1)
        left -= shares[shard]
    rest = left
    backlog = sum(backlogs.values())
    for shard in shares:
        share = rest * backlogs[shard] // max(backlog, 1)
        shares[shard] += share
        left -= share
    first = next(iter(shares))
    shares[first] += left
    return shares


def _behind(walk: ShardWalk) -> tuple[int, int]:
    return walk.position, walk.shard


def _windows(wanted: ShardRange) -> list[_Window]:
    """The windows that cover every epoch of the range, in order of time."""
    epochs = [(family, epoch) for family in wanted.families for epoch in family.epochs_in(wanted.start, wanted.end)]
    ends = sorted({min(epoch.end, wanted.end) for _, epoch in epochs})
    windows: list[_Window] = []
    start = wanted.start
    by_start = sorted(epochs, key=lambda each: each[1].start)
    active: list[tuple[FamilyView, EpochRow]] = []
    place = 0
    for end in ends:
        while place < len(by_start) and by_start[place][1].start <= end:
            active.append(by_start[place])
            place += 1
        windows.append(_Window(start, end, active))
        active = [each for each in active if each[1].end > end]
        start = end
    return windows
