"""Parses packets in bulk: finds runs of similar packets, so that each run is processed at once.

In a benchmark the broker sends uniform packets: PUBLISH of one length, type and topic length, or acknowledgements. In a run such
packets follow each other at a fixed stride, so a field of all of them is a strided slice of the buffer. A run ends at the first
packet with a different header; as long as all headers before it are equal, each stride begins at the start of a packet.
"""

from __future__ import annotations

from typing import NamedTuple

from braidmq.base.errors import ProtocolViolation
from braidmq.mqtt.packets import MQTT5, PacketType
from braidmq.mqtt.reasons import Reason


class Run(NamedTuple):
    """``frames`` packets of ``stride`` bytes each, starting at ``at``. Other offsets are relative to the start of a packet."""

    first_byte: int
    at: int
    stride: int
    frames: int
    body_at: int
    packet_id_at: int  # of PUBLISH with QoS 1 and 2, and of acknowledgements
    payload_at: int  # of PUBLISH

    @property
    def end(self) -> int:
        """The offset after the run."""
        return self.at + self.stride * self.frames

    def lane(self, data: bytes, offset: int) -> bytes:
        """The byte at ``offset`` of every packet."""
        return data[self.at + offset : self.end : self.stride]


def find_runs(data: bytes, version: int) -> tuple[list[Run], int]:
    """All runs of complete packets in ``data``, and the offset of the first incomplete one."""
    runs: list[Run] = []
    at, available = 0, len(data)
    while available - at >= 2:
        body_at, length = 2, data[at + 1]
        if length > 0x7F:
            decoded = _remaining_length(data, at)
            if decoded is None:
                break
            body_at, length = decoded
        stride = body_at + length
        if at + stride > available:
            break
        first_byte = data[at]
        if first_byte >> 4 == PacketType.PUBLISH:
            run = _publish_run(data, at, stride, body_at, version)
        else:
            count = _alike(data, at, stride, range(body_at), (available - at) // stride)
            run = Run(first_byte, at, stride, count, body_at, body_at, stride)
        runs.append(run)
        at = run.end
    return runs, at


def _publish_run(data: bytes, at: int, stride: int, body_at: int, version: int) -> Run:
    first_byte = data[at]
    packet_id_at = body_at + 2 + (data[at + body_at] << 8 | data[at + body_at + 1])
    payload_at = packet_id_at + (2 if first_byte & 0x06 else 0)
    header = [*range(body_at + 2)]
    if version == MQTT5:
        size_at = payload_at
        if at + size_at >= len(data) or data[at + size_at] > 0x7F:
            # A benchmark's own messages never have 128 bytes of properties or more.
            raise ProtocolViolation(Reason.MALFORMED_PACKET, "unexpected properties in a PUBLISH")
        header.append(size_at)
        payload_at = size_at + 1 + data[at + size_at]
    if payload_at > stride:
        raise ProtocolViolation(Reason.MALFORMED_PACKET, "the topic of a PUBLISH runs past the end of the packet")
    count = _alike(data, at, stride, header, (len(data) - at) // stride)
    return Run(first_byte, at, stride, count, body_at, packet_id_at, payload_at)


def _alike(data: bytes, at: int, stride: int, offsets: range | list[int], count: int) -> int:
    """How many of the next ``count`` packets have the same bytes at ``offsets`` as the first."""
    for offset in offsets:
        if count == 1:
            return 1
        lane = data[at + offset : at + stride * count : stride]
        count = len(lane) - len(lane.lstrip(lane[:1]))
    return count


def _remaining_length(data: bytes, at: int) -> tuple[int, int] | None:
    """The offset and length of the body; None if the length field is incomplete."""
    length = 0
    for place, byte in enumerate(data[at + 1 : at + 5]):
        length |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return place + 2, length
    if len(data) - at >= 5:
        raise ProtocolViolation(Reason.MALFORMED_PACKET, "remaining length is longer than four bytes")
    return None
