"""A publisher of the model: it sends, is cut off, comes back and sends again, with a session of its own or without."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from braidmq.mqtt.packets import Disconnect, Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel
from braidmq.mqtt.reasons import Reason
from tests.support.simulator.peer import Peer
from tests.support.simulator.world import World


class Outgoing(Struct):
    """A message that is not settled."""

    number: int
    publish: Publish
    is_released: bool = False


class ModelPublisher:
    """It takes the lowest packet id that is free, so that ids are used again as soon as they may be."""

    def __init__(
        self, client_id: str, *, is_durable: bool, on_acknowledged: Callable[[int], None], on_refused: Callable[[int], None]
    ) -> None:
        self.client_id = client_id
        self.is_durable = is_durable
        self.sent_twice: set[int] = set()  # QoS 1 messages that may be recorded twice
        self.refused_unread: set[int] = set()  # messages whose rejection was lost with the connection
        self._on_acknowledged = on_acknowledged
        self._on_refused = on_refused
        self._peer: Peer | None = None
        self._outgoing: dict[int, Outgoing] = {}

    @property
    def is_connected(self) -> bool:
        """Whether it can send."""
        return self._peer is not None and not self._peer.is_closed

    def connect(self, world: World) -> None:
        """Come back, and send again what is open."""
        self._peer = world.connect(self.client_id, expiry=1000 if self.is_durable else 0)
        if not self._peer.connack.session_present:
            self._outgoing.clear()
        for packet_id, outgoing in list(self._outgoing.items()):
            if outgoing.is_released:
                self._peer.send(Pubrel(packet_id))
                continue
            outgoing.publish.dup = True
            if outgoing.publish.qos == 1:
                self.sent_twice.add(outgoing.number)
            self._peer.send(outgoing.publish)

    def lose(self) -> None:
        """The network is gone."""
        if self._peer is not None:
            self._peer.cut()
        self.forget_connection()

    def forget_connection(self) -> None:
        """The connection is over; what was written to it and not taken is lost."""
        for packet in self._peer.take() if self._peer is not None else ():
            if isinstance(packet, Puback | Pubrec) and packet.reason == Reason.QUOTA_EXCEEDED:
                self.refused_unread.add(self._outgoing[packet.packet_id].number)
        self._peer = None

    def publish(self, world: World, number: int, topic: str, qos: int, retain: bool) -> None:
        """Send a message without waiting for its outcome."""
        if not self.is_connected:
            self.absorb()
            self.connect(world)
        assert self._peer is not None
        packet_id = next(each for each in range(1, 1000) if each not in self._outgoing) if qos else None
        packet = Publish(topic, b"%d" % number, qos, retain, packet_id=packet_id)
        if packet_id is not None:
            self._outgoing[packet_id] = Outgoing(number, packet)
        self._peer.send(packet)

    def absorb(self) -> None:
        """Take what has arrived."""
        for packet in self._peer.take() if self._peer is not None else ():
            self._take(packet)

    def _take(self, packet: Packet) -> None:
        assert self._peer is not None
        match packet:
            case Puback() | Pubrec() if packet.reason == Reason.QUOTA_EXCEEDED:
                self._on_refused(self._outgoing.pop(packet.packet_id).number)
            case Puback():
                assert packet.reason in (0, 0x10)
                self._on_acknowledged(self._outgoing.pop(packet.packet_id).number)
            case Pubrec():
                assert packet.reason in (0, 0x10)
                outgoing = self._outgoing[packet.packet_id]
                outgoing.is_released = True
                self._on_acknowledged(outgoing.number)
                if self.is_connected:
                    self._peer.send(Pubrel(packet.packet_id))
            case Pubcomp():
                del self._outgoing[packet.packet_id]
            case Disconnect(reason=Reason.QUOTA_EXCEEDED | Reason.SESSION_TAKEN_OVER):
                pass
            case _:
                raise AssertionError(f"unexpected {packet!r}")
