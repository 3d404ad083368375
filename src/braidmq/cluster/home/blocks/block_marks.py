"""The rows with which a home remembers a node's blocks, in the shard that the blocks are for. Integers are big-endian.

0xEF | 0x01 | registration id (8) | incarnation (8)

version (1) = 1
number of the last block (8)
outcomes                     number of the block (8), index of the entry (4), outcome (2, signed) each; an index of
                             0xFFFFFFFF stands for all entries that are not named
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import starmap
from struct import Struct as Packed
from struct import error as PackError
from typing import Final, Protocol

from braidmq.base.errors import Corruption, UsageError
from braidmq.cluster.protocol.blocks import BlockMark
from braidmq.storage.rows.changes import Change, Delete, Put

VERSION: Final = 1
BLOCK_MARK_PREFIX: Final = b"\xef\x01"
BLOCK_MARKS_END: Final = b"\xef\x02"

_NODE: Final = Packed(">QQ")
_HEAD: Final = Packed(">BQ")
_OUTCOME: Final = Packed(">QIh")
_ALL: Final = 0xFFFF_FFFF


class MarkRows(Protocol):
    """What is needed of the log; `DurableLog` has it."""

    @property
    def shards(self) -> int:
        """How many there are."""

    def row(self, shard: int, key: bytes) -> bytes | None:
        """A row, as of the last flush."""

    def rows(self, shard: int, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows with lower <= key < upper, in order."""


class BlockMarks:
    """The rows of all nodes."""

    def __init__(self, log: MarkRows) -> None:
        self._log = log

    def load(self, registration_id: int, incarnation: int) -> dict[int, BlockMark]:
        """What is known of an incarnation's blocks, by shard. Raises UsageError for a newer format, Corruption."""
        key = mark_key(registration_id, incarnation)
        values = {shard: self._log.row(shard, key) for shard in range(self._log.shards)}
        return {shard: decode_mark(value) for shard, value in values.items() if value is not None}

    def put(self, shard: int, registration_id: int, incarnation: int, mark: BlockMark) -> Put:
        """Set a row; belongs into the batch of the block."""
        return Put(shard, mark_key(registration_id, incarnation), encode_mark(mark))

    def remove(self, registration_id: int, incarnation: int) -> list[Change]:
        """Remove the rows of an incarnation that is dead: it sends nothing any more."""
        key = mark_key(registration_id, incarnation)
        return [Delete(shard, key) for shard in range(self._log.shards) if self._log.row(shard, key) is not None]

    def remove_dead(self, living: Iterable[tuple[int, int]]) -> list[Change]:
        """Remove the rows of all incarnations but these (registration id, incarnation): the others send nothing any more."""
        kept = {mark_key(*each) for each in living}
        return [
            Delete(shard, key)
            for shard in range(self._log.shards)
            for key, _ in self._log.rows(shard, BLOCK_MARK_PREFIX, BLOCK_MARKS_END)
            if key not in kept
        ]


def mark_key(registration_id: int, incarnation: int) -> bytes:
    """The key of a node's row."""
    return BLOCK_MARK_PREFIX + _NODE.pack(registration_id, incarnation)


def encode_mark(mark: BlockMark) -> bytes:
    """The value of a row; raises UsageError if a field is out of range."""
    found = [(number, index & _ALL, outcome) for number, outcomes in mark.outcomes.items() for index, outcome in outcomes.items()]
    try:
        return b"".join((_HEAD.pack(VERSION, mark.number), *starmap(_OUTCOME.pack, found)))
    except PackError as problem:
        raise UsageError(f"the outcomes of blocks cannot be stored: {problem}") from None


def decode_mark(value: bytes) -> BlockMark:
    """The mark of a row; raises UsageError for a newer format, Corruption for an invalid row."""
    if value and value[0] > VERSION:
        raise UsageError(f"a row of a node's blocks has the format {value[0]}, newer than {VERSION}", "use the newer version")
    try:
        version, last = _HEAD.unpack_from(value)
        found = list(_OUTCOME.iter_unpack(value[_HEAD.size :]))
    except PackError:
        raise _broken() from None
    if version != VERSION:
        raise _broken()
    outcomes: dict[int, dict[int, int]] = {}
    for number, index, outcome in found:
        outcomes.setdefault(number, {})[-1 if index == _ALL else index] = outcome
    return BlockMark(last, outcomes)


def _broken() -> Corruption:
    return Corruption(f"a row of a node's blocks is not valid for version {VERSION}")
