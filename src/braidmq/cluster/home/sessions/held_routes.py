"""What the core keeps in a durable session's name while the session lives on a node.

Its filters are routes that deliver nothing: messages that match them are recorded. With several cores, its shared groups become
durable routes, and its exclusive topics are its own for as long as it has them.
"""

from __future__ import annotations

from braidmq.broker.session.ports import ExclusiveTopics, Routes
from braidmq.cluster.cores.durable_routes import NotedRoutes, share_key
from braidmq.cluster.home.sessions.held_session import Held
from braidmq.lane.path.state import State
from braidmq.lane.peers.peer import SilentFlow
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.topics import EXCLUSIVE_PREFIX, parse_subscription


class HeldRoutes:
    """The filters, shared groups and exclusive topics of sessions that live on nodes."""

    def __init__(self, routes: Routes, noted: NotedRoutes | None, exclusive: ExclusiveTopics, state: State) -> None:
        """``noted``: makes durable routes for other cores; None: this core is the only one."""
        self.count = 0  # in the core's routes
        self._routes = routes
        self._noted = noted
        self._exclusive = exclusive
        self._state = state

    def make_durable(self, held: Held) -> SilentFlow:
        """The session is durable: it has routes from now on."""
        if held.flow is None:
            held.flow = SilentFlow(held.claim.request.client_id, self._state)
        return held.flow

    # Filters

    def add(self, held: Held, written: str, qos: int) -> None:
        """The session has subscribed; ``written`` is the filter as in the SUBSCRIBE."""
        flow = self.make_durable(held)
        target = parse_subscription(written)
        if target.group is not None:  # they are those of `lending`
            self.add_share(held, written)
            return
        topic_filter = held.filters[written] = target.topic_filter.encode()
        self.count += self._routes.add(Subscription(flow, topic_filter, qos))
        if target.exclusive and self._noted is not None:  # with one core the node asks for it
            self.hold_exclusive(held, topic_filter)

    def remove(self, held: Held, written: str) -> None:
        """The session has unsubscribed."""
        self._remove_share(held, written)
        topic_filter = held.filters.pop(written, None)
        if topic_filter is None:
            return
        if self._noted is not None and written.startswith(EXCLUSIVE_PREFIX):
            self.release_exclusive(held, topic_filter)
        if topic_filter not in held.filters.values():
            self.count -= self._routes.remove(topic_filter, held.flow)

    def remove_all(self, held: Held) -> None:
        """The session has no subscriptions any more, or is not durable."""
        for topic_filter in set(held.filters.values()):
            self.count -= self._routes.remove(topic_filter, held.flow)
        held.filters.clear()
        if self._noted is not None:
            self.release_all(held)
        for written in list(held.shares):
            self._remove_share(held, written)
        held.flow = None

    # Shared groups

    def add_share(self, held: Held, written: str) -> None:
        """The other cores keep the group for as long as a durable session is a member."""
        if self._noted is not None and written not in held.shares:
            target = parse_subscription(written)
            held.shares[written] = share_key((target.group or "", target.topic_filter.encode()))
            self._noted.add_share(held.claim.request.client_id, held.shares[written])

    def _remove_share(self, held: Held, written: str) -> None:
        key = held.shares.pop(written, None)
        if key is not None and self._noted is not None:
            self._noted.remove_share(held.claim.request.client_id, key)

    # Exclusive topics

    def take_exclusive(self, held: Held, topic_filter: bytes) -> bool:
        """Give an exclusive topic to the session; False if another client has it."""
        if not self._exclusive.is_free(topic_filter, held.claim.request.client_id):
            return False
        self.hold_exclusive(held, topic_filter)
        return True

    def hold_exclusive(self, held: Held, topic_filter: bytes) -> None:
        """The session has this exclusive topic."""
        self._exclusive.take(topic_filter, held.claim.request.client_id)
        held.exclusive.add(topic_filter)

    def release_exclusive(self, held: Held, topic_filter: bytes) -> None:
        """The session has given an exclusive topic up."""
        if topic_filter in held.exclusive:
            held.exclusive.remove(topic_filter)
            self._exclusive.release(topic_filter, held.claim.request.client_id)

    def release_all(self, held: Held) -> None:
        """The session has given up all its exclusive topics."""
        for topic_filter in held.exclusive:
            self._exclusive.release(topic_filter, held.claim.request.client_id)
        held.exclusive.clear()
