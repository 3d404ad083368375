"""Adds the subscriptions of sessions to routes, shared groups and exclusive topics, and removes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from time import monotonic

from braidmq.broker.bounds.turns import Turns
from braidmq.broker.session.ports import ExclusiveTopics, Routes
from braidmq.broker.session.session import Session
from braidmq.broker.shared.group import Groups, group_of
from braidmq.lane.flows.log_flow import LogFlow
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.topics import EXCLUSIVE_PREFIX

_SLICE_S = 0.0005  # for the subscriptions of a session that ends, before others have their turn
_LEAVING_AT_ONCE = 100  # of them at most
_LEASES_AT_ONCE = 100  # that such a session returns, likewise


class Subscriptions:
    """The subscriptions of all sessions, as the routes know them."""

    def __init__(self, routes: Routes, groups: Groups, exclusive: ExclusiveTopics, turns: Turns) -> None:
        self._routes = routes
        self._groups = groups
        self._exclusive = exclusive
        self._turns = turns

    def count(self) -> int:
        """Subscriptions of all sessions; each member of a shared one counts."""
        return self._routes.count - len(self._groups) + self._groups.members

    def are_known(self) -> bool:
        """Whether every publisher's messages reach all subscriptions; SUBACK waits for that (``when_known``)."""
        return self._routes.is_known()

    def when_known(self, callback: Callable[[], None]) -> None:
        """Call back, perhaps at once, when every publisher's messages reach the subscriptions that were made so far."""
        self._routes.when_known(callback)

    def route(self, session: Session, topic_filter: bytes) -> None:
        """The session's own subscriptions to this filter have changed: update the routes."""
        united = session.united(topic_filter)
        if united is not None:
            self._routes.add(united)
        else:
            self._routes.remove(topic_filter, session.flow)

    def remove(self, session: Session, written: str, subscription: Subscription, *, is_moving: bool = False) -> None:
        """Remove one subscription from the session and the routes; the caller removes its row.

        ``is_moving``: the session goes to another node, so that the row of a group that it leaves stays.
        """
        session.let_go(written)
        group = group_of(subscription)
        if group is not None:
            other = session.membership(group)
            if other is not None:
                group.put(other)
            else:
                self._groups.leave(group, session.flow, keeps_row=is_moving)
        else:
            self.route(session, subscription.topic_filter)
            feed = session.feeds.pop(subscription.topic_filter, None) if session.feeds is not None else None
            if feed is not None:
                feed.close()
        if written.startswith(EXCLUSIVE_PREFIX):
            self._exclusive.release(subscription.topic_filter, session.client_id, is_moving=is_moving)

    def end(self, session: Session) -> None:
        """Remove all subscriptions of an ended session, in several turns if there are many."""
        for written in [each for each in session.subscriptions if each.startswith(EXCLUSIVE_PREFIX)]:
            self.remove(session, written, session.subscriptions[written])  # others may want those at once
        if not self._end_some(session):
            self._turns.repeat(session, partial(self._end_some, session))
        leases = LeaseReturn(self._groups, session.flow)
        if not leases.step():
            self._turns.repeat(session, leases.step)

    def hand_over(self, session: Session) -> None:
        """Take out all subscriptions of a session that goes to another node, in several turns if there are many.

        Exclusive topics are free at once, and the rows of its groups are written as they are now.
        """
        for written, subscription in list(session.subscriptions.items()):
            if written.startswith(EXCLUSIVE_PREFIX) or group_of(subscription) is not None:
                self.remove(session, written, subscription, is_moving=True)
        if not self._end_some(session):
            self._turns.repeat(session, partial(self._end_some, session))

    def _end_some(self, session: Session) -> bool:
        """Remove some subscriptions; True if none are left."""
        deadline = monotonic() + _SLICE_S
        for written, subscription in list(islice(reversed(session.subscriptions.items()), _LEAVING_AT_ONCE)):
            self.remove(session, written, subscription)
            if monotonic() >= deadline:
                break
        return not session.subscriptions


class LeaseReturn:
    """Returns the leases of an ended session to their groups: other members get what it did not acknowledge."""

    def __init__(self, groups: Groups, flow: LogFlow) -> None:
        self._groups = groups
        self._flow = flow
        self._packet_ids = [packet_id for packet_id, _ in flow.inflight_items()]

    def step(self) -> bool:
        """Return some of them; True if none are left, and the flow holds nothing any more."""
        some = self._packet_ids[:_LEASES_AT_ONCE]
        del self._packet_ids[:_LEASES_AT_ONCE]
        if self._packet_ids:
            self._groups.redispatch(self._flow, is_over=True, packet_ids=some)
            return False
        self._groups.redispatch(self._flow, is_over=True)
        self._flow.discard()
        return True
