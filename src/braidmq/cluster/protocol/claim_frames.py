"""Claims and decisions on them as frames: those of one turn of the loop travel together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from braidmq.base.errors import BraidError
from braidmq.cluster.protocol.parts import BodyParts, split
from braidmq.net.frames import FrameKind
from braidmq.net.proto_v1 import ClaimMessage

SendFrame = Callable[[FrameKind, int, bytes, int], None]  # kind, destination, body, flags

_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(list[ClaimMessage])


class BadClaims(BraidError):
    """A peer sent claims or decisions that cannot be read: its connection must be closed."""


class ClaimFrames:
    """Collects what one connection has to say about claims, and reads what its peer says."""

    def __init__(self, send: SendFrame, ask: Callable[[], None]) -> None:
        """``ask`` asks for ``flush`` at the end of this turn of the loop."""
        self._send = send
        self._ask = ask
        self._collected: list[ClaimMessage] = []
        self._parts = BodyParts()

    def say(self, message: ClaimMessage) -> None:
        """Send a message at the end of this turn."""
        if not self._collected:
            self._ask()
        self._collected.append(message)

    def flush(self) -> None:
        """Send what was collected."""
        if self._collected:
            collected, self._collected = self._collected, []
            for part, flags in split(_encode(collected)):
                self._send(FrameKind.CLAIMS, 0, part, flags)

    def receive(self, flags: int, body: bytes | memoryview) -> Iterator[ClaimMessage]:
        """The messages of a frame, in order. Raises BadClaims and BadFrame."""
        whole = self._parts.add(0, flags, body)
        if whole is None:
            return
        try:
            messages = _decoder.decode(whole)
        except msgspec.MsgspecError as problem:
            raise BadClaims(f"claims cannot be read: {problem}") from None
        yield from messages
