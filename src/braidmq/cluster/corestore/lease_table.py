"""The leases of a store that is part of this process, as a state machine without I/O.

Time in which this process did not run does not count: a lease must not end because its store could not hear of a renewal (C3).
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

# A store that ticks later than this was paused; it counts no more than this of the time.
COUNTED_S_MAX: Final = 2.0
TICK_S: Final = 1.0

Place = tuple[str, bytes]


class _HeldLease(Struct):
    ttl_s: float
    left_s: float
    places: set[Place]
    is_over: bool = False  # its rows are being removed


class LeaseTable:
    """Leases by number, and the rows that are bound to them. Call `tick` after each `pause_s`.

    A lease that is over, by time or by `end`, is not held any more; remove its `places`, then `forget` it.
    """

    def __init__(self, last: int = 0) -> None:
        """``last``: numbers above this one are given out."""
        self._last = last
        self._leases: dict[int, _HeldLease] = {}
        self._lease_of: dict[Place, int] = {}
        self._ticked_at = 0.0

    def grant(self, ttl_s: float, now: float) -> int:
        """A new lease."""
        if not self._leases:
            self._ticked_at = now
        self._last += 1
        # What has passed since the last tick will be counted off with the next one.
        self._leases[self._last] = _HeldLease(ttl_s, ttl_s + self._since_tick(now), set())
        return self._last

    def renew(self, lease: int, now: float) -> bool:
        """Start a lease's time again; False: it is over."""
        if not self.is_held(lease):
            return False
        held = self._leases[lease]
        held.left_s = held.ttl_s + self._since_tick(now)
        return True

    def is_held(self, lease: int) -> bool:
        """Whether a lease is not over."""
        held = self._leases.get(lease)
        return held is not None and not held.is_over

    def bind(self, place: Place, lease: int) -> None:
        """A row was set, with a lease or (0) without, or removed: it is not bound to its former lease any more."""
        former = self._lease_of.pop(place, 0)
        if former in self._leases:
            self._leases[former].places.discard(place)
        if lease in self._leases:
            self._leases[lease].places.add(place)
            self._lease_of[place] = lease

    def end(self, lease: int) -> bool:
        """End a lease; False: it was over."""
        if not self.is_held(lease):
            return False
        self._leases[lease].is_over = True
        return True

    def places(self, lease: int) -> list[Place]:
        """The rows that are bound to a lease now."""
        held = self._leases.get(lease)
        return [] if held is None else sorted(held.places)

    def forget(self, lease: int) -> None:
        """A lease that is over has no rows any more."""
        del self._leases[lease]

    def pause_s(self) -> float | None:
        """When to tick next; None: there are no leases."""
        left = [held.left_s for held in self._leases.values() if not held.is_over]
        return max(min(TICK_S, *left), 0.0) if left else None

    def tick(self, now: float) -> list[int]:
        """The leases whose time is over since the last tick."""
        passed_s = min(self._since_tick(now), COUNTED_S_MAX)
        self._ticked_at = now
        ended = []
        for lease, held in self._leases.items():
            held.left_s -= passed_s
            if held.left_s <= 0 and not held.is_over:
                held.is_over = True
                ended.append(lease)
        return ended

    def _since_tick(self, now: float) -> float:
        return max(now - self._ticked_at, 0.0)
