"""How the subscriptions of a session get into the routes, the shared groups and the exclusive topics, and out of them."""

from __future__ import annotations

from functools import partial
from itertools import islice

from braidmq.broker.bounds.turns import Turns
from braidmq.broker.session.ports import ExclusiveTopics, Routes
from braidmq.broker.session.session import Session
from braidmq.broker.shared.group import Groups, Leaving, group_of
from braidmq.lane.path.subscription import Subscription
from braidmq.mqtt.topics import EXCLUSIVE_PREFIX

_LEAVING_AT_ONCE = 100  # subscriptions of a session that ends, before others have their turn: half a millisecond


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

    def route(self, session: Session, topic_filter: bytes) -> None:
        """Something about the session's own subscriptions to this filter has changed: let the routes know."""
        united = session.united(topic_filter)
        if united is not None:
            self._routes.add(united)
        else:
            self._routes.remove(topic_filter, session.flow)

    def remove(self, session: Session, written: str, subscription: Subscription) -> None:
        """Take one subscription out of the session and of the routes; its row is the caller's."""
        session.let_go(written)
        group = group_of(subscription)
        if group is not None:
            other = session.membership(group)
            if other is not None:
                group.put(other)
            else:
                self._groups.leave(group, session.flow)
        else:
            self.route(session, subscription.topic_filter)
            if session.feeds is not None:
                session.feeds.pop(subscription.topic_filter, None)
        if written.startswith(EXCLUSIVE_PREFIX):
            self._exclusive.release(subscription.topic_filter, session.client_id)

    def end(self, session: Session) -> None:
        """Take out all subscriptions of a session that is over, in several turns if there are many."""
        for written in [each for each in session.subscriptions if each.startswith(EXCLUSIVE_PREFIX)]:
            self.remove(session, written, session.subscriptions[written])  # others may want those at once
        if not self._end_some(session):
            self._turns.repeat(session, partial(self._end_some, session))
        leaving = Leaving(self._groups, session.flow)
        if not leaving.step():
            self._turns.repeat(session, leaving.step)

    def _end_some(self, session: Session) -> bool:
        """Take out some subscriptions; True if there are no more."""
        for written, subscription in list(islice(reversed(session.subscriptions.items()), _LEAVING_AT_ONCE)):
            self.remove(session, written, subscription)
        return not session.subscriptions
