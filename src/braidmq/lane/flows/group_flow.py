"""A shared group as a destination of routes: a flow that passes messages to the group, which selects a member.

Selecting a member takes twenty times as long as sending to a client. Assigning a message for very many groups at once would
delay all later messages, so each group *defers* it to a later turn. Later messages of the group are deferred too, which keeps
their order. A deferred recorded message counts as not offered: the group's positions stay below it (``positions``).
"""

from __future__ import annotations

from braidmq.lane.flows.log_flow import LogFlow
from braidmq.lane.path.message import Message
from braidmq.lane.path.ports import Distributor
from braidmq.lane.path.state import State
from braidmq.lane.routing.subscription import Subscription

# For the deferred messages of all groups of the node. Beyond it they leave recorded messages to the log.
DEFERRED_BYTES_MAX = 64 * 1024 * 1024
_DEFERRED_BYTES_MAX = DEFERRED_BYTES_MAX
_PLACE_BYTES = 64  # the cost of one deferral; the message itself is in memory once for all groups


class GroupFlow(LogFlow):
    """The destination that represents a group in the routes."""

    __slots__ = ("_deferred", "_deferred_bytes", "group")

    def __init__(self, name: str, state: State, group: Distributor | None, is_durable: bool) -> None:
        super().__init__(name, state, 0, 0, False, is_durable)
        self.group = group
        self._deferred: list[Message] | None = None
        self._deferred_bytes = 0

    def deliver(self, message: Message, subscription: Subscription, qos: int, retain: bool) -> None:
        """Let the group give the message to one member, now or in a later turn."""
        state = self.state
        group = self.group
        if group is None:
            return
        if self._deferred is None and not state.is_deferring:
            group.offer(message)
            return
        is_readable = message.timestamp and message.qos
        if is_readable and not self.is_following:
            return  # the group is behind and will read it from the log
        if state.deferred_bytes > _DEFERRED_BYTES_MAX:
            if is_readable:
                group.fall_behind()
                group.wake()
            else:
                group.hand_out_deferred()
                group.offer(message)
            return
        if self._deferred is None:
            self._deferred = []
            state.deferring.append(self)
            if state.on_deferring is not None:
                state.on_deferring()
        size = _PLACE_BYTES if state.is_deferring else _PLACE_BYTES + message.cost()
        self._deferred.append(message)
        self._deferred_bytes += size
        state.deferred_bytes += size

    def take_deferred(self) -> list[Message]:
        """Take the deferred messages, in order; the caller must deliver them."""
        deferred = self._deferred
        if deferred is None:
            return []
        self._deferred = None
        self.state.deferred_bytes -= self._deferred_bytes
        self._deferred_bytes = 0
        return deferred

    def positions_before(self, deferred: list[Message]) -> list[int]:
        """The group's positions in each shard if these messages had not been delivered."""
        positions = self.state.offered(self.seen)
        for message in deferred:
            if message.timestamp and message.qos and positions[message.shard] >= message.timestamp:
                positions[message.shard] = message.timestamp - 1
        return positions

    def cursor(self) -> list[int]:
        """The group's positions, by shard, while it follows."""
        return self.positions_before([] if self._deferred is None else self._deferred)

    def succeed(self, before: GroupFlow) -> None:
        """Replace another flow as the group's destination."""
        self.seen = before.seen
        self.is_following = before.is_following
        self._deferred = before._deferred
        self._deferred_bytes = before._deferred_bytes
        before._deferred = None
        before._deferred_bytes = 0

    def end(self) -> None:
        """The group has ended."""
        self.take_deferred()
        self.group = None
