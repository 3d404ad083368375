"""The protobuf encoding, as far as etcd's messages need it.

A message is a sequence of fields, ``tag | value``, with ``tag = number * 8 + kind``:

    kind 0   a varint: 7 bits per byte, lowest first; int64 as two's complement in 64 bits, bool as 0 or 1
    kind 2   length (varint) | bytes: bytes, texts, messages
    1, 5     8 and 4 bytes; etcd has no such fields, and they are skipped

Fields of unknown numbers are skipped by the caller, so an answer of a newer etcd is read. A field with its default value
(0, empty) is not written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_VARINT: Final = 0
_FIXED_64: Final = 1
_BYTES: Final = 2
_FIXED_32: Final = 5
_VARINT_BYTES_MAX: Final = 10
_UNSIGNED_END: Final = 1 << 64
_SIGNED_END: Final = 1 << 63


def put_int(out: bytearray, number: int, value: int) -> None:
    """Append an int64, a bool or an enum."""
    if value:
        put_given_int(out, number, value)


def put_given_int(out: bytearray, number: int, value: int) -> None:
    """Append an int64 even if it is 0: a member of a oneof."""
    out += _varint(number << 3 | _VARINT)
    out += _varint(value % _UNSIGNED_END)


def put_bytes(out: bytearray, number: int, value: bytes | bytearray) -> None:
    """Append bytes, or a text in UTF-8."""
    if value:
        put_message(out, number, value)


def put_message(out: bytearray, number: int, value: bytes | bytearray) -> None:
    """Append a message even if it is empty."""
    out += _varint(number << 3 | _BYTES)
    out += _varint(len(value))
    out += value


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: (number, value). Raises ValueError if it is not one."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("a field has the number 0")
        if kind == _VARINT:
            value, at = _read_varint(data, at)
            yield number, value - _UNSIGNED_END if value >= _SIGNED_END else value
            continue
        if kind == _BYTES:
            size, at = _read_varint(data, at)
        elif kind in (_FIXED_64, _FIXED_32):
            size = 8 if kind == _FIXED_64 else 4
        else:
            raise ValueError(f"a field has the kind {kind}")
        if at + size > end:
            raise ValueError("a field is cut off")
        if kind == _BYTES:
            yield number, data[at : at + size]
        at += size


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[at : at + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value % _UNSIGNED_END, at + index + 1
    raise ValueError("a number is cut off or too long")
