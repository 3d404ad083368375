"""The data types of MQTT (section 1.5 of the specification), read from and written to bytes.

Readers take the body and a position and return the value and the position after it. A position past the end raises
`IndexError` or `struct.error`, which `codec.decode` reports as a malformed packet; values that slicing would truncate silently
(text, binary data) are checked here.
"""

from __future__ import annotations

import struct
from typing import Final

from braidmq.base.errors import ProtocolViolation, UsageError
from braidmq.mqtt.reasons import Reason

TEXT_BYTES_MAX: Final = 65_535
VARINT_MAX: Final = 268_435_455

_UINT16 = struct.Struct(">H")
_UINT32 = struct.Struct(">I")


def malformed(detail: str) -> ProtocolViolation:
    """The violation for a packet that does not follow the format."""
    return ProtocolViolation(Reason.MALFORMED_PACKET, detail)


def protocol_error(detail: str) -> ProtocolViolation:
    """The violation for a well-formed packet that the protocol does not allow."""
    return ProtocolViolation(Reason.PROTOCOL_ERROR, detail)


def read_byte(body: bytes, at: int) -> tuple[int, int]:
    """Read a Byte."""
    return body[at], at + 1


def read_flag(body: bytes, at: int) -> tuple[bool, int]:
    """Read a Byte that may only be 0 or 1."""
    value = body[at]
    if value > 1:
        raise protocol_error("a flag is neither 0 nor 1")
    return value == 1, at + 1


def read_uint16(body: bytes, at: int) -> tuple[int, int]:
    """Read a Two Byte Integer."""
    return body[at] << 8 | body[at + 1], at + 2


def read_uint32(body: bytes, at: int) -> tuple[int, int]:
    """Read a Four Byte Integer."""
    return _UINT32.unpack_from(body, at)[0], at + 4


def read_varint(body: bytes, at: int) -> tuple[int, int]:
    """Read a Variable Byte Integer; only the shortest form is accepted."""
    byte = body[at]
    if byte < 0x80:
        return byte, at + 1
    value = byte & 0x7F
    for size in (2, 3, 4):
        byte = body[at + size - 1]
        value |= (byte & 0x7F) << 7 * (size - 1)
        if byte < 0x80:
            # [MQTT-1.5.5-1]: a last byte of zero adds nothing, so there is a shorter form.
            if byte == 0:
                raise malformed("a variable byte integer is not minimally encoded")
            return value, at + size
    raise malformed("a variable byte integer has more than four bytes")


def read_binary(body: bytes, at: int) -> tuple[bytes, int]:
    """Read Binary Data."""
    start = at + 2
    end = start + (body[at] << 8 | body[at + 1])
    if end > len(body):
        raise malformed("binary data runs past the end of the packet")
    return body[start:end], end


def read_text(body: bytes, at: int) -> tuple[str, int]:
    """Read a UTF-8 Encoded String."""
    start = at + 2
    end = start + (body[at] << 8 | body[at + 1])
    if end > len(body):
        raise malformed("a string runs past the end of the packet")
    try:
        # [MQTT-1.5.4-1]: Python's decoder rejects surrogates and overlong forms; [MQTT-1.5.4-3]: it keeps a BOM.
        text = body[start:end].decode()
    except UnicodeDecodeError:
        raise malformed("a string is not valid UTF-8") from None
    if "\0" in text:
        raise malformed("a string contains U+0000")  # [MQTT-1.5.4-2]
    return text, end


def read_text_pair(body: bytes, at: int) -> tuple[tuple[str, str], int]:
    """Read a UTF-8 String Pair."""
    name, at = read_text(body, at)  # [MQTT-1.5.7-1]
    value, at = read_text(body, at)
    return (name, value), at


def read_packet_id(body: bytes, at: int) -> tuple[int, int]:
    """Read a Packet Identifier, which is never zero."""
    packet_id = body[at] << 8 | body[at + 1]
    if packet_id == 0:
        raise malformed("the packet identifier is zero")  # [MQTT-2.2.1-3], [MQTT-2.2.1-4]
    return packet_id, at + 2


def write_byte(value: int) -> bytes:
    """Write a Byte."""
    return value.to_bytes(1, "big")


def write_flag(value: bool) -> bytes:
    """Write a Byte that is 0 or 1."""
    return b"\1" if value else b"\0"


def write_uint16(value: int) -> bytes:
    """Write a Two Byte Integer."""
    return _UINT16.pack(value)


def write_uint32(value: int) -> bytes:
    """Write a Four Byte Integer."""
    return _UINT32.pack(value)


def write_varint(value: int) -> bytes:
    """Write a Variable Byte Integer in its shortest form."""
    if 0 <= value < 0x80:
        return value.to_bytes(1, "big")
    if not 0 <= value <= VARINT_MAX:
        raise UsageError(f"{value} does not fit a variable byte integer")
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def write_binary(value: bytes) -> bytes:
    """Write Binary Data."""
    size = len(value)
    if size > TEXT_BYTES_MAX:
        raise UsageError(f"{size} bytes do not fit a field of at most {TEXT_BYTES_MAX}")
    return _UINT16.pack(size) + value


def write_text(value: str) -> bytes:
    """Write a UTF-8 Encoded String; a lone surrogate raises `UnicodeEncodeError`."""
    if "\0" in value:
        raise UsageError("an MQTT string must not contain U+0000")
    return write_binary(value.encode())


def write_text_pair(value: tuple[str, str]) -> bytes:
    """Write a UTF-8 String Pair."""
    return write_text(value[0]) + write_text(value[1])


def write_packet_id(packet_id: int | None) -> bytes:
    """Write a Packet Identifier."""
    if not packet_id:
        raise UsageError("the packet needs a packet identifier", "use one from 1 to 65535")
    return _UINT16.pack(packet_id)
