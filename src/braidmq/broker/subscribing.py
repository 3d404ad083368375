"""SUBSCRIBE, UNSUBSCRIBE, and the retained messages that a new subscription is owed."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING

from braidmq.base.errors import ProtocolViolation, UsageError
from braidmq.broker import look_back
from braidmq.broker.look_back import LookBack
from braidmq.broker.ports import Change, Refusal
from braidmq.broker.replay_request import NOTHING, ReplayRequest, find_start, read_properties, read_start, time_text
from braidmq.broker.retained import Retained, RetainedFeed
from braidmq.broker.sessions import Session
from braidmq.broker.shared import Group
from braidmq.lane.channel import HOLD_BUSY
from braidmq.lane.message import Message
from braidmq.lane.routes import Subscription
from braidmq.mqtt import wire
from braidmq.mqtt.packets import Suback, Subscribe, SubscribeOption, Unsuback, Unsubscribe
from braidmq.mqtt.properties import NO_PROPERTIES, Properties
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.topics import SubscriptionTarget, check_filter, parse_subscription

if TYPE_CHECKING:
    from braidmq.broker.connection import Connection

_END = object()
_WORK_AT_ONCE = 500  # in filters of one packet, before others have their turn
_LEVELS_PER_WORK = 8  # of a filter
_SLICE = 256  # retained messages for one client before others have their turn
_SEARCH_COST = 16  # a stretch of the search that finds nothing takes as long as this many messages
_WORDS_MAX = 1000  # of what may speak of a filter, for a reason string
# User properties of SUBACK.
_WHOLE_FROM = "replay-from"  # before this time something is gone that was asked for
_JOINED = "replay-joined"  # a shared group was there already, and goes on where it is
_SEND_AT_ONCE = 4  # retained messages that are not worth a turn of their own


def on_subscribe(connection: Connection, packet: Subscribe) -> None:
    """Subscribe to every filter that may be; one SUBACK with a reason for each, then what is retained."""
    _start(connection, _Subscribing(connection, packet))


def on_unsubscribe(connection: Connection, packet: Unsubscribe) -> None:
    """Take filters out, compared literally [MQTT-3.10.4-1]; one UNSUBACK with a reason for each."""
    _start(connection, _Unsubscribing(connection, packet))


def _start(connection: Connection, work: _Subscribing | _Unsubscribing) -> None:
    """Do the work now if it is short, else in slices, so that a packet with a hundred thousand filters delays nobody."""
    if work.run(_WORK_AT_ONCE):
        work.answer()
    else:
        connection.hold(HOLD_BUSY)
        connection.broker.run(_finish(connection, work), connection)


async def _finish(connection: Connection, work: _Subscribing | _Unsubscribing) -> None:
    try:
        await asyncio.sleep(0)
        while connection.is_open and not work.run(_WORK_AT_ONCE):  # noqa: ASYNC110  # the others have their turn
            await asyncio.sleep(0)
        if connection.is_open:
            work.answer()
    except ProtocolViolation as violation:
        connection.on_violation(violation.reason, violation.detail)
    connection.resume(HOLD_BUSY)
    connection.lane.flush()


def _work(topic_filter: str) -> int:
    return 1 + topic_filter.count("/") // _LEVELS_PER_WORK


class _Refused(Exception):
    """A filter that is not subscribed to, and why, in words."""

    def __init__(self, reason: int, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


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
        self._asked, self._fault = NOTHING, ""
        try:
            self._asked = read_properties(packet.properties.user_properties, connection.broker.keeper.storage.parse_start)
        except UsageError as problem:
            self._fault = str(problem)  # of the whole packet
        self._whole_from = 0  # before this time, in microseconds since 1970, something is gone that was asked for
        self._is_late = False  # a start was not used, because its group was there already
        self._words = ""  # why a filter was refused
        self._reasons: list[int] = []
        self._feeds: dict[bytes, RetainedFeed] = {}
        self._joined: list[Group] = []
        self._look_backs: list[LookBack] = []
        self._changes: list[Change] = []

    def run(self, work: int) -> bool:
        """Deal with filters for so much work; True when all are done."""
        for option in self._options:
            self._reasons.append(self._judge(option))
            work -= _work(option.topic_filter)
            if work <= 0:
                return False
        return True

    def _judge(self, option: SubscribeOption) -> int:
        """Subscribe to one filter, or give the reason why not."""
        statistics = self._connection.broker.statistics
        try:
            reason = self._subscribe(option)
        except _Refused as refused:
            reason = refused.reason
            self._words = self._words or refused.detail[:_WORDS_MAX]
        if reason <= 2:
            statistics.subscribed += 1
        elif reason != Reason.NOT_AUTHORIZED:
            statistics.subscriptions_refused += 1
        return reason

    def _subscribe(self, option: SubscribeOption) -> int:
        connection, session = self._connection, self._session
        broker = connection.broker
        try:
            target = parse_subscription(option.topic_filter)
            check_filter(target.topic_filter, broker.settings.mqtt.topic_levels_max)
        except ProtocolViolation as violation:
            raise _Refused(violation.reason, violation.detail) from None
        if option.no_local and target.group is not None:  # [MQTT-3.8.3-4]
            raise ProtocolViolation(Reason.PROTOCOL_ERROR, "No Local on a shared subscription")
        reason = _refusal(connection, session, option, target)
        if reason:
            return reason
        request, positions = self._find_start(option.topic_filter, target)
        subscription, is_new = _make(connection, session, option, target, self._identifiers, positions)
        session.hold(option.topic_filter, subscription)
        if session.is_durable or not session.flow.is_following:  # else there is nothing to read that is older than this
            session.starts.setdefault(option.topic_filter, tuple(broker.state.marks))
        if target.group is None:
            begun = look_back.begin(broker, session, option.topic_filter, subscription, request.tells_end, positions)
            if begun is not None:
                self._look_backs.append(begun)
            broker.route(session, subscription.topic_filter)
        if session.is_durable:
            self._changes.append(broker.durable.subscription_row(session, option.topic_filter))
        session.catch_up = None  # what it reads for has changed
        if subscription.group is not None:
            if session.is_durable and not subscription.group.log.is_kept:
                self._changes.append(broker.sharing.row_of(subscription.group.log))
            if is_new:
                self._joined.append(subscription.group)
        elif target.replay is None and (option.retain_handling == 0 or (option.retain_handling == 1 and is_new)):
            feed = RetainedFeed(broker.retained.match(subscription.topic_filter), subscription)
            self._feeds[subscription.topic_filter] = feed
        return option.qos

    def _find_start(self, written: str, target: SubscriptionTarget) -> tuple[ReplayRequest, list[int] | None]:
        """What the filter asks for, and where a look-back or a new group begins; None if it does not look back."""
        broker = self._connection.broker
        if self._fault:
            raise _Refused(Reason.IMPLEMENTATION_SPECIFIC_ERROR, self._fault)
        try:
            request = self._asked
            if target.replay is not None:
                request = read_start(target.replay, request, broker.keeper.storage.parse_start)
            if request == NOTHING:
                return request, None
            if target.group is not None and request.tells_end:
                raise UsageError("the members of a shared subscription are not told the end of a look-back")
            if request.start is None:
                return request, None
            if target.group is None:
                self._check_look_backs(written)
            elif broker.groups.has(target.group, target.topic_filter.encode()):
                self._is_late = True
                return request, None
            positions, whole_from = find_start(broker.keeper.log, request, target.topic_filter, broker.state.marks)
        except UsageError as problem:
            raise _Refused(Reason.IMPLEMENTATION_SPECIFIC_ERROR, str(problem)) from None
        self._whole_from = max(self._whole_from, whole_from)
        return request, positions

    def _check_look_backs(self, written: str) -> None:
        look_backs = self._session.look_backs
        if written not in look_backs and len(look_backs) >= look_back.LOOK_BACKS_MAX:
            raise _Refused(Reason.QUOTA_EXCEEDED, f"{look_back.LOOK_BACKS_MAX} subscriptions look back already")

    def answer(self) -> None:
        """Send the SUBACK; that of a durable session when its subscriptions are on disk."""
        if not self._changes:
            self._answer()
            return
        connection = self._connection
        connection.hold(HOLD_BUSY)
        connection.broker.keeper.change(self._changes, self._on_kept, partial(_not_kept, connection))

    def _on_kept(self) -> None:
        connection = self._connection
        if connection.is_open:
            self._answer()
            connection.resume(HOLD_BUSY)
            connection.lane.flush()

    def _answer(self) -> None:
        """Tell the client, give it what waits for absent members of shared subscriptions, and begin with what is retained."""
        connection, session = self._connection, self._session
        connection.send_packet(Suback(self._packet_id, self._reasons, self._explanation()))
        for group in self._joined:
            connection.broker.groups.relieve(group)
        if self._feeds:
            if session.feeds is None:
                session.feeds = OrderedDict()
            # A subscription that is renewed starts again: whoever repeats it without reading is not owed ever more.
            session.feeds.update(self._feeds)
            connection.wants_room = True
            if feed_retained(connection, _SEND_AT_ONCE):
                connection.on_room()
        for begun in self._look_backs:
            begun.begin()
            connection.on_room()
        connection.wants_room = session.wants_room

    def _explanation(self) -> Properties:
        """Why something was refused, and what is other than asked for in what was granted."""
        words, pairs = self._words, []
        if self._whole_from:
            whole_from = time_text(self._whole_from)
            words = words or f"history before {whole_from} is not complete"
            pairs.append((_WHOLE_FROM, whole_from))
        if self._is_late:
            words = words or "the shared group was there already, and goes on where it is"
            pairs.append((_JOINED, "1"))
        return Properties(reason_string=words, user_properties=tuple(pairs)) if words else NO_PROPERTIES


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
        self._changes: list[Change] = []

    def run(self, work: int) -> bool:
        """Deal with filters for so much work; True when all are done."""
        for written in self._filters:
            self._reasons.append(self._unsubscribe(written))
            work -= _work(written)
            if work <= 0:
                return False
        return True

    def _unsubscribe(self, written: str) -> int:
        broker = self._connection.broker
        subscription = self._session.subscriptions.get(written)
        if subscription is not None:
            broker.statistics.unsubscribed += 1
            broker.drop_subscription(self._session, written, subscription)
            if self._session.is_durable:
                self._changes.append(broker.keeper.storage.sessions.remove_subscription(self._session.client_id, written))
            return Reason.SUCCESS
        try:
            check_filter(parse_subscription(written).topic_filter, broker.settings.mqtt.topic_levels_max)
        except ProtocolViolation as violation:
            return violation.reason
        return Reason.NO_SUBSCRIPTION_EXISTED

    def answer(self) -> None:
        """Send the UNSUBACK; that of a durable session when the removal is on disk."""
        connection = self._connection
        if not self._session.is_durable:
            connection.send_packet(Unsuback(self._packet_id, self._reasons))
            return
        self._session.catch_up = None
        connection.hold(HOLD_BUSY)
        connection.broker.keeper.change(self._changes, self._on_kept, partial(_not_kept, connection))

    def _on_kept(self) -> None:
        connection = self._connection
        if connection.is_open:
            connection.send_packet(Unsuback(self._packet_id, self._reasons))
            connection.resume(HOLD_BUSY)
            connection.lane.flush()


def _not_kept(connection: Connection, refusal: Refusal) -> None:
    """What the client asked for cannot be stored: it is let go, and asks again."""
    connection.close(Reason.QUOTA_EXCEEDED, "subscriptions cannot be stored")
    connection.lane.flush()


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


def _make(
    connection: Connection,
    session: Session,
    option: SubscribeOption,
    target: SubscriptionTarget,
    identifiers: bytes,
    start: list[int] | None,
) -> tuple[Subscription, bool]:
    """The subscription, and whether it is new; its session and, unless it is shared, the routes do not know of it yet."""
    broker = connection.broker
    topic_filter = target.topic_filter.encode()
    if target.group is not None:
        return broker.groups.join(
            target.group, session.flow, topic_filter, option.qos, option.retain_as_published, identifiers, start
        )
    if target.exclusive:
        broker.exclusive[topic_filter] = session
    subscription = Subscription(session.flow, topic_filter, option.qos, option.no_local, option.retain_as_published, identifiers)
    return subscription, option.topic_filter not in session.subscriptions


def feed_retained(connection: Connection, count: int = _SLICE) -> bool:
    """Deliver retained messages as far as the client takes them; True if there is more and room for it."""
    session = connection.session
    if session is None or not connection.is_open or session.recall is not None:
        return False
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
        return False
    return connection.has_room() and flow.queue_messages() == 0


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
    return broker.publisher.ask_deliver_hooks(message, connection.client_id) if broker.hooks.delivers else message
