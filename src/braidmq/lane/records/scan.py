"""The matches of a scan of one epoch: collected in order of topics, then sorted by time and read in pieces.

This is the plain form and the contract; a build compiles ``scan.pyx`` to replace it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

from braidmq.lane.records.records import Record, TopicFilters, key_offset
from braidmq.lane.records.seek import ENDED, FAR, PAUSED, SKIP, TAKE, Seek

if TYPE_CHECKING:
    from braidmq.lane.records.seek import IndexQuery

# The overhead in memory of a stored key or value.
_COST = 53


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
        bytes_max: int,
    ) -> tuple[int, bytes]:
        """Store the matching records of the epoch's pairs, examining at most ``steps_max`` of them, and none after ``bytes_max``
        bytes of values.

        A record matches if the query's index and the filters allow it and its offset is at most ``offset_max``; without a query
        every index matches. Returns ENDED, PAUSED with the last key examined, or FAR with the topic index of the next possible
        match. Raises Corruption or UsageError at an unreadable record.
        """
        key = b""
        seek = None if query is None else Seek(query)
        size = 0
        for _ in range(steps_max):
            if size >= bytes_max:
                break
            pair = next(pairs, None)
            if pair is None:
                return ENDED, b""
            key, value = pair
            size += len(value)
            offset = key_offset(key)
            if seek is not None:
                verdict = seek.examine(key[8:-4])
                if verdict == SKIP:
                    continue
                if verdict != TAKE:
                    return verdict, seek.target
            if offset <= offset_max:
                Record(0, value)
                if filters.matches(value):
                    kept = value if self._has_values else key
                    self._found.append((offset, kept))
                    self.size_bytes += len(kept) + _COST
        return (FAR, seek.target) if seek is not None and seek.is_ahead(key[8:-4]) else (PAUSED, key)

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
