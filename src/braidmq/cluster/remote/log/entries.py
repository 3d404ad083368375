"""What a node has to tell a home, before and after it is part of a block: messages, rows, releases and withdrawals."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from time import monotonic
from typing import Final

from msgspec import Struct

from braidmq.broker.connection.presence_events import PresenceEvent
from braidmq.broker.ports import Refusal
from braidmq.cluster.protocol.blocks import FENCED, NOT_RECORDED, RECORDED
from braidmq.cluster.protocol.operations import Operation, PutCursor, PutSubscription, encode
from braidmq.cluster.protocol.presence import entry_of
from braidmq.lane.recording.commit_outcomes import Pending
from braidmq.net.proto_v1 import (
    BlockEntry,
    DelayEntry,
    PresenceEntry,
    PublishEntry,
    ReleaseEntry,
    RowsEntry,
    SentNumber,
    WithdrawEntry,
)

# The overhead in bytes of an entry that waits.
_ENTRY_COST: Final = 200


class HomeRefusal(Struct, frozen=True, gc=False):
    """Why the home did not store something. ``is_in_doubt``: it must be neither acknowledged nor rejected."""

    reason: str
    is_in_doubt: bool = False


ABSENT: Final = HomeRefusal("the core is not connected")
CROWDED: Final = HomeRefusal("too much data is waiting for the core")
IN_DOUBT: Final = HomeRefusal("the core has not answered", is_in_doubt=True)
# Not to be retried: another connection owns the client id, and has written its own rows since.
OVERTAKEN: Final = HomeRefusal("a newer connection has this client id", is_in_doubt=True)


def refusal_of(outcome: int) -> HomeRefusal | None:
    """What an entry's outcome means for its rows; None: they are written."""
    if outcome in (RECORDED, NOT_RECORDED):
        return None
    return OVERTAKEN if outcome == FENCED else HomeRefusal(f"the core cannot store it (0x{outcome:02x})")


class EntriesWaiter:
    """Waits until all entries that one call has made are answered, in whichever shards they are."""

    __slots__ = ("_left", "_on_commit", "_on_refused", "_refusal", "is_awaited")

    def __init__(
        self, count: int, on_commit: Callable[[], None], on_refused: Callable[[Refusal], None], is_awaited: bool
    ) -> None:
        """``is_awaited``: a client waits for the outcome, and must hear of it in time."""
        self._left = count
        self._on_commit = on_commit
        self._on_refused = on_refused
        self._refusal: Refusal | None = None
        self.is_awaited = is_awaited

    def answered(self, refusal: Refusal | None) -> None:
        """One of the entries is answered; None: it is on disk, or a later one takes its place."""
        self._left -= 1
        if refusal is not None and (self._refusal is None or refusal.is_in_doubt):
            self._refusal = refusal
        if self._left == 0:
            if self._refusal is None:
                self._on_commit()
            else:
                self._on_refused(self._refusal)


class Collected:
    """One entry, or several, that are not answered. They are encoded when their block is sent."""

    __slots__ = ("size",)

    size: int

    def entries(self) -> Sequence[BlockEntry]:
        """What is sent."""
        raise NotImplementedError

    def drop(self, refusal: Refusal) -> bool:
        """The home is absent for long, and this entry was never sent: tell its waiter; False if it must be sent nevertheless."""
        raise NotImplementedError

    def doubt(self) -> None:
        """The home is absent for long, and this entry was sent: a client that waits for it is told that it is in doubt."""


class CollectedMessages(Collected):
    """PUBLISH packets with QoS 1 or 2 of one channel that follow each other, each an entry of the block."""

    __slots__ = ("_number", "_received", "_refuse", "_values", "channel", "pendings")

    def __init__(
        self,
        channel: int,
        values: list[bytes],
        size: int,
        pendings: list[Pending],
        refuse: Callable[[list[Pending], Refusal], None],
        number: SentNumber | None = None,
        received: int = 0,
    ) -> None:
        """``values``: the records, of ``size`` bytes. ``number`` and ``received``: of a single one; see ``PublishEntry``."""
        self.size = size + _ENTRY_COST * len(values)
        self.channel = channel
        self.pendings: list[Pending] | None = pendings  # None: they are in doubt, or rejected
        self._values = values
        self._refuse = refuse
        self._number = number
        self._received = received

    @property
    def count(self) -> int:
        """How many entries they are."""
        return len(self._values)

    def entries(self) -> Sequence[PublishEntry]:
        """What is sent."""
        channel, number, received = self.channel, self._number, self._received
        return [PublishEntry(channel, value, number, received) for value in self._values]

    def drop(self, refusal: Refusal) -> bool:
        """Reject the messages."""
        self._end(refusal)
        return True

    def doubt(self) -> None:
        """Close the publisher's connection: it sends the messages again, and the block is sent again, too (C19)."""
        self._end(IN_DOUBT)

    def _end(self, refusal: Refusal) -> None:
        pendings, self.pendings = self.pendings, None
        if pendings is not None:
            self._refuse(pendings, refusal)


