"""One authenticated connection between two nodes, over TCP, TLS or a Unix socket, on the event loop.

    beginning --TLS and handshake are done--> open --close, a failed write, the peer's end--> ending --> lost
        |                                      |                                                          ^
        +------ refused, silent, garbage ------+-------- abort, an invalid frame, an error ---------------+

A stranger gets no further than *beginning*: it may send small frames only, has a few seconds, and nothing it says is passed on.
While a connection is *ending*, nothing can be sent, and what the peer sent before its end is still handed out (``duplex.py``).

Silence is judged on a clock that leaves out pauses of this process, and while the owner has paused reading there is none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final, Protocol

from braidmq.base.deadline_clock import BEAT_S, DeadlineClock, after_reading, time_since_boot
from braidmq.base.errors import UsageError
from braidmq.net.duplex import Duplex
from braidmq.net.frames import BODY_BYTES_MAX, FRAME_BYTES_MAX, BadFrame, Frame, FrameBuffer, FrameKind, FrameView, head
from braidmq.net.handshake import HELLO_FRAME_BYTES_MAX, Handshake, NotAccepted, Side, refusal
from braidmq.net.proto_v1 import Hello
from braidmq.net.streams import Stream
from braidmq.net.write_queue import Buffer

logger = logging.getLogger("braidmq.net")

HANDSHAKE_S: Final = 5.0
PING_S: Final = 1.0
SILENT_S_MIN: Final = 3 * PING_S  # a peer with nothing to say is heard when it is asked for a sign of life
WRITE_BYTES_MAX: Final = 4 * 1024 * 1024
# An owner that heeds ``is_clogged`` stays far below this many times the bound; beyond it the connection is given up.
_WRITE_BOUNDS: Final = 8
# Frames of one connection are handed out for this long; then other connections have their turn.
_TURN_S: Final = 0.003
_FRAMES_PER_LOOK: Final = 16

OnFrame = Callable[[FrameKind, int, int, memoryview], None]


class ConnectionOwner(Protocol):
    """Makes connections. For each of them either ``failed`` is called, or ``opened`` and at the end ``ended``."""

    def opened(self, connection: PeerConnection) -> None:
        """Both sides have agreed. ``on_frame`` and the other callbacks must be set when this returns."""
        ...

    def failed(self, connection: PeerConnection, kind: str, detail: str) -> None:
        """The connection has ended before that; ``kind`` is for counters."""
        ...

    def ended(self, connection: PeerConnection, reason: str) -> None:
        """An open connection has ended; ``on_lost`` was called."""
        ...


class PeerConnection:
    """A connection to another node. All methods and callbacks run on the loop; no callback runs within a method.

    ``on_frame(kind, flags, destination, body)``: ``body`` is a view that ends with the call; copy what you keep.
    ``on_lost(reason)``: once, when everything that was received has been handed out.
    ``on_room()``: when less than ``room_bytes`` wait, after it was more than twice as much; half of ``write_bytes_max`` unless
    the owner sets less, because it stops sending earlier.
    ``stale_s``: what was not read for this long, pauses included, is not handed out: the connection ends. 0: it always is.
    """

    def __init__(
        self,
        stream: Stream,
        handshake: Handshake,
        owner: ConnectionOwner,
        *,
        name: str,
        handshake_s: float = HANDSHAKE_S,
        write_bytes_max: int = WRITE_BYTES_MAX,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """``name``: the peer's address for the log; its own name is added once it is known. ``clock``: leaves out pauses."""
        self.name = self.address = name
        self.write_bytes_max = write_bytes_max
        self.room_bytes = write_bytes_max // 2
        self.stale_s = 0.0
        self.on_frame: OnFrame = _refuse_frame
        self.on_lost: Callable[[str], None] = _ignore_reason
        self.on_room: Callable[[], None] = _ignore_room
        self._loop = asyncio.get_running_loop()
        self._handshake = handshake
        self._owner = owner
        self.has_misbehaved = False  # it ended because the peer broke the protocol
        self._is_agreed = False
        self._received = FrameBuffer(HELLO_FRAME_BYTES_MAX)
        self._clock = DeadlineClock() if clock is None else clock
        self.last_heard = self._pinged_at = self._clock()
        self._read_at = time_since_boot()
        self._is_paused = False  # by the owner
        self._is_behind = False  # complete frames wait in the buffer for the next turn of the loop
        self._was_filled = False  # ``on_room`` follows
        self._deadline = self._loop.call_later(handshake_s, after_reading, self._loop, self._on_handshake_late)
        self._beat_timer = self._loop.call_later(BEAT_S, self._beat)
        self._duplex = Duplex(stream, self)

    @property
    def peer(self) -> Hello:
        """Who the other node is; of an open connection."""
        assert self._handshake.peer is not None
        return self._handshake.peer

    @property
    def version(self) -> int:
        """The version of the protocol that both sides speak."""
        return self._handshake.version

    @property
    def purpose(self) -> str:
        """What the connecting side uses the connection for."""
        return self._handshake.purpose

    @property
    def is_open(self) -> bool:
        """Whether frames can be sent."""
        return self._is_agreed and self._duplex.is_open

    @property
    def bytes_in(self) -> int:
        """All bytes read."""
        return self._duplex.bytes_in

    @property
    def bytes_out(self) -> int:
        """All bytes written."""
        return self._duplex.bytes_out

    @property
    def waiting_bytes(self) -> int:
        """What was sent and not written yet."""
        return self._duplex.waiting

    @property
    def is_clogged(self) -> bool:
        """More than ``write_bytes_max`` waits: send no more than must be until ``on_room``."""
        return self._duplex.waiting > self.write_bytes_max

    @property
    def silent_s(self) -> float:
        """For how long nothing has come from the peer, without pauses of this process and of reading."""
        return 0.0 if self._is_paused or self._is_behind else self._clock() - self.last_heard

    def send(self, kind: FrameKind, destination: int, body: Buffer | Sequence[Buffer], flags: int = 0) -> None:
        """Send a frame, at the end of the loop's turn or sooner; ignored once it is lost. The buffers must not change."""
        parts: Sequence[Buffer] = (body,) if isinstance(body, bytes | bytearray | memoryview) else body
        size = sum(map(len, parts))
        if size > BODY_BYTES_MAX:
            raise UsageError(
                f"a body of {size} bytes does not fit into a frame", f"split it into parts of {BODY_BYTES_MAX} bytes"
            )
        if not self.is_open:
            return
        self._duplex.append(head(kind, destination, size, flags), parts, size)
        waiting = self._duplex.waiting
        if waiting > 2 * self.room_bytes:
            self._was_filled = True
            if waiting > _WRITE_BOUNDS * self.write_bytes_max:
                logger.warning("%s: connection closed: the peer reads too slowly, %d bytes wait for it", self.name, waiting)
                self.abort(f"the peer reads too slowly: {waiting} bytes wait for it")

    def flush(self) -> None:
        """Write now what was sent."""
        self._duplex.flush()

    def pause_reading(self) -> None:
        """Hand out no more frames, and read no more, until ``resume_reading``."""
        self._is_paused = True
        self._duplex.read(False)

    def resume_reading(self) -> None:
        """Hand out frames again, from the next turn of the loop on."""
        if self._is_paused:
            self._is_paused = False
            self.last_heard = self._clock()
            self._read_at = time_since_boot()
            self._hand_out_later()

    def close(self, reason: str) -> None:
        """Write what waits, then end; frames still arrive until ``on_lost``, which is called with this reason."""
        if self._is_agreed:
            self._duplex.end(reason)
        else:
            self._duplex.finish(reason)

    def abort(self, reason: str = "aborted") -> None:
        """End at once; no frame arrives any more, and what waits is dropped."""
        self._duplex.finish(reason, "aborted")

    # What the socket tells

    def ready(self) -> None:
        """The socket can be written to: say hello."""
        if self._handshake.side is Side.CONNECT:
            self._duplex.append(self._handshake.begin())

    def room(self) -> memoryview:
        """The free part of the receive buffer."""
        return self._received.room()

    def received(self, size: int) -> None:
        """Hand out the frames that are complete now."""
        if self._is_stale():
            return
        self.last_heard = self._clock()
        self._received.fill(size)
        self._hand_out()

    def written(self) -> None:
        """Tell the owner that there is room again."""
        if self._was_filled and self._duplex.waiting < self.room_bytes:
            self._was_filled = False
            if self.is_open:
                self.on_room()

    def lost(self, kind: str, reason: str) -> None:
        """Tell the owners."""
        self._deadline.cancel()
        self._beat_timer.cancel()
        self.has_misbehaved = kind == "protocol"
        if kind == "closed" and len(self._received):
            reason += ", in the middle of a frame"
        if not self._is_agreed:
            self._owner.failed(self, kind, reason)
            return
        try:
            self.on_lost(reason)
        finally:
            self._owner.ended(self, reason)

    # Frames

    def _is_stale(self) -> bool:
        """Whether what is about to be handed out has waited for too long; then the connection has ended."""
        now = time_since_boot()
        unread_s, self._read_at = now - self._read_at, now
        if not self.stale_s or unread_s < self.stale_s:
            return False
        self.abort(f"this node has read nothing for {unread_s:.0f} s")
        return True

    def _hand_out(self) -> None:
        """Hand out complete frames for a bounded time."""
        until = monotonic() + _TURN_S
        count = 0
        try:
            while not self._is_paused and not self._duplex.is_lost:
                frame = self._received.next()
                if frame is None:
                    return
                self._dispatch(frame)
                count += 1
                if count % _FRAMES_PER_LOOK == 0 and monotonic() > until:
                    self._hand_out_later()
                    return
        except BadFrame as error:
            if self._is_agreed:
                logger.warning("%s: connection closed: invalid frame: %s", self.name, error)
            self._duplex.finish(f"invalid frame: {error}", "protocol")

    def _hand_out_later(self) -> None:
        """Hand out what is in the buffer in the next turn of the loop, and read no more until then."""
        if not self._is_behind:
            self._is_behind = True
            self._duplex.read(False)
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._is_behind = False
        if self._is_stale():
            return
        self._hand_out()
        if not self._is_behind and not self._is_paused:
            self._duplex.read(True)

    def _dispatch(self, frame: FrameView) -> None:
        kind, flags, destination, body = frame
        if not self._is_agreed:
            self._shake_hands(Frame(kind, flags, destination, bytes(body)))
            return
        if kind is FrameKind.PING:
            if not self.is_clogged:  # else the peer will hear enough of us
                self.send(FrameKind.PONG, destination, b"")
        elif kind is FrameKind.HELLO:
            raise BadFrame("a second handshake")
        elif kind is not FrameKind.PONG:
            try:
                with body:  # a view that the owner keeps becomes an error, and does not show later bytes
                    self.on_frame(kind, flags, destination, body)
            except Exception as error:
                self._give_up(error)

    def _shake_hands(self, frame: Frame) -> None:
        try:
            answer = self._handshake.receive(frame)
        except NotAccepted as error:
            self._duplex.finish(error.reason, error.kind, last=refusal(error.reason) if error.is_ours else b"")
            return
        if answer:
            self._duplex.append(answer)
        if self._handshake.peer is None:
            return
        self._deadline.cancel()
        self._is_agreed = True
        self._received.allow(FRAME_BYTES_MAX)
        self.name = f"{self.peer.name} ({self.purpose}, {self.name})"
        try:
            self._owner.opened(self)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        detail = f"{type(error).__name__}: {error}"
        logger.warning("%s: connection closed: what the peer sent could not be handled: %s", self.name, detail)
        logger.debug("%s: where this happened", self.name, exc_info=error)
        self.abort(f"what the peer sent could not be handled: {detail}")

    # Time

    def _on_handshake_late(self) -> None:
        if not self._is_agreed:
            self._duplex.finish("the handshake took too long", "timeout")

    def _beat(self) -> None:
        """Keep the clock going, and ask a peer that is silent for a sign of life."""
        now = self._clock()
        if self._is_agreed and now - max(self.last_heard, self._pinged_at) >= PING_S:
            self._pinged_at = now
            if not self.is_clogged:
                self.send(FrameKind.PING, 0, b"")
        self._beat_timer = self._loop.call_later(BEAT_S, self._beat)


def _refuse_frame(kind: FrameKind, flags: int, destination: int, body: memoryview) -> None:
    raise BadFrame(f"a frame of kind {kind.name} that this node does not expect")


def _ignore_reason(reason: str) -> None:
    """What ``on_lost`` is unless the owner sets it."""


def _ignore_room() -> None:
    """What ``on_room`` is unless the owner sets it."""
