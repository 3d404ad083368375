"""Keys and rows of durable sessions, version 1. Integers are big-endian; a position is a timestamp in microseconds since 1970.

    0xE9 | client id | 0x00 | 0x00                 the session
    0xE9 | client id | 0x00 | 0x01 | filter        a subscription, by its filter as it was written
    0xE9 | client id | 0x00 | 0x02                 the cursor
    0xE9 | client id | 0x00 | 0x03                 the will
    0xE9 | client id | 0x00 | 0x04 | packet id (2) a QoS 2 message that the client has not released

MQTT strings cannot contain U+0000, so the first 0x00 ends the client id, and the rows of a session are adjacent, its own first.
Every value begins with the version (1) = 1. Then:

    session       flags (1) bit 0: clean start, 1: user name, 2: stays anonymous; expiry in s (4), created at (8), ended at (8),
                  guard (8), user name (the rest, if bit 1); the times are seconds since 1970 as IEEE doubles
    subscription  flags (1) bits 0-1: QoS, 2: no local, 3: retain as published, 4: cursor, 5: tells the end; count (2),
                  start (8 for each shard), cursor (8 for each shard, if bit 4), identifiers (the rest)
    cursor        count of positions (2), count of messages (2), positions (8 each), messages (13 each), values
      message     packet id (2), flags (1) bits 0-1: QoS, 2: released, 3: retain, 4: value; shard (2), timestamp (8)
      value       length (4), record (`record.py`); one for each message with bit 4, in their order
    will          flags (1) bits 0-1: QoS, 2: retain; topic length (2), topic, properties with their length in wire form,
                  payload (the rest)
    received      nothing
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct as Packed
from struct import error as PackError
from struct import pack, unpack_from
from typing import Final

from braidmq.base.errors import Corruption, ProtocolViolation, UsageError
from braidmq.broker.ports import CursorRow, InFlight, SessionRow, SubscriptionRow
from braidmq.mqtt.packets import Will
from braidmq.mqtt.properties import WILL, read_properties, write_properties

VERSION: Final = 1
SESSION_PREFIX: Final = b"\xe9"
SESSIONS_END: Final = b"\xea"

SESSION, SUBSCRIPTION, CURSOR, WILL_KIND, RECEIVED = range(5)
RECEIVED_VALUE: Final = bytes((VERSION,))

_SESSION_TAIL: Final = b"\0\0"
_CURSOR_TAIL: Final = b"\0\x02"
_WILL_TAIL: Final = b"\0\x03"

_SESSION: Final = Packed(">BBIddQ")
_CLEAN, _HAS_USER_NAME, _STAYS_ANONYMOUS = 1, 2, 4

_SUBSCRIPTION: Final = Packed(">BBH")
_NO_LOCAL, _AS_PUBLISHED, _HAS_CURSOR, _TELLS_END = 4, 8, 16, 32

_CURSOR: Final = Packed(">BHH")
_MESSAGE: Final = Packed(">HBHQ")
_STATE_AT: Final = 2
_RELEASED, _RETAIN, _HAS_VALUE = 1 << _STATE_AT, 8, 16
_LENGTH: Final = Packed(">I")

_WILL: Final = Packed(">BBH")
_WILL_RETAIN: Final = 4

_POSITION_BYTES: Final = 8
_QOS_BITS: Final = 3


def session_prefix(client_id: str) -> bytes:
    """The common prefix of a session's keys, without the 0x00; raises UsageError if the client id contains U+0000."""
    if "\0" in client_id:
        raise UsageError("a client id cannot contain U+0000")
    return SESSION_PREFIX + client_id.encode()


def session_key(client_id: str) -> bytes:
    """The key of the session's own row."""
    return session_prefix(client_id) + _SESSION_TAIL


def subscription_key(client_id: str, written: str) -> bytes:
    """The key of a subscription's row."""
    return b"%b\0\x01%b" % (session_prefix(client_id), written.encode())


