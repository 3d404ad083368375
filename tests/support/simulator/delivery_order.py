"""The order in which messages reach a subscriber for the first time, as the session model checks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from braidmq.mqtt.packets import Packet, Publish

Stream = tuple[str, str, int, int]  # publisher, topic, QoS it was published with, QoS it was delivered with


class DeliveryOrder:
    """Numbers of one stream must rise, each at its first delivery. Repeated deliveries may come at any time."""

    def __init__(self, is_sent_twice: Callable[[int], bool], is_refused_unread: Callable[[int], bool]) -> None:
        """``is_sent_twice``: whether the publisher may have sent a number again, so that it may be recorded twice;
        ``is_refused_unread``: whether the broker has rejected a number, and its publisher has not read the rejection.
        """
        self.delivered: set[int] = set()
        self._is_sent_twice = is_sent_twice
        self._is_refused_unread = is_refused_unread
        self._last: dict[Stream, int] = {}
        self._lost: set[int] = set()  # sent with QoS 0 on a connection that ended before the client had read it

    def clear(self) -> None:
        """The session is over."""
        self.delivered.clear()
        self._last.clear()
        self._lost.clear()

    def note_lost(self, packets: Iterable[Packet]) -> None:
        """These were written to a connection, and the client never read them."""
        self._lost |= {int(each.payload) for each in packets if isinstance(each, Publish) and not each.qos and not each.retain}

    def on_delivery(self, number: int, stream: Stream) -> None:
        """The client was given a message that is not a retained one."""
        if number in self.delivered:
            return
        self.delivered.add(number)
        last = self._last.get(stream, -1)
        if number < last:
            # The broker received 3, 4 and then 3 again (DUP), and sent all of them in that order [MQTT-4.6.0-5]. The first copy
            # went out with QoS 0 and was lost with its connection, which ends such a delivery: the client sees only the second.
            is_repeated = stream[3] == 0 and number in self._lost and self._is_sent_twice(number)
            # The broker rejected the first copy and accepted a later message. A copy after a rejection is a new message
            # [MQTT-4.3.3-9]; the publisher, which has not read the rejection, sends one.
            assert is_repeated or self._is_refused_unread(number), f"{number} came after {last}"
        self._last[stream] = max(last, number)
