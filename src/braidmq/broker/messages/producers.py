"""Idempotent producers: clients that number their messages, so that each is recorded once.

A CONNECT with the user property ``producer-sequence`` makes the client a producer. Its messages are numbered in the order of
arrival, and the number of the last one is written in the batch of its record. Nothing is ever compared: once everything that an
earlier connection sent is settled, the CONNACK says how far the client has come, and the client continues from there.

With ``producer-keys`` messages are identified by keys instead. `producer_books` has what is known of producers; on a node whose
clients have their homes elsewhere, the grant of the client id brings what a CONNACK says, and keys travel with their messages.
"""

from __future__ import annotations

from msgspec import Struct

from braidmq.broker.connection.connection import Connection
from braidmq.broker.messages.producer_books import MessageKey, NotTaken, ProducerBooks, ProducerStart, not_taken
from braidmq.broker.ports import Change, MessageLog
from braidmq.lane.path.message import Message
from braidmq.lane.recording.recorder import Producer
from braidmq.mqtt.packets import Connect
from braidmq.mqtt.producer_protocol import (
    CLIENT_ID_BYTES_MAX,
    GO_ON,
    KEY_BYTES_MAX,
    KEY_HEAD,
    KEYS,
    NAME,
    NAME_BYTES_MAX,
    PART,
    PART_MAX,
    REFUSALS,
    SEQUENCE,
    SEQUENCE_MAX,
    SHARDS,
    SKIP,
    STOP,
    Request,
)
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.text_pairs import first_pairs


class SentKey(Change, Struct, frozen=True, gc=False):
    """The key of a message that this node sends to the home of its publisher, which looks for it and writes its row."""

    name: str
    base: int
    key: bytes

    @property
    def row(self) -> Change:
        """What travels with the message."""
        return self

    def recorded(self) -> None:
        """The message was collected."""


def read_request(packet: Connect) -> Request | NotTaken | None:
    """Parse the producer properties of a CONNECT; None if there are none."""
    pairs = first_pairs(packet.properties.user_properties)
    if not any(name == SEQUENCE for name, _ in pairs):
        return None
    named = dict(pairs)
    first, _, last = named.get(SKIP, "0").partition("-")
    try:
        base, skip, part = int(named[SEQUENCE]), (int(first), int(last or first)), int(named.get(PART, "-1"))
    except ValueError:
        return not_taken(f"{SEQUENCE} and {PART} must be numbers, and {SKIP} a number or a range such as 3-5")
    refusals = named.get(REFUSALS, GO_ON)
    if not 0 <= base < SEQUENCE_MAX or not 0 <= skip[0] <= skip[1] <= SEQUENCE_MAX:
        return not_taken(f"{SEQUENCE} and {SKIP} must fit in 63 bits")
    if refusals not in (GO_ON, STOP):
        return not_taken(f"{REFUSALS} is {GO_ON} or {STOP}")
    names = [named[each] for each in (KEYS, NAME) if each in named]
    if len(names) > 1 or not all(0 < len(each.encode()) <= NAME_BYTES_MAX for each in names):
        return not_taken(f"{KEYS} or {NAME} is a name of at most {NAME_BYTES_MAX} bytes")
    if PART in named and (NAME not in named or not 0 <= part <= PART_MAX):
        return not_taken(f"{PART} must fit in 31 bits and needs {NAME}")
    if not packet.client_id or len(packet.client_id.encode()) > CLIENT_ID_BYTES_MAX:
        return NotTaken(Reason.CLIENT_IDENTIFIER_NOT_VALID, f"a producer has a client id of at most {CLIENT_ID_BYTES_MAX} bytes")
    if not packet.clean_start:
        # A packet id that an earlier connection has not released would make a new message look like a repeat.
        return not_taken("a producer must connect with Clean Start: its sequence replaces the session's packet ids")
    return Request(base, skip, refusals == STOP, "".join(names), KEYS in named, part)


class Producers:
    """The connected producers."""

    def __init__(self, log: MessageLog, books: ProducerBooks | None) -> None:
        """``books``: what this node knows of producers; None: grants bring what their homes know."""
        self._log = log
        self._books = books
        self._keyed: dict[Connection, Request] = {}

    def shards(self) -> tuple[str, str]:
        """The user property that tells producers how many shards there are."""
        return SHARDS, str(len(self._log.watermarks))

    def judge(self, request: Request, client_id: str, user_name: str | None) -> NotTaken | None:
        """Why a client cannot be the producer that it asks to be; None if it can, or if its home has decided that."""
        return None if self._books is None else self._books.judge(request, client_id, user_name)

    def opening(self, connection: Connection, request: Request) -> list[Change] | None:
        """The rows to write before CONNACK reports the client's sequence; None: there is nothing to wait for."""
        return None if self._books is None else self._books.opening(connection, request)

    def join(self, connection: Connection, request: Request, start: ProducerStart | None) -> tuple[tuple[str, str], ...]:
        """All earlier messages are settled: number the client's messages from now on. Returns user properties for its CONNACK.

        ``start``: what the client's grant has brought.
        """
        client_id = connection.client_id
        if start is None:
            assert self._books is not None, "the grant of a producer says where it begins"
            start = self._books.start(client_id, connection.user_name, request)
        connection.producer = Producer(start.name, self._log.shard_of(client_id), start.sequence, request.stops)
        if request.is_keyed:
            connection.producer.is_keyed = True
            self._keyed[connection] = request
        return start.told

    def leave(self, connection: Connection) -> None:
        """The connection is over."""
        if self._keyed.pop(connection, None) is not None and self._books is not None:
            self._books.leave(connection)

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

    def new_key(self, connection: Connection, producer: Producer, key: bytes) -> MessageKey | None:
        """The key to record with its message; None if a message with this key has already been recorded."""
        request = self._keyed[connection]
        if self._books is None:
            return SentKey(request.name, request.base, key)
        return self._books.new_key(request.name, request.base, key, producer)


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
