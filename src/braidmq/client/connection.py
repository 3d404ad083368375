"""An MQTT client on asyncio: one connection, both directions, every QoS, MQTT 3.1 to 5.

``connect`` returns a client that is logged in. Messages from the server go to a callback as they arrive; ``publish`` sends a
message and returns a future for its acknowledgement, so that many can be in flight. When the connection ends, ``ended`` is set
and every pending future fails with it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

from braidmq.base.errors import ProtocolViolation
from braidmq.client import transport
from braidmq.client.errors import (
    EXIT_CONNECTION_LOST,
    EXIT_KEEP_ALIVE,
    EXIT_NOT_SUPPORTED,
    EXIT_TLS,
    EXIT_TOO_LARGE,
    ClientError,
    reason_in_words,
    refused_login,
    tls_failure,
)
from braidmq.mqtt.codec import FrameSplitter, decode, encode
from braidmq.mqtt.frames import FRAME_BYTES_MAX
from braidmq.mqtt.packet_types import PACKET_ID_MAX
from braidmq.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeOption,
    Unsuback,
    Unsubscribe,
)
from braidmq.mqtt.properties import NO_PROPERTIES, Properties
from braidmq.mqtt.reasons import FAILURE

ANSWER_TIMEOUT_S: Final = 30.0  # for CONNACK, SUBACK and UNSUBACK
CLOSE_TIMEOUT_S: Final = 30.0  # for data that is still to be sent

OnMessage = Callable[[Publish], None]
OnPacket = Callable[[str, Packet], None]


class Lost(ClientError):
    """The connection was not ended by this client; ``reason`` is the server's MQTT 5 code, if it sent one."""

    def __init__(self, sentence: str, reason: int | None = None, exit_code: int = EXIT_CONNECTION_LOST) -> None:
        super().__init__(sentence, exit_code)
        self.reason = reason


