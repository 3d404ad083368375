"""SUBSCRIBE, UNSUBSCRIBE, and the retained messages that a new subscription is owed."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING

from braidmq.base.errors import ProtocolViolation
from braidmq.broker.retained import Retained, RetainedFeed
from braidmq.broker.sessions import Session
from braidmq.broker.shared import Group
from braidmq.lane.channel import HOLD_BUSY
from braidmq.lane.message import Message
from braidmq.lane.routes import Subscription
from braidmq.mqtt import wire
from braidmq.mqtt.packets import Suback, Subscribe, SubscribeOption, Unsuback, Unsubscribe
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.topics import SubscriptionTarget, check_filter, parse_subscription

if TYPE_CHECKING:
    from braidmq.broker.connection import Connection

_END = object()
_FILTERS_AT_ONCE = 500  # of one packet, before others have their turn
_SLICE = 256  # retained messages for one client before others have their turn
_SEARCH_COST = 16  # a stretch of the search that finds nothing takes as long as this many messages
_SEND_AT_ONCE = 4  # retained messages that are not worth a turn of their own


def on_subscribe(connection: Connection, packet: Subscribe) -> None:
    """Subscribe to every filter that may be; one SUBACK with a reason for each, then what is retained."""
    _start(connection, _Subscribing(connection, packet))


def on_unsubscribe(connection: Connection, packet: Unsubscribe) -> None:
    """Take filters out, compared literally [MQTT-3.10.4-1]; one UNSUBACK with a reason for each."""
    _start(connection, _Unsubscribing(connection, packet))


def _start(connection: Connection, work: _Subscribing | _Unsubscribing) -> None:
    """Do the work now if it is short, else in slices, so that a packet with a hundred thousand filters delays nobody."""
    if work.run(_FILTERS_AT_ONCE):
        work.answer()
    else:
        connection.hold(HOLD_BUSY)
        connection.broker.run(_finish(connection, work), connection)


async def _finish(connection: Connection, work: _Subscribing | _Unsubscribing) -> None:
    try:
        await asyncio.sleep(0)
        while connection.is_open and not work.run(_FILTERS_AT_ONCE):  # noqa: ASYNC110  # the others have their turn
            await asyncio.sleep(0)
        if connection.is_open:
            work.answer()
    except ProtocolViolation as violation:
        connection.on_violation(violation.reason, violation.detail)
    connection.resume(HOLD_BUSY)
    connection.lane.flush()


class _Subscribing:
    """A SUBSCRIBE being worked off."""

    def __init__(self, connection: Connection, packet: Subscribe) -> None:
        session = connection.session
        assert session is not None  # the connection is open
        self._connection = connection
        self._session = session
        self._packet_id = packet.packet_id
        self._options = iter(packet.subscriptions)
        identifiers = packet.properties.subscription_identifiers
        self._identifiers = b"\x0b" + wire.write_varint(identifiers[0]) if identifiers else b""
        self._reasons: list[int] = []
        self._feeds: dict[bytes, RetainedFeed] = {}
        self._joined: list[Group] = []

    def run(self, count: int) -> bool:
        """Deal with this many filters; True when all are done."""
        for option in islice(self._options, count):
            self._reasons.append(self._subscribe(option))
            count -= 1
        return count > 0

    def _subscribe(self, option: SubscribeOption) -> int:
        connection = self._connection
        statistics = connection.broker.statistics
        try:
            target = parse_subscription(option.topic_filter)
            check_filter(target.topic_filter, connection.broker.settings.mqtt.topic_levels_max)
        except ProtocolViolation as violation:
            statistics.subscriptions_refused += 1
            return violation.reason
        if option.no_local and target.group is not None:  # [MQTT-3.8.3-4]
            raise ProtocolViolation(Reason.PROTOCOL_ERROR, "No Local on a shared subscription")
        reason = _refusal(connection, self._session, option, target)
        if reason:
            if reason != Reason.NOT_AUTHORIZED:
                statistics.subscriptions_refused += 1
            return reason
        statistics.subscribed += 1
        subscription, is_new = _add(connection, self._session, option, target, self._identifiers)
        if subscription.group is not None:
            if is_new:
                self._joined.append(subscription.group)
        elif option.retain_handling == 0 or (option.retain_handling == 1 and is_new):
            feed = RetainedFeed(connection.broker.retained.match(subscription.topic_filter), subscription)
            self._feeds[subscription.topic_filter] = feed
        return option.qos

    def answer(self) -> None:
        """Send the SUBACK, then what waits for absent members of shared subscriptions, and begin with what is retained."""
        connection, session = self._connection, self._session
        connection.send_packet(Suback(self._packet_id, self._reasons))
        for group in self._joined:
            connection.broker.groups.relieve(group)
        if self._feeds:
            if session.feeds is None:
                session.feeds = OrderedDict()
            # A subscription that is renewed starts again: whoever repeats it without reading is not owed ever more.
            session.feeds.update(self._feeds)
            connection.wants_room = True
            feed_retained(connection, _SEND_AT_ONCE)


class _Unsubscribing:
    """An UNSUBSCRIBE being worked off."""

    def __init__(self, connection: Connection, packet: Unsubscribe) -> None:
        session = connection.session
        assert session is not None  # the connection is open
        self._connection = connection
        self._session = session
        self._packet_id = packet.packet_id
        self._filters = iter(packet.topic_filters)
        self._reasons: list[int] = []

    def run(self, count: int) -> bool:
        """Deal with this many filters; True when all are done."""
        for written in islice(self._filters, count):
            self._reasons.append(self._unsubscribe(written))
            count -= 1
        return count > 0

    def _unsubscribe(self, written: str) -> int:
        broker = self._connection.broker
        subscription = self._session.subscriptions.get(written)
        if subscription is not None:
            broker.statistics.unsubscribed += 1
            broker.drop_subscription(self._session, written, subscription)
            return Reason.SUCCESS
        try:
            check_filter(parse_subscription(written).topic_filter, broker.settings.mqtt.topic_levels_max)
        except ProtocolViolation as violation:
            return violation.reason
        return Reason.NO_SUBSCRIPTION_EXISTED

    def answer(self) -> None:
        """Send the UNSUBACK."""
        self._connection.send_packet(Unsuback(self._packet_id, self._reasons))


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
    is_more = option.topic_filter not in session.subscriptions
    if is_more and len(session.subscriptions) >= broker.settings.session.subscriptions_max:
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


def feed_retained(connection: Connection, count: int = _SLICE) -> None:
    """Deliver retained messages as far as the client takes them; the rest when there is room again."""
    session = connection.session
    if session is None or not connection.is_open:
        return
    feeds = session.feeds
    flow = session.flow
    while feeds and count > 0 and connection.has_room() and flow.queue_messages() == 0:
        feed = next(iter(feeds.values()))
        held = next(feed.messages, _END)
        if held is _END:
            feeds.popitem(last=False)
            continue
        count -= 1 if held is not None else _SEARCH_COST
        subscription = feed.subscription
        message = _served(connection, held, subscription) if isinstance(held, Retained) else None
        if message is not None:
            flow.deliver_late(message, subscription, min(message.qos, subscription.qos), True)
            connection.broker.state.counters.delivered += 1
    connection.lane.flush()
    if not feeds:
        session.feeds = None
        connection.wants_room = False
    elif connection.has_room() and flow.queue_messages() == 0:
        connection.on_room()  # else an acknowledgement or the transport tells when to go on


def _served(connection: Connection, held: Retained, subscription: Subscription) -> Message | None:
    """The message as this client gets it; None if it is its own and not wanted, revoked, or kept back by a hook."""
    broker = connection.broker
    message = held.message
    if subscription.no_local and message.publisher == connection.client_id:  # [MQTT-3.8.3-3]
        broker.state.counters.dropped_no_local += 1
        return None
    if message.publisher and broker.settings.retained.recheck_publisher:
        rules = broker.access.rules_for(message.publisher, held.user_name)
        if not (rules.unrestricted or rules.may_publish(message.topic.decode())):
            return None
    return broker.ask_deliver_hooks(message, connection.client_id) if broker.hooks.delivers else message
