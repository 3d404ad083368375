"""SUBSCRIBE, UNSUBSCRIBE, and the retained messages for a new subscription."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING

from braidmq.base.errors import ProtocolViolation, UsageError
from braidmq.broker.messages.retained import Retained, RetainedFeed
from braidmq.broker.ports import Change, Refusal
from braidmq.broker.reading import replay
from braidmq.broker.reading.replay import Replay
from braidmq.broker.reading.request import NOTHING, ReplayRequest, find_start, read_properties, read_start, time_text
from braidmq.broker.session.ports import RetainedReads
from braidmq.broker.session.session import Session, levels_of
from braidmq.broker.shared.group import Group, group_of
from braidmq.lane.path.channel import HOLD_BUSY
from braidmq.lane.path.log_flow import LogFlow
from braidmq.lane.path.message import Message
from braidmq.lane.path.subscription import Subscription
from braidmq.mqtt import wire
from braidmq.mqtt.packets import Suback, Subscribe, SubscribeOption, Unsuback, Unsubscribe
from braidmq.mqtt.properties import NO_PROPERTIES, Properties
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.subscription_packets import plain_suback
from braidmq.mqtt.topics import SubscriptionTarget, check_filter, parse_subscription

if TYPE_CHECKING:
    from braidmq.broker.connection.connection import Connection

_END = object()
_WORK_AT_ONCE = 50  # in filters of one packet, before others have their turn: half a millisecond
_LEVELS_PER_WORK = 8  # of a filter
_SLICE = 256  # retained messages for one client before others have their turn
_BYTES_PER_COUNT = 4096  # of payload take as long as a message
_READ_AGAIN_S = 0.05  # after which a message that was being replaced is looked for again
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
        connection.broker.turns.repeat(connection, partial(_do_more, connection, work))


def _do_more(connection: Connection, work: _Subscribing | _Unsubscribing) -> bool:
    """Another slice; True when the client has its answer, or needs none any more."""
    try:
        if connection.is_open:
            if not work.run(_WORK_AT_ONCE):
                return False
            work.answer()
    except ProtocolViolation as violation:
        connection.on_violation(violation.reason, violation.detail)
    except Exception:
        connection.close(Reason.IMPLEMENTATION_SPECIFIC_ERROR, "")
        raise
    connection.resume(HOLD_BUSY)
    connection.lane.flush()
    return True


def _work(topic_filter: str) -> int:
    return 1 + topic_filter.count("/") // _LEVELS_PER_WORK


class _Refused(Exception):
    """A rejected filter with its reason code and an explanation."""

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
            self._asked = read_properties(packet.properties.user_properties, connection.broker.turn_writer.storage.parse_start)
        except UsageError as problem:
            self._fault = str(problem)  # of the whole packet
        self._whole_from = 0  # before this time, in microseconds since 1970, something is gone that was asked for
        self._is_late = False  # a start was not used, because its group was there already
        self._words = ""  # why a filter was refused
        self._reasons: list[int] = []
        self._feeds: dict[bytes, RetainedFeed] = {}
        self._joined: list[Group] = []
        self._replays: list[Replay] = []
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
        retained: RetainedReads = broker.retained
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
        if option.topic_filter not in session.subscriptions:
            self._check_size(target.topic_filter.encode())
        request, positions = self._find_start(option.topic_filter, target)
        subscription, is_new = _make(connection, session, option, target, self._identifiers, positions)
        session.hold(option.topic_filter, subscription)
        if session.is_durable or not session.flow.is_following:  # else there is nothing to read that is older than this
            session.starts.setdefault(option.topic_filter, tuple(broker.state.marks))
        if target.group is None:
            begun = replay.begin(broker.reading, session, option.topic_filter, subscription, request.tells_end, positions)
            if begun is not None:
                self._replays.append(begun)
            broker.route(session, subscription.topic_filter)
        if session.is_durable:
            self._changes.append(broker.session_storage.subscription_row(session, option.topic_filter))
        session.restart_catch_up()
        group = group_of(subscription)
        if group is not None:
            if positions is not None:
                session.replaying = [*(session.replaying or ()), group.log]
            if session.is_durable and not group.log.is_kept:
                self._changes.append(broker.sharing.row_of(group.log))
            if is_new:
                self._joined.append(group)
        elif target.replay is None and _is_owed_retained(option, is_new) and retained.may_match(subscription.topic_filter):
            feed = RetainedFeed(retained.match(subscription.topic_filter), subscription)
            self._feeds[subscription.topic_filter] = feed
        return option.qos

    def _find_start(self, written: str, target: SubscriptionTarget) -> tuple[ReplayRequest, list[int] | None]:
        """What the filter asks for, and where a replay or a new group begins; None if it does not replay."""
        broker = self._connection.broker
        if self._fault:
            raise _Refused(Reason.IMPLEMENTATION_SPECIFIC_ERROR, self._fault)
        try:
            request = self._asked
            if target.replay is not None:
                request = read_start(target.replay, request, broker.turn_writer.storage.parse_start)
            if request == NOTHING:
                return request, None
            if target.group is not None and request.tells_end:
                raise UsageError("members of a shared subscription are not told the end of a replay")
            if request.start is None:
                return request, None
            if target.group is not None and broker.groups.has(target.group, target.topic_filter.encode()):
                self._is_late = True
                return request, None
            self._check_replays(written)
            positions, whole_from = find_start(broker.turn_writer.log, request, target.topic_filter, broker.state.marks)
        except UsageError as problem:
            raise _Refused(Reason.IMPLEMENTATION_SPECIFIC_ERROR, str(problem)) from None
        self._whole_from = max(self._whole_from, whole_from)
        return request, positions

    def _check_size(self, topic_filter: bytes) -> None:
        """The filters of a client may have so many levels and bytes together: whatever their number, they cost memory."""
        session, limits = self._session, self._connection.broker.settings.session
        if session.filter_levels + levels_of(topic_filter) > limits.filter_levels_max:
            raise _Refused(Reason.QUOTA_EXCEEDED, "the filters of this client have too many levels together")
        if session.filter_bytes + len(topic_filter) > limits.filter_bytes_max:
            raise _Refused(Reason.QUOTA_EXCEEDED, "the filters of this client are too long together")

    def _check_replays(self, written: str) -> None:
        if written not in self._session.replays and self._session.replay_count() >= replay.REPLAYS_MAX:
            raise _Refused(Reason.QUOTA_EXCEEDED, f"{replay.REPLAYS_MAX} replays are running already")

    def answer(self) -> None:
        """Send the SUBACK; that of a durable session when its subscriptions are on disk."""
        if not self._changes:
            self._answer()
            return
        connection = self._connection
        connection.hold(HOLD_BUSY)
        connection.broker.turn_writer.change(self._changes, self._on_kept, partial(_not_kept, connection))

    def _on_kept(self) -> None:
        connection = self._connection
        if connection.is_open:
            self._answer()
            connection.resume(HOLD_BUSY)
            connection.lane.flush()

    def _answer(self) -> None:
        """Tell the client, give it what waits for absent members of shared subscriptions, and begin with what is retained."""
        connection, session = self._connection, self._session
        explanation = self._explanation()
        if explanation is NO_PROPERTIES:
            connection.send_frame("suback", plain_suback(self._packet_id, self._reasons, connection.version))
        else:
            connection.send_packet(Suback(self._packet_id, self._reasons, explanation))
        connection.broker.groups.relieve_all(self._joined)
        if self._feeds:
            if session.feeds is None:
                session.feeds = OrderedDict()
            # A subscription that is renewed starts again: whoever repeats it without reading is not owed ever more.
            session.feeds.update(self._feeds)
            connection.wants_room = True
            if feed_retained(connection, _SEND_AT_ONCE):
                connection.on_room()
        for begun in self._replays:
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
            words = words or "the shared group exists already and continues where it is"
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
                self._changes.append(broker.turn_writer.storage.sessions.remove_subscription(self._session.client_id, written))
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
        self._session.restart_catch_up()
        connection.hold(HOLD_BUSY)
        connection.broker.turn_writer.change(self._changes, self._on_kept, partial(_not_kept, connection))

    def _on_kept(self) -> None:
        connection = self._connection
        if connection.is_open:
            connection.send_packet(Unsuback(self._packet_id, self._reasons))
            connection.resume(HOLD_BUSY)
            connection.lane.flush()


def _is_owed_retained(option: SubscribeOption, is_new: bool) -> bool:
    return option.retain_handling == 0 or (option.retain_handling == 1 and is_new)


def _not_kept(connection: Connection, refusal: Refusal) -> None:
    """The subscriptions cannot be stored: disconnect the client, which then retries."""
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
    if target.exclusive and not broker.exclusive.is_free(target.topic_filter.encode(), session.client_id):
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
            target.group, session.flow, topic_filter, option.qos, option.retain_as_published, identifiers, start, session.owner
        )
    if target.exclusive:
        broker.exclusive.take(topic_filter, session.client_id)
    subscription = Subscription(session.flow, topic_filter, option.qos, option.no_local, option.retain_as_published, identifiers)
    return subscription, option.topic_filter not in session.subscriptions


def feed_retained(connection: Connection, count: int = _SLICE) -> bool:
    """Deliver retained messages as far as the client takes them; True if there is more and room for it."""
    session = connection.session
    if session is None or not connection.is_open or session.recall is not None:
        return False
    feeds = session.feeds
    flow = session.flow
    is_put_off = False
    while feeds and count > 0 and connection.has_room():
        feed = next(iter(feeds.values()))
        is_put_off = feed.is_waiting or not _takes_more(flow, feed)
        if is_put_off:
            break
        held = next(feed.messages, _END)
        if held is _END:
            if feed.begin_again():
                connection.broker.loop.call_later(_READ_AGAIN_S, _go_on, session, feed)
            else:
                feeds.popitem(last=False)
            continue
        count -= 1 if held is not None else _SEARCH_COST
        if not isinstance(held, Retained):
            continue
        if held.is_on_disk and connection.broker.publisher.is_retaining(held.message.topic):
            feed.put_off(held)  # what is on disk now must not be shown before it is committed
            continue
        message = _served(connection, held, feed.subscription)
        if message is not None:
            count -= len(message.payload) // _BYTES_PER_COUNT
            flow.deliver_late(message, feed.subscription, feed.subscription.qos_for(message), True)
            connection.broker.state.counters.delivered += 1
    connection.lane.flush()
    if not feeds:
        session.feeds = None
        return False
    return not is_put_off and connection.has_room()


def _takes_more(flow: LogFlow, feed: RetainedFeed) -> bool:
    """Whether a message can be sent at once, without taking space in the queue."""
    return flow.has_room() or (feed.subscription.qos == 0 and flow.queue_messages() == 0)


def _go_on(session: Session, feed: RetainedFeed) -> None:
    feed.is_waiting = False
    if session.connection is not None:
        session.connection.on_room()


def _served(connection: Connection, held: Retained, subscription: Subscription) -> Message | None:
    """The message as this client gets it; None if it is its own and not wanted, revoked, gone, or kept back by a hook."""
    broker = connection.broker
    if held.is_on_disk:
        loaded = broker.publisher.load_retained(held)
        if loaded is None:
            return None
        held = loaded
    message = held.message
    if subscription.for_publisher(message.publisher) is None:
        broker.state.counters.dropped_no_local += 1
        return None
    if message.publisher and broker.settings.retained.recheck_publisher:
        rules = broker.access.rules_for(message.publisher, held.user_name)
        if not (rules.unrestricted or rules.may_publish(message.topic.decode())):
            return None
    return broker.publisher.ask_deliver_hooks(message, connection.client_id) if broker.hooks.delivers else message
