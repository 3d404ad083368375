"""The queue of a session: messages that wait for its client, the memory they take, and the publishers that wait for room.

The queue is bounded in messages and bytes. If a connected client's queue is more than half full it is *congested*: publishers
are held until it has drained, for a limited time. Everything in flight or queued counts as *held* memory, within a limit for the
whole node (``State.held_bytes_max``).
"""

from __future__ import annotations

from collections import deque

from braidmq.lane.flows.delivery import Delivery, new_delivery
from braidmq.lane.flows.inbound import Inbound
from braidmq.lane.path.message import Message
from braidmq.lane.path.outlet import Outlet
from braidmq.lane.path.state import State
from braidmq.lane.routing.subscription import Subscription

HELD_COST = 300  # overhead in bytes of a message that is in flight or queued
HEAVY_BYTES = 256 * 1024  # held bytes of a session, from which on it may lose messages when memory is short
_HELD_COST, _HEAVY_BYTES = HELD_COST, HEAVY_BYTES  # C constants in the compiled form


class SessionQueue(Inbound):
    """The messages that wait for one client; the part of a flow that needs no window."""

    __slots__ = (
        "_queue", "_waiting", "channel", "client_id", "congested_at", "dropped", "held_bytes", "is_heavy", "is_over",
        "is_stalled", "queue_bytes", "queue_bytes_max", "queue_messages_max", "state",
    )  # fmt: skip

    def __init__(self, client_id: str, state: State, queue_messages_max: int, queue_bytes_max: int) -> None:
        super().__init__()
        self.client_id = client_id
        self.state = state
        self.queue_messages_max = queue_messages_max
        self.queue_bytes_max = queue_bytes_max
        self.channel: Outlet | None = None
        self.queue_bytes = 0
        self.held_bytes = 0  # memory of messages in flight and queued
        self.is_heavy = False  # ``held_bytes`` is above ``HEAVY_BYTES``
        self.is_over = False  # the session has ended: it accepts no messages, though cached routes may still lead here
        self.dropped = 0  # messages that this client never received
        self.congested_at = 0.0  # when the queue became more than half full; 0: it is not
        self.is_stalled = False  # publishers have waited in vain: do not hold them again until the queue has moved
        # Most sessions never need these, so they are created on first use.
        self._queue: deque[Delivery] | None = None
        self._waiting: dict[Outlet, None] | None = None  # held publishers, in the order of arrival

    def _enqueue(self, message: Message, subscription: Subscription, qos: int, retain: bool) -> None:
        if self.is_over:
            self.state.counters.dropped_session_ended += 1
            self._drop("session_ended", message)
            return
        queue = self._queue
        if queue is None:
            queue = self._queue = deque()
        cost = message.cost()
        waiting = len(queue)
        if waiting >= self.queue_messages_max or self.queue_bytes + cost > self.queue_bytes_max:
            self.state.counters.dropped_queue_full += 1
            self._drop("queue_full", message)
            return
        if self.state.held_bytes + cost > self.state.held_bytes_max and not self.state.has_room_for(self, cost):
            self._drop_for_memory(message)
            return
        queue.append(new_delivery(message, subscription, qos, retain))
        self._hold(cost + _HELD_COST)
        self.queue_bytes += cost
        self.state.queued_messages += 1
        self.state.queued_bytes += cost
        channel = self.channel
        if channel is not None and not self.is_stalled and self.is_congested():
            self.state.congested = self
            if not self.congested_at:
                self.congested_at = self.state.now
            if channel.is_waiting:
                # Its acknowledgements are queued behind its own messages: holding it as well would be a deadlock.
                channel.is_waiting = False
                channel.schedule_release()

    def _uncount(self, message: Message) -> None:
        """Subtract a message that has left the queue."""
        cost = message.cost()
        self.queue_bytes -= cost
        self.state.queued_messages -= 1
        self.state.queued_bytes -= cost
        self._unhold(cost + _HELD_COST)

    def queue_messages(self) -> int:
        """The number of messages in the queue."""
        return 0 if self._queue is None else len(self._queue)

    def has_place(self, message: Message) -> bool:
        """Whether the queue has room for this message."""
        if self.is_over:
            return False
        if self._queue is None:
            return self.queue_messages_max > 0 and message.cost() <= self.queue_bytes_max
        return len(self._queue) < self.queue_messages_max and self.queue_bytes + message.cost() <= self.queue_bytes_max

    # Publishers

    def is_congested(self) -> bool:
        """Whether publishers should wait: the queue is more than half full. The rest is for messages already under way."""
        queue = self._queue
        if queue is None:
            return False
        return len(queue) * 2 > self.queue_messages_max or self.queue_bytes * 2 > self.queue_bytes_max

    def hold(self, publisher: Outlet) -> None:
        """Add a publisher to release when the queue has drained."""
        if self._waiting is None:
            self._waiting = {}
        self._waiting[publisher] = None

    def forget_publisher(self, publisher: Outlet) -> None:
        """The publisher no longer waits for this queue."""
        if self._waiting is not None:
            self._waiting.pop(publisher, None)

    def release_publishers(self) -> None:
        """Release every held publisher."""
        waiting = self._waiting
        self._waiting = None
        if waiting is not None:
            for publisher in waiting:
                publisher.schedule_release()

    def _note_drained(self) -> None:
        """The queue has become shorter: release waiting publishers if it is short enough."""
        if not self.is_congested():
            self.is_stalled = False
            self.congested_at = 0.0
            if self._waiting is not None:
                self.release_publishers()

    # Drops

    def _drop(self, reason: str, message: Message) -> None:
        self.dropped += 1
        self.state.drop(reason, self.client_id, message.topic)

    def _drop_expired(self, message: Message) -> None:
        self.dropped += 1
        self.state.drop_expired(self.client_id, message.topic)

    def _drop_for_memory(self, message: Message) -> None:
        self.state.counters.dropped_memory_full += 1
        self._drop("memory_full", message)

    # Memory

    def _hold(self, size: int) -> None:
        """Count bytes held in memory for this session."""
        state = self.state
        self.held_bytes += size
        state.held_bytes += size
        if self.held_bytes > _HEAVY_BYTES and not self.is_heavy:
            self.is_heavy = True
            state.heavy[self] = None
        if state.held_bytes > state.held_bytes_max and not state.is_pressed:
            state.is_pressed = True
            if state.on_pressed is not None:
                state.on_pressed()

    def _unhold(self, size: int) -> None:
        self.held_bytes -= size
        self.state.held_bytes -= size
