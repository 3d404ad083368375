"""An MQTT client on a broker's connection without a network; what it knows of its session outlives its connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from braidmq.base.config.settings import ListenerSettings
from braidmq.broker.broker import Broker
from braidmq.broker.connection.connection import Connection
from braidmq.broker.listeners.origin import ListenerInfo
from braidmq.mqtt.codec import FrameSplitter, decode, encode
from braidmq.mqtt.packets import (
    MQTT5,
    Connack,
    Connect,
    Packet,
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
from braidmq.mqtt.properties import Properties

_FRAME_MAX = 268_435_460


class InnerTransport(asyncio.Transport):
    """Hands what is written to the client."""

    def __init__(self, on_data: Callable[[bytes], None]) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self._on_data = on_data
        self._is_closing = False
        self.connection: Connection | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._on_data(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It buffers nothing."""

    def pause_reading(self) -> None:
        """Nothing comes by itself."""

    def resume_reading(self) -> None:
        """Nothing comes by itself."""

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing and self.connection is not None:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    def abort(self) -> None:
        self.close()


class InnerClient:
    """One client id. It answers nothing by itself: ``acknowledge`` takes the next step for one message."""

    def __init__(self, client_id: str, expiry_s: int, receive_maximum: int) -> None:
        self.client_id = client_id
        self.expiry_s = expiry_s
        self.accepted: list[tuple[bytes, int]] = []  # payload and QoS of what was new to it
        self.known: dict[int, bytes] = {}  # QoS 2 messages that the broker has not released
        self._unprocessed: dict[int, bytes] = {}  # QoS 1 messages: accepted when they are acknowledged
        self.answers: list[Packet] = []  # due, and not sent
        self.told: list[Packet] = []  # other packets
        self._receive_maximum = receive_maximum
        self._splitter = FrameSplitter(_FRAME_MAX)
        self._transport: InnerTransport | None = None
        self._connection: Connection | None = None

    @property
    def is_connected(self) -> bool:
        """Whether its connection is open."""
        return self._connection is not None and self._connection.is_open

    def connect(self, broker: Broker, clean_start: bool) -> None:
        """Send CONNECT."""
        self.answers, self.told, self._unprocessed = [], [], {}
        self._splitter = FrameSplitter(_FRAME_MAX)
        listener = ListenerInfo("ws", "test", ListenerSettings(bind="127.0.0.1:0"), is_on_loopback=True)
        self._transport = transport = InnerTransport(lambda data: self._on_data(transport, data))
        self._connection = self._transport.connection = broker.make_connection(listener)
        self._connection.connection_made(self._transport)
        properties = Properties(session_expiry_interval=self.expiry_s, receive_maximum=self._receive_maximum)
        self._send(Connect(self.client_id, MQTT5, clean_start, 0, properties=properties))

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Send SUBSCRIBE."""
        self._send(Subscribe(60_000, [SubscribeOption(topic_filter, qos)]))

    def unsubscribe(self, topic_filter: str) -> None:
        """Send UNSUBSCRIBE."""
        self._send(Unsubscribe(60_001, [topic_filter]))

    def lose(self) -> None:
        """Lose the connection."""
        if self._transport is not None:
            self._transport.close()
        self.forget_connection()

    def forget_connection(self) -> None:
        """The broker is gone, and the connection with it."""
        self._transport = self._connection = None
        self.answers, self._unprocessed = [], {}

    def acknowledge(self) -> bool:
        """Send the answer that has been due longest; False if none is."""
        if not self.answers or not self.is_connected:
            return False
        answer = self.answers.pop(0)
        if isinstance(answer, Puback):
            self.accepted.append((self._unprocessed.pop(answer.packet_id), 1))
        self._send(answer)
        return True

    def has_heard(self, kind: type[Connack] | type[Suback] | type[Unsuback]) -> bool:
        """Whether a packet of this kind has come on this connection."""
        return any(isinstance(packet, kind) for packet in self.told)

    def _send(self, packet: Packet) -> None:
        assert self._connection is not None, "not connected"
        data = encode(packet, MQTT5)
        view = self._connection.get_buffer(-1)
        view[: len(data)] = data
        self._connection.buffer_updated(len(data))

    def _on_data(self, transport: InnerTransport, data: bytes) -> None:
        if transport is not self._transport:
            return  # it has left this connection
        for first, body in self._splitter.feed(data):
            self._on_packet(decode(first, body, MQTT5))

    def _on_packet(self, packet: Packet) -> None:
        match packet:
            case Publish():
                self._on_publish(packet)
            case Pubrel():
                self.known.pop(packet.packet_id, None)
                self.answers.append(Pubcomp(packet.packet_id))
            case Connack():
                if not packet.session_present:
                    self.known.clear()
                self.told.append(packet)
            case _:
                self.told.append(packet)

    def _on_publish(self, packet: Publish) -> None:
        packet_id = packet.packet_id
        if packet_id is None:
            self.accepted.append((packet.payload, 0))
        elif packet.qos == 1:
            self._unprocessed[packet_id] = packet.payload
            self.answers.append(Puback(packet_id))
        else:
            if packet_id not in self.known:
                self.known[packet_id] = packet.payload
                self.accepted.append((packet.payload, 2))
            assert self.known[packet_id] == packet.payload, f"{self.client_id} knows {packet_id} as another message"
            self.answers.append(Pubrec(packet_id))
