"""The rows of the case tables."""

from __future__ import annotations

from typing import NamedTuple

from braidmq.mqtt.packets import Packet


class Accepted(NamedTuple):
    """`body` behind `first_byte` means `packet` in each of `versions`; if `canonical`, the packet is written so too."""

    name: str
    versions: tuple[int, ...]
    first_byte: int
    body: bytes
    packet: Packet
    canonical: bool = True

    @property
    def frame(self) -> bytes:
        return short_frame(self.first_byte, self.body)


class Refused(NamedTuple):
    """`body` behind `first_byte` is answered with `reason` in each of `versions`."""

    name: str
    versions: tuple[int, ...]
    first_byte: int
    body: bytes
    reason: int

    @property
    def frame(self) -> bytes:
        return short_frame(self.first_byte, self.body)


def short_frame(first_byte: int, body: bytes) -> bytes:
    """A frame whose length fits one byte, made without the codec."""
    assert len(body) < 128
    return bytes((first_byte, len(body))) + body
