"""The message path of one client connection: publishes its messages, and handles and sends acknowledgements.

``channel_reader`` finds the frames. All packets but PUBLISH, the acknowledgements and PINGREQ, and all special cases, go to the
subclass in ``broker`` through ``Upcalls``.
"""

from __future__ import annotations

from time import monotonic

from braidmq.lane.flows.flow import Flow
from braidmq.lane.flows.session_queue import SessionQueue
from braidmq.lane.path.channel_reader import COLD_WORK, HOLD_LARGE, HOLD_LOG, HOLD_OUTBOX, HOLD_QUEUE, ChannelReader
from braidmq.lane.path.lane import Lane
from braidmq.lane.path.message import Message, from_parser
from braidmq.lane.path.parser import Parser, topic_error
from braidmq.lane.path.ports import Change
from braidmq.lane.path.topic_aliases import TopicAliases
from braidmq.lane.path.verdicts import Verdicts
from braidmq.lane.path.writer import Writer
from braidmq.lane.recording.commit_outcomes import LARGE_BYTES, Pending
from braidmq.lane.recording.recorder import Producer, Recorder
from braidmq.lane.routing.routes import CACHED_TOPIC_BYTES_MAX, Route

ASK_INNER = 1  # a route's flag: access is checked on the inner topic, on the slow path

_COLD_WORK, _LARGE_BYTES = COLD_WORK, LARGE_BYTES  # C constants in the compiled form
_LONG_WORK = 60  # a message on the slow path
_RECORD_WORK = 10  # a message that is recorded
_RESOLVE_WORK = 20  # a topic that differs from the previous one
_TOPIC_SHIFT = 5  # and its work by its bytes
_WRITE_SHIFT = 6  # the work of a large message by its bytes, most of it at the end of the turn, which writes it
_PROTOCOL_ERROR, _NOT_AUTHORIZED = 0x82, 0x87
_NO_MATCHING_SUBSCRIBERS, _TOPIC_NAME_INVALID, _QUOTA_EXCEEDED = 0x10, 0x90, 0x97
_ID_NOT_FOUND, _RECEIVE_MAXIMUM_EXCEEDED, _TOPIC_ALIAS_INVALID = 0x92, 0x93, 0x94
_WRONG_ACK = "an acknowledgement of the wrong type for a message in flight"


