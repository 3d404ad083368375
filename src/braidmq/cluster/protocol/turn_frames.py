"""Messages of one kind in frames: those of one turn of the loop travel together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

import msgspec

from braidmq.base.errors import BraidError
from braidmq.cluster.protocol.parts import BodyParts, Send, split
from braidmq.net.frames import FrameKind

Message = TypeVar("Message", bound=msgspec.Struct)

_encode: Final = msgspec.msgpack.Encoder().encode


class BadMessages(BraidError):
    """A peer sent messages that cannot be read: its connection must be closed."""


class TurnFrames(Generic[Message]):
    """Collects what one connection has to say in frames of a kind, and reads what its peer says."""

    def __init__(
        self, kind: FrameKind, decoder: msgspec.msgpack.Decoder[list[Message]], send: Send, ask: Callable[[], None]
    ) -> None:
        """``ask`` asks for ``flush`` at the end of this turn of the loop."""
        self._kind = kind
        self._decoder = decoder
        self._send = send
        self._ask = ask
        self._collected: list[Message] = []
        self._parts = BodyParts()

    def say(self, message: Message) -> None:
        """Send a message at the end of this turn."""
        if not self._collected:
            self._ask()
        self._collected.append(message)

    def flush(self) -> None:
        """Send what was collected."""
        if self._collected:
            collected, self._collected = self._collected, []
            for part, flags in split(_encode(collected)):
                self._send(self._kind, 0, part, flags)

    def receive(self, flags: int, body: bytes | memoryview) -> Iterator[Message]:
        """The messages of a frame, in order. Raises BadMessages and BadFrame."""
        whole = self._parts.add(0, flags, body)
        if whole is None:
            return
        try:
            messages = self._decoder.decode(whole)
        except msgspec.MsgspecError as problem:
            raise BadMessages(f"messages of kind {self._kind.name} cannot be read: {problem}") from None
        yield from messages
