"""The bytes waiting to be written to one client.

This is the plain form and the contract; a build compiles ``outbox.pyx`` to replace it.
"""

from __future__ import annotations

import os

from braidmq.lane.path.parser import Parser

_LENGTH_MAX = 268_435_455


def _varint(n: int) -> bytes:
    out = bytearray()
    while n >= 128:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


class Outbox:
    """Frames in the order in which they will be written; ``size`` is the number of waiting bytes."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = bytearray()

    @property
    def size(self) -> int:
        """The number of waiting bytes."""
        return len(self._data)

    def push(self, data: bytes) -> None:
        """Append a whole frame."""
        self._data += data

    def push_frame(self, parser: Parser) -> None:
        """Append the parser's current frame, unchanged."""
        self._data += parser.frame()

    def push_record(self, timestamp: int, value: bytes) -> None:
        """Append a record for a peer: its timestamp, left out if it is 0, its length in four bytes, and its value."""
        if timestamp:
            self._data += timestamp.to_bytes(8, "big")
        self._data += len(value).to_bytes(4, "big") + value

    def push_ack(self, first_byte: int, packet_id: int, reason: int) -> None:
        """Append PUBACK, PUBREC, PUBREL or PUBCOMP; ``reason`` is 0 towards MQTT 3 clients."""
        self._data += bytes((first_byte, 3 if reason else 2)) + packet_id.to_bytes(2, "big")
        if reason:
            self._data.append(reason)

    def push_publish(
        self,
        first_byte: int,
        topic: bytes,
        packet_id: int,
        v5: bool,
        properties: bytes,
        identifiers: bytes,
        payload: bytes,
        alias: int,
        expiry: int,
        expiry_offset: int,
        frame_max: int,
    ) -> int:
        """Append a PUBLISH and return its size, or 0 if it exceeds ``frame_max``.

        ``packet_id`` 0: none. ``identifiers``: subscription identifiers as encoded properties. ``alias`` above 0 sends the
        topic and its alias, below 0 the alias in place of the topic. ``expiry`` below 0 leaves the message expiry as it is.
        """
        variable = b"\0\0" if alias < 0 else len(topic).to_bytes(2, "big") + topic
        if packet_id:
            variable += packet_id.to_bytes(2, "big")
        if v5:
            if expiry >= 0 and expiry_offset >= 0:
                properties = properties[:expiry_offset] + expiry.to_bytes(4, "big") + properties[expiry_offset + 4 :]
            properties += identifiers
            if alias:
                properties += b"\x23" + abs(alias).to_bytes(2, "big")
            variable += _varint(len(properties)) + properties
        length = len(variable) + len(payload)
        frame = bytes((first_byte,)) + _varint(length) + variable + payload
        if len(frame) > frame_max or length > _LENGTH_MAX:
            return 0
        self._data += frame
        return len(frame)

    def take(self) -> bytes:
        """Return all waiting bytes and clear the outbox."""
        taken = bytes(self._data)
        self._data.clear()
        return taken

    def send_to(self, fd: int) -> int:
        """Write to this socket as much as it accepts now and keep the rest; returns the number of bytes, 0 on an error.

        The socket must be non-blocking. The writer of the rest meets the same error and handles it.
        """
        try:
            sent = os.write(fd, self._data)
        except OSError:
            return 0
        del self._data[:sent]
        return sent