def cursor_key(client_id: str) -> bytes:
    """The key of the cursor's row."""
    return session_prefix(client_id) + _CURSOR_TAIL


def will_key(client_id: str) -> bytes:
    """The key of the will's row."""
    return session_prefix(client_id) + _WILL_TAIL


def received_key(client_id: str, packet_id: int) -> bytes:
    """The key of the row of a QoS 2 message that the client has not released."""
    return b"%b\0\x04%b" % (session_prefix(client_id), packet_id.to_bytes(2, "big"))


def encode_session(row: SessionRow) -> bytes:
    """The value of a session's own row."""
    flags = (_CLEAN if row.is_clean else 0) | (0 if row.user_name is None else _HAS_USER_NAME)
    flags |= _STAYS_ANONYMOUS if row.stays_anonymous else 0
    try:
        head = _SESSION.pack(VERSION, flags, row.expiry_s, row.created_at, row.ended_at, row.guard)
    except PackError as problem:
        raise _does_not_fit("session", problem) from None
    return head if row.user_name is None else head + row.user_name.encode()


def decode_session(client_id: str, value: bytes) -> SessionRow:
    """The session of a value; raises UsageError for a newer format, Corruption for an invalid row."""
    try:
        _, flags, expiry_s, created_at, ended_at, guard = _SESSION.unpack_from(value)
        name = value[_SESSION.size :].decode() if flags & _HAS_USER_NAME else None
    except (PackError, UnicodeDecodeError):
        raise broken(client_id, "session", value) from None
    if value[0] != VERSION or (name is None and len(value) != _SESSION.size):
        raise broken(client_id, "session", value)
    is_clean, stays_anonymous = bool(flags & _CLEAN), bool(flags & _STAYS_ANONYMOUS)
    return SessionRow(client_id, name, expiry_s, is_clean, created_at, ended_at, guard, stays_anonymous)


def encode_subscription(row: SubscriptionRow) -> bytes:
    """The value of a subscription's row; its replay cursor has as many positions as its start."""
    places: Sequence[int] = row.start
    flags = row.qos | (_NO_LOCAL if row.no_local else 0) | (_AS_PUBLISHED if row.retain_as_published else 0)
    flags |= _TELLS_END if row.tells_end else 0
    if row.cursor is not None:
        if len(row.cursor) != len(row.start):
            raise UsageError("the cursor and the start of a subscription have different shards")
        flags |= _HAS_CURSOR
        places = row.start + row.cursor
    try:
        head = _SUBSCRIPTION.pack(VERSION, flags, len(row.start))
        return head + pack(f">{len(places)}Q", *places) + row.identifiers
    except PackError as problem:
        raise _does_not_fit("subscription", problem) from None


def decode_subscription(client_id: str, written: str, value: bytes) -> SubscriptionRow:
    """The subscription of a value; raises UsageError for a newer format, Corruption for an invalid row."""
    try:
        version, flags, count = _SUBSCRIPTION.unpack_from(value)
        total = count * 2 if flags & _HAS_CURSOR else count
        places = unpack_from(f">{total}Q", value, _SUBSCRIPTION.size)
    except PackError:
        raise broken(client_id, "subscription", value) from None
    if version != VERSION:
        raise broken(client_id, "subscription", value)
    return SubscriptionRow(
        written,
        flags & _QOS_BITS,
        bool(flags & _NO_LOCAL),
        bool(flags & _AS_PUBLISHED),
        value[_SUBSCRIPTION.size + total * _POSITION_BYTES :],
        places[:count],
        places[count:] if flags & _HAS_CURSOR else None,
        bool(flags & _TELLS_END),
    )


