"""What becomes of messages after their commit: they are delivered and acknowledged, or rejected if it has failed.

Committed messages are *shown* to their subscribers one after the other, and each is acknowledged when all have been offered it. A
turn of the loop shows a bounded number; the rest waits in the *backlog*, and no later message overtakes it. A message whose
route is WIDE is shown in parts: between two parts subscriptions may be added or removed, so each flow stores the number of the
last such message it was offered, and no flow starts to follow the log in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from braidmq.lane.flows.flow import Flow
from braidmq.lane.flows.session_queue import SessionQueue
from braidmq.lane.path.lane import Lane
from braidmq.lane.path.message import Message
from braidmq.lane.path.outlet import Outlet
from braidmq.lane.routing.routes import WIDE, Route
from braidmq.lane.routing.subscription import Subscription

_NO_MATCHING_SUBSCRIBERS = 0x10
# A client may have only one message of at least this size on its way to the disk: all clients wait for the same fsync, which
# takes longer with more bytes.
LARGE_BYTES = 128 * 1024
_LARGE_BYTES = LARGE_BYTES
# The overhead in bytes of a message that waits for its commit.
PENDING_COST = 300
_PENDING_COST = PENDING_COST
# The cost of showing a message, in addition to its deliveries.
_SHOW_WORK = 2
# How often the budget of a turn is checked while a message is shown in parts.
_PARTS = 20
# Publishers wait from this backlog on, until it has fallen to half of it.
_LATE_BYTES = 8 * 1024 * 1024
_LATE_MESSAGES = 10_000
_NO_BOUND = 1 << 60
_REJECTED = 0x80  # reason codes from here on are errors
_NO_MESSAGE = Message(b"", b"", 0, False, "")  # of a marker in the backlog
_WIDE = WIDE  # a C constant in the compiled form


class Pending:
    """A message, or only rows, waiting for the log."""

    __slots__ = (
        "ack_qos", "channel", "code", "flow", "is_delivered", "is_refused", "is_repeatable", "message", "on_commit",
        "on_refused", "packet_id", "place", "shard", "timestamp", "value",
    )  # fmt: skip

    def __init__(self, message: Message, flow: Flow | None) -> None:
        self._set(message, flow)

    def _set(self, message: Message, flow: Flow | None) -> None:
        self.message = message
        self.flow = flow  # of the publisher; None: the broker itself
        self.channel: Outlet | None = None  # to acknowledge on, if ``ack_qos``
        self.ack_qos = 0
        self.packet_id = 0
        self.shard = 0
        self.place = -1  # index among the block's entries of this shard; -1: not recorded
        self.timestamp = 0  # set at the commit; 0: it was not recorded, or not here
        self.code = 0  # of the home's answer, which acknowledges it
        self.value: bytes | None = None  # its record, if peers may want it
        self.is_delivered = True
        self.is_refused = False  # it will not be stored
        self.on_commit: Callable[[], None] | None = None  # called before the message is shown to its subscribers
        self.on_refused: Callable[[], None] | None = None
        self.is_repeatable = False  # another node committed it, which may send it again

    def cost(self) -> int:
        """The bytes that it counts towards the backlog."""
        return self.message.cost() + _PENDING_COST + (0 if self.value is None else len(self.value))


def new_pending(message: Message, flow: Flow | None) -> Pending:
    """A new one. Compiled, this is faster than the constructor, as with ``new_delivery``."""
    pending = Pending.__new__(Pending)
    pending._set(message, flow)
    return pending


class CommitOutcomes:
    """Delivers, acknowledges and rejects messages that have waited for the log."""

    __slots__ = (
        "_backlog", "_congested", "_current", "_is_due", "_is_faulty", "_last_route", "_last_topic", "_last_version", "_left",
        "_part_version", "_place", "_queued", "_reached", "_targets", "_turn", "backlog_bytes", "deliver", "is_late", "lane",
        "on_congested", "on_fault", "on_late", "on_more",
    )  # fmt: skip

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.deliver: Callable[[Message, Route, Flow | None], int] | None = None  # for routes with flags
        self.on_fault: Callable[[Exception], None] | None = None
        # A message that a client of another node has published has filled this queue.
        self.on_congested: Callable[[SessionQueue, str], None] | None = None
        self.is_late = False  # the backlog is long: publishers must wait
        self.on_late: Callable[[], None] | None = None  # called when ``is_late`` changes
        self.on_more: Callable[[], None] | None = None  # requests ``go_on`` in another turn; None: all is shown at once
        self.backlog_bytes = 0
        self._backlog: deque[Pending] = deque()  # committed and not shown
        self._queued = 0  # its length
        self._current: Pending | None = None  # the one being shown
        self._reached = 0  # its destinations so far
        self._is_faulty = False
        self._congested: SessionQueue | None = None  # a session whose queue it has filled
        self._targets: list[Subscription] | None = None  # if it is shown in parts
        self._place = 0  # index of the next target
        self._part_version = -1
        self._is_due = False
        self._turn = -1
        self._left = 0  # remaining work of this turn
        self._last_topic = b""
        self._last_route: Route | None = None
        self._last_version = -1

    def conclude(self, pendings: list[Pending], stamps: dict[int, list[int]]) -> None:
        """These are committed: show them to their subscribers and acknowledge them, over several turns if they are many."""
        for pending in pendings:
            if pending.place >= 0:
                pending.timestamp = stamps[pending.shard][pending.place]
            self._show(pending)
        self._end_callback()
        self.lane.flush()

    def show(self, message: Message, flow: Flow | None, channel: Outlet | None, ack_qos: int, packet_id: int) -> None:
        """Show a message that needs no write, after those before it; ``lane.flush`` must follow."""
        pending = new_pending(message, flow)
        pending.channel = channel
        pending.ack_qos = ack_qos
        pending.packet_id = packet_id
        self._show(pending)
        self._end_callback()

    def show_entry(self, message: Message, value: bytes, channel: Outlet, packet_id: int) -> None:
        """Like ``show`` with QoS 1, for a message that another node has encoded as this record; ``end_records`` must follow."""
        pending = new_pending(message, None)
        pending.channel = channel
        pending.ack_qos = 1
        pending.packet_id = packet_id
        pending.value = value
        self._show(pending)

    def show_record(self, message: Message) -> None:
        """Show a record that another node has committed, or a message without a position, after those before it.

        A record at or below the mark of its shard was shown before and is left out. ``end_records`` must follow.
        """
        pending = new_pending(message, None)
        pending.shard = message.shard
        pending.timestamp = message.timestamp
        pending.is_repeatable = True
        self._show(pending)

    def end_records(self) -> None:
        """The last record of this callback was shown."""
        self._end_callback()
        self.lane.flush()

    def advance_marks(self, positions: list[int]) -> None:
        """Followers were offered everything up to these positions, by shard, once all that waits now has been shown."""
        self.after_shown(partial(self._raise_marks, positions))

    def _raise_marks(self, positions: list[int]) -> None:
        marks = self.lane.state.marks
        for shard, position in enumerate(positions):
            if position > marks[shard]:
                marks[shard] = position

    def after_shown(self, callback: Callable[[], None]) -> None:
        """Call back when everything that waits now has been shown: at once if nothing does."""
        marker = new_pending(_NO_MESSAGE, None)
        marker.is_delivered = False
        marker.on_commit = callback
        self._show(marker)
        self._end_callback()

    def answer(self, pendings: list[Pending], codes: list[int]) -> None:
        """The home has answered these: acknowledge each with its code after what was shown before, or reject it (0x80 and up)."""
        for pending, code in zip(pendings, codes, strict=True):
            pending.code = code
            self._show(pending)
        self._end_callback()
        self.lane.flush()

    def go_on(self) -> None:
        """Show more of the backlog."""
        self._is_due = False
        self._turn = self.lane.state.turn
        self._left = _NO_BOUND if self.on_more is None else self.lane.state.work_max
        while self._left > 0:
            if self._current is None:
                if not self._queued:
                    break
                pending: Pending = self._backlog.popleft()
                self._queued -= 1
                self.backlog_bytes -= pending.cost()
                self._begin(pending)
            self._advance()
        self._end_callback()
        self.lane.flush()

    def finish(self) -> None:
        """Show everything now, and from now on at once: the node is stopping."""
        self.on_more = None
        self.go_on()

    def _show(self, pending: Pending) -> None:
        state = self.lane.state
        if self._turn != state.turn:
            self._turn = state.turn
            self._left = _NO_BOUND if self.on_more is None else state.work_max
        if self._current is not None or self._queued or self._left <= 0:
            self._backlog.append(pending)
            self._queued += 1
            self.backlog_bytes += pending.cost()
        else:
            self._begin(pending)
            self._advance()

    def _end_callback(self) -> None:
        """Report the remaining work."""
        self._last_route = None  # it would keep ended sessions in memory
        if self.lane.state.encoded is not None:
            self.lane.state.encoded = self.lane.state.encoded_value = None
        waiting = self._queued
        self.lane.state.unshown = waiting + (self._current is not None)
        if self.lane.state.unshown and not self._is_due and self.on_more is not None:
            self._is_due = True
            self.on_more()
        part = 2 if self.is_late else 1
        is_late = self.backlog_bytes * part > _LATE_BYTES or waiting * part > _LATE_MESSAGES
        if is_late != self.is_late:
            self.is_late = is_late
            if self.on_late is not None:
                self.on_late()

    def _begin(self, pending: Pending) -> None:
        state = self.lane.state
        self._current = pending
        self._reached = self._place = 0
        self._is_faulty = False
        if state.congested is not None:
            state.congested = None
        if pending.value is not None:
            state.encoded = pending.message
            state.encoded_value = pending.value
        if pending.is_repeatable and pending.timestamp and pending.timestamp <= state.marks[pending.shard]:
            pending.is_delivered = False
            pending.timestamp = 0
        if pending.timestamp:
            pending.message.set_position(pending.shard, pending.timestamp)
            # A flow that stops following at this message has been offered everything before it.
            state.marks[pending.shard] = pending.timestamp - 1
        if pending.code >= _REJECTED:
            pending.is_delivered = False
        elif pending.on_commit is not None:
            try:
                pending.on_commit()
            except Exception as problem:
                self._is_faulty = True
                self._report(problem)

    def _advance(self) -> None:
        """Show the current message to more of its destinations; when all were offered it, acknowledge it."""
        pending = self._current
        assert pending is not None  # the caller has begun it
        state = self.lane.state
        before = state.work
        is_done = True
        if pending.is_delivered and not self._is_faulty:
            try:
                is_done = self._deliver(pending)
            except Exception as problem:
                self._is_faulty = True
                self._report(problem)
        self._left -= state.work - before + _SHOW_WORK
        if is_done:
            self._finish_showing(pending)
        elif state.congested is not None:
            self._congested = state.congested

    def _finish_showing(self, pending: Pending) -> None:
        state = self.lane.state
        if pending.timestamp:
            state.marks[pending.shard] = pending.timestamp
        self._current = None
        if self._targets is not None:
            self._targets = None
            state.part_shard = -1
            if state.congested is None:
                state.congested = self._congested
            self._congested = None
        if state.congested is not None and self.on_congested is not None and self._is_from_elsewhere(pending):
            self.on_congested(state.congested, pending.message.publisher)
        is_unheard = pending.is_delivered and not self._is_faulty and not self._reached
        if pending.code >= _REJECTED:
            self._reject(pending, False)
        else:
            self._acknowledge(pending, pending.code or (_NO_MATCHING_SUBSCRIBERS if is_unheard else 0))

    def _is_from_elsewhere(self, pending: Pending) -> bool:
        """Whether a client of another node has just published it, and it is not recorded."""
        if pending.timestamp or pending.flow is not None or not pending.message.publisher:
            return False
        return pending.is_repeatable or pending.channel is not None

    def _deliver(self, pending: Pending) -> bool:
        """Returns False if the turn's work is used up and there are more destinations."""
        lane = self.lane
        message = pending.message
        route = self._last_route
        if route is None or self._last_version != lane.routes.version or message.topic != self._last_topic:
            route = lane.routes.resolve(message.topic)
            if route is None:
                return True
            self._last_topic = message.topic
            self._last_route = route
            self._last_version = lane.routes.version
        if self._targets is None and not route.flags & _WIDE:
            self._reached = self._hand_over(message, route, pending.flow)
            return True
        return self._deliver_parts(pending, route)

    def _hand_over(self, message: Message, route: Route, flow: Flow | None) -> int:
        if route.flags and self.deliver is not None:
            return self.deliver(message, route, flow)
        return self.lane.publish(message, route, flow)

    def _deliver_parts(self, pending: Pending, route: Route) -> bool:
        state = self.lane.state
        if self._targets is None:
            state.part_number += 1
            if pending.timestamp:
                state.part_shard = pending.shard
                state.part_timestamp = pending.timestamp
        if self._targets is None or self._part_version != self.lane.routes.version:
            # Subscriptions were added or removed: skip the flows that were already offered it.
            self._targets = route.targets
            self._part_version = self.lane.routes.version
            self._place = 0
        targets = self._targets
        count = len(targets)
        before = state.work
        unheard = state.counters.dropped_no_subscribers
        part = Route(route.topic)
        part.flags = route.flags
        weight_max = max(1, state.work_max // _PARTS)
        while self._place < count:
            some: list[Subscription] = []
            weight = 0
            while self._place < count and weight < weight_max:
                subscription = targets[self._place]
                self._place += 1
                flow = subscription.flow
                if flow.seen != state.part_number:
                    some.append(subscription)
                    weight += 1
            part.targets = some
            state.is_deferring = True
            try:
                self._reached += self._hand_over(pending.message, part, pending.flow)
            finally:
                state.is_deferring = False
            for subscription in some:
                # Only now: a flow that falls behind at this very message has not been offered it.
                flow = subscription.flow
                flow.seen = state.part_number
            if self._place < count and state.work - before >= self._left:
                break
        state.counters.dropped_no_subscribers = unheard  # undo the counts of single parts
        if self._place < count:
            return False
        if not self._reached:
            state.counters.dropped_no_subscribers += 1
        return True

    def _report(self, problem: Exception) -> None:
        if self.on_fault is not None:
            self.on_fault(problem)

    def _acknowledge(self, pending: Pending, code: int) -> None:
        flow = pending.flow
        channel = pending.channel
        times = 1
        if pending.ack_qos == 2 and flow is not None:
            times = flow.end_pending(pending.packet_id)
            if flow.channel is not None:
                channel = flow.channel  # a client that has reconnected expects it there
        if channel is not None:
            for _ in range(times):
                channel.settle(flow, pending.ack_qos, pending.packet_id, code)
        self._end_large(pending)

    def _end_large(self, pending: Pending) -> int:
        size = len(pending.message.payload)
        if pending.channel is not None and size >= _LARGE_BYTES:
            # What is recorded and retained is written twice.
            pending.channel.end_large(2 * size if pending.place >= 0 and pending.message.retain else size)
        return 0

    def refuse(self, pendings: list[Pending], is_in_doubt: bool) -> None:
        """These are not stored: reject them where the protocol allows, and let other clients resend."""
        for pending in pendings:
            self._reject(pending, is_in_doubt)
        self.lane.flush()

    def _reject(self, pending: Pending, is_in_doubt: bool) -> None:
        self.lane.state.counters.dropped_not_stored += 1
        flow = pending.flow
        channel = pending.channel
        if pending.ack_qos == 2 and flow is not None:
            times = flow.end_pending(pending.packet_id)
            flow.forget_received(pending.packet_id)
            if times and flow.channel is not None:
                channel = flow.channel  # a client that has reconnected and resent it waits there
        self.lane.state.drop("not_stored", pending.message.publisher, pending.message.topic)
        if pending.on_refused is not None:
            pending.on_refused()
        if channel is not None:
            channel.refuse_publish(flow, pending.ack_qos, pending.packet_id, is_in_doubt)
        self._end_large(pending)
