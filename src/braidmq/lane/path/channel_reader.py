"""The incoming half of a channel: received bytes become frames, which the subclasses handle.

Reading can be *held*, for the reasons below, one bit each. Meanwhile received bytes wait in ``_rest`` and the transport is
paused; when the last reason ends, ``resume`` continues where it stopped. A channel never resumes inside another channel's
callback, since all share one parser.
"""

from __future__ import annotations

from braidmq.lane.path.lane import RECEIVE_BYTES, Lane
from braidmq.lane.path.parser import Parser
from braidmq.lane.path.writer import Writer

HOLD_BUSY = 1  # a CONNECT, SUBSCRIBE or AUTH is being decided
HOLD_QUEUE = 2  # a subscriber's queue is filling up
HOLD_RATE = 4  # the client exceeds its rate
HOLD_WORK = 8  # this callback has used up its share of the turn
HOLD_CLOSED = 16  # the connection is closed
HOLD_DECODE = 32  # a large packet is being decoded
HOLD_OUTBOX = 64  # the client does not read the broker's answers
HOLD_LOG = 128  # too much waits for the disk
HOLD_LARGE = 256  # a large message of this client waits for the disk
HOLD_TURN = 512  # large packets have used up their share of the turn

PART_BYTES = RECEIVE_BYTES // 4  # an incomplete packet up to this size is carried over; a larger one is stored and counted
COLD_WORK = 200  # a packet that goes to the broker costs about as much as this many deliveries
LARGE_FRAME_BYTES = 4096  # packets from this size on share a part of each turn
# C constants in the compiled form.
_COLD_WORK, _LARGE_FRAME_BYTES = COLD_WORK, LARGE_FRAME_BYTES
# The work of a large packet by its bytes: a PUBLISH is mostly copied, any other is decoded.
_PUBLISH_SHIFT, _COLD_SHIFT = 12, 1
_PINGRESP = b"\xd0\x00"
_MALFORMED, _PROTOCOL_ERROR = 0x81, 0x82


