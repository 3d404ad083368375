"""Messages about locks and channels to be ended, as frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from braidmq.cluster.protocol.parts import Send
from braidmq.cluster.protocol.turn_frames import TurnFrames
from braidmq.net.frames import FrameKind
from braidmq.net.proto_v1_eventual import EventualMessage

Say = Callable[[EventualMessage], None]

_decoder: Final = msgspec.msgpack.Decoder(list[EventualMessage])


class EventualFrames(TurnFrames[EventualMessage]):
    """What one connection has to say about them."""

    def __init__(self, send: Send, ask: Callable[[], None]) -> None:
        """``ask`` asks for ``flush`` at the end of this turn of the loop."""
        super().__init__(FrameKind.EVENTUAL, _decoder, send, ask)
