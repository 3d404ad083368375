"""When wills are published: at once, after their delay, or when their session ends; and never without the right to.

While the rules cannot be read no will is published: those that fall due wait until there are rules again.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from braidmq.access.contract import Authorizer
from braidmq.broker.messages.message import make_message
from braidmq.broker.persistence import TurnWriter
from braidmq.broker.session.session import Session, SessionTable
from braidmq.broker.session.storage import SessionStorage
from braidmq.broker.statistics import Statistics
from braidmq.lane.flows.flow import Flow
from braidmq.lane.path.lane import Lane
from braidmq.lane.path.message import Message


class Wills:
    """Publishes the wills of this node's sessions."""

    def __init__(
        self,
        sessions: SessionTable,
        storage: SessionStorage,
        writer: TurnWriter,
        access: Authorizer,
        lane: Lane,
        statistics: Statistics,
        publish: Callable[[Message, Flow, str | None], int],
    ) -> None:
        self._sessions = sessions
        self._storage = storage
        self._writer = writer
        self._access = access
        self._lane = lane
        self._statistics = statistics
        self._publish = publish
        self._due: set[Session] = set()  # their wills wait for rules; no client is let in meanwhile, so there is a bound

    def publish(self, session: Session) -> None:
        """Publish the session's will if there is one and its client may; it is removed in any case."""
        will = session.will
        session.will_timer = None
        if will is None:
            return
        if not self._access.has_rules:
            self._due.add(session)
            return
        self._due.discard(session)
        self._sessions.set_will(session, None)
        if session.is_durable:
            self._writer.write(*self._storage.will_is_over(session))
        rules = self._access.rules_for(session.client_id, session.user_name)
        if will.topic.startswith("$") or not (rules.unrestricted or rules.may_publish(will.topic)):
            self._statistics.dropped_revoked += 1
            self._lane.state.drop("not_authorized", session.client_id, will.topic.encode())
            return
        self._statistics.own_messages += 1
        properties = replace(will.properties, will_delay_interval=None)
        message = make_message(will.topic, will.payload, will.qos, will.retain, properties, session.client_id)
        self._publish(message, session.flow, session.user_name)
        self._lane.flush()

    def forget(self, session: Session) -> None:
        """The session goes to another node: a will that waits for rules does not wait here any more."""
        self._due.discard(session)

    def publish_if_due(self, session: Session) -> None:
        """Publish a will that only waited for valid rules, before its client returns with another one."""
        if session in self._due:
            self.publish(session)

    def publish_due(self) -> None:
        """The rules are valid again: publish the wills that waited for them."""
        due, self._due = self._due, set()
        for session in due:
            self.publish(session)
