"""Blocks reach a home once: numbered by their node, remembered by the home, resent after a lost connection.

A node numbers its blocks for a shard from 1, under ``node/<registration id>/<incarnation>``, and keeps each until it is answered.
After a reconnect it sends what is not answered again. The home writes the last number in the batch of the block's rows, so it
knows a repeat over crashes, too (S5).

A repeat gets the answer of the first time, refusals included (C18): with the last number the home keeps the outcome of every
entry that was not simply recorded, since the answers that the node has confirmed. A block that the engine refused as a whole
enters that row with the next batch. Entries that were not recorded are forwarded again on a repeat; their targets drop what they
have. A block that leaves nothing on disk leaves no row: over a crash of the home its messages may be forwarded twice, as on one
node.

Answers come in any order, since a block that waits for a slow target must not hold up the others. So after a reconnect numbers
may be missing: those are answered. New blocks follow without a gap.

Invariants:
- ``mark`` and ``refused`` are called in the turn of the write, in the order of the numbers. So a row says what became of all
  blocks up to its number.
- An answer never precedes the commit of what it says.
- What the home may forget (``confirmed``) the node never asks for again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Final, Generic, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from braidmq.base.errors import BraidError

Entry = TypeVar("Entry")

RECORDED: Final = -1
NOT_RECORDED: Final = -2
FENCED: Final = -3
# Any other outcome is the MQTT reason code with which the entry was refused.

# Flags of the frames of blocks and answers; the highest one is `parts.MORE`.
FRESH: Final = 1  # of a block: the node has heard of all refusals before it
STALE: Final = 2  # of a block: it was sent before the node had heard of a refusal, and is to be refused as well
CONGESTED: Final = 1  # of an answer: the home's log is congested, and publishers should wait

Outcomes = Mapping[int, int]  # by index of the entry; an entry that is not there was recorded
_ALL: Final = -1  # the index that stands for every entry that is not named


def outcome_of(outcomes: Outcomes, index: int) -> int:
    """What became of an entry."""
    return outcomes.get(index, outcomes.get(_ALL, RECORDED))


def is_refused_whole(outcomes: Outcomes) -> bool:
    """Whether the engine has refused the block."""
    return outcomes.get(_ALL, RECORDED) >= 0


def is_all_done(outcomes: Outcomes) -> bool:
    """Whether all entries were recorded, or none and that is as it should be."""
    return not outcomes or (len(outcomes) == 1 and outcomes.get(_ALL) == NOT_RECORDED)


def shortened(outcomes: dict[int, int], entries: int) -> dict[int, int]:
    """The same outcomes of this many entries, in one item if none of them was recorded: an answer is short then, too."""
    if entries > 1 and len(outcomes) == entries and set(outcomes.values()) == {NOT_RECORDED}:
        return {_ALL: NOT_RECORDED}
    return outcomes


class NumberedBlock(Struct, Generic[Entry], frozen=True):
    """What a node has collected for a shard in one turn. ``confirmed``: it has the answers up to this number."""

    number: int
    confirmed: int
    entries: Sequence[Entry]


class BlockAnswer(Struct, frozen=True):
    """What became of a block's entries."""

    number: int
    outcomes: Outcomes


class BlockResume(NamedTuple):
    """What a node says of its blocks when it connects to a home, before it sends them again."""

    next_number: int  # of a new block


class BlockMark(Struct, frozen=True):
    """The home's row of one node's incarnation: the last number, and what is not simply recorded among the unconfirmed."""

    number: int
    outcomes: dict[int, dict[int, int]]


class BlocksOutOfOrder(BraidError):
    """A node left out a new block: the connection must be closed, and the node starts again from what is not answered."""


class UsedIncarnation(BraidError):
    """The home knows numbers of this incarnation that its node has not used: it must take another one (C27)."""


