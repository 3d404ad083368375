"""Builds PUBLISH packets in blocks: all packets of a block are equal except for sequence number, time and packet id.

All packets of a block have the same length, so a byte position of all packets is a strided slice, and setting it for 256 packets
is one assignment. A payload of at least ``HEADER.size`` bytes begins with a header from which the receiver computes latency and
loss.
"""

from __future__ import annotations

import struct
from typing import Final

from braidmq.mqtt.codec import encode
from braidmq.mqtt.packets import MQTT5, Publish
from braidmq.mqtt.properties import NO_PROPERTIES

MAGIC: Final = b"bmq1"
HEADER: Final = struct.Struct(">4sIQQ")  # magic, publisher, sequence, time of sending in ns since 1970
BLOCK_FRAMES_MAX: Final = 256  # so that sequence numbers in a block differ only in the lowest byte
BLOCK_BYTES_MAX: Final = 64 * 1024
PACKET_IDS: Final = 255 * 256  # packet ids cycle from 256 to 65535: the high byte is never 0

_SEQUENCE_AT: Final = 8
_TIME_AT: Final = 16
_COUNTING: Final = bytes(range(256))


def packet_id_of(sequence: int) -> int:
    """The packet id of the message with this sequence number; ids repeat after ``PACKET_IDS`` messages."""
    return (1 + (sequence >> 8) % 255) << 8 | sequence & 0xFF


def payload_with_header(publisher: int, size: int) -> bytes:
    """A payload of ``size`` bytes that begins with a header, unless it is too short for one."""
    if size < HEADER.size:
        return b"x" * size
    return HEADER.pack(MAGIC, publisher, 0, 0) + b"x" * (size - HEADER.size)


class PublishBlock:
    """The packets of one publisher and topic, without properties; ``take`` returns as many as requested."""

    def __init__(self, message: Publish, version: int, frames_max: int = BLOCK_FRAMES_MAX) -> None:
        assert message.properties == NO_PROPERTIES
        if message.qos:
            message.packet_id = packet_id_of(0)
        frame = encode(message, version)
        self.stride = len(frame)
        payload_at = self.stride - len(message.payload)
        self._header_at = payload_at if message.payload[: len(MAGIC)] == MAGIC else None
        # In MQTT 5 the property length is between packet id and payload: one byte, because there are none.
        self._packet_id_at = payload_at - 2 - (version == MQTT5) if message.qos else None
        self.frames = _power_of_two_up_to(min(frames_max, BLOCK_FRAMES_MAX, max(1, BLOCK_BYTES_MAX // self.stride)))
        self._block = bytearray(frame * self.frames)
        self._page = -1

    def take(self, first: int, count: int, now_ns: int) -> bytes:
        """``count`` packets with sequence numbers from ``first`` on, sent at ``now_ns``."""
        parts = []
        while count:
            page, index = divmod(first, self.frames)
            some = min(count, self.frames - index)
            if page != self._page:
                self._turn_to(page)
            if self._header_at is not None:
                self._set_time(index, some, now_ns)
            parts.append(bytes(memoryview(self._block)[index * self.stride : (index + some) * self.stride]))
            first += some
            count -= some
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _turn_to(self, page: int) -> None:
        """Set the sequence numbers of the block, starting with ``page * frames``."""
        base = page * self.frames
        low = _COUNTING[base & 0xFF : (base & 0xFF) + self.frames]
        if self._header_at is not None:
            sequence_at = self._header_at + _SEQUENCE_AT
            for place, byte in enumerate(base.to_bytes(8, "big")[:7]):
                self._set(sequence_at + place, bytes((byte,)) * self.frames)
            self._set(sequence_at + 7, low)
        if self._packet_id_at is not None:
            self._set(self._packet_id_at, bytes((packet_id_of(base) >> 8,)) * self.frames)
            self._set(self._packet_id_at + 1, low)
        self._page = page

    def _set_time(self, index: int, count: int, now_ns: int) -> None:
        assert self._header_at is not None
        at = index * self.stride + self._header_at + _TIME_AT
        if count == 1:
            struct.pack_into(">Q", self._block, at, now_ns)
            return
        end = (index + count) * self.stride
        for place, byte in enumerate(now_ns.to_bytes(8, "big")):
            self._block[at + place : end : self.stride] = bytes((byte,)) * count

    def _set(self, offset: int, values: bytes) -> None:
        self._block[offset :: self.stride] = values


def _power_of_two_up_to(number: int) -> int:
    return 1 << (number.bit_length() - 1)
