"""A publisher that resends what is not acknowledged, with the same packet identifiers, in the same order."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from braidmq.mqtt.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel
from braidmq.mqtt.reasons import Reason
from tests.durability.campaigns.client import DurableClient, Scene
from tests.durability.campaigns.ledger import make_payload

# More than a level of the learned layout takes as it is: some topics are static, some are not.
TOPICS = 13
ROOT = "camp"


class InFlight(Struct):
    """A message whose handshake is not over."""

    topic: str
    payload: bytes
    is_released: bool = False  # QoS 2: PUBREC came, PUBREL was sent


class Publisher(DurableClient):
    """Publishes numbered messages without end, ``window`` of them in flight, until ``finish``."""

    def __init__(self, name: str, version: int, qos: int, scene: Scene, *, window: int, drop_one_in: int = 0) -> None:
        super().__init__(name, version, scene, drop_one_in)
        self.qos = qos
        self._window = window
        self._may_publish = scene.may_publish
        self._inflight: dict[int, InFlight] = {}  # in the order of sending
        self._again: list[InFlight] = []  # refused: to be sent as if for the first time
        self._sent = 0
        self._is_finishing = False
        self._is_finished = asyncio.Event()

    async def finish(self) -> None:
        """Publish nothing new; return when everything is acknowledged to its end."""
        self._is_finishing = True
        self._check_finished()
        await self._is_finished.wait()

    def go_on(self) -> None:
        """New messages may be published again."""
        if self._is_connected.is_set():
            self._publish_more()

    def connected(self) -> None:
        # [MQTT-4.4.0-1], [MQTT-4.6.0-1]: again, in the original order.
        self.send(*(self._packet(packet_id, each, dup=True) for packet_id, each in self._inflight.items()))
        self._publish_more()

    def received(self, packet: Packet) -> None:
        match packet:
            case Puback() if self.qos == 1:
                self._end(packet.packet_id, packet.reason)
            case Pubrec() if self.qos == 2:
                self._release(packet.packet_id, packet.reason)
            case Pubcomp() if self.qos == 2:
                self._complete(packet.packet_id)
            case _:
                self.complain(f"unexpected {packet}")

    def _end(self, packet_id: int, reason: int) -> None:
        """PUBACK, or a PUBREC that refuses: the identifier is free."""
        each = self._inflight.pop(packet_id, None)
        if each is None:
            self.complain(f"acknowledgement of {packet_id}, which is not in flight")
            return
        if reason < 0x80:
            self.ledger.acknowledge(each.payload)
        elif reason == Reason.QUOTA_EXCEEDED:
            self._again.append(each)
        else:
            self.complain(f"a message is refused with 0x{reason:02X}")
        self._publish_more()

    def _release(self, packet_id: int, reason: int) -> None:
        each = self._inflight.get(packet_id)
        if each is None or reason >= 0x80:
            self._end(packet_id, reason)
            return
        # A second PUBREC is legal: the first one may have answered the PUBLISH, the second its repetition.
        each.is_released = True
        self.ledger.acknowledge(each.payload)
        self.send(Pubrel(packet_id))

    def _complete(self, packet_id: int) -> None:
        # 0x92 is legal: the broker may have been killed after it forgot the identifier and before it could say so.
        each = self._inflight.pop(packet_id, None)
        if each is None or not each.is_released:
            self.complain(f"PUBCOMP for {packet_id}, which was not released")
        self._publish_more()

    def _publish_more(self) -> None:
        packets = []
        while len(self._inflight) < self._window and (each := self._next()) is not None:
            packet_id = self._free_id()
            self._inflight[packet_id] = each
            packets.append(self._packet(packet_id, each, dup=False))
        self.send(*packets)
        self._check_finished()

    def _next(self) -> InFlight | None:
        if self._again:
            return self._again.pop(0)
        if self._is_finishing or not self._may_publish():
            return None
        number, topic = divmod(self._sent, TOPICS)
        self._sent += 1
        payload = make_payload(self.name, topic, number)
        self.ledger.publish(payload, self.qos)
        return InFlight(f"{ROOT}/{self.name}/{topic}", payload)

    def _free_id(self) -> int:
        # The lowest: identifiers are used again at once, which is what a broker that forgets too late stumbles over.
        return next(number for number in range(1, 65536) if number not in self._inflight)

    def _packet(self, packet_id: int, each: InFlight, *, dup: bool) -> Packet:
        if each.is_released:
            return Pubrel(packet_id)
        return Publish(each.topic, each.payload, self.qos, dup=dup, packet_id=packet_id)

    def _check_finished(self) -> None:
        if self._is_finishing and not self._inflight and not self._again:
            self._is_finished.set()