class CollectedRows(Collected):
    """Row operations of one channel."""

    __slots__ = ("_is_of_block", "channel", "lazy_row", "operations", "waiter")

    def __init__(
        self, channel: int, operations: list[Operation], size: int, waiter: EntriesWaiter | None, is_of_block: bool = False
    ) -> None:
        """``is_of_block``: they belong to messages of the same block, and are nothing without them."""
        self.lazy_row: Hashable | None = None  # set if a later change of this row may replace it
        self.channel = channel
        self.operations = operations
        self.size = size + _ENTRY_COST
        self.waiter = waiter
        self._is_of_block = is_of_block

    def entries(self) -> tuple[RowsEntry | DelayEntry]:
        """What is sent."""
        return (RowsEntry(self.channel, encode(self.operations)),)

    @property
    def is_kept(self) -> bool:
        """Whether it must be written at some time, because no client hears of a refusal."""
        return not self._is_of_block and (self.waiter is None or not self.waiter.is_awaited)

    def drop(self, refusal: Refusal) -> bool:
        """Refuse what a client waits for. Other rows wait for the home."""
        if self.is_kept:
            return False
        self.answered(refusal)
        return True

    def doubt(self) -> None:
        """Tell a client that waits."""
        if self.waiter is not None and self.waiter.is_awaited:
            self.answered(IN_DOUBT)

    def answered(self, refusal: Refusal | None) -> None:
        """The home has answered, or a later entry takes its place."""
        waiter, self.waiter = self.waiter, None
        if waiter is not None:
            waiter.answered(refusal)


class CollectedGuest(CollectedRows):
    """What a core is told of a guest. One that it refuses by itself is not sent again: its channel may have ended meanwhile."""

    __slots__ = ()


class CollectedDelay(CollectedRows):
    """A message that the home keeps until it is due."""

    __slots__ = ("_number", "_received")

    def __init__(
        self,
        channel: int,
        operation: Operation,
        size: int,
        waiter: EntriesWaiter | None,
        number: SentNumber | None,
        received: int = 0,
    ) -> None:
        super().__init__(channel, [operation], size, waiter, is_of_block=True)
        self._number = number
        self._received = received

    def entries(self) -> tuple[DelayEntry]:
        """What is sent."""
        return (DelayEntry(self.channel, encode(self.operations), self._number, self._received),)


class CollectedEvent(Collected):
    """A client has connected, or its connection has ended: the home is told until it has answered."""

    __slots__ = ("_event", "_made_at")

    def __init__(self, event: PresenceEvent) -> None:
        self.size = _ENTRY_COST
        self._event = event
        self._made_at = monotonic()

    def entries(self) -> tuple[PresenceEntry]:
        """What is sent, with its age."""
        return (entry_of(self._event, int((monotonic() - self._made_at) * 1000)),)

    def drop(self, refusal: Refusal) -> bool:
        """It must be sent."""
        return False


class CollectedNotice(Collected):
    """A release or a withdrawal: the home obeys it in any case, so it stays until it is answered."""

    __slots__ = ("_entry", "_on_answer")

    def __init__(self, entry: ReleaseEntry | WithdrawEntry, on_answer: Callable[[], None]) -> None:
        self.size = _ENTRY_COST
        self._entry = entry
        self._on_answer = on_answer

    def entries(self) -> tuple[ReleaseEntry | WithdrawEntry]:
        """What is sent."""
        return (self._entry,)

    def drop(self, refusal: Refusal) -> bool:
        """It must be sent."""
        return False

    def answered(self) -> None:
        """The home has it."""
        self._on_answer()


def lazy_key(operation: Operation) -> Hashable | None:
    """Names the row of a lazy change, which a later change of the same row replaces; None for all other changes."""
    match operation:
        case PutCursor(client_id, _):
            return client_id
        case PutSubscription(client_id, row):
            return client_id, row.written
        case _:
            return None
