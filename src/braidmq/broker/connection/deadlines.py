"""Deadlines of many connections with a single timer.

Each connection is in the bucket of the half second in which it is checked next. A check costs one comparison. The deadline of a
busy client moves with everything it sends, but its bucket changes only when it is checked.
"""

from __future__ import annotations

from typing import Protocol

TICK_S = 0.5


class Watched(Protocol):
    """Something with a deadline."""

    wheel_slot: int  # the bucket it is in; -1: none

    def check_deadline(self, now: float) -> float:
        """Act if the deadline has passed; returns when to check again, or 0.0 for never."""
        ...


class Wheel:
    """Buckets by half second on the monotonic clock. ``turn`` is called about every ``TICK_S``."""

    def __init__(self, now: float) -> None:
        self._buckets: dict[int, set[Watched]] = {}
        self._turned = int(now / TICK_S)

    def watch(self, item: Watched, when: float) -> None:
        """Check the item at ``when`` or up to a tick later; replaces its earlier time."""
        self.forget(item)
        # Rounding up: a deadline is never called before its time.
        slot = max(int(when / TICK_S) + 1, self._turned + 1)
        self._buckets.setdefault(slot, set()).add(item)
        item.wheel_slot = slot

    def forget(self, item: Watched) -> None:
        """Remove the item's deadline."""
        if item.wheel_slot >= 0:
            bucket = self._buckets.get(item.wheel_slot)
            if bucket is not None:
                bucket.discard(item)
                if not bucket:
                    del self._buckets[item.wheel_slot]
            item.wheel_slot = -1

    def turn(self, now: float) -> None:
        """Check everything that is due."""
        slot = int(now / TICK_S)
        for due in range(self._turned + 1, slot + 1):
            self._turned = due
            for item in self._buckets.pop(due, ()):
                if item.wheel_slot != due:
                    continue  # an item checked before this one has ended or moved it
                item.wheel_slot = -1
                again = item.check_deadline(now)
                if again:
                    self.watch(item, again)
