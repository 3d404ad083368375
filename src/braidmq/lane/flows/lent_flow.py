"""A member of a shared group whose client is connected to another node: its home *lends* it messages, and its node answers.

To the group it is a member like any other: a flow with a window. A packet id in flight is the number of a lease. The outlet does
not encode packets: its owner takes each message and sends it to the node.
"""

from __future__ import annotations

from collections.abc import Callable

from braidmq.lane.flows.delivery import Delivery
from braidmq.lane.flows.log_flow import LogFlow
from braidmq.lane.path.message import Message
from braidmq.lane.path.outlet import Outlet
from braidmq.lane.path.parser import Parser
from braidmq.lane.path.state import State
from braidmq.lane.routing.subscription import Subscription

Lend = Callable[[Message, Subscription, int, int], None]  # a message, the member, the flags of its PUBLISH, and the packet id


class LentOutlet(Outlet):
    """The outlet of all members that are connected to one node."""

    __slots__ = ("is_shut", "lend", "state")

    def __init__(self, state: State, lend: Lend) -> None:
        self.state = state
        self.lend = lend
        self.is_shut = False  # too much waits for the node
        self.is_waiting = self.is_muted = False
        self.turn = -1

    def send_publish(self, message: Message, subscription: Subscription, flags: int, packet_id: int, expiry: int) -> int:
        qos = flags >> 1 & 3
        counters = self.state.counters
        # The flow counts it as a packet to a client; the member's node will.
        if qos == 0:
            counters.publish_qos0_sent -= 1
        elif not flags & 8:
            if qos == 1:
                counters.publish_qos1_sent -= 1
            else:
                counters.publish_qos2_sent -= 1
        self.lend(message, subscription, flags, packet_id)
        return 1

    def forward_frame(self, parser: Parser, v5: bool) -> bool:
        return False

    def send_ack(self, first_byte: int, packet_id: int, reason: int) -> None:
        """Nothing: the node makes the packets."""

    def is_clogged(self) -> bool:
        return self.is_shut

    def is_filling(self) -> bool:
        return self.is_shut

    def flush(self) -> None:
        """Its owner sends what it was lent at the end of the turn."""

    def want_room(self) -> None:
        """Nothing: groups that wait for room are woken by results."""


class LentFlow(LogFlow):
    """Stands for a client on another node, in all groups that it is a member of. What is in flight was lent and not answered."""

    __slots__ = ("is_stored", "owner", "waiting")

    def __init__(self, client_id: str, state: State, bytes_max: int, owner: object) -> None:
        """``bytes_max``: of messages that are lent at a time."""
        super().__init__(client_id, state, 0, bytes_max, False, False)
        self.owner = owner
        self.is_stored = False  # its session is durable: QoS 2 is the session's once its cursor says so
        self.waiting: dict[object, None] = {}  # groups that wait until it takes more

    def lent(self, number: int) -> Delivery | None:
        """The lease of this number; None if there is none."""
        return None if self._inflight is None else self._inflight.get(number)

    def let_go_readable(self) -> int:
        """Nothing: another member may have to get it at once."""
        return 0
