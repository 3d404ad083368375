"""The asyncio protocol of one client connection, between the transport and the lane; it decides how a connection ends.

States: *new* (only a CONNECT is accepted), *joining* (its CONNECT is being decided; reading is held, or waits for AUTH), *open*,
*closed*. Packets go to the handlers in ``broker.packets``, which reach it through its context.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from msgspec.structs import replace

from braidmq.access.contract import Credentials, Exchange, Rules
from braidmq.base.listening.tcp_info import is_established, unread
from braidmq.broker.connection.context import ConnectionContext
from braidmq.broker.connection.deadlines import TICK_S
from braidmq.broker.connection.holds import HeldChannel
from braidmq.broker.listeners.origin import TLS_KINDS, ListenerInfo, Origin, describe_peer
from braidmq.broker.messages.hooks import Client
from braidmq.broker.ports import Change, Refusal
from braidmq.broker.session.session import Session
from braidmq.lane.flows.flow import Flow
from braidmq.lane.path.channel_reader import HOLD_CLOSED, HOLD_OUTBOX
from braidmq.lane.path.message import Message
from braidmq.lane.path.parser import topic_error
from braidmq.lane.routing.routes import Route
from braidmq.mqtt import codec
from braidmq.mqtt.packets import MQTT5, MQTT311, Connack, Connect, Disconnect, Packet
from braidmq.mqtt.properties import NO_PROPERTIES, Properties
from braidmq.mqtt.reasons import Reason, connack_return_code

log = logging.getLogger("braidmq.connection")

_FAREWELL_BYTES = 32  # more than TLS needs for the alert that closes a connection
_WS_CLOSE = 0x88
_LINGER_S = 5.0  # how long a closed connection may take to be written out


class Connection(HeldChannel, asyncio.BufferedProtocol):
    """One client connection, from accept to the end."""

    __slots__ = (
        "_limit_s", "_listener", "client_id", "exchange", "is_claiming", "is_closed", "is_feeding", "is_vouched", "keep_alive",
        "method", "opened_at", "order", "origin", "pending_connect", "rules", "session", "user_name", "version", "wants_reasons",
        "wheel_slot", "window",
    )  # fmt: skip

    def __init__(self, context: ConnectionContext, listener: ListenerInfo) -> None:
        super().__init__(context)
        self.recorder = context.recorder
        self._listener = listener
        self.origin: Origin | None = None
        self.wheel_slot = -1
        self.version = MQTT311
        self.client_id = ""
        self.user_name: str | None = None
        self.session: Session | None = None
        self.rules: Rules | None = None
        self.exchange: Exchange | None = None  # enhanced authentication under way
        self.pending_connect: Connect | None = None  # the CONNECT being decided; None: the client re-authenticates
        self.method: str | None = None  # of enhanced authentication, as CONNECT named it
        self.keep_alive = 0
        self.opened_at = 0.0
        self.order: tuple[int, ...] = ()  # the version of its grant
        self.is_closed = False
        self.is_vouched = False  # a hook has accepted it, so the files do not decide
        self.is_claiming = False  # the registry is asked for its client id, and will answer
        self.wants_reasons = True
        self._limit_s = 0.0  # silence after which the client counts as gone; 0: never
        self.is_feeding = False  # it waits for its turn to be given messages
        self.window = 0  # messages of QoS 1 and 2 that may be in flight to it

    # The transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self.transport = transport
        self.origin = describe_peer(transport, self._listener)
        # What the kernel does not take at once stays in the outbox, which has a bound, and not in the transport.
        if self.origin.kind == "tcp":
            # The lane writes to the socket directly, so the transport must report from the first byte on that it holds something.
            transport.set_write_buffer_limits(0)  # type: ignore[attr-defined]
            self.fd = transport.get_extra_info("socket").fileno()
        else:
            transport.set_write_buffer_limits(1)  # type: ignore[attr-defined]  # 0 never lets a TLS transport go on
        self.context.connections.add(self)
        self._watch(self.context.live.now.limits.connect_timeout)

    def eof_received(self) -> bool | None:
        """The client has closed its side: the transport closes itself."""
        return None

    def connection_lost(self, exc: BaseException | None) -> None:
        """The network connection is gone."""
        self.close(Reason.UNSPECIFIED_ERROR, "the connection was lost", say=False)
        self.transport = None
        self.context.connections.remove(self)
        self.lane.flush()  # presence events and wills
        self._listener.release()

    def close(
        self, reason: int, detail: str, *, say: bool = True, discard_will: bool = False, server_reference: str | None = None
    ) -> None:
        """End the connection, telling an MQTT 5 client why if it may be told. The session lives on as its expiry says."""
        if self.is_closed:
            return
        self.is_closed = True
        was_open = self.is_open
        if say and was_open and self.version == MQTT5:
            properties = Properties(reason_string=detail or None, server_reference=server_reference or None)
            self.send_packet(Disconnect(reason, properties if detail or server_reference else NO_PROPERTIES))
        self.is_open = False
        self.hold(HOLD_CLOSED)
        self.forget_unread()
        self.end_holds()
        transport = self.transport
        self.fd = -1  # another connection may get the same number soon
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
            self.context.closing.on_closed(self, session, reason, detail, discard_will)
        elif session.connection is self:  # its CONNACK still waited for the disk
            self.session = None
            self.context.closing.on_abandoned(session)

    def abort(self) -> None:
        """Drop the network connection at once."""
        if self.transport is not None:
            self.transport.abort()

    def _watch(self, seconds: float) -> None:
        self.context.wheel.watch(self, self.lane.state.now + TICK_S + seconds)  # that clock may be a tick behind

    def check_deadline(self, now: float) -> float:
        """CONNECT must come in time, then something within the keep-alive; a closed connection must be gone soon."""
        if self.is_closed:
            self.abort()
            return 0.0
        if not self.is_open:
            if self.session is not None or self.is_claiming:
                return now + self.context.live.now.limits.connect_timeout  # the client waits for our disk, or for its home
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
            return now + self._limit_s  # the broker is not reading from it
        self.context.statistics.keep_alive_timeouts += 1
        self.close(Reason.KEEP_ALIVE_TIMEOUT, f"nothing heard for {now - self.last_seen:.1f} s")
        return 0.0

    def watch_keep_alive(self, keep_alive: int) -> None:
        """Expect a packet within one and a half times this many seconds [MQTT-3.1.2-22]; 0: no limit."""
        self.keep_alive = keep_alive
        self._limit_s = keep_alive * self.context.live.now.mqtt.keep_alive_factor
        self.last_seen = self.lane.state.now
        if self._limit_s:
            self.context.wheel.watch(self, self.last_seen + self._limit_s)
        else:
            self.context.wheel.forget(self)

    # Packets

    def send_packet(self, packet: Packet) -> bool:
        """Put a packet into the outbox; returns False if it exceeds the client's maximum packet size.

        Reason texts are left out if the client does not want them or they do not fit.
        """
        if not self.wants_reasons and not isinstance(packet, Connack | Disconnect):
            # [MQTT-3.1.2-29]; anything else, such as authentication data, stays.
            packet.properties = replace(packet.properties, reason_string=None, user_properties=())  # type: ignore[union-attr]
        frame = codec.encode_fitting(packet, self.version, self.frame_max_out)
        return frame is not None and self.send_frame(type(packet).__name__.lower(), frame)

    def send_frame(self, kind: str, frame: bytes) -> bool:
        """Put an encoded packet into the outbox; returns False if it exceeds the client's maximum packet size."""
        if len(frame) > self.frame_max_out:
            return False
        self.context.statistics.packets_sent[kind] += 1
        self.send(frame)
        return True

    def on_packet(self, kind: int, flags: int, body: bytes) -> None:
        self.context.packets.on_packet(self, kind, flags, body)

    def refuse(self, reason: int, detail: str, *, say: bool = True, user_properties: tuple[tuple[str, str], ...] = ()) -> None:
        """Reject CONNECT and close; MQTT 3 receives a CONNACK only if it has a code for the reason [MQTT-3.2.2-6]."""
        self.context.statistics.refusals[int(reason)] += 1
        if say and not self.is_closed and (self.version == MQTT5 or connack_return_code(reason) is not None):
            properties = Properties(reason_string=detail or None, user_properties=user_properties)
            self.send_packet(Connack(int(reason), False, properties))
        self.close(reason, detail, say=False)

    def on_violation(self, reason: int, detail: str) -> None:
        """Tell an MQTT 5 client which rule it broke, and close."""
        self.context.statistics.violations[int(reason)] += 1
        log.info("%s %s: %s", self.peer(), self.client_id or "-", detail)
        if self.pending_connect is not None:
            self.refuse(reason, detail)
        else:
            self.close(reason, detail)

    # What the lane hands up

    def on_publish(self, message: Message, route: Route, payload_format: int, packet_id: int) -> int:
        return self.context.publishing.publish(self, message, route, payload_format, packet_id)

    def refuse_publish(self, flow: Flow | None, qos: int, packet_id: int, is_in_doubt: bool) -> None:
        if not self.is_open or self.flow is not flow:
            return
        if qos == 2 and self.unreleased:
            self.unreleased -= 1
        if qos and self.is_v5 and not is_in_doubt:
            self.send_ack(0x40 if qos == 1 else 0x50, packet_id, Reason.QUOTA_EXCEEDED)
        elif qos:
            # MQTT 3 has no way to say no, and an unknown outcome must not be reported: without an answer the client
            # sends the message again.
            self.close(Reason.QUOTA_EXCEEDED, "messages cannot be stored")
        if self.producer is not None:
            self.on_refused(Reason.QUOTA_EXCEEDED)

    def on_refused(self, reason: int) -> None:
        if self.producer is not None and self.producer.stops:
            self.producer.is_stopped = True
            self.close(reason, "a message was rejected, and this producer asked to stop after that")

    def on_part(self, size: int) -> None:
        self.context.parts.note(self, size)

    @property
    def part_bytes(self) -> int:
        """Received bytes that wait for the rest of their packet, or for a hold to end."""
        return 0 if self._rest is None else len(self._rest)

    def received_row(self, packet_id: int) -> Change:
        return self.context.rows.put_received(self.client_id, packet_id)

    def on_release(self, packet_id: int) -> None:
        flow = self.flow
        assert flow is not None  # the connection is open
        change = self.context.rows.remove_received(self.client_id, packet_id)
        self.context.writer.change([change], partial(self._released, flow, packet_id), self._not_released)

    def _released(self, flow: Flow, packet_id: int) -> None:
        flow.forget_received(packet_id)
        if self.is_open and self.flow is flow:
            self.lane.state.counters.pubcomp_sent += 1
            self.send_ack(0x70, packet_id, 0)
            self.lane.flush()

    def _not_released(self, refusal: Refusal) -> None:
        self.close(Reason.QUOTA_EXCEEDED, "the completion of a QoS 2 message cannot be stored")

    def on_bad_topic(self, topic: bytes) -> None:
        levels_max = self.context.live.now.mqtt.topic_levels_max
        reason = topic_error(topic, levels_max)
        self.on_violation(reason, "PUBLISH to an invalid topic name")

    def on_denied(self, topic: bytes) -> bool:
        return self.context.publishing.deny(self, topic)

    def may_publish(self, topic: bytes) -> bool:
        rules = self.rules
        allowed = rules is not None and (rules.unrestricted or rules.may_publish(topic.decode()))
        if allowed:
            self.context.statistics.authorization_allow += 1
        else:
            self.context.statistics.authorization_deny += 1
        return allowed

    def on_room(self) -> None:
        self.context.backlog.give_soon(self)

    def on_trace(self, inbound: bool, frame: bytes) -> None:
        self.context.tracer.on_frame(self.client_id, inbound, frame)

    # What changes at run time

    def is_still_allowed(self) -> bool:
        """Whether the client would be accepted now; invalid rules allow no client."""
        access = self.context.access
        if not access.has_rules:
            return False
        shown = self.credentials(self.user_name)
        return not access.is_banned(shown) if self.is_vouched else access.is_still_allowed(shown, self.user_name)

    def take_rules(self) -> None:
        """Use the current access rules and forget cached decisions."""
        self.rules = self.context.access.rules_for(self.client_id, self.user_name)
        self.is_restricted = not self.rules.unrestricted
        self.forget_verdicts()

    def take_trace(self) -> None:
        """Start or stop tracing this client's frames."""
        self.is_traced = self.client_id in self.context.tracer.clients

    def peer(self) -> str:
        """Where the client is, for logs."""
        return f"{self.origin.peer_host}:{self.origin.peer_port}" if self.origin is not None else "-"

    def is_established(self) -> bool:
        """False if the client has closed its side of the connection, even if it is still to be read."""
        connected = None if self.transport is None else self.transport.get_extra_info("socket")
        return connected is None or is_established(connected)

    def has_left(self) -> bool:
        """Whether a client that has closed its side has sent nothing more than a farewell behind what was handled."""
        if self.part_bytes or self.transport is None or self.origin is None:
            return not self.part_bytes
        rest = unread(self.transport.get_extra_info("socket").fileno(), _FAREWELL_BYTES)
        if self.origin.kind in TLS_KINDS:
            return len(rest) < _FAREWELL_BYTES
        return not rest or (self.origin.kind == "ws" and rest[0] == _WS_CLOSE)

    def credentials(self, user_name: str | None, password: bytes | None = None) -> Credentials:
        """What the client presents: name and password, with its certificate and address."""
        origin = self.origin
        assert origin is not None  # set when the connection was made
        return Credentials(
            client_id=self.client_id,
            user_name=user_name,
            password=password,
            certificate_name=origin.certificate_name,
            peer_host=origin.peer_host,
            listener=origin.listener,
            anonymous_allowed=origin.anonymous_allowed,
        )

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
