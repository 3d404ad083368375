"""The blocks of one node for one shard, from the first entry that is collected to the last answer.

    add -> *waiting* -> flush: one numbered block -> *unanswered* -> answer

While the home is away nothing is numbered. Entries wait, in the order in which they were made, and cursors that a later one
replaces are dropped: so one block of such *lazy* rows exists at most, however long the home is away (C33). The same holds while
the home is connected and does not answer: lazy rows alone do not make another block.

**After a refusal.** Rows that no client waits for are sent again, before everything that was collected since. They must not come
after later ones that were on their way: a cursor would go back. So a home that has refused a block refuses the following ones,
too, until one says that the node has heard of it (``FRESH``). The node sends that one when all blocks before it are answered;
until then new entries wait. Blocks that are resent meanwhile say that they are to be refused (``STALE``), since a home that
restarted does not know.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from braidmq.broker.ports import Refusal
from braidmq.cluster.protocol.blocks import FRESH, STALE, BlockAnswer, BlockSender, NumberedBlock, Outcomes, is_refused_whole
from braidmq.cluster.protocol.parts import Send, split
from braidmq.cluster.remote.log.entries import Collected, CollectedRows
from braidmq.net.frames import FrameKind
from braidmq.net.proto_v1 import BlockBody

# Bytes of entries after which another block begins: as much as fits into a frame, about.
_BLOCK_BYTES: Final = 1000 * 1024
_encode: Final = msgspec.msgpack.encode


class ShardBlocks:
    """The blocks for one shard."""

    def __init__(self, shard: int, send: Send) -> None:
        self.size = 0  # bytes of everything that is not answered
        self.bytes_sent = 0  # those of them that were sent
        self.shard = shard
        self._send = send
        self._sender: BlockSender[Collected] = BlockSender()
        # Entries that must be in one block are one item here.
        self._waiting: dict[int, Sequence[Collected]] = {}
        self._next_key = 0
        self._lazy: dict[Hashable, int] = {}  # among those that wait, by the row that they set
        self._lazy_sent: set[int] = set()  # unanswered blocks with lazy rows
        self._is_connected = False
        self._is_announced = False  # the home of this connection was told the next number
        self._is_draining = False  # the home has refused a block: wait until all are answered
        self._is_fresh = False  # the next block is the first one after that
        self._returned: list[tuple[int, CollectedRows]] = []  # refused rows that must be written, with their block's number

    @property
    def unanswered(self) -> int:
        """Blocks that were sent and not answered."""
        return len(self._sender)

    @property
    def waiting(self) -> int:
        """Items that were not sent."""
        return len(self._waiting)

    # Collecting

    def add(self, entries: Sequence[Collected]) -> None:
        """Send these with the next flush, in one block."""
        self.size += sum(each.size for each in entries)
        self._waiting[self._next_key] = entries
        self._next_key += 1

    def add_lazy(self, row: Hashable, entry: CollectedRows) -> None:
        """Send a row at some time; a later one replaces it."""
        before = self._lazy.pop(row, None)
        if before is not None:
            for each in self._waiting.pop(before):
                self.size -= each.size
                assert isinstance(each, CollectedRows)  # nothing else is lazy
                each.answered(None)
        entry.lazy_row = row
        self._lazy[row] = self._next_key
        self.add((entry,))

    # Sending

    @property
    def can_flush(self) -> bool:
        """Whether ``flush`` would send something: neither is the home away, nor must everything wait."""
        if not self._waiting or not self._is_connected or self._is_draining:
            return False
        return not (self._lazy and self._lazy_sent and len(self._lazy) == len(self._waiting))

    def flush(self) -> list[int]:
        """Number and send what was collected, if that can be done; the numbers."""
        numbers: list[int] = []
        if not self.can_flush:
            return numbers
        has_lazy = bool(self._lazy)
        waiting, self._waiting = self._waiting, {}
        self._lazy.clear()
        for entries in _cut(waiting.values()):
            block = self._sender.add(entries)
            if has_lazy:
                self._lazy_sent.add(block.number)
            self.bytes_sent += sum(each.size for each in entries)
            self._send_block(block, FRESH if self._is_fresh else 0)
            self._is_fresh = False
            numbers.append(block.number)
        return numbers

    def _send_block(self, block: NumberedBlock[Collected], flags: int) -> None:
        next_number = 0 if self._is_announced else self._sender.resume().next_number
        self._is_announced = True
        body = BlockBody(
            block.number, block.confirmed, next_number, [entry for each in block.entries for entry in each.entries()]
        )
        for part, more in split(_encode(body)):
            self._send(FrameKind.BLOCK, self.shard, part, flags | more)

    def connected(self) -> None:
        """The home is there, and knows the node's channels: send what is not answered again, then what waits."""
        self._is_connected = True
        self._is_announced = False
        for block in self._sender.unanswered():
            self._send_block(block, STALE if self._is_draining else 0)
        self.flush()

    def lost(self) -> None:
        """The connection is gone."""
        self._is_connected = False

    def give_up(self, refusal: Refusal) -> None:
        """The home was away for too long: reject what was never sent, and leave the rest in doubt (C19)."""
        lazy = {key: row for row, key in self._lazy.items()}
        kept: dict[int, Sequence[Collected]] = {}
        for key, entries in self._waiting.items():
            left = entries if key in lazy else [each for each in entries if not each.drop(refusal)]
            self.size -= sum(each.size for each in entries) - sum(each.size for each in left)
            if left:
                kept[key] = left
        self._waiting = kept
        for block in self._sender.unanswered():
            for entry in block.entries:
                entry.doubt()

    # Answers

    def on_answer(self, answer: BlockAnswer) -> tuple[Sequence[Collected], Outcomes] | None:
        """The entries that are answered, and what became of them; None if they were answered before."""
        answered = self._sender.on_answer(answer)
        if answered is None:
            return None
        block, outcomes = answered
        self._lazy_sent.discard(block.number)
        size = sum(each.size for each in block.entries)
        self.size -= size
        self.bytes_sent -= size
        if is_refused_whole(outcomes):
            self._is_draining = True
        return block.entries, outcomes

    def put_back(self, number: int, entry: CollectedRows) -> None:
        """The home could not store these rows: they are sent again."""
        self.size += entry.size
        self._returned.append((number, entry))

    @property
    def is_held(self) -> bool:
        """Whether the home has refused a block, and nothing is sent until all are answered."""
        return self._is_draining

    @property
    def is_drained(self) -> bool:
        """Whether the home has refused a block, and all are answered: then ``restart`` must follow, after a while."""
        return self._is_draining and not len(self._sender)

    @property
    def has_returned(self) -> bool:
        """Whether rows have to be sent again."""
        return bool(self._returned)

    def restart(self) -> None:
        """Send again, with what was refused before everything else."""
        if not self.is_drained:
            return
        self._is_draining = False
        self._is_fresh = True
        returned: list[CollectedRows] = []
        newer = set(self._lazy)  # rows that a later entry sets
        self._returned.sort(key=lambda each: each[0])
        for _, entry in reversed(self._returned):
            if entry.lazy_row in newer:
                self.size -= entry.size
                entry.answered(None)
            else:
                returned.append(entry)
                if entry.lazy_row is not None:
                    newer.add(entry.lazy_row)
        self._returned = []
        waiting, self._waiting = self._waiting, {}
        for key, entry in zip(range(-len(returned), 0), reversed(returned), strict=True):  # before what waits
            self._waiting[key] = (entry,)
            if entry.lazy_row is not None:
                self._lazy[entry.lazy_row] = key
        self._waiting.update(waiting)
        self.flush()


def _cut(items: Iterable[Sequence[Collected]]) -> Iterator[list[Collected]]:
    """Blocks of about the size of a frame; what was added together stays together."""
    block: list[Collected] = []
    size = 0
    for entries in items:
        more = sum(each.size for each in entries)
        if block and size + more > _BLOCK_BYTES:
            yield block
            block, size = [], 0
        block += entries
        size += more
    if block:
        yield block
