"""A durable subscriber that keeps exactly what the protocol asks of a receiver, and notes every violation by the broker."""

from __future__ import annotations

import asyncio

from braidmq.mqtt.packets import MQTT5, Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback, Subscribe, SubscribeOption
from braidmq.mqtt.properties import Properties
from tests.durability.campaigns.client import EXPIRY_S, DurableClient, Scene
from tests.durability.campaigns.ledger import Reader

SUBSCRIBE_ID = 1
ANSWER_AFTER_MAX_S = 0.004


class Subscriber(DurableClient):
    """Subscribes once, then only comes back. Answers come late by a random moment, so that any of them can be under way."""

    def __init__(
        self, name: str, version: int, qos: int, topic_filter: str, scene: Scene, *, receive_maximum: int, drop_one_in: int = 0
    ) -> None:
        super().__init__(name, version, scene, drop_one_in)
        self.reader = Reader(name, qos)
        self.is_subscribed = asyncio.Event()
        self._filter = topic_filter
        self._receive_maximum = receive_maximum
        self._unreleased: dict[int, bytes] = {}  # QoS 2: received, and PUBREL has not come; survives connections
        self._released: set[int] = set()  # identifiers whose last QoS 2 message came to its end
        # Of this connection alone:
        self._unanswered: dict[int, bytes] = {}  # messages whose handshake is not over
        self._owed: list[Packet] = []
        self._answering: asyncio.TimerHandle | None = None

    def properties(self) -> Properties:
        return Properties(session_expiry_interval=EXPIRY_S, receive_maximum=self._receive_maximum)

    def connected(self) -> None:
        self._owed.clear()
        self._unanswered.clear()
        if not self.is_subscribed.is_set():
            self.send(Subscribe(SUBSCRIBE_ID, [SubscribeOption(self._filter, self.reader.qos)]))

    def received(self, packet: Packet) -> None:
        match packet:
            case Suback():
                assert packet.reasons == [self.reader.qos], f"{self.name}: {packet}"
                self.is_subscribed.set()
            case Publish(qos=1):
                self._take_qos1(packet)
            case Publish(qos=2):
                self._take_qos2(packet)
            case Pubrel():
                self._take_release(packet.packet_id)
            case _:
                self.complain(f"unexpected {packet}")

    def _take_qos1(self, packet: Publish) -> None:
        packet_id = self._check_id(packet)
        if packet_id in self._unreleased:
            self.complain(f"{packet_id} is used for QoS 1 before its QoS 2 message was released")
        self.reader.take(packet.payload, 1)
        self._answer(Puback(packet_id))

    def _take_qos2(self, packet: Publish) -> None:
        packet_id = self._check_id(packet)
        known = self._unreleased.get(packet_id)
        if known is None:
            self._unreleased[packet_id] = packet.payload
            self._released.discard(packet_id)
            self.reader.take(packet.payload, 2)
        elif known != packet.payload:
            self.complain(f"{packet_id} is used for another message before it was released")
        elif not packet.dup:
            self.complain(f"{packet_id} is sent again without DUP")  # [MQTT-3.3.1-1]
        self._answer(Pubrec(packet_id))

    def _take_release(self, packet_id: int) -> None:
        if self._unreleased.pop(packet_id, None) is None and packet_id not in self._released:
            self.complain(f"PUBREL for {packet_id}, which was never received")
        self._released.add(packet_id)
        self._answer(Pubcomp(packet_id))

    def _check_id(self, packet: Publish) -> int:
        assert packet.packet_id is not None
        if packet.packet_id in self._unanswered:
            self.complain(f"{packet.packet_id} is used twice at once on one connection")
        self._unanswered[packet.packet_id] = packet.payload
        if self.version == MQTT5 and len(self._unanswered) > self._receive_maximum:
            self.complain(f"{len(self._unanswered)} messages in flight, {self._receive_maximum} are allowed")  # [MQTT-3.3.4-9]
        return packet.packet_id

    def _answer(self, packet: Packet) -> None:
        self._owed.append(packet)
        if self._answering is None:
            delay_s = self.random.uniform(0.0, ANSWER_AFTER_MAX_S)
            self._answering = asyncio.get_running_loop().call_later(delay_s, self._pay)

    def _pay(self) -> None:
        self._answering = None
        for packet in self._owed:
            if isinstance(packet, Puback | Pubcomp):
                self._unanswered.pop(packet.packet_id, None)
        self.send(*self._owed)
        self._owed.clear()