class Channel(ChannelReader):
    """The fast half of a connection. The subclass sets the public fields when CONNECT is accepted."""

    __slots__ = (
        "_aliases_in", "_last_route", "_last_topic", "_last_version", "_verdicts", "alias_in_max", "flow", "held_by",
        "is_restricted", "is_strict_payload", "producer", "receive_maximum", "recorder", "unreleased", "wants_room",
    )  # fmt: skip

    def __init__(self, lane: Lane, frame_max: int) -> None:
        super().__init__(lane, frame_max)
        self.recorder: Recorder | None = None  # set if messages can be recorded
        self.producer: Producer | None = None  # set if the client numbers its messages
        self.flow: Flow | None = None  # set while ``is_open``
        self.is_restricted = False  # publishing needs permission
        self.is_strict_payload = False
        self.wants_room = False  # call ``on_room`` when the outbox has room
        self.held_by: SessionQueue | None = None  # the full queue that holds this publisher
        self.receive_maximum = 65535
        self.unreleased = 0  # QoS 2 messages of this connection; those of earlier connections do not count [MQTT-4.9.0-1]
        self.alias_in_max = 0
        self._aliases_in: TopicAliases | None = None
        self._verdicts: Verdicts | None = None
        self._last_topic = b""
        self._last_route: Route | None = None
        self._last_version = -1

    # PUBLISH

    def _on_publish_frame(self, parser: Parser) -> None:
        lane = self.lane
        counters = lane.state.counters
        flow = self.flow
        assert flow is not None  # the channel is open
        code = parser.parse_publish(self.is_v5)
        if code:
            self.on_violation(code, "a PUBLISH that breaks the rules")
            return
        producer = self.producer
        if producer is not None:
            if producer.is_stopped:
                return  # the connection is about to be closed
            producer.sequence += 1
        qos = parser.qos
        counters.messages_received += 1
        if qos == 0:
            counters.publish_qos0_received += 1
        elif qos == 1:
            counters.publish_qos1_received += 1
        else:
            counters.publish_qos2_received += 1
            if flow.is_receiving(parser.packet_id):  # a duplicate
                if flow.is_pending(parser.packet_id):
                    return  # PUBREC follows the commit
                if parser.alias_at >= 0 and self._find_topic(parser) is None:  # it may set an alias for later messages
                    return
                self.send_ack(0x50, parser.packet_id, 0)
                counters.pubrec_sent += 1
                return
            if self.unreleased >= self.receive_maximum:  # [MQTT-3.3.4-7]
                self.on_violation(_RECEIVE_MAXIMUM_EXCEEDED, "more QoS 2 messages in flight than the Receive Maximum")
                return
        if self._last_version == lane.routes.version and parser.alias_at < 0 and parser.topic_is(self._last_topic):
            route = self._last_route
            assert route is not None  # set together with the last topic
        else:
            lane.state.work += _RESOLVE_WORK
            route = self._find_route(parser)
            if route is None:
                return
        is_long = route.flags or parser.retain or (self.is_strict_payload and parser.payload_format)
        if is_long or (producer is not None and producer.is_keyed):
            lane.state.work += _LONG_WORK
            message = from_parser(parser, route.topic, flow.client_id, monotonic())
            code = self.on_publish(message, route, parser.payload_format, parser.packet_id)
            if code < 0:
                return
        elif qos >= route.keep_qos:
            message = from_parser(parser, route.topic, flow.client_id, monotonic() if parser.expiry_at >= 0 else 0.0)
            self._record(message, qos, parser.packet_id, qos < route.record_qos, True, message, None)
            return
        elif qos == 0:
            lane.forward(parser, route, flow, self.is_v5)
            return
        else:
            message = from_parser(parser, route.topic, flow.client_id, monotonic() if parser.expiry_at >= 0 else 0.0)
            code = 0 if lane.publish(message, route, flow) else _NO_MATCHING_SUBSCRIBERS
        self._acknowledge(qos, parser.packet_id, code)
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
        if recorder.holds(flow):
            self.hold(HOLD_LOG)
        if len(message.payload) >= _LARGE_BYTES and not pending.is_refused:
            self.lane.state.work += len(message.payload) >> _WRITE_SHIFT
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

    def _find_route(self, parser: Parser) -> Route | None:
        """The route of the current PUBLISH; None if it was rejected and already answered."""
        lane = self.lane
        topic = self._find_topic(parser)
        if topic is None:
            return None
        lane.state.work += len(topic) >> _TOPIC_SHIFT
        visited = lane.routes.visited
        route = lane.routes.resolve(topic)
        lane.state.work += lane.routes.visited - visited
        if route is None:
            if self.producer is not None:  # it must learn which of its messages that was
                self._acknowledge(parser.qos, parser.packet_id, _TOPIC_NAME_INVALID)
            else:
                self.on_bad_topic(topic)
            return None
        if self.is_restricted and not route.flags & ASK_INNER and not self._may_publish(topic):
            lane.state.counters.dropped_not_authorized += 1
            assert self.flow is not None  # the channel is open
            lane.state.drop("not_authorized", self.flow.client_id, topic)
            if self.on_denied(topic):
                self._acknowledge(parser.qos, parser.packet_id, _NOT_AUTHORIZED)
            return None
        self._last_topic = route.topic
        self._last_route = route
        self._last_version = lane.routes.version
        return route

    def _find_topic(self, parser: Parser) -> bytes | None:
        """The topic of the current PUBLISH, resolved from its alias if necessary; None if it was rejected."""
        topic = parser.topic()
        if parser.alias_at < 0:
            return topic
        if parser.alias > self.alias_in_max:
            self.on_violation(_TOPIC_ALIAS_INVALID, "a topic alias above the maximum")
            return None
        aliases = self._aliases_in = self._aliases_in or TopicAliases(self.alias_in_max)
        if topic:
            if topic_error(topic, 65536) == 0 and not aliases.put(parser.alias, topic):
                self.on_violation(_QUOTA_EXCEEDED, "the topics of all aliases are too long together")
                return None
            return topic
        known = aliases.topics.get(parser.alias)
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

    def _on_ack_frame(self, parser: Parser) -> None:
        code = parser.parse_ack(self.is_v5)
        if code == 0:
            self.acknowledged(parser.kind, parser.packet_id, parser.reason)
        elif code > 0:
            self.on_violation(code, "an acknowledgement that breaks the rules")
        else:  # it has a reason code or properties
            self.lane.state.work += _COLD_WORK
            self.on_packet(parser.kind, parser.flags, parser.frame_body())

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
