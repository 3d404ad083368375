"""What a broker knows of producers: how far each has come, and the open batches of their names, with their keys.

The home of a client has this; nodes without a database ask it with the claim of the client id, and send keys with the messages.

The keys of a batch are rows beside the records; a message whose key is there is acknowledged and not recorded. Several clients
may publish under one name. Several clients may also declare themselves parts of one producer: the row of the batch that is open
under their name has the highest part that connected for it, so that neither an earlier batch nor a missing part goes unnoticed.

Names belong to the user who used them first, and numbers to the client id of a user. Otherwise any client could lock a producer
out, or make the broker drop its messages, without a right to publish any of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from msgspec import Struct

from braidmq.access.contract import Refused
from braidmq.base.errors import Unavailable
from braidmq.broker.ports import Change, MessageLog, ProducerStore
from braidmq.broker.turn import Phase, Turn
from braidmq.lane.recording.recorder import Recorder
from braidmq.mqtt.producer_protocol import CHECK, PARTS, SEQUENCE, SHARDS, Request, write_check
from braidmq.mqtt.reasons import Reason

# Stands for the user of clients without one while there are users: no user name contains U+0000.
_ANONYMOUS: Final = "\0"
_BOOKS_MAX: Final = 1000  # names kept in memory without a connected producer
_LIVE_MAX: Final = 10_000  # producers whose last message is not recorded
_OLD_AT_ONCE: Final = 256  # keys of earlier batches read at a time: half a millisecond
_OLD_PER_MESSAGE: Final = 2  # and removed with each new one, so that they are removed faster than new ones arrive


class NotTaken(Refused, frozen=True):
    """Why a client is rejected as a producer; ``told``: user properties for its CONNACK."""

    told: tuple[tuple[str, str], ...] = ()


class ProducerStart(Struct, frozen=True):
    """Where a producer begins: the name of its numbers, the last of them, and user properties for its CONNACK."""

    name: bytes
    sequence: int
    told: tuple[tuple[str, str], ...]


class KeyedClient(Protocol):
    """A connected producer with keys, on any node."""

    @property
    def user_name(self) -> str | None:
        """Its user."""

    @property
    def is_closed(self) -> bool:
        """Whether its connection is over."""

    def close(self, reason: int, detail: str) -> None:
        """End its connection."""


class KeySender(Protocol):
    """Who sends messages with keys; `lane.path.recorder.Producer`."""

    @property
    def is_stopped(self) -> bool:
        """Whether one of its messages was rejected, and no later one is recorded."""


class Book:
    """The open batch of a name."""

    __slots__ = ("_last", "_old", "base", "name", "owner", "parts", "swept_below")

    def __init__(self, name: str, base: int, swept_below: int, parts: int, owner: str | None) -> None:
        self.name = name
        self.base = base
        self.swept_below = swept_below  # no keys of batches below this one are left
        self.parts = parts  # one more than the highest part that connected for the batch
        self.owner = owner  # the user that the name belongs to; None: it has no owner yet
        self._old: list[Change] = []  # removals of keys of earlier batches that are still to be written
        self._last: Change | None = None  # the last of them

    def is_closed_to(self, user_name: str | None) -> bool:
        """Whether the name is another user's."""
        return self.owner not in (None, user_name)

    def open(self, request: Request, user_name: str | None) -> None:
        """A client connects for this batch or the next one; it takes the name if it has no owner."""
        self.owner = self.owner if self.owner is not None else user_name
        if request.base > self.base:
            self.base = request.base
            self.parts = 0
        self.parts = max(self.parts, request.part + 1)

    def take_old(self, rows: ProducerStore) -> list[Change]:
        """Removals of some keys of earlier batches, if there are any left."""
        if not self._old and self.swept_below < self.base:
            self._old = rows.old_keys(self.name, self.swept_below, self.base, self._last, _OLD_AT_ONCE)
            self._last = self._old[-1] if self._old else None
            if self._last is None:
                self.swept_below = self.base
        taken = self._old[:_OLD_PER_MESSAGE]
        del self._old[:_OLD_PER_MESSAGE]
        return taken


