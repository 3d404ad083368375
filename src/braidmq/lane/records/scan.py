"""What a scan of one epoch has found: collected in order of topics, then put in order of time and read in pieces.

This is the plain form and the contract; ``scan.pyx`` is the compiled one, and a build puts it in this module's place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Protocol

from braidmq.lane.records.records import Record, TopicFilters, key_offset

# What `Matches.collect` says about the place where it stopped.
ENDED, PAUSED, FAR = 0, 1, 2

# A seek costs about as much as this many steps.
_NEAR = 32
# What a kept key or value takes in memory beside its bytes.
_COST = 53


class Query(Protocol):
    """The part of all topic indexes that one scan asks for."""

    def matches(self, index: bytes, /) -> bool:
        """Whether records of this topic index are wanted."""

    def ratchet(self, index: bytes, /) -> bytes | None:
        """The smallest wanted topic index that is not below this one; None if there is none."""


class Matches:
    """Records of one epoch; `size_bytes` is what they take in memory. Without values it holds their keys."""

    __slots__ = ("size_bytes", "_found", "_has_values")

    def __init__(self, has_values: bool) -> None:
        self.size_bytes = 0
        self._has_values = has_values
        self._found: list[tuple[int, bytes]] = []  # offset, and value or key

    def __len__(self) -> int:
        return len(self._found)

    def collect(
        self,
        pairs: Iterator[tuple[bytes, bytes]],
        query: Query | None,
        filters: TopicFilters,
        offset_max: int,
        steps_max: int,
    ) -> tuple[int, bytes]:
        """Keep what is wanted of the epoch's pairs, looking at ``steps_max`` of them at most.

        Wanted is what the query's index, the filters and an offset up to ``offset_max`` allow; no query allows every index.
        Returns ENDED, PAUSED with the last key looked at, or FAR with the topic index where the next match can be.
        Raises Corruption or UsageError at a record that cannot be read.
        """
        key = seen = target = b""
        passed = 0
        for _ in range(steps_max):
            pair = next(pairs, None)
            if pair is None:
                return ENDED, b""
            key, value = pair
            offset = key_offset(key)
            if query is not None:
                index = key[8:-4]
                if index < target:
                    passed += 1
                    if passed >= _NEAR:
                        return FAR, target
                    continue
                if index != seen:
                    if not query.matches(index):
                        found = query.ratchet(index)
                        if found is None:
                            return ENDED, b""
                        target, passed = found, 0
                        continue
                    seen = index
            if offset <= offset_max:
                Record(0, value)
                if filters.matches(value):
                    kept = value if self._has_values else key
                    self._found.append((offset, kept))
                    self.size_bytes += len(kept) + _COST
        return (FAR, target) if query is not None and key[8:-4] < target else (PAUSED, key)

    def order(self) -> None:
        """Put everything in order of time, each record once; to be called when all is collected."""
        self._found = sorted(dict(self._found).items())

    def read(self, epoch_start: int, position: int, count_max: int, bytes_max: int) -> tuple[list[Record], int]:
        """The records later than a position and the bytes of their values: one at least, until one of the bounds is reached."""
        records: list[Record] = []
        size = 0
        for offset, value in self._later(position - epoch_start, count_max):
            records.append(Record(epoch_start + offset, value))
            size += len(value)
            if size >= bytes_max:
                break
        return records, size

    def read_keys(self, epoch_start: int, position: int, count_max: int) -> list[bytes]:
        """The keys of the records later than a position, if keys are what is kept."""
        return [key for _, key in self._later(position - epoch_start, count_max)]

    def _later(self, offset: int, count_max: int) -> list[tuple[int, bytes]]:
        begin = bisect_right(self._found, offset, key=lambda each: each[0])
        return self._found[begin : begin + count_max]
