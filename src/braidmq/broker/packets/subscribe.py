"""SUBSCRIBE."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from operator import length_hint
from time import monotonic

from braidmq.base.errors import ProtocolViolation, UsageError
from braidmq.broker.bounds.turns import Turns
from braidmq.broker.connection.connection import Connection
from braidmq.broker.live_settings import LiveSettings
from braidmq.broker.messages.retained import RetainedFeed
from braidmq.broker.messages.retained_delivery import RetainedDelivery
from braidmq.broker.packets.slices import answer_when_kept, on_not_kept, work_off, work_on
from braidmq.broker.persistence import TurnWriter
from braidmq.broker.ports import Change
from braidmq.broker.reading.replay import REPLAYS_MAX
from braidmq.broker.reading.request import NOTHING, ReplayRequest, find_start, read_properties, read_start, time_text
from braidmq.broker.session.ports import ExclusiveTopics, RetainedReads
from braidmq.broker.session.readers import ReplayReader
from braidmq.broker.session.session import Session, levels_of
from braidmq.broker.session.storage import SessionStorage
from braidmq.broker.session.subscriptions import Subscriptions
from braidmq.broker.shared.group import Group, Groups, group_of
from braidmq.broker.statistics import Statistics
from braidmq.lane.path.channel_reader import HOLD_BUSY
from braidmq.lane.path.state import State
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt import wire
from braidmq.mqtt.packets import Suback, Subscribe, SubscribeOption
from braidmq.mqtt.properties import NO_PROPERTIES, Properties
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.subscription_packets import plain_suback
from braidmq.mqtt.topics import EXCLUSIVE_PREFIX, SubscriptionTarget, check_filter, parse_subscription

_WORDS_MAX = 1000  # of what may speak of a filter, for a reason string
# User properties of SUBACK.
_WHOLE_FROM = "replay-from"  # before this time something is gone that was asked for
_JOINED = "replay-joined"  # a shared group was there already, and goes on where it is
_SEND_AT_ONCE = 4  # retained messages that are not worth a turn of their own

BeginReplay = Callable[[Session, str, Subscription, bool, list[int] | None], ReplayReader | None]


class _Refused(Exception):
    """A rejected filter with its reason code and an explanation."""

    def __init__(self, reason: int, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class _Subscribing:
    """A SUBSCRIBE being processed, with its results so far."""

    __slots__ = (
        "asked", "changes", "connection", "exclusive", "fault", "feeds", "handler", "identifiers", "is_late", "joined", "options",
        "packet_id", "reasons", "replays", "routed", "session", "whole_from", "words",
    )  # fmt: skip

    def __init__(self, handler: SubscribeHandler, connection: Connection, packet: Subscribe) -> None:
        session = connection.session
        assert session is not None  # the connection is open
        self.handler = handler
        self.connection = connection
        self.session = session
        self.packet_id = packet.packet_id
        self.options = iter(packet.subscriptions)
        identifiers = packet.properties.subscription_identifiers
        self.identifiers = b"\x0b" + wire.write_varint(identifiers[0]) if identifiers else b""
        self.asked, self.fault = NOTHING, ""  # ``fault``: of the whole packet
        self.whole_from = 0  # before this time, in microseconds since 1970, something is gone that was asked for
        self.is_late = False  # a start was not used, because its group was there already
        self.words = ""  # why a filter was refused
        self.reasons: list[int] = []
        self.feeds: dict[bytes, RetainedFeed] = {}
        self.joined: list[Group] = []
        self.routed: list[bytes] = []  # filters that publishers must know of
        self.replays: list[ReplayReader] = []
        self.changes: list[Change] = []
        self.exclusive: list[bytes] = []  # topics that were asked for

    def run(self, deadline: float) -> bool:
        """Handle filters until then, one in any case; True when all are done."""
        for option in self.options:
            self.reasons.append(self.handler.judge(self, option))
            if monotonic() >= deadline:
                return not length_hint(self.options)
        return True

    def answer(self) -> None:
        """Send the SUBACK; that of a durable session when its subscriptions are on disk."""
        self.handler.answer(self)

    def explanation(self) -> Properties:
        """Why filters were rejected, and how granted subscriptions differ from what was requested."""
        words, pairs = self.words, []
        if self.whole_from:
            whole_from = time_text(self.whole_from)
            words = words or f"history before {whole_from} is not complete"
            pairs.append((_WHOLE_FROM, whole_from))
        if self.is_late:
            words = words or "the shared group exists already and continues where it is"
            pairs.append((_JOINED, "1"))
        return Properties(reason_string=words, user_properties=tuple(pairs)) if words else NO_PROPERTIES


class SubscribeHandler:
    """Makes subscriptions."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        groups: Groups,
        exclusive: ExclusiveTopics,
        retained: RetainedReads,
        *,
        retained_delivery: RetainedDelivery,
        session_storage: SessionStorage,
        turn_writer: TurnWriter,
        turns: Turns,
        state: State,
        statistics: Statistics,
        live: LiveSettings,
        begin_replay: BeginReplay,
        may_follow: Callable[[Sequence[str]], bool],
    ) -> None:
        """``begin_replay`` is `reading.replay.begin`. ``may_follow``: see `LogSource`; it may become false later."""
        self._subscriptions = subscriptions
        self._groups = groups
        self._exclusive = exclusive
        self._retained = retained
        self._retained_delivery = retained_delivery
        self._session_storage = session_storage
        self._turn_writer = turn_writer
        self._parse_start = turn_writer.storage.parse_start
        self._turns = turns
        self._state = state
        self._statistics = statistics
        self._live = live
        self._begin_replay = begin_replay
        self._may_follow = may_follow

    def on_subscribe(self, connection: Connection, packet: Subscribe) -> None:
        """Subscribe to every filter that is allowed; one SUBACK with a reason for each, then the retained messages."""
        work = _Subscribing(self, connection, packet)
        try:
            work.asked = read_properties(packet.properties.user_properties, self._parse_start)
        except UsageError as problem:
            work.fault = str(problem)
        work.exclusive = self._exclusive_topics(connection, packet)
        resume = partial(self._work_on, work)
        if work.exclusive and self._exclusive.ask(work.exclusive, work.session.client_id, resume):
            connection.hold(HOLD_BUSY)
        else:
            work_off(self._turns, connection, work)

    def _exclusive_topics(self, connection: Connection, packet: Subscribe) -> list[bytes]:
        """The exclusive topics that the client asks for and may read."""
        found: list[bytes] = []
        for option in packet.subscriptions:
            if option.topic_filter.startswith(EXCLUSIVE_PREFIX):
                topic_filter = option.topic_filter.removeprefix(EXCLUSIVE_PREFIX)
                if connection.rules is not None and connection.rules.may_subscribe(topic_filter):
                    found.append(topic_filter.encode())
        return found

    def _work_on(self, work: _Subscribing) -> None:
        """It is known which exclusive topics the client can have."""
        connection = work.connection
        if connection.is_open and connection.session is work.session:
            work_on(self._turns, connection, work)

    def judge(self, work: _Subscribing, option: SubscribeOption) -> int:
        """Subscribe to one filter; the reason code for SUBACK."""
        try:
            reason = self._subscribe(work, option)
        except _Refused as refused:
            reason = refused.reason
            work.words = work.words or refused.detail[:_WORDS_MAX]
        if reason <= 2:
            self._statistics.subscribed += 1
        elif reason != Reason.NOT_AUTHORIZED:
            self._statistics.subscriptions_refused += 1
        return reason

    def _subscribe(self, work: _Subscribing, option: SubscribeOption) -> int:
        session = work.session
        try:
            target = parse_subscription(option.topic_filter)
            check_filter(target.topic_filter, self._live.now.mqtt.topic_levels_max)
        except ProtocolViolation as violation:
            raise _Refused(violation.reason, violation.detail) from None
        if option.no_local and target.group is not None:  # [MQTT-3.8.3-4]
            raise ProtocolViolation(Reason.PROTOCOL_ERROR, "No Local on a shared subscription")
        reason = self._refusal(work.connection, session, option, target)
        if reason:
            return reason
        if option.topic_filter not in session.subscriptions:
            self._check_size(session, option.topic_filter, target.topic_filter.encode())
        request, positions = self._find_start(work, option.topic_filter, target)
        subscription, is_new = self._make(session, option, target, work.identifiers, positions)
        session.hold(option.topic_filter, subscription)
        flow = session.flow
        # Else there is nothing to read that is older than this.
        if session.is_durable or not flow.is_following or flow.missing is not None:
            session.starts.setdefault(option.topic_filter, tuple(self._state.marks))
        if target.group is None:
            begun = self._begin_replay(session, option.topic_filter, subscription, request.tells_end, positions)
            if begun is not None:
                work.replays.append(begun)
            self._subscriptions.route(session, subscription.topic_filter)
            work.routed.append(subscription.topic_filter)
        if session.is_durable:
            work.changes.append(self._session_storage.subscription_row(session, option.topic_filter))
        session.restart_catch_up()
        group = group_of(subscription)
        if group is not None:
            if positions is not None and self._groups.is_here:
                session.replaying = [*(session.replaying or ()), group.log]
            work.changes += self._groups.joining(group, session.is_durable)
            if is_new:
                work.joined.append(group)
        elif target.replay is None and _is_owed_retained(option, is_new) and self._retained.may_match(subscription.topic_filter):
            feed = RetainedFeed(self._retained.match(subscription.topic_filter), subscription)
            work.feeds[subscription.topic_filter] = feed
        return subscription.qos

    def _refusal(self, connection: Connection, session: Session, option: SubscribeOption, target: SubscriptionTarget) -> int:
        """The reason why this client may not have this subscription; 0 if it may."""
        statistics = self._statistics
        rules = connection.rules
        if rules is None or not (rules.unrestricted or rules.may_subscribe(target.topic_filter)):
            statistics.authorization_deny += 1
            statistics.subscriptions_denied += 1
            return Reason.NOT_AUTHORIZED
        if connection.is_restricted:
            statistics.authorization_allow += 1
        is_more = option.topic_filter not in session.subscriptions
        if is_more and len(session.subscriptions) >= self._live.now.session.subscriptions_max:
            return Reason.QUOTA_EXCEEDED
        if target.exclusive and not self._exclusive.is_free(target.topic_filter.encode(), session.client_id):
            return Reason.QUOTA_EXCEEDED
        return 0

    def _check_size(self, session: Session, written: str, topic_filter: bytes) -> None:
        """All filters of a client together are limited in levels and bytes: whatever their number, they cost memory."""
        limits = self._live.now.session
        if session.filter_levels + levels_of(topic_filter) > limits.filter_levels_max:
            raise _Refused(Reason.QUOTA_EXCEEDED, "the filters of this client have too many levels together")
        if session.filter_bytes + len(written.encode()) > limits.filter_bytes_max:
            raise _Refused(Reason.QUOTA_EXCEEDED, "the filters of this client are too long together")

    def _find_start(self, work: _Subscribing, written: str, target: SubscriptionTarget) -> tuple[ReplayRequest, list[int] | None]:
        """The replay request of a filter and where the replay or a new group starts; None if it does not replay."""
        if work.fault:
            raise _Refused(Reason.IMPLEMENTATION_SPECIFIC_ERROR, work.fault)
        try:
            request = work.asked
            if target.replay is not None:
                request = read_start(target.replay, request, self._parse_start)
            if request == NOTHING:
                return request, None
            if target.group is not None and request.tells_end:
                raise UsageError("members of a shared subscription are not told the end of a replay")
            if request.start is None:
                return request, None
            if target.group is not None and self._groups.has(target.group, target.topic_filter.encode()):
                work.is_late = True
                return request, None
            if written not in work.session.replays and work.session.replay_count() >= REPLAYS_MAX:
                raise _Refused(Reason.QUOTA_EXCEEDED, f"{REPLAYS_MAX} replays are running already")
            positions, whole_from = find_start(self._turn_writer.log, request, target.topic_filter, self._state.marks)
        except UsageError as problem:
            raise _Refused(Reason.IMPLEMENTATION_SPECIFIC_ERROR, str(problem)) from None
        work.whole_from = max(work.whole_from, whole_from)
        return request, positions

    def _make(
        self,
        session: Session,
        option: SubscribeOption,
        target: SubscriptionTarget,
        identifiers: bytes,
        start: list[int] | None,
    ) -> tuple[Subscription, bool]:
        """The subscription, and whether it is new; not yet added to its session nor, unless it is shared, to the routes."""
        topic_filter = target.topic_filter.encode()
        if target.group is not None:
            return self._groups.join(
                target.group,
                session.flow,
                topic_filter,
                min(option.qos, self._groups.qos_max),
                option.retain_as_published,
                identifiers,
                start,
                session.owner,
            )
        if target.exclusive:
            self._exclusive.take(topic_filter, session.client_id)
        subscription = Subscription(
            session.flow, topic_filter, option.qos, option.no_local, option.retain_as_published, identifiers
        )
        return subscription, option.topic_filter not in session.subscriptions

    def answer(self, work: _Subscribing) -> None:
        """Send the SUBACK: when the subscriptions of a durable session are on disk, and when all publishers reach them."""
        subscriptions = self._subscriptions
        for topic_filter in work.exclusive:
            if EXCLUSIVE_PREFIX + topic_filter.decode() not in work.session.subscriptions:  # rejected for another reason
                self._exclusive.release(topic_filter, work.session.client_id)
        if not work.changes and subscriptions.are_known():
            self._answer(work)
            return
        connection = work.connection
        answer = answer_when_kept(connection, partial(self._answer, work))
        if work.changes:
            on_commit = partial(subscriptions.when_known, answer)
            self._turn_writer.change(work.changes, on_commit, partial(on_not_kept, connection))
        else:
            subscriptions.when_known(answer)

    def _answer(self, work: _Subscribing) -> None:
        """Send the SUBACK, then messages queued for offline members of its shared groups, then start with retained messages."""
        connection, session = work.connection, work.session
        explanation = work.explanation()
        if explanation is NO_PROPERTIES:
            connection.send_frame("suback", plain_suback(work.packet_id, work.reasons, connection.version))
        else:
            connection.send_packet(Suback(work.packet_id, work.reasons, explanation))
        self._groups.relieve_all(work.joined)
        if work.feeds:
            if session.feeds is None:
                session.feeds = OrderedDict()
            # A renewed subscription starts again: a client that repeats it without reading is not owed more and more.
            for topic_filter, feed in work.feeds.items():
                if (renewed := session.feeds.get(topic_filter)) is not None:
                    renewed.close()
                session.feeds[topic_filter] = feed
            connection.wants_room = True
            if self._retained_delivery.feed(connection, _SEND_AT_ONCE):
                connection.on_room()
        for begun in work.replays:
            begun.begin()
            connection.on_room()
        self._read_unknown(work)
        connection.wants_room = session.wants_room

    def _read_unknown(self, work: _Subscribing) -> None:
        """If a core that does not answer lacks the subscriptions, it records what they match: read that from there (C21)."""
        flow = work.session.flow
        if not flow.is_following or not work.routed or self._subscriptions.are_known():
            return
        if not self._may_follow([topic_filter.decode() for topic_filter in work.routed]):
            flow.fall_behind()
            work.connection.on_room()


def _is_owed_retained(option: SubscribeOption, is_new: bool) -> bool:
    return option.retain_handling == 0 or (option.retain_handling == 1 and is_new)