def encode_cursor(row: CursorRow) -> bytes:
    """The value of the cursor's row. It is written for every few messages, so it is as short as possible."""
    pack_message = _MESSAGE.pack
    try:
        parts = [
            _CURSOR.pack(VERSION, len(row.positions), len(row.inflight)),
            pack(f">{len(row.positions)}Q", *row.positions),
            *[
                pack_message(
                    each.packet_id,
                    each.qos | each.state << _STATE_AT | (_RETAIN if each.retain else 0) | (_HAS_VALUE if each.value else 0),
                    each.shard,
                    each.timestamp,
                )
                for each in row.inflight
            ],
        ]
        for each in row.inflight:
            if each.value:
                parts += (_LENGTH.pack(len(each.value)), each.value)
    except PackError as problem:
        raise _does_not_fit("cursor", problem) from None
    return b"".join(parts)


def decode_cursor(client_id: str, value: bytes) -> CursorRow:
    """The cursor of a value; raises UsageError for a newer format, Corruption for an invalid row."""
    try:
        version, count, message_count = _CURSOR.unpack_from(value)
        if version != VERSION:
            raise broken(client_id, "cursor", value)
        positions = unpack_from(f">{count}Q", value, _CURSOR.size)
        at = _CURSOR.size + count * _POSITION_BYTES
        end = at + message_count * _MESSAGE.size
        if not message_count and len(value) == end:
            return CursorRow(positions, ())
        inflight = []
        values_at = end
        for packet_id, flags, shard, timestamp in _MESSAGE.iter_unpack(value[at:end]):
            record = b""
            if flags & _HAS_VALUE:
                record_at = values_at + _LENGTH.size
                values_at = record_at + _LENGTH.unpack_from(value, values_at)[0]
                record = value[record_at:values_at]
            state = (flags & _RELEASED) >> _STATE_AT
            inflight.append(InFlight(packet_id, flags & _QOS_BITS, state, bool(flags & _RETAIN), shard, timestamp, record))
    except PackError:
        raise broken(client_id, "cursor", value) from None
    if values_at != len(value) or len(inflight) != message_count:
        raise broken(client_id, "cursor", value)
    return CursorRow(positions, tuple(inflight))


def encode_will(will: Will) -> bytes:
    """The value of the will's row; raises what `write_properties` raises for properties that a will cannot have."""
    topic = will.topic.encode()
    try:
        head = _WILL.pack(VERSION, will.qos | (_WILL_RETAIN if will.retain else 0), len(topic))
    except PackError as problem:
        raise _does_not_fit("will", problem) from None
    return b"".join((head, topic, write_properties(will.properties, WILL), will.payload))


def decode_will(client_id: str, value: bytes) -> Will:
    """The will of a value; raises UsageError for a newer format, Corruption for an invalid row."""
    try:
        version, flags, topic_bytes = _WILL.unpack_from(value)
        if version != VERSION:
            raise broken(client_id, "will", value)
        topic_end = _WILL.size + topic_bytes
        topic = value[_WILL.size : topic_end].decode()
        properties, payload_at = read_properties(value, topic_end, WILL)
    except (PackError, IndexError, UnicodeDecodeError, ProtocolViolation):
        raise broken(client_id, "will", value) from None
    return Will(topic, value[payload_at:], flags & _QOS_BITS, bool(flags & _WILL_RETAIN), properties)


def check_received(client_id: str, value: bytes) -> None:
    """Raise UsageError if a newer version wrote the row of a received message, Corruption if it is invalid."""
    if value != RECEIVED_VALUE:
        raise broken(client_id, "received message", value)


def broken(client_id: str, kind: str, value: bytes) -> UsageError | Corruption:
    """The error for a value that is not a row of version 1: UsageError if a newer version wrote it, else Corruption."""
    if value and value[0] > VERSION:
        return UsageError(
            f"the {kind} row of client {client_id!r} has the format {value[0]}, newer than {VERSION}",
            "use the newer version of braidmq",
        )
    return Corruption(f"the {kind} row of client {client_id!r} is not valid for version {VERSION}")


def _does_not_fit(kind: str, problem: Exception) -> UsageError:
    return UsageError(f"a {kind} cannot be stored because a field is out of range: {problem}")