class MqttClient(asyncio.Protocol):
    """The client side of one connection; made by ``connect``."""

    def __init__(self, login: Connect, *, inflight_max: int, on_message: OnMessage, on_packet: OnPacket | None) -> None:
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.connack = Connack()
        self._login = login
        self._version = login.version
        self._on_message = on_message
        self._on_packet = on_packet
        self._splitter = FrameSplitter(FRAME_BYTES_MAX)
        self._answers: dict[int, asyncio.Future[Packet]] = {}  # by packet id; 0 for CONNACK
        self._outgoing: dict[int, asyncio.Future[int]] = {}
        self._slots = asyncio.Semaphore(inflight_max)
        self._inflight_max = inflight_max
        self._received: set[int] = set()  # QoS 2 packet ids between PUBLISH and PUBREL
        self._aliases: dict[int, str] = {}
        self._next_id = 1
        self._writable = asyncio.Event()
        self._writable.set()
        self._ping: asyncio.TimerHandle | None = None
        self._pong_awaited = False
        self._closing = False
        self._transport: asyncio.Transport | None = None

    # -- asyncio ---------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed, by either side."""
        if self._closing:
            self._end(None)
        elif isinstance(exc, ssl.SSLError):
            # With TLS 1.3 a server rejects a client's certificate only after the handshake.
            self._end(Lost(tls_failure(exc), exit_code=EXIT_TLS))
        elif 0 in self._answers:
            self._end(Lost("the server closed the connection before it answered CONNECT"))
        else:
            self._end(Lost(f"the connection was lost{f': {exc}' if exc else ''}"))

    def pause_writing(self) -> None:
        """The server reads too slowly."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The server reads again."""
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Handle every complete packet."""
        try:
            for first_byte, body in self._splitter.feed(data):
                packet = decode(first_byte, body, self._version)
                if self._on_packet:
                    self._on_packet("received", packet)
                self._receive(packet)
        except ProtocolViolation as violation:
            self._end(Lost(f"the server violated the protocol: {violation}", exit_code=2))

    # -- for callers -----------------------------------------------------------------------------------------------------

    async def log_in(self) -> Connack:
        """Send CONNECT and await CONNACK; raises ClientError if the server rejects the connection."""
        answer = self._await_answer(0)
        self._send(self._login)
        connack = cast(Connack, await self._in_time(answer, "CONNECT"))
        if connack.reason:
            self._end(None)
            raise refused_login(connack.reason, self._version, connack.properties.reason_string)
        self.connack = connack
        # The server's Receive Maximum may be lower than the client's limit; the surplus slots are taken permanently.
        for _ in range(self._inflight_max - min(self._inflight_max, connack.properties.receive_maximum or PACKET_ID_MAX)):
            await self._slots.acquire()
        self._keep_alive()
        return connack

    async def publish(self, message: Publish) -> asyncio.Future[int]:
        """Send a message, waiting for a free slot if it needs an acknowledgement; the future has the server's reason."""
        self._check_fits(message)
        await self._writable.wait()
        self._raise_if_ended()
        acknowledged: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if message.qos == 0:
            self._send(message)
            acknowledged.set_result(0)
            return acknowledged
        await self._slots.acquire()
        self._raise_if_ended()
        packet_id = self._free_id()
        self._outgoing[packet_id] = acknowledged
        self._send(msgspec.structs.replace(message, packet_id=packet_id))
        return acknowledged

    async def subscribe(self, options: list[SubscribeOption], properties: Properties = NO_PROPERTIES) -> list[int]:
        """Subscribe; returns the server's reason for each filter."""
        packet_id = self._free_id()
        answer = self._await_answer(packet_id)
        self._send(Subscribe(packet_id, options, properties))
        return cast(Suback, await self._in_time(answer, "SUBSCRIBE")).reasons

    async def unsubscribe(self, topic_filters: list[str], properties: Properties = NO_PROPERTIES) -> list[int]:
        """Unsubscribe; returns the server's reason for each filter; MQTT 3 servers send none."""
        packet_id = self._free_id()
        answer = self._await_answer(packet_id)
        self._send(Unsubscribe(packet_id, topic_filters, properties))
        return cast(Unsuback, await self._in_time(answer, "UNSUBSCRIBE")).reasons

    async def disconnect(self, properties: Properties = NO_PROPERTIES) -> None:
        """Send DISCONNECT and close; returns when the connection is closed."""
        if self._transport is None or self._closing or self.ended.done():
            return
        self._closing = True
        self._send(Disconnect(0, properties))
        self._transport.close()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await asyncio.shield(self.ended)
        except TimeoutError:
            self.abort()
        except ClientError:
            pass  # the other side has closed it at the same moment

    def abort(self) -> None:
        """Close at once, without DISCONNECT."""
        self._end(None)

    # -- packets ---------------------------------------------------------------------------------------------------------

    def _receive(self, packet: Packet) -> None:
        match packet:
            case Publish():
                self._receive_message(packet)
            case Puback(packet_id, reason) | Pubcomp(packet_id, reason):
                self._settle(packet_id, reason)
            case Pubrec(packet_id, reason):
                if reason >= FAILURE:
                    self._settle(packet_id, reason)
                else:
                    self._send(Pubrel(packet_id))
            case Pubrel(packet_id):
                self._received.discard(packet_id)
                self._send(Pubcomp(packet_id))
            case Connack():
                self._answer(0, packet)
            case Suback(packet_id) | Unsuback(packet_id):
                self._answer(packet_id, packet)
            case Pingresp():
                self._pong_awaited = False
            case Disconnect(reason, properties):
                said = f'; it says "{properties.reason_string}"' if properties.reason_string else ""
                self._end(Lost(f"the server ended the connection: {reason_in_words(reason)}{said}", reason, reason or 7))
            case _:
                # AUTH too: this client supports no method of enhanced authentication that has a second step.
                name = type(packet).__name__.upper()
                self._end(Lost(f"the server sent {name}, which this client cannot answer", exit_code=EXIT_NOT_SUPPORTED))

    def _receive_message(self, message: Publish) -> None:
        alias = message.properties.topic_alias
        if alias is not None:
            if message.topic:
                self._aliases[alias] = message.topic
            else:
                message = msgspec.structs.replace(message, topic=self._aliases.get(alias, ""))
        if message.qos == 2:
            assert message.packet_id is not None
            again = message.packet_id in self._received
            self._received.add(message.packet_id)
            self._send(Pubrec(message.packet_id))
            if again:
                return
        elif message.qos == 1:
            assert message.packet_id is not None
            self._send(Puback(message.packet_id))
        self._on_message(message)

    def _settle(self, packet_id: int, reason: int) -> None:
        acknowledged = self._outgoing.pop(packet_id, None)
        if acknowledged is not None:
            self._slots.release()
            if not acknowledged.done():
                acknowledged.set_result(reason)

    def _answer(self, packet_id: int, packet: Packet) -> None:
        answer = self._answers.pop(packet_id, None)
        if answer is not None and not answer.done():
            answer.set_result(packet)

    # -- internal --------------------------------------------------------------------------------------------------------

    def _await_answer(self, packet_id: int) -> asyncio.Future[Packet]:
        self._raise_if_ended()
        answer: asyncio.Future[Packet] = asyncio.get_running_loop().create_future()
        self._answers[packet_id] = answer
        return answer

    async def _in_time(self, answer: asyncio.Future[Packet], asked: str) -> Packet:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await answer
        except TimeoutError:
            self._end(None)
            raise Lost(f"the server did not answer {asked} within {ANSWER_TIMEOUT_S:g} s") from None

    def _send(self, packet: Packet) -> None:
        if self._transport is None or self.ended.done():
            return
        frame = encode(packet, self._version)
        if self._on_packet:
            self._on_packet("sending", packet)
        self._transport.write(frame)

    def _check_fits(self, message: Publish) -> None:
        limits = self.connack.properties
        if limits.maximum_qos is not None and message.qos > limits.maximum_qos:
            raise ClientError(f"the server accepts at most QoS {limits.maximum_qos}", 24)
        if message.retain and limits.retain_available is False:
            raise ClientError("the server does not support retained messages", EXIT_NOT_SUPPORTED)
        if limits.maximum_packet_size is not None:
            size = len(encode(msgspec.structs.replace(message, packet_id=1 if message.qos else None), self._version))
            if size > limits.maximum_packet_size:
                raise ClientError(f"the server accepts packets of at most {limits.maximum_packet_size} bytes", EXIT_TOO_LARGE)

    def _free_id(self) -> int:
        while self._next_id in self._outgoing or self._next_id in self._answers:
            self._next_id = self._next_id % PACKET_ID_MAX + 1
        packet_id = self._next_id
        self._next_id = self._next_id % PACKET_ID_MAX + 1
        return packet_id

    def _keep_alive(self) -> None:
        server_says = self.connack.properties.server_keep_alive
        interval_s = self._login.keep_alive if server_says is None else server_says
        if interval_s == 0 or self.ended.done():
            return
        if self._pong_awaited:
            self._end(Lost(f"the server did not answer for {interval_s} s", exit_code=EXIT_KEEP_ALIVE))
            return
        if self._ping is not None:
            self._pong_awaited = True
            self._send(Pingreq())
        self._ping = asyncio.get_running_loop().call_later(interval_s, self._keep_alive)

    def _raise_if_ended(self) -> None:
        if self.ended.done():
            self.ended.result()
            raise Lost("the connection is closed")

    def _end(self, failure: Lost | None) -> None:
        if self.ended.done():
            return
        if self._ping is not None:
            self._ping.cancel()
        if failure is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(failure)
            self.ended.exception()  # retrieved, so that asyncio does not report it as unhandled
        unanswered: list[asyncio.Future[Any]] = [*self._answers.values(), *self._outgoing.values()]
        for waiting in unanswered:
            if not waiting.done():
                waiting.set_exception(failure or Lost("the connection is closed"))
                waiting.exception()
        self._answers.clear()
        for _ in range(len(self._outgoing)):
            self._slots.release()
        self._outgoing.clear()
        self._writable.set()
        if self._transport is not None:
            self._transport.abort()


async def connect(
    endpoint: transport.Endpoint,
    login: Connect,
    *,
    on_message: OnMessage = lambda message: None,
    on_packet: OnPacket | None = None,
    inflight_max: int = 20,
) -> MqttClient:
    """Connect and log in; raises ClientError."""
    client = await transport.connect(
        endpoint, lambda: MqttClient(login, inflight_max=inflight_max, on_message=on_message, on_packet=on_packet)
    )
    try:
        await client.log_in()
    except BaseException:
        client.abort()
        raise
    return client