class ChannelReader(Writer):
    """Reads the frames of one client, as long as it is not held."""

    __slots__ = (
        "_carried", "_rest", "bytes_received", "frame_max", "hold_bits", "is_greeted", "is_metered", "is_open", "lane",
        "last_seen", "messages_received",
    )  # fmt: skip

    def __init__(self, lane: Lane, frame_max: int) -> None:
        super().__init__(lane.state)
        self.lane = lane
        self.frame_max = frame_max  # for packets of the client
        self.last_seen = lane.state.now
        self.bytes_received = self.messages_received = 0
        self.is_greeted = False  # a CONNECT has arrived
        self.is_open = False  # and has been accepted
        self.is_metered = False  # rates are limited
        self.hold_bits = 0
        self._rest: bytearray | None = None
        self._carried = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the transport to read into: after a small rest of the last read, which saves joining them later."""
        lane = self.lane
        rest = self._rest
        self._carried = 0
        if rest is None or len(rest) > PART_BYTES:
            return lane.view
        self._carried = carried = len(rest)
        lane.buffer[:carried] = rest
        return lane.view[carried:]

    def buffer_updated(self, nbytes: int) -> None:
        """The transport has read this many bytes into the buffer of ``get_buffer``."""
        carried = self._carried
        if carried:
            self._carried = 0
            self._rest = None
        self._take(self.lane.buffer, carried + nbytes, nbytes)

    def feed(self, data: bytes) -> None:
        """Process bytes from a transport with its own buffer, such as a WebSocket."""
        self._take(data, len(data), len(data))

    def _take(self, buffer: bytes | bytearray, have: int, fresh: int) -> None:
        lane = self.lane
        state = lane.state
        self.last_seen = state.now
        state.work = 0
        state.counters.bytes_received += fresh
        self.bytes_received += fresh
        if self.hold_bits & HOLD_CLOSED:
            return
        rest = self._rest
        if rest is not None:
            rest += memoryview(buffer)[:have]
            buffer, have, self._rest = rest, len(rest), None
        if self.hold_bits:
            self._keep(buffer, 0, have)
        else:
            before = self.messages_received
            self._run(buffer, have)
            if self.is_metered:
                self.on_metered(self.messages_received - before, fresh)
        lane.flush()

    def _keep(self, buffer: bytes | bytearray, start: int, have: int) -> None:
        if start >= have:
            self._rest = None
        elif buffer is self.lane.buffer or isinstance(buffer, bytes):
            self._rest = bytearray(memoryview(buffer)[start:have])
        else:
            # A large incomplete frame: do not copy it again for each part that arrives.
            del buffer[:start]
            self._rest = buffer
        if have - start > PART_BYTES:
            self.on_part(have - start)

    def _run(self, buffer: bytes | bytearray, have: int) -> None:
        """Process every complete frame in the buffer; keep the rest."""
        lane = self.lane
        state = lane.state
        counters = state.counters
        parser = lane.parser
        if not self.is_greeted and have and buffer[0] != 0x10:
            # Not MQTT, or not a CONNECT: no need to wait for more [MQTT-3.1.0-1].
            self.on_violation(_PROTOCOL_ERROR, "the first packet is not a CONNECT")
            return
        before = counters.messages_received
        state.congested = None  # a value left by another channel does not concern this client
        parser.load(buffer, have, self.frame_max)
        while not self.hold_bits:
            if state.work > state.work_max:
                self.hold(HOLD_WORK)
                break
            if self.is_stuck():
                self.hold(HOLD_OUTBOX)
                break
            state.work += 1
            status = parser.next()
            if status == 0:
                break
            if status < 0:
                detail = "a frame with an invalid length" if parser.error == _MALFORMED else "a packet above the maximum size"
                self.on_violation(parser.error, detail)
                break
            kind = parser.kind
            size = parser.end - parser.start
            if size >= _LARGE_FRAME_BYTES:
                if state.large_work > state.large_work_max:
                    parser.end = parser.start  # it is read again
                    self.hold(HOLD_TURN)
                    break
                work = state.work
                state.work += size >> (_PUBLISH_SHIFT if kind == 3 else _COLD_SHIFT)
            if self.is_traced:
                self.on_trace(True, parser.frame())
            if self.is_open and kind == 3:
                self._on_publish_frame(parser)
            elif self.is_open and 4 <= kind <= 7:
                self._on_ack_frame(parser)
            elif self.is_open and kind == 12 and parser.flags == 0 and parser.end == parser.body:
                counters.pingreq_received += 1
                self.send(_PINGRESP)
            else:
                state.work += _COLD_WORK
                self.on_packet(kind, parser.flags, parser.frame_body())
                state.congested = None
                parser.frame_max = self.frame_max  # larger once the client is accepted
            if size >= _LARGE_FRAME_BYTES:
                state.large_work += state.work - work
        self.messages_received += counters.messages_received - before
        if not self.hold_bits & HOLD_CLOSED:
            self._keep(buffer, parser.end, have)

    def _on_publish_frame(self, parser: Parser) -> None:
        """Handle the parser's current PUBLISH."""
        raise NotImplementedError

    def _on_ack_frame(self, parser: Parser) -> None:
        """Handle the parser's current PUBACK, PUBREC, PUBREL or PUBCOMP."""
        raise NotImplementedError

    # Holding

    def hold(self, bit: int) -> None:
        """Stop reading for this reason."""
        if bit == HOLD_CLOSED:
            self._rest = None  # it will not be read
        elif not self.hold_bits and self.transport is not None:
            self.transport.pause_reading()
        self.hold_bits |= bit
        self.on_hold(bit)

    def resume(self, bit: int) -> None:
        """End this reason; reading continues if it was the last. Must not be called from another channel's callback."""
        if not self.hold_bits & bit:
            return
        self.hold_bits &= ~bit
        if self.hold_bits:
            return
        rest = self._rest
        self._rest = None
        if rest is not None:
            self.lane.state.work = 0
            if bit == HOLD_TURN:  # called in the client's own share of the turn
                self.lane.state.large_work = 0
            before = self.messages_received
            self._run(rest, len(rest))
            if self.is_metered:
                self.on_metered(self.messages_received - before, 0)  # the bytes were counted on arrival
        if not self.hold_bits and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
        self.lane.flush()
