"""The message path of one client connection: parses received frames, publishes messages, writes replies.

It handles PUBLISH, the acknowledgements and PINGREQ. Every other packet, and every special case, goes to the subclass in
``broker`` through ``Upcalls``.

Reading can be *held*, for the reasons below, one bit each. Meanwhile received bytes wait in ``_rest`` and the transport is
paused; when the last reason ends, ``resume`` continues where it stopped. A channel never resumes inside another channel's
callback, since all share one scanner.
"""

from __future__ import annotations

from time import monotonic

from braidmq.lane.path.flow import Flow
from braidmq.lane.path.lane import RECEIVE_BYTES, Lane
from braidmq.lane.path.message import Message, from_scan
from braidmq.lane.path.ports import Change
from braidmq.lane.path.recorder import LARGE_BYTES, Pending, Producer, Recorder
from braidmq.lane.path.routes import CACHED_TOPIC_BYTES_MAX, Route
from braidmq.lane.path.scanner import Scanner, topic_error
from braidmq.lane.path.topic_aliases import TopicAliases
from braidmq.lane.path.verdicts import Verdicts
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

ASK_INNER = 1  # a route's flag: access is checked on the inner topic, on the slow path

PART_BYTES = RECEIVE_BYTES // 4  # an incomplete packet up to this size is carried over; a larger one is stored and counted
_LARGE_BYTES = LARGE_BYTES  # a C constant in the compiled form
_COLD_WORK = 200  # a packet that goes to the subclass costs about as much as this many deliveries
_LONG_WORK = 60  # a message on the slow path
_RECORD_WORK = 10  # a message that is recorded
_RESOLVE_WORK = 20  # a topic that differs from the previous one
_PINGRESP = b"\xd0\x00"
_MALFORMED, _PROTOCOL_ERROR, _NOT_AUTHORIZED = 0x81, 0x82, 0x87
_NO_MATCHING_SUBSCRIBERS, _TOPIC_NAME_INVALID, _QUOTA_EXCEEDED = 0x10, 0x90, 0x97
_ID_NOT_FOUND, _RECEIVE_MAXIMUM_EXCEEDED, _TOPIC_ALIAS_INVALID = 0x92, 0x93, 0x94
_WRONG_ACK = "an acknowledgement of the wrong type for a message in flight"


