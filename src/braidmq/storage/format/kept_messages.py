"""Keys and rows of messages that are stored outside the log's order, version 1. Integers are big-endian.

    0xEA | topic                        the retained message of a topic
    0xEB | due (8) | number (8)         a delayed message: when it is due, in ms since 1970, and a number that makes it unique

Both have the same value:

    version (1) = 1
    flags (1)                   bit 0: user name
    length (2), user name       if bit 0: of the publisher, UTF-8
    record (`record.py`)        the rest; its published-at is when the message was stored
"""

from __future__ import annotations

from struct import Struct as Packed
from struct import error as PackError
from typing import Final

from braidmq.base.errors import Corruption, UsageError
from braidmq.lane.path.message import Message
from braidmq.storage.format.record import VALUE_BYTES_MAX, Record, decode_record, encode_record

VERSION: Final = 1
RETAINED_PREFIX: Final = b"\xea"
RETAINED_END: Final = b"\xeb"
DELAYED_PREFIX: Final = b"\xeb"
DELAYED_END: Final = b"\xec"

_HEAD: Final = Packed(">BB")
_NAMED_HEAD: Final = Packed(">BBH")
_HAS_USER_NAME: Final = 1
_DELAYED_KEY: Final = Packed(">cQQ")


def retained_key(topic: bytes) -> bytes:
    """The key of a retained message's row."""
    return RETAINED_PREFIX + topic


def delayed_key(due_ms: int, number: int) -> bytes:
    """The key of a delayed message's row; raises UsageError if one of the two does not fit."""
    try:
        return _DELAYED_KEY.pack(DELAYED_PREFIX, due_ms, number)
    except PackError:
        raise UsageError(f"a message cannot be delayed until {due_ms} ms") from None


def delayed_due_ms(key: bytes) -> int:
    """When the delayed message with this key is due; raises Corruption if the key is invalid."""
    if len(key) != _DELAYED_KEY.size:
        raise Corruption(f"the key of a delayed message has {len(key)} bytes, not {_DELAYED_KEY.size}")
    due_ms: int = _DELAYED_KEY.unpack(key)[1]
    return due_ms


def encode_message(message: Message, user_name: str | None, expires_at: int, put_at: int) -> bytes:
    """The value of a stored message's row; times are wall-clock microseconds, ``expires_at`` 0 means never.

    Raises UsageError if the message is too large.
    """
    record = encode_record(
        message.topic,
        message.payload,
        message.qos,
        message.retain,
        message.publisher,
        message.properties,
        expires_at,
        message.expiry_offset,
        put_at,
    )
    if len(record) > VALUE_BYTES_MAX:
        raise UsageError(f"a message of {len(record)} bytes cannot be stored", f"the maximum is {VALUE_BYTES_MAX} bytes")
    if user_name is None:
        return _HEAD.pack(VERSION, 0) + record
    name = user_name.encode()
    return b"".join((_NAMED_HEAD.pack(VERSION, _HAS_USER_NAME, len(name)), name, record))


def decode_message(value: bytes) -> tuple[Record, str | None]:
    """The record and the user name of a value; raises UsageError for a newer format, Corruption for an invalid row."""
    if value and value[0] > VERSION:
        raise UsageError(f"its row has the format {value[0]}, newer than {VERSION}", "use the newer version of braidmq")
    try:
        version, flags = _HEAD.unpack_from(value)
        name, at = None, _HEAD.size
        if flags & _HAS_USER_NAME:
            at = _NAMED_HEAD.size + _NAMED_HEAD.unpack_from(value)[2]
            name = value[_NAMED_HEAD.size : at].decode()
    except (PackError, UnicodeDecodeError):
        raise Corruption(f"its row is not valid for version {VERSION}") from None
    if version != VERSION:
        raise Corruption(f"its row is not valid for version {VERSION}")
    return decode_record(0, value[at:]), name
