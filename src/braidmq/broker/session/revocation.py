"""Withdraws subscriptions and messages of a session whose user has lost permissions."""

from __future__ import annotations

import logging
from collections.abc import Callable

from braidmq.access.contract import Authorizer
from braidmq.broker.persistence import TurnWriter
from braidmq.broker.session.session import Session
from braidmq.broker.session.storage import SessionStorage
from braidmq.broker.session.subscriptions import Subscriptions
from braidmq.broker.statistics import Statistics
from braidmq.lane.flows.delivery import Delivery
from braidmq.mqtt.topics import matches

log = logging.getLogger("braidmq.broker")


class Revocation:
    """Removes subscriptions and messages that the session's user may no longer have."""

    def __init__(
        self,
        access: Authorizer,
        subscriptions: Subscriptions,
        storage: SessionStorage,
        writer: TurnWriter,
        statistics: Statistics,
    ) -> None:
        self._access = access
        self._subscriptions = subscriptions
        self._storage = storage
        self._writer = writer
        self._statistics = statistics

    def withdraw(self, session: Session) -> None:
        """End the session's subscriptions without access, and withdraw the messages that wait for them."""
        rules = self._access.rules_for(session.client_id, session.user_name)
        if rules.unrestricted:
            return
        removed = False
        for written, subscription in list(session.subscriptions.items()):
            if not rules.may_subscribe(subscription.topic_filter.decode()):
                log.info("%s may no longer receive %s: subscription removed", session.client_id, written)
                if session.is_durable:
                    self._writer.write(*self._storage.unsubscribed(session, written))
                self._subscriptions.remove(session, written, subscription)
                removed = True
        if removed:
            self._statistics.deliveries_withdrawn += session.flow.withdraw(_unwanted(session))


def _unwanted(session: Session) -> Callable[[Delivery], bool]:
    """Tells whether a delivery no longer belongs to any subscription of the session and can still be taken back."""
    topic_filters = [subscription.topic_filter.decode() for subscription in session.subscriptions.values()]

    def is_unwanted(delivery: Delivery) -> bool:
        message = delivery.message
        if message is None or (delivery.is_live and session.flow.channel is not None):
            return False  # the client has it, and its packet id is in use until it is acknowledged
        topic = message.topic.decode()
        if any(matches(topic_filter, topic) for topic_filter in topic_filters):
            return False
        if delivery.qos == 2 and delivery.is_sent:
            # The client may know it by its packet id, which must not come back with another message: let it go by PUBREL.
            delivery.message = None
            delivery.is_released = True
            return False
        session.flow.state.drop("not_authorized", session.client_id, message.topic)
        return True

    return is_unwanted
