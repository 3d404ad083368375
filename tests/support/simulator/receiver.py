"""The receiving half of a session on a broker in the same process; what it knows of the session outlives its connections."""

from __future__ import annotations

import asyncio

from braidmq.broker.broker import Broker
from braidmq.broker.connection.connection import Connection
from braidmq.mqtt.packets import (
    MQTT5,
    Connack,
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
from tests.support.simulator.peer import Peer


class Receiver:
    """One client id, with a ``Peer`` while it is connected. It answers nothing by itself: ``acknowledge`` takes the next step for
    one message.
    """

    def __init__(self, client_id: str, expiry_s: int, receive_maximum: int) -> None:
        self.client_id = client_id
        self.expiry_s = expiry_s
        self.accepted: list[tuple[bytes, int]] = []  # payload and QoS of what was new to it
        self.known: dict[int, bytes] = {}  # QoS 2 messages that the broker has not released
        self._unprocessed: dict[int, bytes] = {}  # QoS 1 messages: accepted when they are acknowledged
        self.answers: list[Packet] = []  # due, and not sent
        self.told: list[Packet] = []  # other packets
        self._receive_maximum = receive_maximum
        self._peer: Peer | None = None

    @property
    def is_connected(self) -> bool:
        """Whether its connection is open."""
        return self._peer is not None and self._peer.connection.is_open

    @property
    def connection(self) -> Connection:
        """The broker's end of its connection."""
        assert self._peer is not None, "not connected"
        return self._peer.connection

    def connect(self, broker: Broker, clean_start: bool) -> None:
        """Send CONNECT."""
        self.answers, self.told, self._unprocessed = [], [], {}
        # A connection that this one takes over is no longer listened to.
        self._peer = peer = Peer(
            broker, MQTT5, asyncio.get_running_loop(), on_packet=lambda packet: self._on_packet(peer, packet)
        )
        peer.request_connect(self.client_id, clean=clean_start, expiry=self.expiry_s, receive_maximum=self._receive_maximum)

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Send SUBSCRIBE."""
        self.send(Subscribe(60_000, [SubscribeOption(topic_filter, qos)]))

    def unsubscribe(self, topic_filter: str) -> None:
        """Send UNSUBSCRIBE."""
        self.send(Unsubscribe(60_001, [topic_filter]))

    def lose(self) -> None:
        """Lose the connection."""
        if self._peer is not None:
            self._peer.cut()
        self.forget_connection()

    def forget_connection(self) -> None:
        """The broker is gone, and the connection with it."""
        self._peer = None
        self.answers, self._unprocessed = [], {}

    def acknowledge(self) -> bool:
        """Send the answer that has been due longest; False if none is."""
        if not self.answers or not self.is_connected:
            return False
        answer = self.answers.pop(0)
        if isinstance(answer, Puback):
            self.accepted.append((self._unprocessed.pop(answer.packet_id), 1))
        self.send(answer)
        return True

    def has_heard(self, kind: type[Connack] | type[Suback] | type[Unsuback]) -> bool:
        """Whether a packet of this kind has come on this connection."""
        return any(isinstance(packet, kind) for packet in self.told)

    def send(self, *packets: Packet) -> None:
        """Hand packets to the broker."""
        assert self._peer is not None, "not connected"
        self._peer.send(*packets)

    def _on_packet(self, peer: Peer, packet: Packet) -> None:
        if peer is not self._peer:
            return
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
