"""Claims and decisions on them as frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from braidmq.base.errors import BraidError
from braidmq.cluster.protocol.parts import Send
from braidmq.cluster.protocol.turn_frames import TurnFrames
from braidmq.net.frames import FrameKind
from braidmq.net.proto_v1_claims import ClaimMessage

_decoder: Final = msgspec.msgpack.Decoder(list[ClaimMessage])


class BadClaims(BraidError):
    """A peer sent claims that it may not send: its connection must be closed."""


class ClaimFrames(TurnFrames[ClaimMessage]):
    """What one connection has to say about claims."""

    def __init__(self, send: Send, ask: Callable[[], None]) -> None:
        """``ask`` asks for ``flush`` at the end of this turn of the loop."""
        super().__init__(FrameKind.CLAIMS, _decoder, send, ask)
