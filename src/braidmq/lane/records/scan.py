"""The matches of a scan of one epoch: collected in order of topics, then sorted by time and read in pieces.

This is the plain form and the contract; a build compiles ``scan.pyx`` to replace it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Protocol

from braidmq.lane.records.records import Record, TopicFilters, key_offset

# The results of `Matches.collect`: why it stopped.
ENDED, PAUSED, FAR = 0, 1, 2

# A seek costs about as much as this many steps.
_NEAR = 32
# The overhead in memory of a stored key or value.
_COST = 53


class IndexQuery(Protocol):
    """The set of topic indexes that a scan searches for."""

    def matches(self, index: bytes, /) -> bool:
        """Whether the set contains this topic index."""

    def ratchet(self, index: bytes, /) -> bytes | None:
        """The smallest topic index of the set that is not below this one; None if there is none."""


class Matches:
    """Records of one epoch; `size_bytes` is their size in memory. Without values it holds their keys."""

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
        query: IndexQuery | None,
        filters: TopicFilters,
        offset_max: int,
        steps_max: int,
    ) -> tuple[int, bytes]:
        """Store the matching records of the epoch's pairs, examining at most ``steps_max`` of them.

        A record matches if the query's index and the filters allow it and its offset is at most ``offset_max``; without a query
        every index matches. Returns ENDED, PAUSED with the last key examined, or FAR with the topic index of the next possible
        match. Raises Corruption or UsageError at an unreadable record.
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
        """Sort by time and remove duplicates; must be called after the last ``collect``."""
        self._found = sorted(dict(self._found).items())

    def read(self, epoch_start: int, position: int, count_max: int, bytes_max: int) -> tuple[list[Record], int]:
        """The records after a position and the bytes of their values: at least one, up to the first bound that is reached."""
        records: list[Record] = []
        size = 0
        for offset, value in self._later(position - epoch_start, count_max):
            records.append(Record(epoch_start + offset, value))
            size += len(value)
            if size >= bytes_max:
                break
        return records, size

    def read_keys(self, epoch_start: int, position: int, count_max: int) -> list[bytes]:
        """The keys of the records after a position, if it holds keys."""
        return [key for _, key in self._later(position - epoch_start, count_max)]

    def _later(self, offset: int, count_max: int) -> list[tuple[int, bytes]]:
        begin = bisect_right(self._found, offset, key=lambda each: each[0])
        return self._found[begin : begin + count_max]
