"""The receiver of a durable session in the model: it keeps its half of the state and checks every packet against the protocol.

It opens no connection: a ``Peer`` hands it packets and sends its answers. It stays apart from ``receiver``, which is lenient
where another subject is tested, because it is the oracle of the session model.

It knows what the specification lets it know: packet ids, its QoS 2 state, what it has answered. It survives every crash of the
broker, and carries on as a client must: QoS 2 messages are told apart by packet id alone.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from braidmq.mqtt.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel


class Sent(Struct, frozen=True):
    """A PUBLISH of QoS 1 or 2 that came. A retained one is another message than the one it was when it was published."""

    number: int
    qos: int
    is_retained: bool


class StrictReceiver:
    """Takes packets in the order of their arrival; ``answers`` is what it owes the broker."""

    def __init__(self, on_delivery: Callable[[int, Publish], None]) -> None:
        self.on_delivery = on_delivery  # to the application: the message's number, and the packet
        self.answers: list[Puback | Pubrec | Pubcomp] = []
        self.answered: set[int] = set()  # numbers that the broker may let go of: PUBACK or PUBREC was sent
        self.window = 0
        self.life = 0  # of the broker
        self.known: dict[int, Sent] = {}  # QoS 2, by packet id, until PUBREL
        self._open: set[int] = set()  # PUBLISH on this connection, not settled
        self._unsettled: dict[int, Sent] = {}  # not settled, by packet id, in the order in which they first came
        self._received: set[int] = set()  # packet ids that PUBREC was sent for
        self._released: set[int] = set()  # numbers of QoS 2 messages, not retained, that PUBREL has come for
        self._last_life: dict[int, int] = {}  # in which life of the broker a number last came with QoS 1, not retained
        self._missing: list[tuple[int, Sent]] = []  # what must be sent again on this connection, in this order

    def connected(self, window: int, is_present: bool, *, has_crashed: bool) -> None:
        """A new connection begins."""
        self.window = window
        self._open.clear()
        self.answers.clear()
        if not is_present:
            self.known.clear()
            self._unsettled.clear()
            self._received.clear()
            self._released.clear()
            self._last_life.clear()
        # QoS 1 is written down when there is time: after a crash it may come as if for the first time.
        self._missing = [
            (packet_id, sent)
            for packet_id, sent in self._unsettled.items()
            if packet_id not in self._received and (sent.qos == 2 or not has_crashed)
        ]
        if has_crashed:
            self._unsettled = {key: sent for key, sent in self._unsettled.items() if sent.qos == 2}

    def take(self, packet: Packet, is_sent_twice: Callable[[int], bool]) -> None:
        """Look at a packet. ``is_sent_twice``: whether the publisher itself may have sent a number again."""
        match packet:
            case Publish(qos=0):
                self.on_delivery(int(packet.payload), packet)
            case Publish():
                self._take_publish(packet, int(packet.payload), is_sent_twice)
            case Pubrel():
                self._take_pubrel(packet.packet_id)
            case _:
                raise AssertionError(f"unexpected {packet!r}")

    def _take_publish(self, packet: Publish, number: int, is_sent_twice: Callable[[int], bool]) -> None:
        packet_id = packet.packet_id
        assert packet_id is not None
        assert packet_id not in self._open, "a packet id in use was taken again"
        self._open.add(packet_id)
        assert len(self._open) <= self.window, "more in flight than the Receive Maximum"
        sent = Sent(number, packet.qos, packet.retain)
        self._check_order_of_resends(packet, packet_id, sent)
        if packet.qos == 1:
            self._take_qos_1(packet, packet_id, sent, is_sent_twice)
        else:
            self._take_qos_2(packet, packet_id, sent)

    def _take_qos_1(self, packet: Publish, packet_id: int, sent: Sent, is_sent_twice: Callable[[int], bool]) -> None:
        number = sent.number
        assert packet_id not in self.known, "QoS 1 under the packet id of an open QoS 2 message"
        if not packet.retain:
            is_new_life = self._last_life.get(number) != self.life
            assert packet.dup or is_new_life or is_sent_twice(number), "QoS 1 sent again without DUP"
            self._last_life[number] = self.life
        self._put_unsettled(packet_id, sent)
        self.on_delivery(number, packet)
        self.answers.append(Puback(packet_id))

    def _take_qos_2(self, packet: Publish, packet_id: int, sent: Sent) -> None:
        assert sent.is_retained or sent.number not in self._released, "QoS 2 sent again after PUBREL"
        if packet_id not in self.known:
            self.known[packet_id] = sent
            self._received.discard(packet_id)
            self._unsettled.pop(packet_id, None)
            self._put_unsettled(packet_id, sent)
            self.on_delivery(sent.number, packet)
        else:
            assert packet.dup, "QoS 2 sent again without DUP"
        assert self.known[packet_id] == sent, "another message under an id that is not released: it is swallowed"
        self.answers.append(Pubrec(packet_id))

    def _put_unsettled(self, packet_id: int, sent: Sent) -> None:
        """Its place is before what has still to come again: QoS 1 from before a crash, which the broker may know or not."""
        self._unsettled[packet_id] = sent
        for missing_id, missing in self._missing:
            self._unsettled.pop(missing_id, None)
            self._unsettled[missing_id] = missing

    def _check_order_of_resends(self, packet: Publish, packet_id: int, sent: Sent) -> None:
        """What was open is sent again before anything new, in the order of the first time [MQTT-4.6.0-1]."""
        if not packet.dup:
            assert not self._missing, f"something new before {self._missing} was sent again"
            return
        again = (packet_id, sent)
        if again in self._missing:
            assert self._missing[0] == again, "sent again in another order"
            self._missing.pop(0)

    def _take_pubrel(self, packet_id: int) -> None:
        assert packet_id in self._received, "PUBREL without PUBREC"
        sent = self.known.pop(packet_id, None)
        if sent is not None and not sent.is_retained:
            self._released.add(sent.number)
        self.answers.append(Pubcomp(packet_id))

    def answer(self, place: int) -> Puback | Pubrec | Pubcomp:
        """Take an answer off the list, to be sent now."""
        answer = self.answers.pop(place)
        packet_id = answer.packet_id
        sent = self._unsettled.get(packet_id)
        if isinstance(answer, Pubrec):
            self._received.add(packet_id)
        else:
            self._open.discard(packet_id)
            self._unsettled.pop(packet_id, None)
        if sent is not None and not sent.is_retained:
            self.answered.add(sent.number)
        return answer
