"""Which core gives the cluster its time, and the row by which that is decided, as a state machine without I/O (R1).

    table "clock", key "ceiling"    CeilingRow: the number of the reign, and what no reading of the clock exceeds yet

The live core with the lowest registration id is the reference. It becomes so by writing the next reign into the row:

- If it follows the latest reign, it goes on from its own estimate.
- If it knows no time, it waits until it has heard from the other live cores; if they do not know either, the cluster starts from
  nothing, at its wall clock or at the ceiling, whichever is later.

The reference raises the ceiling well before the clock reaches it, also while a core with a lower id is alive that has not taken
over yet. A row with a higher reign ends its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

import msgspec

from braidmq.base.errors import Corruption
from braidmq.cluster.clock.cluster_clock import ClusterClock
from braidmq.cluster.corestore.contract import CoreRow

CLOCK: Final = "clock"
CEILING_KEY: Final = b"ceiling"
AHEAD_S: Final = 30.0
RENEW_EVERY_S: Final = 10.0


class CeilingRow(msgspec.Struct, frozen=True, array_like=True):
    """The latest reign, its ceiling in milliseconds, and the registration id of its reference."""

    reign: int
    ceiling_ms: int
    registration_id: int

    @property
    def ceiling_s(self) -> float:
        """The ceiling in seconds."""
        return self.ceiling_ms / 1000


NO_REIGN: Final = CeilingRow(0, 0, 0)


class OtherCore(NamedTuple):
    """Another core that is alive."""

    registration_id: int
    incarnation: int


class Reference:
    """One core's part in it. `plan` says what to write; `written` follows, or `plan` again."""

    def __init__(self, clock: ClusterClock, registration_id: int, wall_s: Callable[[], float]) -> None:
        self._clock = clock
        self._registration_id = registration_id
        self._wall_s = wall_s
        self._row = NO_REIGN  # as it was read last
        self._planned: CeilingRow | None = None
        self._reigns: dict[int, int] = {}  # which reign the other cores follow, since the row was read with its reign

    def note_reign(self, incarnation: int, reign: int) -> None:
        """Another core has answered; 0: it knows no time."""
        self._reigns[incarnation] = reign

    def needs_row(self, others: Iterable[OtherCore]) -> bool:
        """Whether this core has anything to decide."""
        if self._clock.is_reference:
            return self._ceiling_is_near(self._clock.ceiling_s)
        return self._is_lowest(others)

    def plan(self, read: CeilingRow, others: Collection[OtherCore]) -> CeilingRow | None:
        """What to write, if the row is still as it was read."""
        clock = self._clock
        if self._planned is not None and read == self._planned:
            self.written(read)  # the store had not answered
        if read.reign != self._row.reign:
            self._reigns.clear()
        self._row, self._planned = read, None
        if clock.is_reference and read.reign > clock.reign:
            clock.step_down()
        if clock.is_reference:
            if read.reign == clock.reign and not self._ceiling_is_near(read.ceiling_s):
                clock.extend(read.ceiling_s)
                return None
            self._planned = self._row_above(clock.reign, clock.estimate_s)
        elif self._is_lowest(others) and self._may_begin(read.reign, others):
            begins_s = clock.estimate_s if clock.reign else max(self._wall_s(), read.ceiling_s)
            self._planned = self._row_above(max(read.reign, clock.reign) + 1, begins_s)
        return self._planned

    def written(self, row: CeilingRow) -> None:
        """The row is in the store."""
        clock, before = self._clock, self._row
        self._row, self._planned = row, None
        if row.reign < clock.reign:
            return  # the store was restored, and others have gone on meanwhile
        if clock.is_reference:
            clock.extend(row.ceiling_s)
        elif clock.reign:
            clock.succeed(row.reign, row.ceiling_s, max(before.ceiling_s, clock.ceiling_s))
        else:
            clock.begin(row.reign, max(self._wall_s(), before.ceiling_s), row.ceiling_s)

    def _is_lowest(self, others: Iterable[OtherCore]) -> bool:
        return all(other.registration_id > self._registration_id for other in others)

    def _may_begin(self, reign: int, others: Iterable[OtherCore]) -> bool:
        """Whether this core knows the latest reign, or all the others have said that they do not know it either."""
        if 0 < self._clock.reign >= reign:
            return True
        return all(self._reigns.get(other.incarnation, reign + 1) < max(reign, 1) for other in others)

    def _ceiling_is_near(self, ceiling_s: float) -> bool:
        return ceiling_s - self._clock.estimate_s < AHEAD_S - RENEW_EVERY_S

    def _row_above(self, reign: int, at_s: float) -> CeilingRow:
        ceiling_ms = max(self._row.ceiling_ms, math.ceil((at_s + AHEAD_S) * 1000))
        return CeilingRow(reign, ceiling_ms, self._registration_id)


def rank_ceiling(row: CeilingRow) -> int:
    """The higher of two rows is the later one."""
    return row.reign << 64 | row.ceiling_ms


def encode_ceiling(row: CeilingRow) -> bytes:
    """The value of the row."""
    return msgspec.msgpack.encode(row)


def decode_ceiling(row: CoreRow | None) -> CeilingRow:
    """The row as it was read; a reign of 0 if there is none."""
    if row is None:
        return NO_REIGN
    try:
        return msgspec.msgpack.decode(row.value, type=CeilingRow)
    except msgspec.DecodeError as problem:
        raise Corruption(f"the ceiling of the cluster's clock is not valid: {problem}") from None
