"""Splits a stream of bytes into whole packets (section 2.1 of the specification)."""

from __future__ import annotations

from typing import Final, TypeAlias

from braidmq.base.errors import ProtocolViolation
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.wire import VARINT_MAX

Frame: TypeAlias = tuple[int, bytes]

FRAME_BYTES_MAX: Final = VARINT_MAX + 5  # the largest packet that MQTT can carry, with its header


class FrameSplitter:
    """Collects what a peer sends until packets are complete; holds at most one incomplete packet.

    `frame_bytes_max` counts the whole packet with its header, as Maximum Packet Size does. It may be changed between
    calls, for instance to raise the limit after authentication.
    """

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.violation: ProtocolViolation | None = None
        self._unfinished = bytearray()
        self._wanted = 0

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """The whole packets (first byte, body) that end in `data`.

        Bytes that break the framing raise `ProtocolViolation`: 0x81 for a bad length, 0x95 for a packet that is too
        large. If whole packets precede them, these are returned, `violation` is set, and every later call raises.
        """
        if self.violation is not None:
            raise self.violation
        if self._unfinished:
            self._unfinished += data
            if len(self._unfinished) < self._wanted:
                return []
            whole = bytes(self._unfinished)
            self._unfinished.clear()
        else:
            whole = bytes(data)

        frames: list[Frame] = []
        at, available = 0, len(whole)
        try:
            while at < available:
                body_at, end = self._bounds(whole, at)
                if end > available:
                    self._unfinished += whole[at:]
                    self._wanted = end - at
                    break
                frames.append((whole[at], whole[body_at:end]))
                at = end
        except ProtocolViolation as violation:
            self.violation = violation
            if not frames:
                raise
        return frames

    def _bounds(self, data: bytes, at: int) -> tuple[int, int]:
        """Where the body of the packet at `at` begins and ends; while its length is incomplete, one byte past `data`."""
        length = shift = 0
        for length_at in range(at + 1, at + 5):
            if length_at == len(data):
                return length_at, length_at + 1
            byte = data[length_at]
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                if byte == 0 and shift > 7:
                    # [MQTT-1.5.5-1]
                    raise ProtocolViolation(Reason.MALFORMED_PACKET, "the remaining length is not minimally encoded")
                end = length_at + 1 + length
                if end - at > self.frame_bytes_max:
                    raise ProtocolViolation(Reason.PACKET_TOO_LARGE, f"a packet has {end - at} bytes")
                return length_at + 1, end
        raise ProtocolViolation(Reason.MALFORMED_PACKET, "the remaining length has more than four bytes")
