"""The newest committed records of a shard in memory: who has caught up reads here and not on disk."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from braidmq.lane.records import Record

# What a record costs in memory beside its bytes.
_RECORD_COST: Final = 160
# The forgotten front of the list is cut off when it is this long, so that forgetting costs little per record.
_CUT_AT: Final = 1024


class Tail:
    """Every committed record later than `start`, bounded in bytes: the oldest go first."""

    def __init__(self, start: int, bytes_max: int) -> None:
        self.start = start
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self._records: list[Record] = []
        self._head = 0

    def __len__(self) -> int:
        return len(self._records) - self._head

    def extend(self, records: Sequence[Record]) -> None:
        """Add newly committed records, all later than those before."""
        self._records.extend(records)
        self.size_bytes += sum(len(record.value) + _RECORD_COST for record in records)
        while self.size_bytes > self.bytes_max and self._head < len(self._records):
            oldest = self._records[self._head]
            self.size_bytes -= len(oldest.value) + _RECORD_COST
            self.start = oldest.timestamp
            self._head += 1
        if self._head >= _CUT_AT or self._head == len(self._records):
            del self._records[: self._head]
            self._head = 0

    def since(self, position: int, count_max: int = 1 << 30) -> list[Record] | None:
        """The records later than the position, `count_max` at most; None if some of them are no longer here."""
        if position < self.start:
            return None
        place = bisect_right(self._records, position, lo=self._head, key=_timestamp)
        return self._records[place : place + count_max]


def _timestamp(record: Record) -> int:
    return record.timestamp
