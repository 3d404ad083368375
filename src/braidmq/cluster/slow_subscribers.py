"""Holds publishers on other nodes while the queue of a subscriber on this node is filling up (decision 5).

A message that is not recorded arrives here by way of its publisher's home. If it leaves a queue more than half full, the home is
told before it is told that the message has arrived, and tells the publisher's node before it answers the block: so a publisher
is held no later than it has its acknowledgement, and what exceeds half of the queue is what it had under way by then. Only this
node knows when its queue has drained, or that ``session.queue_wait`` is over; the publisher's node knows nothing but that limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from braidmq.broker.broker import Broker
from braidmq.broker.timers import Timer
from braidmq.lane.path.outlet import Outlet

if TYPE_CHECKING:
    from braidmq.lane.flows.session_queue import SessionQueue

RELEASED: Final = 1  # flag of HOLD: the publisher may go on

Say = Callable[[str, bool], None]  # a publisher has to wait, or may go on


class SlowSubscribers:
    """The publishers on other nodes for which the queues of this node's subscribers have no room."""

    def __init__(self, broker: Broker, say: Say) -> None:
        """``say``: tells the home of a publisher."""
        self._broker = broker
        self._say = say
        self._held: dict[str, _HeldElsewhere] = {}
        self._told: set[str] = set()  # in this turn
        self._turn = -1
        broker.turn_writer.recorder.outcomes.on_congested = self._on_congested

    def _on_congested(self, queue: SessionQueue, publisher: str) -> None:
        """A message of this publisher has filled this queue."""
        state = self._broker.state
        if self._turn != state.turn:
            self._turn = state.turn
            self._told.clear()
        if publisher in self._told:
            return
        self._told.add(publisher)
        self._say(publisher, True)  # again, if it is held already: its node may have let it go on for a queue of its own
        if publisher not in self._held:
            waited_s = max(0.0, state.now - queue.congested_at)
            wait_s = max(0.0, self._broker.live.now.session.queue_wait - waited_s)
            held = self._held[publisher] = _HeldElsewhere(self, publisher, queue)
            held.timer = self._broker.timers.after(wait_s, held.wait_no_more)
            queue.hold(held)

    def end(self, publisher: str) -> None:
        """The publisher may go on."""
        if self._held.pop(publisher, None) is not None:
            self._told.discard(publisher)
            self._say(publisher, False)


class _HeldElsewhere(Outlet):
    """Stands for a publisher on another node among those that wait for a queue."""

    def __init__(self, owner: SlowSubscribers, publisher: str, queue: SessionQueue) -> None:
        self.timer: Timer | None = None
        self._owner = owner
        self._publisher = publisher
        self._queue = queue

    def schedule_release(self) -> None:
        """The queue has room, or its client is gone."""
        if self.timer is not None:
            self.timer.cancel()
        self._owner.end(self._publisher)

    def wait_no_more(self) -> None:
        """It has waited for as long as publishers wait."""
        self._queue.is_stalled = True
        self._queue.forget_publisher(self)
        self._owner.end(self._publisher)
