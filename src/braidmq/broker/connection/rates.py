"""Rates: token buckets that fill with time."""

from __future__ import annotations


class TokenBucket:
    """Allows ``rate`` a second with a burst of one second's worth; rate 0 allows everything."""

    __slots__ = ("_burst", "_filled_at", "_tokens", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._burst = max(rate, 1.0)
        self._tokens = self._burst
        self._filled_at = now

    def take(self, amount: float, now: float) -> float:
        """Take tokens, even if too few are left; returns the seconds until the debt is paid."""
        if self.rate <= 0:
            return 0.0
        self._fill(now)
        self._tokens -= amount
        return 0.0 if self._tokens >= 0 else -self._tokens / self.rate

    def admit(self, now: float) -> bool:
        """Take one token if there is one."""
        if self.rate <= 0:
            return True
        self._fill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def _fill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self.rate)
        self._filled_at = now
