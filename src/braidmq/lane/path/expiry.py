"""When a message expires: the one rule for both clocks, and for the remaining time.

In memory a message expires by the monotonic clock, which is never set. On disk it expires by the wall clock, in microseconds
since 1970, because the monotonic clock restarts with the machine. A time is converted with the current difference between the
clocks, since the wall clock may have been set, or the machine suspended, a moment ago. It is rounded to the nearest microsecond.
On both clocks 0 means never, so a time at or before a clock's zero becomes the first moment after it.

Subscribers receive whole seconds, rounded up: 0 means that the message has expired.
"""

from __future__ import annotations

from math import ceil
from sys import float_info
from time import monotonic, time

_LEAST_S = float_info.min
_NEVER = -1
_LONGEST_S = 0xFFFFFFFF


def wall_offset() -> float:
    """The current difference of the wall clock to the monotonic clock, in seconds."""
    return time() - monotonic()


def to_wall(expires_at: float, offset: float) -> int:
    """Convert a time of the monotonic clock to microseconds of the wall clock; 0 stays 0."""
    if not expires_at:
        return 0
    return max(round((expires_at + offset) * 1e6), 1)


def from_wall(expires_us: int, offset: float) -> float:
    """Convert microseconds of the wall clock to a time of the monotonic clock; 0 stays 0."""
    if not expires_us:
        return 0.0
    return max(expires_us / 1e6 - offset, _LEAST_S)


def seconds_left(expires_at: float) -> int:
    """Whole seconds until this time of the monotonic clock; 0 if it has passed, -1 if it is never.

    At most what the four bytes of a packet can say: the clock may have been set back, or that of another node may differ.
    """
    if not expires_at:
        return _NEVER
    return min(max(ceil(expires_at - monotonic()), 0), _LONGEST_S)
