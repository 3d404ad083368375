"""Frames between nodes: ``length | kind | flags | destination | body``.

``length`` (4 bytes, big-endian) counts what follows it; ``kind`` and ``flags`` are a byte each; ``destination`` (8 bytes) is the
number of a call, a watch, a shard or a stream, by kind. Nothing is allocated for a frame before its length is known to be legal.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from braidmq.base.errors import BraidError

FRAME_BYTES_MAX: Final = 1024 * 1024
_HEAD: Final = struct.Struct(">IBBQ")
_LENGTH_BYTES: Final = 4
HEAD_BYTES: Final = _HEAD.size
BODY_BYTES_MAX: Final = FRAME_BYTES_MAX - HEAD_BYTES


class FrameKind(IntEnum):
    """What a frame is. An unknown kind ends the connection: the peer is of a version that we did not agree on."""

    HELLO = 1  # a step of the handshake
    CALL = 2  # a question; the destination is its number
    ANSWER = 3  # the answer to the call of this number
    RLOG = 4  # a message of the replication log; the destination is the number of a watch


class BadFrame(BraidError):
    """The peer sent bytes that are no frame; the connection must be closed."""


class Frame(NamedTuple):
    """One frame."""

    kind: FrameKind
    flags: int
    destination: int
    body: bytes


def encode(kind: FrameKind, destination: int, body: bytes, flags: int = 0) -> bytes:
    """The bytes of a frame; the body must not exceed ``BODY_BYTES_MAX``."""
    assert len(body) <= BODY_BYTES_MAX, "larger records are split"
    return _HEAD.pack(HEAD_BYTES - _LENGTH_BYTES + len(body), kind, flags, destination) + body


class FrameReader:
    """Cuts a stream of bytes into frames. Memory is bounded by one frame and what was fed last."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        """``frame_bytes_max``: what the peer may send; small until it has shown who it is."""
        self.frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete with these bytes. Raises BadFrame; then the stream is unusable."""
        self._buffer += data
        while (size := self._next_size()) and len(self._buffer) >= size:
            _, kind, flags, destination = _HEAD.unpack_from(self._buffer)
            body = bytes(memoryview(self._buffer)[HEAD_BYTES:size])
            del self._buffer[:size]
            try:
                known = FrameKind(kind)
            except ValueError:
                raise BadFrame(f"unknown kind of frame: {kind}") from None
            yield Frame(known, flags, destination, body)

    def _next_size(self) -> int:
        """The bytes of the next frame with its length; 0 while that is not known."""
        if len(self._buffer) < _LENGTH_BYTES:
            return 0
        size = _LENGTH_BYTES + int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
        if not HEAD_BYTES <= size <= self.frame_bytes_max:
            raise BadFrame(f"a frame of {size} bytes; {HEAD_BYTES} to {self.frame_bytes_max} are legal")
        return size
