"""Shared by the channels of a node: one receive buffer, one parser, the routes, and delivery to destinations."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from braidmq.lane.flows.flow import Flow
from braidmq.lane.path.message import Message, from_parser
from braidmq.lane.path.parser import Parser
from braidmq.lane.path.state import State
from braidmq.lane.routing.delivery_rules import copy_qos, copy_retain, for_publisher, live_for
from braidmq.lane.routing.routes import GROUP_WEIGHT, Route, RouteTable
from braidmq.lane.routing.subscription import Subscription

RECEIVE_BYTES = 262_144
_ASK_WORK = GROUP_WEIGHT - 1  # the cost of a call to ``ask``, in addition to the delivery


class Lane:
    """Shared by all channels that run on one event loop."""

    __slots__ = ("buffer", "parser", "routes", "state", "view")

    def __init__(self, state: State, routes: RouteTable) -> None:
        self.state = state
        self.routes = routes
        self.parser = Parser()
        # One buffer for all: a buffer per connection would take more memory than the rest of the connection.
        self.buffer = bytearray(RECEIVE_BYTES)
        self.view = memoryview(self.buffer)

    def publish(self, message: Message, route: Route, publisher: Flow | None) -> int:
        """Deliver the message to every destination of the route; returns how many there were. ``flush`` must follow."""
        if publisher is not None and publisher.is_peer:
            return self._publish_muted(message, route, publisher, None)
        return self._publish(message, route, None)

    def publish_asking(
        self, message: Message, route: Route, publisher: Flow | None, ask: Callable[[Message, str], Message | None]
    ) -> int:
        """Like ``publish``; ``ask`` returns what each client is to receive instead of the message, None for nothing.

        A group receives the message itself: it calls ``ask`` for the member that it selects. So does a peer: its node asks.
        """
        self.state.work += len(route.targets) * _ASK_WORK
        if publisher is not None and publisher.is_peer:
            return self._publish_muted(message, route, publisher, ask)
        return self._publish(message, route, ask)

    def _publish_muted(
        self, message: Message, route: Route, publisher: Flow, ask: Callable[[Message, str], Message | None] | None
    ) -> int:
        """Publish a message that came from a peer, and not back to that peer."""
        outlet = publisher.channel
        if outlet is None:
            return self._publish(message, route, ask)
        was_muted = outlet.is_muted
        outlet.is_muted = True
        try:
            return self._publish(message, route, ask)
        finally:
            outlet.is_muted = was_muted

    def _publish(self, message: Message, route: Route, ask: Callable[[Message, str], Message | None] | None) -> int:
        state = self.state
        counters = state.counters
        reached = 0
        given = message
        if message.retain and state.on_retained is not None:
            state.on_retained(message.topic)
        subscription: Subscription | None
        for subscription in route.targets:
            # Most subscriptions are neither behind nor have No Local; only the others cost a call.
            if subscription.is_behind:
                subscription = live_for(subscription, message)
                if subscription is None:
                    reached += 1  # it will read the message from the log
                    continue
            if subscription.no_local:
                subscription = for_publisher(subscription, message.publisher)
                if subscription is None:
                    counters.dropped_no_local += 1
                    continue
            flow = subscription.flow
            if ask is not None:
                given = message
                if subscription.group is None and not flow.is_peer:
                    answer = ask(message, flow.client_id)
                    if answer is None:
                        continue
                    given = answer
            flow.deliver(given, subscription, copy_qos(given, subscription), copy_retain(given, subscription))
            reached += 1
        state.work += reached
        counters.delivered += reached
        if reached == 0:
            counters.dropped_no_subscribers += 1
        return reached

    def forward(self, parser: Parser, route: Route, publisher: Flow, v5: bool) -> None:
        """Like ``publish`` for a QoS 0 PUBLISH in the receive buffer: where nothing differs, its bytes are forwarded as is."""
        state = self.state
        counters = state.counters
        message: Message | None = None
        reached = 0
        sent = 0
        client_id = publisher.client_id
        unchanged = parser.alias_at < 0 and not parser.retain
        state.sender_shard = publisher.home_shard
        if parser.retain and state.on_retained is not None:
            state.on_retained(route.topic)
        subscription: Subscription | None
        for subscription in route.targets:
            flow = subscription.flow
            if unchanged and subscription.passes_frames:
                channel = flow.channel
                if channel is not None and channel.forward_frame(parser, v5):
                    reached += 1
                    sent += 1
                    continue
            if message is None:
                message = from_parser(parser, route.topic, client_id, monotonic() if parser.expiry_at >= 0 else 0.0)
            subscription = for_publisher(subscription, client_id)
            if subscription is None:
                counters.dropped_no_local += 1
                continue
            flow.deliver(message, subscription, copy_qos(message, subscription), copy_retain(message, subscription))
            reached += 1
        state.work += reached
        counters.delivered += reached
        counters.publish_qos0_sent += sent
        if reached == 0:
            counters.dropped_no_subscribers += 1

    def flush(self) -> None:
        """Write messages at once to clients that were not yet written to in this turn of the loop.

        The others, unless much waits for them, and acknowledgements wait for the turn's end: so a single message is sent before
        the next publisher is read, and a thousand publishers cost one subscriber two writes.
        """
        state = self.state
        state.congested = None  # if it is still set, the message had no publisher to hold, such as a will
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
            self.end_turn()  # without an event loop there are no turns
        elif not state.turn_is_open:
            state.turn_is_open = True
            state.on_turn()

    def end_turn(self) -> None:
        """All callbacks of this turn have run: write to the channels that waited for its end."""
        state = self.state
        state.turn += 1
        state.large_work = 0
        state.turn_is_open = False
        late = state.late
        state.late = []
        for channel in late:
            channel.flush()
        if state.dirty:  # messages that waited for room in an outbox
            self.flush()
