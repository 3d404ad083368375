"""The clock that stamps the log (S15).

It is the time since boot plus an offset to the wall clock, taken at the start. Afterwards the offset only creeps towards the wall
clock and never jumps: a wall clock that is a year ahead for a second would otherwise stamp records into the future, and every
query for "the last day" would be wrong for a year. A wall clock that is far off raises an alarm.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct

# As adjtime does: half a millisecond per second. Fast enough for the drift of a quartz, too slow to do harm.
SLEW_PPM: Final = 500
ALARM_US: Final = 10_000_000
# Far above every time, and 8 bytes long as all timestamps are.
NO_STAMP_MAX: Final = 2**63 - 1


class ClockAlarm(Struct, frozen=True, gc=False):
    """The wall clock is `ahead_us` ahead of the log's clock (negative: behind); `reason` is the text for the operator."""

    ahead_us: int
    reason: str


def boot_us() -> int:
    """Microseconds since boot; unlike the monotonic clock, including the time in which the machine was suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def wall_us() -> int:
    """Microseconds since 1970 by the wall clock."""
    return time.time_ns() // 1000


class StampOrder:
    """The latest timestamp, shared by everything that is stamped in one order; timestamps of failed writes count too."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0


class ShardClock:
    """Microseconds since 1970, creeping after the wall clock and never jumping. One clock may serve all shards."""

    def __init__(self, boot: Callable[[], int] = boot_us, wall: Callable[[], int] = wall_us) -> None:
        self._boot = boot
        self._wall = wall
        self._checked_at = boot()
        self._offset = wall() - self._checked_at
        self._behind_log_until = 0
        self.stamp_max = NO_STAMP_MAX

    def now(self) -> int:
        """The time."""
        return self._boot() + self._offset

    def stamp(self) -> int:
        """The time for a stamp, at most `stamp_max`; the caller makes stamps strictly rising."""
        return min(self.now(), self.stamp_max)

    def recovered(self, last: int) -> None:
        """Set the last timestamp found on disk: a clock behind it raises an alarm until it has caught up."""
        self._behind_log_until = max(self._behind_log_until, last)

    def check(self) -> ClockAlarm | None:
        """Creep towards the wall clock; call it about every second. Returns an alarm for the operator, if there is one."""
        boot = self._boot()
        away = self._wall() - (boot + self._offset)
        step_max = (boot - self._checked_at) * SLEW_PPM // 1_000_000
        self._offset += max(-step_max, min(step_max, away))
        self._checked_at = boot
        return self._alarm(boot + self._offset)

    def _alarm(self, now: int) -> ClockAlarm | None:
        away = self._wall() - now
        if abs(away) > ALARM_US:
            side = "ahead of" if away > 0 else "behind"
            return ClockAlarm(
                away, f"the wall clock is {abs(away) / 1e6:.0f} s {side} the log's clock, which does not follow jumps"
            )
        behind = self._behind_log_until - now
        if behind > 0:
            return ClockAlarm(-behind, f"the wall clock is {behind / 1e6:.3f} s behind the last record of the log")
        return None
