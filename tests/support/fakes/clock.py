"""Time that only the test moves."""

from __future__ import annotations


class FakeClock:
    """Time that only the test moves."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
