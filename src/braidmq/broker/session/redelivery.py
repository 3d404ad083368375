"""Messages in flight that are read from the log or from their session's rows before they are resent.

The client's rights may have changed since they were first sent, and hooks are asked again, as they were before.
"""

from __future__ import annotations

from collections.abc import Callable

from braidmq.access.contract import Authorizer
from braidmq.broker.messages.hooks import Hooks
from braidmq.broker.session.session import Session
from braidmq.broker.statistics import Statistics
from braidmq.lane.flows.delivery import Delivery
from braidmq.lane.flows.packed_deliveries import UNKNOWN
from braidmq.lane.path.message import Message
from braidmq.lane.path.state import State


class Redelivery:
    """Decides whether a message in flight that was read again may still be sent."""

    def __init__(
        self,
        access: Authorizer,
        hooks: Hooks,
        ask_hooks: Callable[[Message, str], Message | None],
        state: State,
        statistics: Statistics,
    ) -> None:
        self._access = access
        self._hooks = hooks
        self._ask_hooks = ask_hooks
        self._state = state
        self._statistics = statistics

    def found(self, session: Session, packet_id: int, delivery: Delivery, message: Message) -> None:
        """The message of a delivery in flight was read: resend it if the client still has access to it."""
        if not session.flow.is_waiting_for(packet_id, delivery):
            return  # the client has settled it without having seen it again
        access = self._access
        rules = access.rules_for(session.client_id, session.user_name)
        # Without rules no client is connected that it could be sent to: then it stays until there are some.
        if access.has_rules and not (rules.unrestricted or rules.may_subscribe(message.topic.decode())):
            self._statistics.deliveries_withdrawn += 1
            self._state.drop("not_authorized", session.client_id, message.topic)
            _let_go(session, packet_id, delivery)
            return
        if self._hooks.delivers and message.timestamp:  # as they were asked before the message was first sent
            changed = self._ask_hooks(message, session.client_id)
            if changed is None:
                _let_go(session, packet_id, delivery)
                return
            message = changed
        if delivery.subscription is UNKNOWN:
            subscription = session.match(message) or UNKNOWN
            session.flow.restore(packet_id, Delivery(message, subscription, delivery.qos, delivery.retain))
        else:
            session.flow.refill(delivery, message)

    def lost(self, session: Session, packet_id: int, delivery: Delivery) -> None:
        """A message in flight was deleted by retention before it was read."""
        if not session.flow.is_waiting_for(packet_id, delivery):
            return
        _let_go(session, packet_id, delivery)
        session.lost += 1
        self._statistics.lost_to_retention += 1


def _let_go(session: Session, packet_id: int, delivery: Delivery) -> None:
    """Do not resend it."""
    if delivery.qos == 2:
        # The client may know it by its packet id, which must not come back with another message: end it with PUBREL.
        delivery.is_released = True
        session.flow.note_change()
    else:
        session.flow.forget(packet_id)
