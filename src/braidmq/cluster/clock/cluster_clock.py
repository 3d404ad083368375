"""What time it is in the cluster, as a state machine without I/O.

One core, the *reference*, gives the time: its own boot-time clock plus an offset that never changes. Every other node measures
its offset by asking cores, and keeps the answer with the smallest error:

    sent, 40 ms, answered: "it is T, give or take e"     ->  it is T + 20 ms, give or take e + 20 ms, and 1 ms more every second

Wall clocks matter only when a cluster starts from nothing, so one that jumps changes nothing.

Rules:

- The clock of a node never goes back. If an answer says that it is fast, it runs at half speed until the others have caught up,
  and the distance counts as error.
- What it has said about a moment it says again: `at` remembers which offset was used when. So the connections of one node keep
  their order, whenever they are asked about.
- A *reign* is the time of one reference. Its successor continues from its own estimate, whose error it hands on for as long as
  nodes may still follow the reign before. A new reign is followed at once, however good the old estimate was.
- Every reading stays below the *ceiling* of its reign, a row that the reference has written ahead. So a cluster that starts from
  nothing begins above everything that was ever read. Above the ceiling the clock is not known.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from braidmq.base.deadline_clock import time_since_boot
from braidmq.base.listening.tcp_info import TICK_S
from braidmq.net.proto_v1_clock import TimeTold

# A version with a larger error orders nothing: the node refuses new connections.
BOUND_MS_MAX: Final = 1000
UNKNOWN_MS: Final = 1_000_000_000  # the bound of a clock that is not known
# What two clocks may drift apart: an operating system makes its own go up to 500 ppm faster or slower, to follow a time server.
DRIFT: Final = 0.001
_SLEW: Final = 0.5  # what the clock loses while it waits for the others
_PIECES_MAX: Final = 64  # changes of the offset that are remembered, several minutes of them
_SUSPENDED_S: Final = 0.05  # by which the boot-time clock passes the monotonic one, if not by the time between reading them
# The others may be behind by their own error, which is at most a second, and by what both drift meanwhile.
_SETTLING_S: Final = 2.0
_NEVER: Final = math.inf


class ClockReading(Struct, frozen=True, gc=False):
    """A time of the cluster in milliseconds, and how far it is from the reference's at most."""

    ms: int
    bound_ms: int

    @property
    def is_usable(self) -> bool:
        """Whether it may order connections."""
        return self.bound_ms <= BOUND_MS_MAX


class _Piece(Struct, gc=False):
    """From ``start`` on, by the boot-time clock, an offset; all in seconds."""

    start: float
    reign: int
    offset: float
    lag: float  # by how much the clock was too fast at the start
    error: float  # at ``measured_at``
    measured_at: float
    drift: float
    ceiling: float
    settled_at: float = _NEVER  # the time of the cluster from which there is no error: this node is the reference

    def value(self, at: float) -> float:
        """The time of the cluster."""
        return at + self.offset + self.left(at)

    def left(self, at: float) -> float:
        """What is left of the lag."""
        return self.lag if at < self.start else max(0.0, self.lag - _SLEW * (at - self.start))

    def bound(self, at: float) -> float:
        """How far the time may be from the reference's."""
        if self.value(at) > self.ceiling:
            return _NEVER
        if self.value(at) > self.settled_at:
            return 0.0
        return self.error + self.drift * abs(at - self.measured_at) + self.left(at)


