"""How long takeovers take, in classes."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class TakeoverTimes:
    """Times from the arrival of a claim at its home to its grant, if another channel had the client id."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)  # by class; the last one is above all bounds
        self.sum_s = 0.0

    def within(self, bound_s: float) -> int:
        """How many took at most so long; one of the bounds."""
        return sum(self.counts[: BOUNDS_S.index(bound_s) + 1])

    def note(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds
