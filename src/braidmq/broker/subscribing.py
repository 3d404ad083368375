"""SUBSCRIBE, UNSUBSCRIBE, and the retained messages that a new subscription is owed."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from braidmq.base.errors import ProtocolViolation
from braidmq.broker.retained import Retained, RetainedFeed
from braidmq.broker.sessions import Session
from braidmq.lane.routes import Subscription
from braidmq.mqtt import wire
from braidmq.mqtt.packets import Suback, Subscribe, SubscribeOption, Unsuback, Unsubscribe
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.topics import SubscriptionTarget, check_filter, parse_subscription

if TYPE_CHECKING:
    from braidmq.broker.connection import Connection

_SLICE = 256  # retained messages for one client before others have their turn
_SEND_AT_ONCE = 4  # retained messages that are not worth a turn of their own


def on_subscribe(connection: Connection, packet: Subscribe) -> None:
    """Subscribe to every filter that may be; one SUBACK with a reason for each, then what is retained."""
    session = connection.session
    assert session is not None  # the connection is open
    identifiers = packet.properties.subscription_identifiers
    encoded = b"\x0b" + wire.write_varint(identifiers[0]) if identifiers else b""
    reasons: list[int] = []
    feeds: list[RetainedFeed] = []
    for option in packet.subscriptions:
        try:
            target = parse_subscription(option.topic_filter)
            check_filter(target.topic_filter, connection.broker.settings.mqtt.topic_levels_max)
        except ProtocolViolation as violation:
            connection.broker.statistics.subscriptions_refused += 1
            reasons.append(violation.reason)
            continue
        if option.no_local and target.group is not None:  # [MQTT-3.8.3-4]
            raise ProtocolViolation(Reason.PROTOCOL_ERROR, "No Local on a shared subscription")
        reason = _refusal(connection, session, option, target)
        if reason:
            if reason != Reason.NOT_AUTHORIZED:
                connection.broker.statistics.subscriptions_refused += 1
            reasons.append(reason)
            continue
        connection.broker.statistics.subscribed += 1
        subscription, is_new = _add(connection, session, option, target, encoded)
        reasons.append(option.qos)
        if target.group is None and (option.retain_handling == 0 or (option.retain_handling == 1 and is_new)):
            feeds.append(RetainedFeed(connection.broker.retained.match(subscription.topic_filter), subscription))
    connection.send_packet(Suback(packet.packet_id, reasons))
    if feeds:
        if session.feeds is None:
            session.feeds = deque()
        session.feeds.extend(feeds)
        connection.wants_room = True
        feed_retained(connection, _SEND_AT_ONCE)


def _refusal(connection: Connection, session: Session, option: SubscribeOption, target: SubscriptionTarget) -> int:
    """The reason why this client may not have this subscription; 0 if it may."""
    broker = connection.broker
    rules = connection.rules
    if rules is None or not (rules.unrestricted or rules.may_subscribe(target.topic_filter)):
        broker.statistics.authorization_deny += 1
        broker.statistics.subscriptions_denied += 1
        return Reason.NOT_AUTHORIZED
    if connection.is_restricted:
        broker.statistics.authorization_allow += 1
    if option.topic_filter not in session.subscriptions and len(session.subscriptions) >= broker.settings.session.subscriptions_max:
        return Reason.QUOTA_EXCEEDED
    if target.exclusive and broker.exclusive.get(target.topic_filter.encode(), session) is not session:
        return Reason.QUOTA_EXCEEDED
    return 0


def _add(
    connection: Connection, session: Session, option: SubscribeOption, target: SubscriptionTarget, identifiers: bytes
) -> tuple[Subscription, bool]:
    broker = connection.broker
    topic_filter = target.topic_filter.encode()
    if target.group is not None:
        subscription, is_new = broker.groups.join(
            target.group, session.flow, topic_filter, option.qos, option.retain_as_published, identifiers
        )
    else:
        subscription = Subscription(
            session.flow, topic_filter, option.qos, option.no_local, option.retain_as_published, identifiers
        )
        is_new = broker.routes.add(subscription)
        if target.exclusive:
            broker.exclusive[topic_filter] = session
    session.subscriptions[option.topic_filter] = subscription
    return subscription, is_new


def on_unsubscribe(connection: Connection, packet: Unsubscribe) -> None:
    """Take filters out, compared literally [MQTT-3.10.4-1]; one UNSUBACK with a reason for each."""
    session = connection.session
    assert session is not None  # the connection is open
    reasons: list[int] = []
    for written in packet.topic_filters:
        subscription = session.subscriptions.get(written)
        if subscription is None:
            try:
                check_filter(parse_subscription(written).topic_filter)
                reasons.append(Reason.NO_SUBSCRIPTION_EXISTED)
            except ProtocolViolation as violation:
                reasons.append(violation.reason)
        else:
            connection.broker.statistics.unsubscribed += 1
            connection.broker.drop_subscription(session, written, subscription)
            reasons.append(Reason.SUCCESS)
    connection.send_packet(Unsuback(packet.packet_id, reasons))


def feed_retained(connection: Connection, count: int = _SLICE) -> None:
    """Deliver retained messages as far as the client takes them; the rest when there is room again."""
    session = connection.session
    if session is None or not connection.is_open:
        return
    feeds = session.feeds
    flow = session.flow
    while feeds and count and connection.has_room() and flow.queue_messages() == 0:
        feed = feeds[0]
        held = next(feed.messages, None)
        if held is None:
            feeds.popleft()
            continue
        count -= 1
        if _may_serve(connection, held):
            message = held.message
            subscription = feed.subscription
            flow.deliver_late(message, subscription, min(message.qos, subscription.qos), True)
            connection.broker.state.counters.delivered += 1
    connection.lane.flush()
    if not feeds:
        session.feeds = None
        connection.wants_room = False
    elif connection.has_room() and flow.queue_messages() == 0:
        connection.on_room()  # else an acknowledgement or the transport tells when to go on


def _may_serve(connection: Connection, held: Retained) -> bool:
    """Whether whoever published it may still do so, if that is asked for again."""
    broker = connection.broker
    if not held.message.publisher or not broker.settings.retained.recheck_publisher:
        return True
    rules = broker.access.rules_for(held.message.publisher, held.user_name)
    return rules.unrestricted or rules.may_publish(held.message.topic.decode())