class BlockSender(Generic[Entry]):
    """The node's side, for one shard."""

    def __init__(self) -> None:
        self._next = 1
        self._unanswered: dict[int, NumberedBlock[Entry]] = {}
        self._confirmed = 0

    def __len__(self) -> int:
        return len(self._unanswered)

    def add(self, entries: Sequence[Entry]) -> NumberedBlock[Entry]:
        """Number a new block; send it, if there is a connection."""
        block = self._unanswered[self._next] = NumberedBlock(self._next, self._confirmed, entries)
        self._next += 1
        return block

    def resume(self) -> BlockResume:
        """What to tell a home before its blocks are resent."""
        return BlockResume(self._next)

    def unanswered(self) -> Iterator[NumberedBlock[Entry]]:
        """The blocks to send again, in order."""
        return (replace(block, confirmed=self._confirmed) for block in self._unanswered.values())

    def on_answer(self, answer: BlockAnswer) -> tuple[NumberedBlock[Entry], Outcomes] | None:
        """The block that is answered; None if it was answered before."""
        block = self._unanswered.pop(answer.number, None)
        if block is None:
            return None
        self._confirmed = next(iter(self._unanswered), self._next) - 1
        return block, answer.outcomes


class BlockStep(Enum):
    """What a home has to do with a block."""

    WRITE = auto()  # it is new: judge its entries, write them with ``mark``, then say what became of the write
    WAIT = auto()  # it is being written, and is answered when that is over
    ANSWER = auto()  # it is a repeat: send ``answer``, and forward again what was not recorded


class BlockReceiver(Generic[Entry]):
    """The home's side, for one incarnation of a node and one shard."""

    def __init__(self, mark: BlockMark | None = None) -> None:
        """``mark``: its row, if the home has restarted since."""
        self._last = mark.number if mark is not None else 0
        self._written = self._last  # the last number that a row names, or will with a batch on its way
        self._outcomes: dict[int, dict[int, int]] = dict(mark.outcomes) if mark is not None else {}
        self._under_way: set[int] = set()
        self._resent_below = 1  # the first number that the node had not used when it connected

    @property
    def last(self) -> int:
        """The number of the last block; the next new one is above it."""
        return self._last

    def on_resume(self, resume: BlockResume) -> None:
        """The node has connected. Raises UsedIncarnation."""
        if self._last >= resume.next_number:
            raise UsedIncarnation(f"block {self._last} is known, and the node has numbered {resume.next_number - 1}")
        self._resent_below = resume.next_number

    def receive(self, block: NumberedBlock[Entry]) -> BlockStep:
        """A block has arrived. Raises BlocksOutOfOrder."""
        self._forget(block.confirmed)
        if block.number > max(self._last + 1, self._resent_below):
            raise BlocksOutOfOrder(f"block {block.number} came after block {self._last}")
        if block.number > self._last:
            self._last = block.number
            self._under_way.add(block.number)
            return BlockStep.WRITE
        return BlockStep.WAIT if block.number in self._under_way else BlockStep.ANSWER

    def _forget(self, confirmed: int) -> None:
        for number in [number for number in self._outcomes if number <= confirmed]:
            del self._outcomes[number]

    def mark(self, number: int, outcomes: Outcomes) -> BlockMark:
        """The row for the batch of a new block. ``outcomes``: of its entries that are not simply recorded."""
        if outcomes:
            self._outcomes[number] = dict(outcomes)
        self._written = max(self._written, number)
        return BlockMark(self._written, {each: dict(found) for each, found in self._outcomes.items() if each <= self._written})

    def pass_on(self, number: int, outcomes: Outcomes) -> None:
        """The new block leaves nothing on disk, so it has no row."""
        if outcomes:
            self._outcomes[number] = dict(outcomes)

    def done(self, number: int) -> BlockAnswer:
        """What the block says is committed, and forwarded where it was not recorded: the answer."""
        self._under_way.discard(number)
        return self.answer(number)

    def refused(self, number: int, reason: int, outcomes: Outcomes | None = None) -> BlockAnswer:
        """The engine has refused the block, nothing of it is written: the answer.

        ``outcomes``: of the entries that were not to be written.
        """
        self._outcomes[number] = {**(outcomes or {}), _ALL: reason}
        self._under_way.discard(number)
        return self.answer(number)

    def answer(self, number: int) -> BlockAnswer:
        """What became of a block that is not under way."""
        return BlockAnswer(number, self._outcomes.get(number, {}))
