"""Latencies in logarithmic buckets, each 3 % wide, so that a run of any length needs little memory."""

from __future__ import annotations

from typing import Final

_STEP_BITS: Final = 5  # 32 buckets per power of two
_STEPS: Final = 1 << _STEP_BITS


class Histogram:
    """Counts durations in nanoseconds; values below 32 ns, including negative ones from clock skew, count as 32 ns."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.sum_ns = 0
        self.max_ns = 0
        self.min_ns = 0

    def add(self, duration_ns: int, count: int = 1) -> None:
        """Count a duration this many times."""
        duration_ns = max(duration_ns, _STEPS)
        exponent = duration_ns.bit_length() - 1
        bucket = exponent << _STEP_BITS | (duration_ns >> (exponent - _STEP_BITS)) & (_STEPS - 1)
        self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.min_ns = min(self.min_ns, duration_ns) if self.count else duration_ns
        self.max_ns = max(self.max_ns, duration_ns)
        self.count += count
        self.sum_ns += duration_ns * count

    def quantile_ns(self, share: float) -> int:
        """A duration that the given share (0.99 for the 99th percentile) of all durations does not exceed, to about 3 %."""
        wanted = share * self.count
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return min(_upper_ns(bucket), self.max_ns)
        return self.max_ns

    @property
    def mean_ns(self) -> float:
        """The arithmetic mean; 0 without durations."""
        return self.sum_ns / self.count if self.count else 0.0

    def by_octave(self) -> list[tuple[int, int, int]]:
        """(from ns, up to ns, count) for each power of two between the shortest and the longest duration."""
        octaves: dict[int, int] = {}
        for bucket, count in self._counts.items():
            octaves[bucket >> _STEP_BITS] = octaves.get(bucket >> _STEP_BITS, 0) + count
        if not octaves:
            return []
        return [(1 << each, 2 << each, octaves.get(each, 0)) for each in range(min(octaves), max(octaves) + 1)]


def _upper_ns(bucket: int) -> int:
    exponent, step = bucket >> _STEP_BITS, bucket & (_STEPS - 1)
    return (_STEPS + step + 1 << exponent - _STEP_BITS) - 1
