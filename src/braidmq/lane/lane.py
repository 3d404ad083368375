"""What joins the channels of a node: one receive buffer, one scanner, the routes, and a message's way to its destinations."""

from __future__ import annotations

from time import monotonic

from braidmq.lane.flow import Flow
from braidmq.lane.message import Message, from_scan
from braidmq.lane.routes import Route, RouteTable, Subscription
from braidmq.lane.scanner import Scanner
from braidmq.lane.state import State

RECEIVE_BYTES = 262_144


class Lane:
    """Shared by all channels that run on one event loop."""

    __slots__ = ("buffer", "routes", "scan", "state", "view")

    def __init__(self, state: State, routes: RouteTable) -> None:
        self.state = state
        self.routes = routes
        self.scan = Scanner()
        # One buffer for all: a buffer for each connection would cost more than all the rest of it.
        self.buffer = bytearray(RECEIVE_BYTES)
        self.view = memoryview(self.buffer)

    def publish(self, message: Message, route: Route, publisher: Flow | None) -> int:
        """Hand the message to every destination of the route; how many there were. ``flush`` must follow."""
        state = self.state
        counters = state.counters
        reached = 0
        subscription: Subscription | None
        for subscription in route.targets:
            if subscription.is_behind and message.timestamp:
                subscription = subscription.prompt
                if subscription is None:
                    reached += 1  # it will read the message in the log
                    continue
            flow = subscription.flow
            if subscription.no_local and flow is publisher:
                subscription = subscription.echo
                if subscription is None:
                    counters.dropped_no_local += 1
                    continue
            qos = message.qos if message.qos < subscription.qos else subscription.qos
            flow.deliver(message, subscription, qos, message.retain and subscription.retain_as_published)
            reached += 1
        state.work += reached
        counters.delivered += reached
        if reached == 0:
            counters.dropped_no_subscribers += 1
        return reached

    def forward(self, scan: Scanner, route: Route, publisher: Flow, v5: bool) -> None:
        """The same for a QoS 0 PUBLISH still in the receive buffer: where nothing differs its very bytes are passed on."""
        state = self.state
        counters = state.counters
        message: Message | None = None
        reached = 0
        sent = 0
        unchanged = scan.alias_at < 0 and not scan.retain
        subscription: Subscription | None
        for subscription in route.targets:
            flow = subscription.flow
            if unchanged and not subscription.identifiers and not subscription.no_local:
                channel = flow.channel
                if channel is not None and channel.forward_frame(scan, v5):
                    reached += 1
                    sent += 1
                    continue
            if message is None:
                message = from_scan(scan, route.topic, publisher.client_id, monotonic())
            if subscription.no_local and flow is publisher:
                subscription = subscription.echo
                if subscription is None:
                    counters.dropped_no_local += 1
                    continue
            flow.deliver(message, subscription, 0, message.retain and subscription.retain_as_published)
            reached += 1
        state.work += reached
        counters.delivered += reached
        counters.publish_qos0_sent += sent
        if reached == 0:
            counters.dropped_no_subscribers += 1

    def flush(self) -> None:
        """Write messages at once to clients that this turn of the loop has written nothing to yet.

        The others, unless much waits for them, and acknowledgements wait for the turn's end: a single message is on its way
        before the next publisher is read, and a thousand publishers cost one subscriber two writes.
        """
        state = self.state
        state.congested = None  # if still set, by a message without a publisher to hold, such as a will
        while state.dirty:
            dirty = state.dirty
            state.dirty = []
            for channel in dirty:
                if channel.turn == state.turn and not channel.is_filling():
                    state.late.append(channel)
                else:
                    channel.turn = state.turn
                    channel.flush()
        if state.on_turn is None:
            self.end_turn()  # no event loop, no turns
        elif not state.turn_is_open:
            state.turn_is_open = True
            state.on_turn()

    def end_turn(self) -> None:
        """All callbacks of this turn have run: write to those that waited for that."""
        state = self.state
        state.turn += 1
        state.turn_is_open = False
        late = state.late
        state.late = []
        for channel in late:
            channel.flush()
        if state.dirty:  # what waited for place in an outbox
            self.flush()
