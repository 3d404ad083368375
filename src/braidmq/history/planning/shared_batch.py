"""A batch with limits over several cores: how much of it each may take, without I/O.

As among the shards of one core (`batch_end`), the limits are divided in proportion to the backlogs, and what one core does not
need goes to the others. Cores are asked one after the other, the one that is furthest behind first, so the same request gets the
same answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from braidmq.flight.wire import Positions
from braidmq.history.planning.batch_end import Size, shares_of

# How often the rest of the limits is divided again. A core that finds no match within its work is asked once more.
_ROUNDS_MAX: Final = 8
_NO_LIMIT: Final = 1 << 62


class Steps(Struct, frozen=True, array_like=True):
    """How far a batch goes, its maximum of rows and bytes, at most what is left behind it, and the current end."""

    end: Positions
    rows: int
    size_bytes: int
    left: Size
    latest: Positions


class CoreShare(Struct, frozen=True):
    """What a core may take next. ``may_exceed``: the batch is empty, so one record may be larger than the limit."""

    core: str
    rows_max: int
    bytes_max: int
    may_exceed: bool


class SharedBatch:
    """Call `next_share`, and `take` with what the core has taken, until there is no share."""

    def __init__(self, rows_max: int | None, bytes_max: int | None, found: Mapping[str, Steps]) -> None:
        """``found``: by core, what there is for the batch, of which nothing is taken yet."""
        self.rows = 0
        self._found = dict(found)
        self._rows_left = _NO_LIMIT if rows_max is None else max(rows_max, 1)
        self._bytes_left = _NO_LIMIT if bytes_max is None else max(bytes_max, 1)
        self._shares: deque[tuple[str, int, int]] = deque()  # of this round: core, rows and bytes
        self._rounds = 0
        self._has_moved = True

    @property
    def end(self) -> Positions:
        """Where the batch ends in each shard."""
        return {shard: position for steps in self._found.values() for shard, position in steps.end.items()}

    @property
    def latest(self) -> Positions:
        """The current end of each shard."""
        return {shard: position for steps in self._found.values() for shard, position in steps.latest.items()}

    def start_of(self, core: str) -> Positions:
        """Where a core goes on."""
        return self._found[core].end

    def next_share(self) -> CoreShare | None:
        """The next core to ask, and its limits; None if the batch is complete."""
        while self._shares or self._divide():
            core, rows, size_bytes = self._shares.popleft()
            # A record larger than its share has used up part of what is left for the others.
            rows, size_bytes = min(rows, self._rows_left), min(size_bytes, self._bytes_left)
            if rows and size_bytes:
                return CoreShare(core, rows, size_bytes, may_exceed=not self.rows)
        return None

    def _divide(self) -> bool:
        """Begin the next round; False if nothing can be taken any more."""
        going = [core for core, steps in self._found.items() if steps.left.rows]
        if not going or not self._has_moved or self._rounds == _ROUNDS_MAX or not self._rows_left or not self._bytes_left:
            return False
        self._rounds += 1
        self._has_moved = False
        going.sort(key=self._behind)
        left = {core: self._found[core].left for core in going}
        rows, sizes = {core: each.rows for core, each in left.items()}, {core: each.size_bytes for core, each in left.items()}
        if sum(rows.values()) > self._rows_left or sum(sizes.values()) > self._bytes_left:
            rows, sizes = shares_of(self._rows_left, rows), shares_of(self._bytes_left, sizes)
        self._shares.extend((core, rows[core], sizes[core]) for core in going)
        return True

    def _behind(self, core: str) -> tuple[int, str]:
        return min(self._found[core].end.values(), default=0), core

    def take(self, core: str, steps: Steps) -> None:
        """What a core has taken of its share."""
        self._has_moved = self._has_moved or steps.end != self._found[core].end
        self._found[core] = steps
        self.rows += steps.rows
        self._rows_left = max(self._rows_left - steps.rows, 0)
        self._bytes_left = max(self._bytes_left - steps.size_bytes, 0)
