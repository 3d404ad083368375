"""Idempotent producers: clients that number their messages, so that each is recorded once.

A CONNECT with the user property ``producer-sequence`` makes the client a producer. Its messages are numbered in the order of
arrival, and the number of the last one is written in the batch of its record. Nothing is ever compared: once everything that an
earlier connection sent is settled, the CONNACK says how far the client has come, and the client continues from there.

With ``producer-keys`` messages are identified by keys instead. The keys of a batch, which is open under a name, are rows beside
the records; a message whose key is there is acknowledged and not recorded. Several clients may publish under one name.

With ``producer-name`` several clients declare themselves parts of one producer. The row of the batch that is open under the name
has the highest part that connected for it, so that neither an earlier batch nor a missing part goes unnoticed.

Names belong to the user who used them first, and numbers to the client id of a user. Otherwise any client could lock a producer
out, or make the broker drop its messages, without a right to publish any of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from braidmq.access.contract import Refused
from braidmq.base.errors import Unavailable
from braidmq.broker.ports import Change, MessageLog, ProducerStore
from braidmq.broker.turn import Phase, Turn
from braidmq.lane.path.message import Message
from braidmq.lane.path.recorder import Producer, Recorder
from braidmq.mqtt.packets import Connect
from braidmq.mqtt.producer_protocol import (
    CHECK,
    CLIENT_ID_BYTES_MAX,
    GO_ON,
    KEY_BYTES_MAX,
    KEY_HEAD,
    KEYS,
    NAME,
    NAME_BYTES_MAX,
    PART,
    PART_MAX,
    PARTS,
    REFUSALS,
    SEQUENCE,
    SEQUENCE_MAX,
    SHARDS,
    SKIP,
    STOP,
    Request,
    write_check,
)
from braidmq.mqtt.reasons import Reason

if TYPE_CHECKING:
    from braidmq.broker.connection.connection import Connection

# Stands for the user of clients without one while there are users: no user name contains U+0000.
_ANONYMOUS: Final = "\0"
_BOOKS_MAX: Final = 1000  # names kept in memory without a connected producer
_OLD_AT_ONCE: Final = 256  # keys of earlier batches read at a time: half a millisecond
_OLD_PER_MESSAGE: Final = 2  # and removed with each new one, so that they are removed faster than new ones arrive


class NotTaken(Refused, frozen=True):
    """Why a client is rejected as a producer; ``told``: user properties for its CONNACK."""

    told: tuple[tuple[str, str], ...] = ()


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


class NewKey(Struct, frozen=True, gc=False):
    """A key that is not recorded yet, and the row to write with its message."""

    book: Book
    producer: Producer
    key: bytes
    row: Change
    on_recorded: Callable[[NewKey], None]

    def recorded(self) -> None:
        """The message was collected, with this row; some keys of earlier batches are removed with it."""
        self.on_recorded(self)


def read_request(packet: Connect) -> Request | NotTaken | None:
    """Parse the producer properties of a CONNECT; None if there are none."""
    if not any(name == SEQUENCE for name, _ in packet.properties.user_properties):
        return None
    named = dict(packet.properties.user_properties)
    first, _, last = named.get(SKIP, "0").partition("-")
    try:
        base, skip, part = int(named[SEQUENCE]), (int(first), int(last or first)), int(named.get(PART, "-1"))
    except ValueError:
        return _refused(f"{SEQUENCE} and {PART} must be numbers, and {SKIP} a number or a range such as 3-5")
    refusals = named.get(REFUSALS, GO_ON)
    if not 0 <= base < SEQUENCE_MAX or not 0 <= skip[0] <= skip[1] <= SEQUENCE_MAX:
        return _refused(f"{SEQUENCE} and {SKIP} must fit in 63 bits")
    if refusals not in (GO_ON, STOP):
        return _refused(f"{REFUSALS} is {GO_ON} or {STOP}")
    names = [named[each] for each in (KEYS, NAME) if each in named]
    if len(names) > 1 or not all(0 < len(each.encode()) <= NAME_BYTES_MAX for each in names):
        return _refused(f"{KEYS} or {NAME} is a name of at most {NAME_BYTES_MAX} bytes")
    if PART in named and (NAME not in named or not 0 <= part <= PART_MAX):
        return _refused(f"{PART} must fit in 31 bits and needs {NAME}")
    if not packet.client_id or len(packet.client_id.encode()) > CLIENT_ID_BYTES_MAX:
        return NotTaken(Reason.CLIENT_IDENTIFIER_NOT_VALID, f"a producer has a client id of at most {CLIENT_ID_BYTES_MAX} bytes")
    if not packet.clean_start:
        # A packet id that an earlier connection has not released would make a new message look like a repeat.
        return _refused("a producer must connect with Clean Start: its sequence replaces the session's packet ids")
    return Request(base, skip, refusals == STOP, "".join(names), KEYS in named, part)


def _refused(detail: str, *told: tuple[str, str]) -> NotTaken:
    return NotTaken(Reason.IMPLEMENTATION_SPECIFIC_ERROR, detail, told)


def _owned(name: str) -> NotTaken:
    return NotTaken(Reason.NOT_AUTHORIZED, f"the producer name {name} belongs to another user; choose another name")


class Producers:
    """The connected producers, and the open batches of their names."""

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
        self._keyed: dict[Connection, tuple[Book, int]] = {}  # and the base of the batch that they connected for
        self._fresh: dict[tuple[str, bytes], Producer] = {}  # keys of this turn, which the log does not know yet
        turn.at_end(Phase.KEYS, self._fresh.clear)

    # Connecting

    def judge(self, packet: Connect, user_name: str | None) -> Request | NotTaken | None:
        """What the client requests as a producer (None: nothing), or why it is rejected."""
        request = read_request(packet)
        if not isinstance(request, Request) or not request.name:
            return request
        shard_of = self._log.shard_of
        if request.is_keyed and shard_of(packet.client_id) != shard_of(request.name):
            # A key and its record are written together, so they must be in one shard.
            return NotTaken(
                Reason.CLIENT_IDENTIFIER_NOT_VALID,
                f"the client id must have the same shard as the name of its keys: crc32 modulo {self._rows.shards}",
            )
        try:
            return self._judge_name(request, user_name)
        except Unavailable as problem:
            return NotTaken(Reason.SERVER_UNAVAILABLE, f"the producer name {request.name} cannot be used now: {problem.detail}")

    def _judge_name(self, request: Request, user_name: str | None) -> Request | NotTaken:
        if user_name is None and self._has_users() and not self._is_known(request.name):
            # Otherwise its batches and keys would pass to the first user who connects with the name.
            return NotTaken(
                Reason.NOT_AUTHORIZED, f"the producer name {request.name} needs a user: log in, or publish without a name"
            )
        book = self._book(request.name, request.base)
        if book.is_closed_to(user_name):
            return _owned(request.name)
        if request.base < book.base:
            return _refused(f"a later batch of {request.name} has started", (SEQUENCE, str(book.base)))
        return request

    def shards(self) -> tuple[str, str]:
        """The user property that tells producers how many shards there are."""
        return SHARDS, str(self._rows.shards)

    def opening(self, connection: Connection, request: Request) -> list[Change]:
        """The rows to write before CONNACK reports the client's sequence.

        Producers with keys of an earlier batch are disconnected, and those without a user if the name now belongs to one.
        """
        if not request.name:
            return []
        book = self._book(request.name, request.base)
        book.open(request, connection.user_name)
        for other, (each, base) in list(self._keyed.items()):
            if other.is_closed:  # it closed while it waited for the disk
                self.leave(other)
            elif each is book and book.is_closed_to(other.user_name):
                other.close(Reason.NOT_AUTHORIZED, _owned(book.name).detail)
            elif each is book and base < book.base:
                other.close(Reason.SESSION_TAKEN_OVER, f"a later batch of {book.name} has started")
        if request.is_keyed:
            self._keyed[connection] = (book, request.base)
        return [self._rows.put_batch(book.name, book.base, book.swept_below, book.parts, book.owner)]

    def join(self, connection: Connection, request: Request) -> tuple[tuple[str, str], ...]:
        """All earlier messages are settled: number the client's messages from now on. Returns user properties for its CONNACK."""
        client_id, user_name = connection.client_id, connection.user_name
        last, check = self._rows.mark(client_id, user_name)
        if user_name is None:
            counted = self._rows.mark(client_id, _ANONYMOUS)
            last, check = counted if counted[0] > last else (last, check)
            # A user continues the numbers from before there were users, not those that could be planted since.
            user_name = _ANONYMOUS if self._has_users() else None
        sequence = max(last, request.base)
        first, end = request.skip
        if first - 1 <= sequence < end:
            sequence = end
        name = self._rows.name_of(client_id, user_name)
        connection.producer = Producer(name, self._log.shard_of(client_id), sequence, request.stops)
        told = [(SEQUENCE, str(sequence)), self.shards()]
        if request.is_keyed:
            connection.producer.is_keyed = True
        elif request.name:
            told.append((PARTS, str(self._book(request.name, request.base).parts)))
        if check is not None and sequence == last:
            told.append((CHECK, write_check(check)))
        return tuple(told)

    def leave(self, connection: Connection) -> None:
        """The connection is over."""
        self._keyed.pop(connection, None)

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

    # Messages with keys

    def take_key(self, message: Message) -> bytes | None:
        """Remove the key from a message's properties and return it; None if there is no valid key."""
        found = find_key(message.properties)
        if found is None:
            return None
        at, end = found
        key = message.properties[at + len(KEY_HEAD) + 2 : end]
        offset = message.expiry_offset
        rest = message.properties[:at] + message.properties[end:]
        message.set_properties(rest, message.expires_at, offset - (end - at) if offset > at else offset)
        return key if 0 < len(key) <= KEY_BYTES_MAX else None

    def new_key(self, connection: Connection, producer: Producer, key: bytes) -> NewKey | None:
        """The key to record with its message; None if a message with this key has already been recorded."""
        book, base = self._keyed[connection]
        earlier = self._fresh.get((book.name, key))
        if (earlier is not None and not earlier.is_stopped) or self._rows.has_key(book.name, base, key):
            return None
        return NewKey(book, producer, key, self._rows.put_key(book.name, base, key), self._note_recorded)

    def _note_recorded(self, new: NewKey) -> None:
        self._turn.ask(Phase.KEYS)
        self._fresh[new.book.name, new.key] = new.producer
        for change in new.book.take_old(self._rows):
            self._recorder.change(change)


def find_key(properties: bytes) -> tuple[int, int] | None:
    """Where the user property with the key begins and ends in a message's properties, which are known to be valid."""
    at = 0
    while at < len(properties):
        match properties[at]:
            case 0x01:
                end = at + 2
            case 0x02:
                end = at + 5
            case 0x26:
                end = _text_end(properties, _text_end(properties, at + 1))
                if properties.startswith(KEY_HEAD, at):
                    return at, end
            case _:  # content type, response topic, correlation data: a text or binary data
                end = _text_end(properties, at + 1)
        at = end
    return None


def _text_end(properties: bytes, at: int) -> int:
    return at + 2 + (properties[at] << 8 | properties[at + 1])