class Channel(Writer):
    """The fast half of a connection. The subclass sets the public fields when CONNECT is accepted."""

    __slots__ = (
        "_aliases_in", "_carried", "_last_route", "_last_topic", "_last_version", "_rest", "_verdicts",
        "alias_in_max", "bytes_received", "flow", "frame_max", "held_by", "hold_bits", "is_greeted", "is_metered", "is_open",
        "is_restricted", "is_strict_payload", "lane", "last_seen", "messages_received", "producer", "receive_maximum",
        "recorder", "unreleased", "wants_room",
    )  # fmt: skip

    def __init__(self, lane: Lane, frame_max: int) -> None:
        super().__init__(lane.state)
        self.lane = lane
        self.frame_max = frame_max  # for packets of the client
        self.recorder: Recorder | None = None  # set if messages can be recorded
        self.producer: Producer | None = None  # set if the client numbers its messages
        self.flow: Flow | None = None  # set while ``is_open``
        self.last_seen = lane.state.now
        self.bytes_received = self.messages_received = 0
        self.is_greeted = False  # a CONNECT has arrived
        self.is_open = False  # and has been accepted
        self.is_restricted = False  # publishing needs permission
        self.is_metered = False  # rates are limited
        self.is_strict_payload = False
        self.wants_room = False  # call ``on_room`` when the outbox has room
        self.hold_bits = 0
        self.held_by: Flow | None = None  # the flow whose full queue holds this publisher
        self.receive_maximum = 65535
        self.unreleased = 0  # QoS 2 messages of this connection; those of earlier connections do not count [MQTT-4.9.0-1]
        self.alias_in_max = 0
        self._aliases_in: TopicAliases | None = None
        self._verdicts: Verdicts | None = None
        self._rest: bytearray | None = None
        self._carried = 0
        self._last_topic = b""
        self._last_route: Route | None = None
        self._last_version = -1

    # Bytes in

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
        scan = lane.scan
        if not self.is_greeted and have and buffer[0] != 0x10:
            # Not MQTT, or not a CONNECT: no need to wait for more [MQTT-3.1.0-1].
            self.on_violation(_PROTOCOL_ERROR, "the first packet is not a CONNECT")
            return
        before = counters.messages_received
        state.congested = None  # a value left by another channel does not concern this client
        scan.load(buffer, have, self.frame_max)
        while not self.hold_bits:
            if state.work > state.work_max:
                self.hold(HOLD_WORK)
                break
            if self.is_stuck():
                self.hold(HOLD_OUTBOX)
                break
            state.work += 1
            status = scan.next()
            if status == 0:
                break
            if status < 0:
                is_large = scan.error != _MALFORMED
                self.on_violation(scan.error, "a packet above the maximum size" if is_large else "a frame with an invalid length")
                break
            kind = scan.kind
            if self.is_traced:
                self.on_trace(True, scan.frame())
            if self.is_open and kind == 3:
                self._on_publish_frame(scan)
            elif self.is_open and 4 <= kind <= 7:
                self._on_ack_frame(scan)
            elif self.is_open and kind == 12 and scan.flags == 0 and scan.end == scan.body:
                counters.pingreq_received += 1
                self.send(_PINGRESP)
            else:
                state.work += _COLD_WORK
                self.on_packet(kind, scan.flags, scan.frame_body())
                state.congested = None
                scan.frame_max = self.frame_max  # larger once the client is accepted
        self.messages_received += counters.messages_received - before
        if not self.hold_bits & HOLD_CLOSED:
            self._keep(buffer, scan.end, have)

    # PUBLISH

    def _on_publish_frame(self, scan: Scanner) -> None:
        lane = self.lane
        counters = lane.state.counters
        flow = self.flow
        assert flow is not None  # the channel is open
        code = scan.parse_publish(self.is_v5)
        if code:
            self.on_violation(code, "a PUBLISH that breaks the rules")
            return
        producer = self.producer
        if producer is not None:
            if producer.is_stopped:
                return  # the connection is about to be closed
            producer.sequence += 1
        qos = scan.qos
        counters.messages_received += 1
        if qos == 0:
            counters.publish_qos0_received += 1
        elif qos == 1:
            counters.publish_qos1_received += 1
        else:
            counters.publish_qos2_received += 1
            if flow.is_receiving(scan.packet_id):  # a duplicate
                if flow.is_pending(scan.packet_id):
                    return  # PUBREC follows the commit
                if scan.alias_at >= 0 and self._find_topic(scan) is None:  # it may set an alias for later messages
                    return
                self.send_ack(0x50, scan.packet_id, 0)
                counters.pubrec_sent += 1
                return
            if self.unreleased >= self.receive_maximum:  # [MQTT-3.3.4-7]
                self.on_violation(_RECEIVE_MAXIMUM_EXCEEDED, "more QoS 2 messages in flight than the Receive Maximum")
                return
        if self._last_version == lane.routes.version and scan.alias_at < 0 and scan.topic_is(self._last_topic):
            route = self._last_route
            assert route is not None  # set together with the last topic
        else:
            lane.state.work += _RESOLVE_WORK
            route = self._find_route(scan)
            if route is None:
                return
        is_long = route.flags or scan.retain or (self.is_strict_payload and scan.payload_format)
        if is_long or (producer is not None and producer.is_keyed):
            lane.state.work += _LONG_WORK
            message = from_scan(scan, route.topic, flow.client_id, monotonic())
            code = self.on_publish(message, route, scan.payload_format, scan.packet_id)
            if code < 0:
                return
        elif qos >= route.keep_qos:
            message = from_scan(scan, route.topic, flow.client_id, monotonic() if scan.expiry_at >= 0 else 0.0)
            self._record(message, qos, scan.packet_id, qos < route.record_qos, True, message, None)
            return
        elif qos == 0:
            lane.forward(scan, route, flow, self.is_v5)
            return
        else:
            message = from_scan(scan, route.topic, flow.client_id, monotonic() if scan.expiry_at >= 0 else 0.0)
            code = 0 if lane.publish(message, route, flow) else _NO_MATCHING_SUBSCRIBERS
        self._acknowledge(qos, scan.packet_id, code)
        if lane.state.congested is not None:
            self._wait_for_congested(flow)

    def _wait_for_congested(self, flow: Flow) -> None:
        """The message has filled a subscriber's queue: its publisher waits for it, for a limited time."""
        state = self.lane.state
        congested = state.congested
        assert congested is not None  # the caller has checked it
        state.congested = None
        if congested is flow or flow.is_congested() or self.hold_bits & HOLD_QUEUE:
            return  # its own queue is filling, so its acknowledgements must be read; or it is waiting already
        congested.hold(self)
        self.held_by = congested
        self.is_waiting = True
        state.counters.publishers_held += 1
        self.hold(HOLD_QUEUE)

    def record(
        self, message: Message, qos: int, packet_id: int, session_only: bool, is_recorded: bool = True,
        sent: Message | None = None, key_row: Change | None = None,
    ) -> Pending:  # fmt: skip
        """Record a message, or only wait for its rows, then acknowledge it; ``sent``: as it came; ``key_row``: of its key."""
        return self._record(message, qos, packet_id, session_only, is_recorded, message if sent is None else sent, key_row)

    def _record(
        self, message: Message, qos: int, packet_id: int, session_only: bool, is_recorded: bool, sent: Message,
        key_row: Change | None,
    ) -> Pending:  # fmt: skip
        recorder = self.recorder
        flow = self.flow
        assert recorder is not None  # without one, no route is marked for recording
        assert flow is not None  # the channel is open
        if qos == 2:
            self.unreleased += 1
            flow.expect_commit(packet_id)
        if is_recorded:
            pending = recorder.record(message, flow, self, qos, packet_id, session_only)
        else:
            pending = recorder.await_rows(message, flow, self, qos, packet_id)
        if qos == 2 and flow.is_durable and not pending.is_refused:
            recorder.change(self.received_row(packet_id))
        if self.producer is not None and not pending.is_refused:
            recorder.mark(self.producer, sent, key_row)
        self.lane.state.work += _RECORD_WORK
        if recorder.is_congested:
            self.hold(HOLD_LOG)
        if len(message.payload) >= _LARGE_BYTES and not pending.is_refused:
            self.hold(HOLD_LARGE)
        return pending

    def settle(self, flow: Flow | None, qos: int, packet_id: int, code: int) -> None:
        if not self.is_open or flow is None or self.flow is not flow:
            return
        self._send_acknowledgement(qos, packet_id, code)
        if self.lane.state.congested is not None:
            self._wait_for_congested(flow)

    def _acknowledge(self, qos: int, packet_id: int, code: int) -> None:
        """Acknowledge the current PUBLISH, which does not wait for the log."""
        if qos == 2 and (code < 0x80 or not self.is_v5):  # MQTT 3 has no reason codes: it completes the exchange
            flow = self.flow
            assert flow is not None  # the channel is open
            self.unreleased += 1
            flow.receive(packet_id)
        self._send_acknowledgement(qos, packet_id, code)
        if code >= 0x80 and self.producer is not None:
            self.on_refused(code)

    def _send_acknowledgement(self, qos: int, packet_id: int, code: int) -> None:
        counters = self.lane.state.counters
        if qos == 1:
            counters.puback_sent += 1
            self.send_ack(0x40, packet_id, code if self.is_v5 else 0)
        elif qos == 2:
            counters.pubrec_sent += 1
            self.send_ack(0x50, packet_id, code if self.is_v5 else 0)

    def _find_route(self, scan: Scanner) -> Route | None:
        """The route of the current PUBLISH; None if it was rejected and already answered."""
        lane = self.lane
        topic = self._find_topic(scan)
        if topic is None:
            return None
        visited = lane.routes.visited
        route = lane.routes.resolve(topic)
        lane.state.work += lane.routes.visited - visited
        if route is None:
            if self.producer is not None:  # it must learn which of its messages that was
                self._acknowledge(scan.qos, scan.packet_id, _TOPIC_NAME_INVALID)
            else:
                self.on_bad_topic(topic)
            return None
        if self.is_restricted and not route.flags & ASK_INNER and not self._may_publish(topic):
            lane.state.counters.dropped_not_authorized += 1
            assert self.flow is not None  # the channel is open
            lane.state.drop("not_authorized", self.flow.client_id, topic)
            if self.on_denied(topic):
                self._acknowledge(scan.qos, scan.packet_id, _NOT_AUTHORIZED)
            return None
        self._last_topic = route.topic
        self._last_route = route
        self._last_version = lane.routes.version
        return route

    def _find_topic(self, scan: Scanner) -> bytes | None:
        """The topic of the current PUBLISH, resolved from its alias if necessary; None if it was rejected."""
        topic = scan.topic()
        if scan.alias_at < 0:
            return topic
        if scan.alias > self.alias_in_max:
            self.on_violation(_TOPIC_ALIAS_INVALID, "a topic alias above the maximum")
            return None
        aliases = self._aliases_in = self._aliases_in or TopicAliases(self.alias_in_max)
        if topic:
            if topic_error(topic, 65536) == 0 and not aliases.put(scan.alias, topic):
                self.on_violation(_QUOTA_EXCEEDED, "the topics of all aliases are too long together")
                return None
            return topic
        known = aliases.topics.get(scan.alias)
        if known is None:
            self.on_violation(_PROTOCOL_ERROR, "a topic alias that was never set")
        return known

    def _may_publish(self, topic: bytes) -> bool:
        if len(topic) > CACHED_TOPIC_BYTES_MAX:
            return self.may_publish(topic)
        verdicts = self._verdicts
        if verdicts is None:
            verdicts = self._verdicts = Verdicts()
        verdict = verdicts.known.get(topic)
        if verdict is None:
            verdict = self.may_publish(topic)
            verdicts.put(topic, verdict)
        return verdict

    def forget_verdicts(self) -> None:
        """Access rules have changed: check every topic again."""
        self._verdicts = None
        self._last_version = -1

    # Acknowledgements

    def _on_ack_frame(self, scan: Scanner) -> None:
        code = scan.parse_ack(self.is_v5)
        if code == 0:
            self.acknowledged(scan.kind, scan.packet_id, scan.reason)
        elif code > 0:
            self.on_violation(code, "an acknowledgement that breaks the rules")
        else:  # it has a reason code or properties
            self.lane.state.work += _COLD_WORK
            self.on_packet(scan.kind, scan.flags, scan.frame_body())

    def acknowledged(self, kind: int, packet_id: int, reason: int) -> None:
        """PUBACK (4), PUBREC (5), PUBREL (6) or PUBCOMP (7) from the client."""
        counters = self.lane.state.counters
        flow = self.flow
        assert flow is not None  # the channel is open
        if kind == 4:
            counters.puback_received += 1
            if not flow.on_puback(packet_id, reason) and flow.is_wrong_ack(kind, packet_id):
                self.on_violation(_PROTOCOL_ERROR, _WRONG_ACK)
        elif kind == 5:
            counters.pubrec_received += 1
            known = flow.on_pubrec(packet_id, reason)
            if not known and flow.is_wrong_ack(kind, packet_id):
                self.on_violation(_PROTOCOL_ERROR, _WRONG_ACK)
            elif known < 2 and reason < 0x80:
                counters.pubrel_sent += 1
                self.send_ack(0x62, packet_id, 0 if known or not self.is_v5 else _ID_NOT_FOUND)
        elif kind == 6:
            counters.pubrel_received += 1
            if self.unreleased and flow.is_receiving(packet_id):
                self.unreleased -= 1
            if flow.is_durable and flow.is_receiving(packet_id):
                self.on_release(packet_id)
                return
            counters.pubcomp_sent += 1
            if flow.forget_received(packet_id):
                self.send_ack(0x70, packet_id, 0)
            else:
                counters.stray_acks += 1
                self.send_ack(0x70, packet_id, _ID_NOT_FOUND if self.is_v5 else 0)
        else:
            counters.pubcomp_received += 1
            if not flow.on_pubcomp(packet_id) and flow.is_wrong_ack(kind, packet_id):
                self.on_violation(_PROTOCOL_ERROR, _WRONG_ACK)
        if self.wants_room:
            self.on_room()

    def want_room(self) -> None:
        self.wants_room = True

    def flush(self) -> None:
        was_full = self.outbox.size >= self.state.outbox_bytes_max
        Writer.flush(self)
        if was_full and self._writable and self.is_open and self.flow is not None:
            self.flow.pump()  # messages that waited only for the outbox have no acknowledgement to trigger them
            if self.wants_room:
                self.on_room()

    def resume_writing(self) -> None:
        """The transport accepts more data."""
        self._writable = True
        self.flush()
        if self.flow is not None and self.is_open:
            self.flow.pump()
        if self.wants_room:
            self.on_room()
        if self.hold_bits & HOLD_OUTBOX:
            self.schedule_resume(HOLD_OUTBOX)
        self.lane.flush()

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
            before = self.messages_received
            self._run(rest, len(rest))
            if self.is_metered:
                self.on_metered(self.messages_received - before, 0)  # the bytes were counted on arrival
        if not self.hold_bits and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
        self.lane.flush()
