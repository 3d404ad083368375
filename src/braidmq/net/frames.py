"""Frames between nodes: ``length | kind | flags | destination | body``.

``length`` (4 bytes, big-endian) counts what follows it; ``kind`` and ``flags`` are a byte each; ``destination`` (8 bytes) is the
number of a call, a watch, a shard or a scan, by kind. Nothing is allocated for a frame before its length is known to be legal.

Received bytes are cut into frames where they are: a body is a view of the receive buffer, and only a frame that is not complete
yet is moved.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from braidmq.base.errors import BraidError

FRAME_BYTES_MAX: Final = 1024 * 1024
# What a connection reads at once; a longer frame makes the buffer as long as the longest frame.
RECEIVE_BYTES: Final = 256 * 1024
_HEAD: Final = struct.Struct(">IBBQ")
_LENGTH: Final = struct.Struct(">I")
_LENGTH_BYTES: Final = 4
HEAD_BYTES: Final = _HEAD.size
BODY_BYTES_MAX: Final = FRAME_BYTES_MAX - HEAD_BYTES


class FrameKind(IntEnum):
    """What a frame is. An unknown kind ends the connection: the peer is of a version that we did not agree on."""

    HELLO = 1  # a step of the handshake
    CALL = 2  # a question; the destination is its number
    ANSWER = 3  # the answer to the call of this number
    RLOG = 4  # a message of the replication log; the destination is the number of a watch
    CLAIMS = 5  # claims of a node and the home's decisions on them
    BLOCK = 6  # a numbered block of a node; the destination is its shard
    BLOCK_ANSWERS = 7  # what became of a block of this shard; without a body: whether publishers should wait, see the flags
    QOS0 = 8  # PUBLISH packets with QoS 0, as clients sent them; the lowest flag: they are MQTT 5
    FORWARD = 9  # unrecorded messages with QoS 1 or 2; the destination is the number of the first one
    FORWARDED = 10  # the sender has delivered the forwarded messages up to this number
    FEED = 11  # committed records of this shard, in the order of the commits
    MARKS = 12  # how far the feed of each shard has come
    SCAN = 13  # a message of a log scan; the destination is the number of the scan
    PING = 14  # the sender has heard nothing for a while; every side answers with PONG
    PONG = 15  # the sender is alive
    LEASES = 16  # messages of shared groups that a home lends to members on a node
    LEASE_RESULTS = 17  # what became of them; the lowest flag: what the node still has, after a connection was made
    PROBE = 18  # a core asks how far the receiver's logs of routes have come; the destination is the number of the probe
    PROBE_ANSWER = 19  # the answer to the probe of this number
    HOLD = 20  # a publisher, named by the body, fills the queue of a subscriber elsewhere and has to wait; flag 1: no longer
    EVENTUAL = 21  # locks of client ids and channels to be ended, while a node does not decide by the linear registry alone


class BadFrame(BraidError):
    """The peer sent bytes that are no frame; the connection must be closed."""


class Frame(NamedTuple):
    """One frame."""

    kind: FrameKind
    flags: int
    destination: int
    body: bytes


_KINDS: Final = {int(kind): kind for kind in FrameKind}


def head(kind: FrameKind, destination: int, body_bytes: int, flags: int = 0) -> bytes:
    """What goes before a body of this length, which must not exceed ``BODY_BYTES_MAX``."""
    return _HEAD.pack(HEAD_BYTES - _LENGTH_BYTES + body_bytes, kind, flags, destination)


def encode(kind: FrameKind, destination: int, body: bytes, flags: int = 0) -> bytes:
    """The bytes of a frame; the body must not exceed ``BODY_BYTES_MAX``."""
    assert len(body) <= BODY_BYTES_MAX, "larger records are split"
    return head(kind, destination, len(body), flags) + body


class FrameView(NamedTuple):
    """One frame in the receive buffer. ``body`` is valid until the buffer's next ``room``; copy what is kept longer."""

    kind: FrameKind
    flags: int
    destination: int
    body: memoryview


class FrameBuffer:
    """Cuts received bytes into frames: write them into ``room()``, tell ``fill`` how many there are, call ``next``."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        """``frame_bytes_max``: what the peer may send; small until it has shown who it is."""
        self._frame_bytes_max = frame_bytes_max
        self._buffer = memoryview(bytearray(min(frame_bytes_max, RECEIVE_BYTES)))
        self._start = self._end = 0  # of what was received and not taken

    def __len__(self) -> int:
        """The bytes that were received and not taken."""
        return self._end - self._start

    def allow(self, frame_bytes_max: int) -> None:
        """The peer may send frames of this length from the next one on."""
        self._frame_bytes_max = frame_bytes_max

    def room(self) -> memoryview:
        """Where to write what is received next; not empty once all complete frames were taken. Ends all views of bodies."""
        rest = self._buffer[self._start : self._end]
        size = max(min(self._frame_bytes_max, RECEIVE_BYTES), self._next_size())
        if size > len(self._buffer):
            self._buffer = memoryview(bytearray(size if size <= RECEIVE_BYTES else self._frame_bytes_max))
            self._buffer[: len(rest)] = rest
        elif self._start:
            self._buffer[: len(rest)] = rest
        self._start, self._end = 0, len(rest)
        return self._buffer[self._end :]

    def fill(self, size: int) -> None:
        """This many bytes were written into the room."""
        self._end += size

    def next(self) -> FrameView | None:
        """The next frame; None until it is complete. Raises BadFrame; then the stream is unusable."""
        size = self._next_size()
        if not size or self._end - self._start < size:
            return None
        start = self._start
        _, kind, flags, destination = _HEAD.unpack_from(self._buffer, start)
        known = _KINDS.get(kind)
        if known is None:
            raise BadFrame(f"unknown kind of frame: {kind}")
        self._start = start + size
        return FrameView(known, flags, destination, self._buffer[start + HEAD_BYTES : start + size])

    def _next_size(self) -> int:
        """The bytes of the next frame with its length; 0 while that is not known."""
        if self._end - self._start < _LENGTH_BYTES:
            return 0
        size = _LENGTH_BYTES + int(_LENGTH.unpack_from(self._buffer, self._start)[0])
        if not HEAD_BYTES <= size <= self._frame_bytes_max:
            raise BadFrame(f"a frame of {size} bytes; {HEAD_BYTES} to {self._frame_bytes_max} are legal")
        return size
