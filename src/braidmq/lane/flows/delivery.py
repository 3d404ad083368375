"""A delivery: one message for one session, from its packet id to its last acknowledgement."""

from __future__ import annotations

from braidmq.lane.path.message import Message
from braidmq.lane.routing.subscription import Subscription


class Delivery:
    """One message on its way to one session."""

    __slots__ = (
        "is_live",
        "is_ready",
        "is_released",
        "is_sent",
        "message",
        "qos",
        "retain",
        "shard",
        "subscription",
        "timestamp",
    )

    def __init__(self, message: Message | None, subscription: Subscription, qos: int, retain: bool) -> None:
        self._set(message, subscription, qos, retain)

    def _set(self, message: Message | None, subscription: Subscription, qos: int, retain: bool) -> None:
        self.message = message  # None once the client has it (QoS 2, released), and while it is only in the log
        self.shard = 0
        self.timestamp = 0  # its position in the log
        self.subscription = subscription
        self.qos = qos
        self.retain = retain
        self.is_released = False
        self.is_sent = False  # the client may have received it
        self.is_live = False  # on the current connection
        self.is_ready = True  # False: its next step must be on disk before it is sent

    def is_unread(self) -> bool:
        """Whether its message is only in the log, and must be read before it is sent."""
        return self.message is None and not self.is_released

    def place(self) -> tuple[int, int]:
        """Shard and timestamp of its message in the log; a timestamp of 0: it is not recorded."""
        message = self.message
        return (self.shard, self.timestamp) if message is None else (message.shard, message.timestamp)


def new_delivery(message: Message, subscription: Subscription, qos: int, retain: bool) -> Delivery:
    """A new delivery. Compiled, this is faster than the constructor, whose arguments must be Python objects."""
    delivery = Delivery.__new__(Delivery)
    delivery._set(message, subscription, qos, retain)
    return delivery
