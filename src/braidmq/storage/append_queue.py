"""A bounded queue of records and rows to write and commit, and the callbacks that report the result.

add_block, add_changes -> the open group -> take -> (written) wrote | refuse -> (on disk) committed, acknowledge | doubt
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from braidmq.storage.rows.changes import Change, WriteRefusal
from braidmq.storage.shard.shard import Entry

log = logging.getLogger(__name__)

OnRefused = Callable[[WriteRefusal], None]

_RETRY_AFTER_CONGESTION_S: Final = 1.0


class PendingBlock(Protocol):
    """Many records with one callback. Must not change once it is passed to the queue."""

    @property
    def entries(self) -> Mapping[int, list[Entry]]:
        """The records by shard, in order."""

    @property
    def changes(self) -> Sequence[Change]:
        """Rows to write with the records."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the records' values."""

    def marks(self) -> Sequence[tuple[int, bytes, int, int]]:
        """The producers of these records: shard, name, last sequence and check value; written with them."""

    def committed(self, stamps: dict[int, list[int]], /) -> None:
        """The block is on disk; timestamps by shard, in the order of the entries."""

    def refused(self, refusal: WriteRefusal, /) -> None:
        """Report that nothing was stored, or that the outcome is unknown."""


def call_waiter(callback: Callable[..., None], *arguments: object) -> None:
    """Call the callback and log what it raises: a failing waiter must not cost another its acknowledgement."""
    try:
        callback(*arguments)
    except Exception:
        log.exception("a callback of the log failed")


class Waiter(Protocol):
    """A callback for a group; `count` is the number of records or sets of rows that it covers."""

    count: int

    def committed(self, stamps: dict[int, list[int]], /) -> None:
        """The group is on disk; timestamps by shard and index."""

    def refused(self, refusal: WriteRefusal, /) -> None:
        """The group was not stored, or the outcome is unknown."""


class RowsWaiter:
    """Waits for rows without records."""

    __slots__ = ("count", "refused", "_on_commit")

    def __init__(self, on_commit: Callable[[], None], on_refused: OnRefused) -> None:
        self.count = 1
        self.refused = on_refused
        self._on_commit = on_commit

    def committed(self, stamps: dict[int, list[int]], /) -> None:
        """Report that the rows are committed."""
        self._on_commit()


class BlockWaiter:
    """Waits for all records of a block."""

    __slots__ = ("count", "refused", "_block", "_places")

    def __init__(self, block: PendingBlock, count: int, places: dict[int, tuple[int, int]]) -> None:
        self.count = count
        self.refused = block.refused
        self._block = block
        self._places = places  # first and end, by shard

    def committed(self, stamps: dict[int, list[int]], /) -> None:
        """Report the timestamps of the block's own records."""
        own = {}
        for shard, (first, end) in self._places.items():
            of_shard = stamps[shard]
            own[shard] = of_shard if end - first == len(of_shard) else of_shard[first:end]
        self._block.committed(own)


class CommitGroup:
    """A future batch, and then the write with this number; waiters are in the order of the calls."""

    __slots__ = ("shards", "changes", "marks", "waiters", "size_bytes", "number", "stamps")

    def __init__(self) -> None:
        self.shards: dict[int, list[Entry]] = {}  # the entries to append to each
        self.changes: list[Change] = []
        self.marks: list[tuple[int, bytes, int, int]] = []
        self.waiters: list[Waiter] = []
        self.size_bytes = 0
        self.number = 0
        self.stamps: dict[int, list[int]] = {}

    def append(self, shard: int, entries: list[Entry]) -> tuple[int, int]:
        """Append entries to a shard; returns their indexes among its entries, first and end."""
        collected = self.shards.setdefault(shard, [])
        first = len(collected)
        collected += entries
        return first, len(collected)


class AppendQueue:
    """Commit groups on their way to the disk; `pending_bytes` is the sum of all of them."""

    def __init__(self, bytes_max: int) -> None:
        self.pending_bytes = 0
        self.refused = 0
        self.is_congested = False
        self.on_relief: Callable[[], None] | None = None
        self._bytes_max = bytes_max
        self._congested_bytes = bytes_max // 2
        self._open = CommitGroup()
        self._written: deque[CommitGroup] = deque()

    def add_block(self, block: PendingBlock, count: int, size: int) -> None:
        """Queue the entries and changes of a block, or reject it if there is no room."""
        if self.pending_bytes >= self._bytes_max:
            self._refuse_at_once(block.refused, count)
            return
        group = self._count(size)
        places = {shard: group.append(shard, entries) for shard, entries in block.entries.items() if entries}
        group.waiters.append(BlockWaiter(block, count, places))
        group.marks += block.marks()
        if block.changes:
            group.changes += block.changes

    def add_changes(self, changes: Sequence[Change], size: int, on_commit: Callable[[], None], on_refused: OnRefused) -> None:
        """Queue changes, or reject them if there is no room."""
        if self.pending_bytes >= self._bytes_max:
            self._refuse_at_once(on_refused)
            return
        group = self._count(size)
        group.waiters.append(RowsWaiter(on_commit, on_refused))
        group.changes += changes

    def _count(self, size: int) -> CommitGroup:
        # The last addition may exceed the bound: otherwise a record larger than the bound could never be written.
        self.pending_bytes += size
        self._open.size_bytes += size
        if self.pending_bytes >= self._congested_bytes:
            self.is_congested = True
        return self._open

    def _refuse_at_once(self, on_refused: OnRefused, count: int = 1) -> None:
        self.refused += count
        on_refused(WriteRefusal("too much data is waiting for the disk", _RETRY_AFTER_CONGESTION_S))

    def take(self) -> CommitGroup | None:
        """The next group to write; None if the queue is empty."""
        if not self._open.waiters:
            return None
        group, self._open = self._open, CommitGroup()
        return group

    def wrote(self, group: CommitGroup, number: int, stamps: dict[int, list[int]]) -> None:
        """The group is now the store's write with this number."""
        group.number = number
        group.stamps = stamps
        self._written.append(group)

    def committed(self, number: int) -> list[CommitGroup]:
        """Every write up to this number is on disk; returns the groups that it covers, each to be acknowledged."""
        done = []
        while self._written and self._written[0].number <= number:
            done.append(self._written.popleft())
        return done

    def has_committed(self, number: int) -> bool:
        """Whether `committed` with this number would return a group."""
        return bool(self._written) and self._written[0].number <= number

    def acknowledge(self, group: CommitGroup) -> None:
        """Report to the waiters of a group that it is on disk."""
        for waiter in group.waiters:
            call_waiter(waiter.committed, group.stamps)
        self._let_go(group)

    def refuse(self, group: CommitGroup, refusal: WriteRefusal) -> None:
        """Report to the waiters of a group that it was not stored."""
        for waiter in group.waiters:
            self.refused += waiter.count
            call_waiter(waiter.refused, refusal)
        self._let_go(group)

    def doubt(self, reason: str, retry_after_s: float) -> None:
        """Reject everything written and not committed, because it is unknown whether it is on disk."""
        while self._written:
            self.refuse(self._written.popleft(), WriteRefusal(reason, retry_after_s, is_in_doubt=True))

    def _let_go(self, group: CommitGroup) -> None:
        self.pending_bytes -= group.size_bytes
        if self.is_congested and self.pending_bytes * 4 <= self._bytes_max:
            self.is_congested = False
            if self.on_relief is not None:
                call_waiter(self.on_relief)