class MessageKey(Protocol):
    """The key of a message that is about to be collected."""

    @property
    def row(self) -> Change:
        """What is written with the message."""

    def recorded(self) -> None:
        """The message was collected, with this row."""


class NewKey(Struct, frozen=True, gc=False):
    """A key that is not recorded yet, and the row to write with its message."""

    book: Book
    sender: KeySender
    key: bytes
    row: Change
    on_recorded: Callable[[NewKey], None]

    def recorded(self) -> None:
        """The message was collected, with this row; some keys of earlier batches are removed with it."""
        self.on_recorded(self)


def not_taken(detail: str, *told: tuple[str, str]) -> NotTaken:
    """A producer that is rejected because of what it has asked for."""
    return NotTaken(Reason.IMPLEMENTATION_SPECIFIC_ERROR, detail, told)


def _owned(name: str) -> NotTaken:
    return NotTaken(Reason.NOT_AUTHORIZED, f"the producer name {name} belongs to another user; choose another name")


class ProducerBooks:
    """How far producers have come, and the open batches of their names."""

    def __init__(
        self, log: MessageLog, rows: ProducerStore, recorder: Recorder, turn: Turn, has_users: Callable[[], bool]
    ) -> None:
        """``has_users``: whether a client can log in with a name."""
        self._log = log
        self._rows = rows
        self._recorder = recorder
        self._turn = turn
        self._has_users = has_users
        self._books: OrderedDict[str, Book] = OrderedDict()
        self._keyed: dict[KeyedClient, tuple[Book, int]] = {}  # and the base of the batch that they connected for
        self._fresh: dict[tuple[str, bytes], KeySender] = {}  # keys of this turn, which the log does not know yet
        self._live: OrderedDict[bytes, int] = OrderedDict()  # the last messages of producers, of those that are not recorded
        turn.at_end(Phase.KEYS, self._fresh.clear)

    # Connecting

    def judge(self, request: Request, client_id: str, user_name: str | None) -> NotTaken | None:
        """Why a client cannot be the producer that it asks to be; None if it can."""
        if not request.name:
            return None
        shard_of = self._log.shard_of
        if request.is_keyed and shard_of(client_id) != shard_of(request.name):
            # A key and its record are written together, so they must be in one shard.
            return NotTaken(
                Reason.CLIENT_IDENTIFIER_NOT_VALID,
                f"the client id must have the same shard as the name of its keys: crc32 modulo {self._rows.shards}",
            )
        try:
            return self._judge_name(request, user_name)
        except Unavailable as problem:
            return NotTaken(Reason.SERVER_UNAVAILABLE, f"the producer name {request.name} cannot be used now: {problem.detail}")

    def _judge_name(self, request: Request, user_name: str | None) -> NotTaken | None:
        if user_name is None and self._has_users() and not self._is_known(request.name):
            # Otherwise its batches and keys would pass to the first user who connects with the name.
            return NotTaken(
                Reason.NOT_AUTHORIZED, f"the producer name {request.name} needs a user: log in, or publish without a name"
            )
        book = self._book(request.name, request.base)
        if book.is_closed_to(user_name):
            return _owned(request.name)
        if request.base < book.base:
            return not_taken(f"a later batch of {request.name} has started", (SEQUENCE, str(book.base)))
        return None

    def opening(self, client: KeyedClient, request: Request) -> list[Change]:
        """The rows to write before CONNACK reports the client's sequence.

        Producers with keys of an earlier batch are disconnected, and those without a user if the name now belongs to one.
        """
        if not request.name:
            return []
        book = self._book(request.name, request.base)
        book.open(request, client.user_name)
        for other, (each, base) in list(self._keyed.items()):
            if other.is_closed:  # it closed while it waited for the disk
                self.leave(other)
            elif each is book and book.is_closed_to(other.user_name):
                other.close(Reason.NOT_AUTHORIZED, _owned(book.name).detail)
            elif each is book and base < book.base:
                other.close(Reason.SESSION_TAKEN_OVER, f"a later batch of {book.name} has started")
        if request.is_keyed:
            self._keyed[client] = (book, request.base)
        return [self._rows.put_batch(book.name, book.base, book.swept_below, book.parts, book.owner)]

    def start(self, client_id: str, user_name: str | None, request: Request) -> ProducerStart:
        """All earlier messages of the client are settled, and what ``opening`` said is on disk: where it begins."""
        last, check = self._rows.mark(client_id, user_name)
        if user_name is None:
            counted = self._rows.mark(client_id, _ANONYMOUS)
            last, check = counted if counted[0] > last else (last, check)
            # A user continues the numbers from before there were users, not those that could be planted since.
            user_name = _ANONYMOUS if self._has_users() else None
        name = self._rows.name_of(client_id, user_name)
        sequence = max(last, request.base)
        first, end = request.skip
        if first - 1 <= max(sequence, self._live.get(name, 0)) and sequence < end:
            sequence = end
        told = [(SEQUENCE, str(sequence)), (SHARDS, str(self._rows.shards))]
        if request.name and not request.is_keyed:
            told.append((PARTS, str(self.parts(request))))
        if check is not None and sequence == last:
            told.append((CHECK, write_check(check)))
        return ProducerStart(name, sequence, tuple(told))

    def parts(self, request: Request) -> int:
        """One more than the highest part that has connected for the open batch of the name."""
        return self._book(request.name, request.base).parts

    def note_live(self, name: bytes, sequence: int) -> None:
        """A message of another node's producer was shown and is not recorded, and everything before it is settled.

        The node's rejection of the next message may reach the client before the acknowledgement of this one. The client cannot
        give both numbers up then, only the rejected one: it would send both again, for ever, if that were not accepted.
        """
        self._live[name] = sequence
        self._live.move_to_end(name)
        if len(self._live) > _LIVE_MAX:
            self._live.popitem(last=False)

    def leave(self, client: KeyedClient) -> None:
        """The client's connection is over."""
        self._keyed.pop(client, None)

    def _is_known(self, name: str) -> bool:
        return name in self._books or self._rows.open_batch(name) is not None

    def _book(self, name: str, base: int) -> Book:
        book = self._books.get(name)
        if book is None:
            known = self._rows.open_batch(name)
            book = self._books[name] = Book(name, *(known or (base, base, 0, None)))
            if len(self._books) > _BOOKS_MAX:
                self._forget_books()
        self._books.move_to_end(name)
        return book

    def _forget_books(self) -> None:
        used = {book.name for book, _ in self._keyed.values()}
        for name in [each for each in self._books if each not in used][: -_BOOKS_MAX // 2]:
            del self._books[name]

    # Keys

    def is_open(self, name: str, base: int, user_name: str | None) -> bool:
        """Whether a user's messages with keys still belong to the open batch of the name. May raise Unavailable."""
        book = self._book(name, base)
        return base >= book.base and not book.is_closed_to(user_name)

    def new_key(self, name: str, base: int, key: bytes, sender: KeySender) -> NewKey | None:
        """The key to record with its message; None if a message with this key has already been recorded."""
        earlier = self._fresh.get((name, key))
        if (earlier is not None and not earlier.is_stopped) or self._rows.has_key(name, base, key):
            return None
        return NewKey(self._book(name, base), sender, key, self._rows.put_key(name, base, key), self._note_recorded)

    def _note_recorded(self, new: NewKey) -> None:
        self._turn.ask(Phase.KEYS)
        self._fresh[new.book.name, new.key] = new.sender
        try:
            old = new.book.take_old(self._rows)
        except Unavailable:
            return  # they are found again with a later key
        for change in old:
            self._recorder.change(change)