class ClusterClock:
    """One node's cluster clock. It is not known before `begin`, or the first `take`."""

    def __init__(self, now: Callable[[], float] = time_since_boot, monotonic: Callable[[], float] = time.monotonic) -> None:
        """``now``: the boot-time clock. ``monotonic``: the clock of connections, which stops while the machine is suspended."""
        self.is_reference = False
        self.offset_changes = 0
        self._now = now
        self._monotonic = monotonic
        self._pieces: deque[_Piece] = deque(maxlen=_PIECES_MAX)
        # The boot-time clock minus the monotonic one, until this node last looked, and from then on.
        self._shift_before = self._shift = now() - monotonic()
        self._looked_at = self._suspended_from = self._suspended_to = monotonic()

    @property
    def reign(self) -> int:
        """The reign that this node follows; 0: none yet."""
        return self._pieces[-1].reign if self._pieces else 0

    @property
    def ceiling_s(self) -> float:
        """What no reading of this reign exceeds, as far as this node knows."""
        return self._pieces[-1].ceiling if self._pieces else 0.0

    @property
    def is_known(self) -> bool:
        """Whether it can order connections now."""
        return self.reading().is_usable

    @property
    def estimate_s(self) -> float:
        """The time, even above the ceiling."""
        return self._pieces[-1].value(self._now()) if self._pieces else 0.0

    @property
    def offset_s(self) -> float:
        """The time of the cluster minus this node's boot-time clock."""
        return self._pieces[-1].offset if self._pieces else 0.0

    # Reading

    def moment(self) -> float:
        """Now, by the boot-time clock; for `take`."""
        return self._now()

    def reading(self) -> ClockReading:
        """What time it is."""
        return self._read(self._now(), 0.0)

    def at(self, monotonic_s: float) -> ClockReading:
        """What time it was at an earlier moment of the monotonic clock, which the kernel has dated to one of its ticks."""
        self.look()
        if monotonic_s >= self._suspended_to:
            return self._read(monotonic_s + self._shift, TICK_S)
        doubt = self._shift - self._shift_before if monotonic_s > self._suspended_from else 0.0
        return self._read(monotonic_s + self._shift_before, doubt + TICK_S)

    def look(self) -> None:
        """Notice that the machine was suspended; call it twice a second.

        The kernel's own times of connections leave that out. So one from about then may be as old as the suspension was long.
        """
        monotonic = self._monotonic()
        shift = self._now() - monotonic
        if shift > self._shift + _SUSPENDED_S:
            self._shift_before, self._shift = self._shift, shift
            self._suspended_from, self._suspended_to = self._looked_at, monotonic
        else:
            self._shift = min(self._shift, shift)  # the two clocks are not read in the same instant
        self._looked_at = monotonic

    def tell(self) -> TimeTold:
        """What to answer a node that asks for the time."""
        if not self._pieces:
            return TimeTold(0)
        at, piece = self._now(), self._pieces[-1]
        bound = piece.bound(at)
        return TimeTold(0) if bound == _NEVER else TimeTold(piece.reign, piece.value(at), bound, piece.ceiling)

    def _read(self, at: float, doubt: float) -> ClockReading:
        if not self._pieces:
            return ClockReading(0, UNKNOWN_MS)
        pieces = self._pieces
        index = len(pieces) - 1
        while index and at < pieces[index].start:
            index -= 1
        value, bound = pieces[index].value(at), pieces[index].bound(at) + doubt
        if bound == _NEVER and index + 1 < len(pieces):
            # The ceiling was too low for the moment when the next reign was first heard of: that one dates it.
            ceiling, later = pieces[index].ceiling, pieces[index + 1]
            bound = later.bound(at) + max(0.0, ceiling - later.value(at)) + doubt
            value = max(ceiling, later.value(at))
        # A millisecond more, for what the rounding of two readings hides.
        return ClockReading(int(value * 1000), UNKNOWN_MS if bound == _NEVER else math.ceil(bound * 1000) + 1)

    # Learning

    def take(self, told: TimeTold, sent_at: float) -> bool:
        """The answer to a question that was sent at this moment of the boot-time clock; False if it is of no use."""
        at = self._now()
        if not told.reign or told.reign < self.reign:
            return False
        wait = max(0.0, at - sent_at)
        error, ceiling = told.bound_s + wait * (0.5 + DRIFT), told.ceiling_s
        if told.reign == self.reign:
            if self.is_reference:
                return False
            self.extend(ceiling)
            if error >= self._pieces[-1].bound(at):
                return False
            ceiling = self.ceiling_s
        self.is_reference = False
        self._follow(at, told.reign, told.at_s + wait / 2 - at, error, DRIFT, ceiling)
        return True

    def _follow(self, at: float, reign: int, offset: float, error: float, drift: float, ceiling: float) -> None:
        lag = 0.0
        if self._pieces:
            before = self._pieces[-1]
            lag = max(0.0, min(before.value(at), before.ceiling) - (at + offset))
        self.offset_changes += 1
        self._pieces.append(_Piece(at, reign, offset, lag, error, at, drift, ceiling))

    # The reference

    def begin(self, reign: int, at_s: float, ceiling_s: float = _NEVER) -> None:
        """This node is the reference of a cluster that knows no time: it is now so late."""
        self._follow(self._now(), reign, at_s - self._now(), 0.0, 0.0, ceiling_s)
        self.is_reference = True

    def succeed(self, reign: int, ceiling_s: float, old_ceiling_s: float) -> None:
        """This node is the reference from now on. ``old_ceiling_s``: what no reading of the reign before exceeds."""
        at, before = self._now(), self._pieces[-1]
        value = before.value(at)
        # The others may follow the old reign until they reach its ceiling: until then the two times differ.
        error = replace(before, ceiling=_NEVER).bound(at)
        settled_at = old_ceiling_s + error + _SETTLING_S
        self._pieces.append(_Piece(at, reign, value - at, 0.0, error, at, DRIFT, ceiling_s, settled_at))
        self.is_reference = True

    def extend(self, ceiling_s: float) -> None:
        """The reference has written a higher ceiling."""
        if self._pieces:
            self._pieces[-1].ceiling = max(self._pieces[-1].ceiling, ceiling_s)

    def step_down(self) -> None:
        """Another core has begun a reign."""
        self.is_reference = False
