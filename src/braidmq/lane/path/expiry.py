"""When a message expires: the one rule for both clocks, and for how much time is left.

In memory a message expires by the monotonic clock, which nobody sets. On disk it expires by the wall clock, in microseconds since
1970, because the monotonic clock starts anew with the machine. A moment crosses from one clock to the other by the difference
between them, measured when it crosses: the wall clock may have been set, or the machine suspended, a moment ago. It is rounded to
the nearest microsecond. On both clocks 0 means never, so a moment at or before a clock's zero becomes the first moment after it.

Subscribers are told whole seconds, rounded up: 0 is left only when the message has expired.
"""

from __future__ import annotations

from math import ceil
from sys import float_info
from time import monotonic, time

_LEAST_S = float_info.min
_NEVER = -1


def wall_offset() -> float:
    """The wall clock minus the monotonic clock, now, in seconds."""
    return time() - monotonic()


def to_wall(expires_at: float, offset: float) -> int:
    """The wall clock's microseconds for a moment of the monotonic clock; 0 stays 0."""
    if not expires_at:
        return 0
    return max(round((expires_at + offset) * 1e6), 1)


def from_wall(expires_us: int, offset: float) -> float:
    """The moment of the monotonic clock for microseconds of the wall clock; 0 stays 0."""
    if not expires_us:
        return 0.0
    return max(expires_us / 1e6 - offset, _LEAST_S)


def seconds_left(expires_at: float) -> int:
    """Whole seconds until this moment of the monotonic clock; 0 if it has come, -1 if it never comes."""
    if not expires_at:
        return _NEVER
    return max(ceil(expires_at - monotonic()), 0)
