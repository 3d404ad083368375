"""The newest committed records of a shard, in memory, for readers that have caught up."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from braidmq.lane.records.records import Record
from braidmq.storage.shard.tail_block import BLOCK_RECORDS, TailBlock, TopicSearch

# The overhead in memory of a record.
_RECORD_COST: Final = 160


class Tail:
    """Every committed record after `start`, bounded in bytes including indexes: the oldest are dropped first."""

    def __init__(self, start: int, bytes_max: int) -> None:
        self.start = start
        self.bytes_max = bytes_max
        self._records_bytes = 0
        self._index_bytes = 0
        self._blocks: list[TailBlock] = []  # none is empty, and all except the last are full

    def __len__(self) -> int:
        return sum(len(block.records) - block.head for block in self._blocks)

    @property
    def size_bytes(self) -> int:
        """The memory used, in bytes."""
        return self._records_bytes + self._index_bytes

    def extend(self, records: Sequence[Record]) -> None:
        """Add newly committed records, all later than those before."""
        added = 0
        while added < len(records):
            if not self._blocks or len(self._blocks[-1].records) >= BLOCK_RECORDS:
                self._blocks.append(TailBlock())
            block = self._blocks[-1].records
            part = records[added : added + BLOCK_RECORDS - len(block)]
            block.extend(part)
            added += len(part)
        self._records_bytes += sum(len(record.value) + _RECORD_COST for record in records)
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        while self.size_bytes > self.bytes_max and self._blocks:
            block = self._blocks[0]
            oldest = block.forget_first()
            self._records_bytes -= len(oldest.value) + _RECORD_COST
            self.start = oldest.timestamp
            if block.head == len(block.records):
                self._index_bytes -= block.index_bytes
                del self._blocks[0]

    def since(self, position: int, count_max: int = 1 << 30) -> list[Record] | None:
        """The records after the position, at most `count_max`; None if some of them are no longer in the tail."""
        if position < self.start:
            return None
        found: list[Record] = []
        for block in self._blocks[self._block_after(position) :]:
            place = block.later(position) if not found else 0
            found += block.records[place : place + count_max - len(found)]
            if len(found) == count_max:
                break
        return found

    def search(
        self, search: TopicSearch, position: int, watermark: int, is_over: Callable[[], bool]
    ) -> tuple[list[Record], int] | None:
        """Records after the position that may match, in order, and the position they reach: at the end, the watermark.

        Stops after the first block that has any, at the end, or when the time is over. None if some are no longer in the tail.
        """
        if position < self.start:
            return None
        for block in self._blocks[self._block_after(position) :]:
            if not block.is_known_without(search):
                before = block.index_bytes
                found = block.find(search, position)
                self._index_bytes += block.index_bytes - before
                if found or is_over():
                    return found, block.records[-1].timestamp
        return [], watermark

    def _block_after(self, position: int) -> int:
        """The index of the first block with a record after the position."""
        return bisect_right(self._blocks, position, key=_last_timestamp)


def _last_timestamp(block: TailBlock) -> int:
    return block.records[-1].timestamp
