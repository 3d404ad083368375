"""The asyncio protocol of one client connection: it connects the transport, the lane and the broker.

It passes packets to their handlers in ``broker.packets`` and decides how a connection ends. States: *new* (only a CONNECT is
accepted), *joining* (its CONNECT is being decided; reading is held, or waits for AUTH), *open*, *closed*.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from msgspec.structs import replace

from braidmq.access.contract import Exchange, Rules
from braidmq.base.errors import Corruption, ProtocolViolation, UnsupportedProtocol
from braidmq.broker.connection.deadlines import TICK_S
from braidmq.broker.connection.rates import TokenBucket
from braidmq.broker.listeners.origin import ListenerInfo, Origin, describe_peer
from braidmq.broker.messages.hooks import Client
from braidmq.broker.packets import connect, publish, subscribe
from braidmq.broker.ports import Change, Refusal
from braidmq.broker.reading import catch_up, replay
from braidmq.broker.session.session import Session
from braidmq.broker.timers import Timer
from braidmq.lane.path.channel import HOLD_CLOSED, HOLD_DECODE, HOLD_LARGE, HOLD_OUTBOX, HOLD_QUEUE, HOLD_RATE, HOLD_WORK, Channel
from braidmq.lane.path.flow import Flow
from braidmq.lane.path.message import Message
from braidmq.lane.path.routes import Route
from braidmq.lane.path.scanner import topic_error
from braidmq.mqtt import codec
from braidmq.mqtt.packets import (
    MQTT5,
    MQTT311,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
)
from braidmq.mqtt.properties import NO_PROPERTIES, Properties
from braidmq.mqtt.reasons import Reason, connack_return_code

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker

log = logging.getLogger("braidmq.connection")

_LARGE_BODY = 16 * 1024
_LINGER_S = 5.0  # how long a closed connection may take to be written out
_ACKS = {Puback: 4, Pubrec: 5, Pubrel: 6, Pubcomp: 7}


class Connection(Channel, asyncio.BufferedProtocol):
    """One client connection, from accept to the end."""

    __slots__ = (
        "_buckets", "_feeding", "_limit_s", "_listener", "_queue_timer", "_rate_timer", "broker", "client_id", "exchange",
        "is_closed", "is_vouched", "keep_alive", "method", "opened_at", "origin", "pending_connect", "rules", "session",
        "user_name", "version", "wants_reasons", "window", "wheel_slot",
    )  # fmt: skip

    def __init__(self, broker: Broker, listener: ListenerInfo) -> None:
        super().__init__(broker.lane, broker.settings.limits.preauth_packet_bytes)
        self.broker = broker
        self._listener = listener
        self.origin: Origin | None = None
        self.wheel_slot = -1
        self.version = MQTT311
        self.client_id = ""
        self.user_name: str | None = None
        self.session: Session | None = None
        self.rules: Rules | None = None
        self.exchange: Exchange | None = None  # enhanced authentication under way
        self.pending_connect: Connect | None = None  # what it is for; None: the client authenticates anew
        self.method: str | None = None  # of enhanced authentication, as CONNECT named it
        self.keep_alive = 0
        self.opened_at = 0.0
        self.is_closed = False
        self.is_vouched = False  # a hook let it in, so the files have no say
        self.wants_reasons = True
        self._limit_s = 0.0  # silence after which the client counts as gone; 0: never
        self._buckets: tuple[TokenBucket, TokenBucket] | None = None
        self._queue_timer: Timer | None = None
        self._rate_timer: asyncio.TimerHandle | None = None
        self._feeding = False
        self.window = 0  # messages of QoS 1 and 2 that may be in flight to it

    # The transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self.transport = transport
        self.origin = describe_peer(transport, self._listener)
        # What the kernel does not take at once stays in the outbox, which has a bound, and not in the transport.
        if self.origin.kind == "tcp":
            # Written to directly, so it must say from the first byte on that it holds something: nothing may pass that.
            transport.set_write_buffer_limits(0)  # type: ignore[attr-defined]
            self.fd = transport.get_extra_info("socket").fileno()
        else:
            transport.set_write_buffer_limits(1)  # type: ignore[attr-defined]  # 0 never lets a TLS transport go on
        self.broker.connections.add(self)
        self._watch(self.broker.settings.limits.connect_timeout)

    def eof_received(self) -> bool | None:
        """The client will send no more: the transport closes itself."""
        return None

    def connection_lost(self, exc: BaseException | None) -> None:
        """The network connection is gone."""
        self.close(Reason.UNSPECIFIED_ERROR, "the connection was lost", say=False)
        self.transport = None
        self.broker.on_lost(self)
        self.lane.flush()  # what others are told of it
        self._listener.release()

    def close(self, reason: int, detail: str, *, say: bool = True, discard_will: bool = False) -> None:
        """End the connection, telling an MQTT 5 client why if it may be told. The session lives on as its expiry says."""
        if self.is_closed:
            return
        self.is_closed = True
        was_open = self.is_open
        if say and was_open and self.version == MQTT5:
            self.send_packet(Disconnect(reason, Properties(reason_string=detail) if detail else NO_PROPERTIES))
        self.is_open = False
        self.hold(HOLD_CLOSED)
        self.forget_unread()
        self._stop_waiting()
        if self._rate_timer is not None:
            self._rate_timer.cancel()
        transport = self.transport
        self.fd = -1  # its number may soon be another's
        if transport is not None:
            rest = self.outbox.take()
            if rest:
                self.lane.state.counters.bytes_sent += len(rest)
                transport.write(rest)
            transport.close()
            self._watch(_LINGER_S)
        session = self.session
        if session is None:
            return
        if was_open:
            connect.on_closed(self, session, reason, detail, discard_will)
        elif session.connection is self:  # it was to be told of its session, which waited for the disk
            self.session = None
            self.broker.lifecycle.abandon(session)

    def abort(self) -> None:
        """Drop the network connection at once."""
        if self.transport is not None:
            self.transport.abort()

    def _watch(self, seconds: float) -> None:
        self.broker.wheel.watch(self, self.broker.state.now + TICK_S + seconds)  # that clock may be a tick behind

    def check_deadline(self, now: float) -> float:
        """CONNECT must come in time, then something within the keep-alive; a closed connection must be gone soon."""
        if self.is_closed:
            self.abort()
            return 0.0
        if not self.is_open:
            if self.session is not None:
                return now + self.broker.settings.limits.connect_timeout  # it is our disk that it waits for
            log.debug("%s: not connected in time", self.peer())
            if self.is_greeted:
                self.refuse(Reason.SERVER_BUSY, "too slow to connect", say=False)
            else:
                self.close(Reason.UNSPECIFIED_ERROR, "no CONNECT in time", say=False)
            return 0.0
        if self._limit_s == 0:
            return 0.0
        due = self.last_seen + self._limit_s + TICK_S  # the lane's clock may be a tick behind
        if due > now:
            return due
        if self.hold_bits & ~HOLD_OUTBOX:
            return now + self._limit_s  # it is we who do not read
        self.broker.statistics.keep_alive_timeouts += 1
        self.close(Reason.KEEP_ALIVE_TIMEOUT, f"nothing heard for {now - self.last_seen:.1f} s")
        return 0.0

    def watch_keep_alive(self, keep_alive: int) -> None:
        """Expect a packet within one and a half times this many seconds [MQTT-3.1.2-22]; 0: never mind."""
        self.keep_alive = keep_alive
        self._limit_s = keep_alive * self.broker.settings.mqtt.keep_alive_factor
        self.last_seen = self.broker.state.now
        if self._limit_s:
            self.broker.wheel.watch(self, self.last_seen + self._limit_s)
        else:
            self.broker.wheel.forget(self)

    # Packets

    def send_packet(self, packet: Packet) -> bool:
        """Put a packet into the outbox; returns False if it exceeds the client's maximum packet size.

        Reason texts are left out if the client does not want them or they do not fit.
        """
        if not self.wants_reasons and not isinstance(packet, Connack | Disconnect):
            # [MQTT-3.1.2-29]; what is no problem information, such as authentication data, stays.
            packet.properties = replace(packet.properties, reason_string=None, user_properties=())  # type: ignore[union-attr]
        frame = codec.encode_fitting(packet, self.version, self.frame_max_out)
        return frame is not None and self.send_frame(type(packet).__name__.lower(), frame)

    def send_frame(self, kind: str, frame: bytes) -> bool:
        """Put an encoded packet into the outbox; returns False if it exceeds the client's maximum packet size."""
        if len(frame) > self.frame_max_out:
            return False
        self.broker.statistics.packets_sent[kind] += 1
        self.send(frame)
        return True

    def on_packet(self, kind: int, flags: int, body: bytes) -> None:
        """Decode a packet that the lane does not know, and act on it."""
        if len(body) > _LARGE_BODY and self.is_open:
            self.hold(HOLD_DECODE)
            self.broker.run(self._on_large_packet(kind, flags, body), self)
        else:
            self._decode_and_act(kind, body, lambda: codec.decode(kind << 4 | flags, body, self.version))

    async def _on_large_packet(self, kind: int, flags: int, body: bytes) -> None:
        """Tens of thousands of filters take a while to decode: a thread does that, and others go on meanwhile."""
        try:
            packet = await asyncio.to_thread(codec.decode, kind << 4 | flags, body, self.version)
        except ProtocolViolation as violation:
            self.on_violation(violation.reason, violation.detail)
            return
        if self.is_open:
            self._decode_and_act(kind, body, lambda: packet)
            self.resume(HOLD_DECODE)

    def _decode_and_act(self, kind: int, body: bytes, decode: Callable[[], Packet]) -> None:
        try:
            packet = decode()
            self.broker.statistics.packets_received[type(packet).__name__.lower()] += 1
            self._act(packet)
        except UnsupportedProtocol as unsupported:
            self._refuse_protocol(unsupported)
        except ProtocolViolation as violation:
            if self.is_greeted or kind != 1:
                self.on_violation(violation.reason, violation.detail)
            else:
                self._refuse_malformed(violation, body)

    def _act(self, packet: Packet) -> None:
        if not self.is_greeted:
            if not isinstance(packet, Connect):
                raise ProtocolViolation(Reason.PROTOCOL_ERROR, "the first packet is not a CONNECT")
            self.is_greeted = True
            connect.on_connect(self, packet)
            return
        if isinstance(packet, Auth):
            connect.on_auth(self, packet)
            return
        if not self.is_open:
            # [MQTT-3.1.2-30]: until CONNACK only AUTH and DISCONNECT may come from a client that authenticates in steps.
            if isinstance(packet, Disconnect):
                self.close(packet.reason, "", say=False)
                return
            raise ProtocolViolation(Reason.PROTOCOL_ERROR, f"{type(packet).__name__.upper()} before CONNACK")
        match packet:
            case Subscribe():
                subscribe.on_subscribe(self, packet)
            case Unsubscribe():
                subscribe.on_unsubscribe(self, packet)
            case Disconnect():
                connect.on_disconnect(self, packet)
            case Puback() | Pubrec() | Pubrel() | Pubcomp():
                self.acknowledged(_ACKS[type(packet)], packet.packet_id, packet.reason)
            case Connect():
                raise ProtocolViolation(Reason.PROTOCOL_ERROR, "a second CONNECT")  # [MQTT-3.1.0-2]
            case _:
                raise ProtocolViolation(Reason.PROTOCOL_ERROR, f"{type(packet).__name__.upper()} may be sent by servers only")

    def _refuse_protocol(self, unsupported: UnsupportedProtocol) -> None:
        self.version = MQTT5 if unsupported.level >= MQTT5 else MQTT311
        self.refuse(Reason.UNSUPPORTED_PROTOCOL_VERSION, unsupported.detail)

    def _refuse_malformed(self, violation: ProtocolViolation, body: bytes) -> None:
        # MQTT 5 allows a CONNACK for a CONNECT that is malformed further on; MQTT 3 wants none [MQTT-3.1.4-1].
        self.broker.statistics.violations[violation.reason] += 1
        self.version = MQTT5 if body[:7] == b"\x00\x04MQTT\x05" else MQTT311
        self.refuse(violation.reason, violation.detail, say=self.version == MQTT5)

    def refuse(self, reason: int, detail: str, *, say: bool = True, user_properties: tuple[tuple[str, str], ...] = ()) -> None:
        """Reject CONNECT and close; MQTT 3 receives a CONNACK only if it has a code for the reason [MQTT-3.2.2-6]."""
        self.broker.statistics.refusals[int(reason)] += 1
        if say and not self.is_closed and (self.version == MQTT5 or connack_return_code(reason) is not None):
            properties = Properties(reason_string=detail or None, user_properties=user_properties)
            self.send_packet(Connack(int(reason), False, properties))
        self.close(reason, detail, say=False)

    def on_violation(self, reason: int, detail: str) -> None:
        """Tell an MQTT 5 client what it broke, and close."""
        self.broker.statistics.violations[int(reason)] += 1
        log.info("%s %s: %s", self.peer(), self.client_id or "-", detail)
        if self.pending_connect is not None:
            self.refuse(reason, detail)
        else:
            self.close(reason, detail)

    # What the lane hands up

    def on_publish(self, message: Message, route: Route, payload_format: int, packet_id: int) -> int:
        return publish.publish(self, message, route, payload_format, packet_id)

    def refuse_publish(self, flow: Flow | None, qos: int, packet_id: int, is_in_doubt: bool) -> None:
        if not self.is_open or self.flow is not flow:
            return
        if qos == 2 and self.unreleased:
            self.unreleased -= 1
        if qos and self.is_v5 and not is_in_doubt:
            self.send_ack(0x40 if qos == 1 else 0x50, packet_id, Reason.QUOTA_EXCEEDED)
        elif qos:
            # MQTT 3 has no way to say no, and nobody may be told what is not known: without an answer it is sent again.
            self.close(Reason.QUOTA_EXCEEDED, "messages cannot be stored")
        if self.producer is not None:
            self.on_refused(Reason.QUOTA_EXCEEDED)

    def on_refused(self, reason: int) -> None:
        if self.producer is not None and self.producer.stops:
            self.producer.is_stopped = True
            self.close(reason, "a message was rejected, and this producer asked to stop after that")

    def on_part(self, size: int) -> None:
        self.broker.parts.note(self, size)

    @property
    def part_bytes(self) -> int:
        """Received bytes that wait for the rest of their packet, or for a hold to end."""
        return 0 if self._rest is None else len(self._rest)

    def received_row(self, packet_id: int) -> Change:
        return self.broker.turn_writer.storage.sessions.put_received(self.client_id, packet_id)

    def on_release(self, packet_id: int) -> None:
        flow = self.flow
        assert flow is not None  # the connection is open
        change = self.broker.turn_writer.storage.sessions.remove_received(self.client_id, packet_id)
        self.broker.turn_writer.change([change], partial(self._released, flow, packet_id), self._not_released)

    def _released(self, flow: Flow, packet_id: int) -> None:
        flow.forget_received(packet_id)
        if self.is_open and self.flow is flow:
            self.lane.state.counters.pubcomp_sent += 1
            self.send_ack(0x70, packet_id, 0)
            self.lane.flush()

    def _not_released(self, refusal: Refusal) -> None:
        self.close(Reason.QUOTA_EXCEEDED, "the completion of a QoS 2 message cannot be stored")

    def on_bad_topic(self, topic: bytes) -> None:
        levels_max = self.broker.settings.mqtt.topic_levels_max
        reason = topic_error(topic, levels_max)
        self.on_violation(reason, "PUBLISH to an invalid topic name")

    def on_denied(self, topic: bytes) -> bool:
        return publish.deny(self, topic)

    def may_publish(self, topic: bytes) -> bool:
        rules = self.rules
        allowed = rules is not None and (rules.unrestricted or rules.may_publish(topic.decode()))
        if allowed:
            self.broker.statistics.authorization_allow += 1
        else:
            self.broker.statistics.authorization_deny += 1
        return allowed

    def on_hold(self, bit: int) -> None:
        if bit == HOLD_WORK:
            self.schedule_resume(HOLD_WORK)
        elif bit == HOLD_QUEUE:
            # The time runs from when the queue filled up, so that many slow subscribers cost a publisher no more than one does.
            since = self.held_by.congested_at if self.held_by is not None else 0.0
            waited_s = max(0.0, self.broker.state.now - since) if since else 0.0
            wait_s = max(0.0, self.broker.settings.session.queue_wait - waited_s)
            self._queue_timer = self.broker.timers.after(wait_s, self._wait_no_more)

    def schedule_resume(self, bit: int) -> None:
        self.broker.loop.call_soon(self.resume, bit)

    def end_large(self, size: int) -> None:
        if self.hold_bits & HOLD_LARGE:
            self.broker.large.add(partial(self.resume, HOLD_LARGE), size)

    def schedule_release(self) -> None:
        self.broker.loop.call_soon(self._release)

    def _release(self) -> None:
        self._stop_waiting()
        self.resume(HOLD_QUEUE)

    def _wait_no_more(self) -> None:
        if self.held_by is not None:
            self.held_by.is_stalled = True  # from now on what it cannot take is dropped
        self._stop_waiting()
        self.resume(HOLD_QUEUE)

    def _stop_waiting(self) -> None:
        """Stop waiting: cancel the timer and leave the full queue of the subscriber."""
        self.is_waiting = False
        if self._queue_timer is not None:
            self._queue_timer.cancel()
            self._queue_timer = None
        if self.held_by is not None:
            self.held_by.forget_publisher(self)
            self.held_by = None

    def meter(self, messages_per_s: float, bytes_per_s: float) -> None:
        """Hold the client to these rates; 0 means no limit."""
        self.is_metered = messages_per_s > 0 or bytes_per_s > 0
        now = monotonic()
        self._buckets = (TokenBucket(messages_per_s, now), TokenBucket(bytes_per_s, now)) if self.is_metered else None

    def on_metered(self, messages: int, size: int) -> None:
        if self._buckets is None:
            return
        now = monotonic()
        wait_s = max(self._buckets[0].take(messages, now), self._buckets[1].take(size, now))
        if wait_s > 0 and not self.hold_bits & HOLD_RATE:
            self.hold(HOLD_RATE)
            self._rate_timer = self.broker.loop.call_later(wait_s, self.resume, HOLD_RATE)

    def on_room(self) -> None:
        if not self._feeding:
            self._feeding = True
            self.broker.turns.add(self, self.give_waiting)

    def give_waiting(self) -> None:
        """Give the client what waits elsewhere for it, as far as it takes it, for a slice."""
        self._feeding = False
        session = self.session
        if session is None or not self.is_open:
            return
        goes_on = subscribe.feed_retained(self)
        try:
            goes_on |= catch_up.feed(self.broker.reading, session)
            goes_on |= replay.feed(session)
        except Corruption as problem:
            log.error("cannot read recorded messages for %s: %s", self.client_id, problem)
            self.close(Reason.IMPLEMENTATION_SPECIFIC_ERROR, "the log cannot be read")
        goes_on |= self.broker.sharing.feed(session) and self.has_room() and session.flow.has_room()
        self.lane.flush()
        self.wants_room = session.wants_room
        if goes_on and self.wants_room:
            self.on_room()  # else an acknowledgement or the transport tells when to go on

    def on_trace(self, inbound: bool, frame: bytes) -> None:
        self.broker.tracer.on_frame(self.client_id, inbound, frame)

    # What changes at run time

    def is_still_allowed(self) -> bool:
        """Whether the client would be accepted now."""
        access = self.broker.access
        shown = connect.credentials(self, self.user_name)
        return not access.is_banned(shown) if self.is_vouched else access.is_still_allowed(shown, self.user_name)

    def take_rules(self) -> None:
        """Use the current access rules and forget cached decisions."""
        self.rules = self.broker.access.rules_for(self.client_id, self.user_name)
        self.is_restricted = not self.rules.unrestricted
        self.forget_verdicts()

    def take_trace(self) -> None:
        """Start or stop tracing this client's frames."""
        self.is_traced = self.client_id in self.broker.tracer.clients

    def peer(self) -> str:
        """Where the client is, for logs."""
        return f"{self.origin.peer_host}:{self.origin.peer_port}" if self.origin is not None else "-"

    def describe(self) -> Client:
        """The client as hooks see it."""
        origin = self.origin
        return Client(
            self.client_id,
            self.user_name,
            origin.peer_host if origin is not None else "",
            origin.listener if origin is not None else "",
            self.version,
        )
