"""Catch-up: sessions that are behind read the log at their clients' pace until they can follow live messages.

A durable session that returns first reads the messages in flight that are no longer in memory (``recall``), because they keep
their packet ids and order; then the records above its cursor. A subscription receives only records later than its own start (S3).
Reading stops when the client's window or outbox is full and resumes there, so nothing is copied and nothing is sent twice.
"""

from __future__ import annotations

from collections import OrderedDict
from operator import itemgetter
from time import monotonic
from typing import TYPE_CHECKING

from braidmq.broker.ports import LogScan
from braidmq.broker.reading.shown import ShownScan
from braidmq.lane.path.log_flow import LogFlow
from braidmq.lane.path.message import from_record
from braidmq.lane.path.routes import RouteTable
from braidmq.lane.path.subscription import Subscription, merge
from braidmq.lane.records.records import Record

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker
    from braidmq.broker.session.session import Session

IDLE_MAX = 128  # sessions that keep what they have read while their clients take nothing: up to some megabytes each

_SLICE_S = 0.0005  # of reading for one session, before others have their turn
_READ = 256  # records asked for at a time
_TOPICS_MAX = 4096  # whose subscriptions are remembered
_FILTERS = 32  # of a session, taken in between two looks at the clock

_Numbered = tuple[int, Subscription, tuple[int, ...]]  # with where it starts, by shard


class Wanted:
    """Which subscription of a session a record is for; ``take_in`` comes before ``find``."""

    def __init__(self, session: Session) -> None:
        self._positions = tuple(session.flow.positions)
        self._subscriptions = [
            (subscription, session.starts.get(written, ()))
            for written, subscription in session.subscriptions.items()
            if subscription.group is None and not subscription.is_behind
        ]
        self._untaken = enumerate(self._subscriptions)
        # Two that are written differently ($exclusive/a and a) may have the same filter.
        self._by_filter: dict[bytes, list[_Numbered]] = {}
        self._wild = RouteTable(levels_max=0)  # has one subscription of each filter, and makes no routes
        self._by_topic: dict[bytes, list[_Numbered]] = {}
        # Most records are for one subscription that wants all that the session still has to read.
        self._is_plain = True
        self._plain: dict[bytes, Subscription | None] = {}
        self.only: Subscription | None = None

    @property
    def filters(self) -> list[str]:
        """All filters, each once."""
        return [each.decode() for each in dict.fromkeys(subscription.topic_filter for subscription, _ in self._subscriptions)]

    def take_in(self, deadline: float) -> bool:
        """Sort the subscriptions by their filters; False if the time was over before, and then it must be called again."""
        for number, (subscription, starts) in self._untaken:
            same = self._by_filter.setdefault(subscription.topic_filter, [])
            if not same:
                self._wild.add(subscription)
            same.append((number, subscription, starts))
            if subscription.no_local or any(start > at for start, at in zip(starts, self._positions, strict=False)):
                self._is_plain = False
            if not number % _FILTERS and monotonic() >= deadline:
                return False
        # With a single one there is nothing to find: what was read matches it.
        if self._is_plain and len(self._subscriptions) == 1:
            self.only = self._subscriptions[0][0]
        return True

    def find(self, shard: int, timestamp: int, topic: bytes, publisher: str) -> Subscription | None:
        """What the record is delivered by; None if it is for no subscription of this session."""
        if self._is_plain and topic in self._plain:
            return self._plain[topic]
        found = self._by_topic.get(topic)
        if found is None:
            if len(self._by_topic) >= _TOPICS_MAX:
                self._by_topic.clear()
            found = list(self._by_filter.get(topic, ()))
            for one in self._wild.match_wild(topic):
                found += self._by_filter[one.topic_filter]
            found.sort(key=itemgetter(0))  # they are merged in the order of the session
            self._by_topic[topic] = found
        wanted = [
            each
            for _, each, start in found
            if (shard >= len(start) or timestamp > start[shard]) and each.for_publisher(publisher) is not None
        ]
        merged = merge(wanted)
        if self._is_plain:
            if len(self._plain) >= _TOPICS_MAX:
                self._plain.clear()
            self._plain[topic] = merged
        return merged


class CatchUp:
    """One session's reading of the log, from its cursor to the end."""

    def __init__(self, broker: Broker, session: Session, log_replay: LogScan, wanted: Wanted) -> None:
        self._broker = broker
        self._session = session
        self._replay = log_replay
        self._wanted = wanted
        self._read_ahead: list[tuple[int, Record]] = []
        self._place = 0  # in it: what comes next was not sent yet

    @classmethod
    def begin(cls, broker: Broker, session: Session) -> CatchUp | None:
        """Read on from the session's cursor; None if it has no subscription to read for."""
        flow = session.flow
        wanted = Wanted(session)
        filters = wanted.filters
        if not filters:
            return None
        start = dict(enumerate(flow.positions))
        replay = broker.turn_writer.log.replay(filters, start, with_session_only=True)
        return cls(broker, session, ShownScan(replay, broker.state), wanted)

    def run(self) -> bool:
        """Read and send for a slice; True when the session has caught up and follows."""
        flow = self._session.flow
        deadline = monotonic() + _SLICE_S
        if not self._wanted.take_in(deadline):
            return False
        while True:
            if not self._send_ahead(flow, deadline):
                return False
            note_gaps(self._broker, self._session, self._replay)
            if self._replay.is_caught_up:
                self._adopt_positions(flow)
                flow.follow()
                flow.note_change()
                return True
            if monotonic() >= deadline:
                return False
            self._read_ahead = self._replay.next(_READ, slice_s=_SLICE_S)
            self._place = 0
            if not self._read_ahead:
                self._adopt_positions(flow)
                if self._replay.is_waiting:
                    return False

    def _send_ahead(self, flow: LogFlow, deadline: float) -> bool:
        """Send what was read, and one record in any case; False if the client takes no more or the time is over."""
        records = self._read_ahead
        only = None if self._broker.hooks.delivers else self._wanted.only
        while self._place < len(records):
            if only is not None:
                self._place = flow.take_plain(records, self._place, only, flow.positions)
                if self._place == len(records):
                    break
            shard, record = records[self._place]
            if not self._offer(flow, shard, record):
                return False
            self._place += 1
            flow.positions[shard] = record.timestamp
            if self._place < len(records) and monotonic() >= deadline:
                return False
        return True

    def _adopt_positions(self, flow: LogFlow) -> None:
        for shard, position in self._replay.positions().items():
            flow.positions[shard] = position

    def _offer(self, flow: LogFlow, shard: int, record: Record) -> bool:
        """Send a record if it is for this session; False if there is no room for it now."""
        subscription = self._wanted.find(shard, record.timestamp, record.topic, record.publisher)
        return subscription is None or offer(self._broker, flow, subscription, shard, record)


def offer(broker: Broker, flow: LogFlow, subscription: Subscription, shard: int, record: Record) -> bool:
    """Send a record by this subscription, unless it has expired or a hook is against it; False if there is no room for it now."""
    message = from_record(shard, record)
    expiry = message.seconds_left()
    if expiry == 0:
        broker.state.drop_expired(flow.client_id, message.topic)
        return True
    if broker.hooks.delivers:
        changed = broker.pipeline.ask_deliver_hooks(message, flow.client_id)
        if changed is None:
            return True
        message = changed
    if not flow.take(message, subscription, subscription.qos_for(message), subscription.retain_for(message), expiry):
        return False
    broker.state.counters.delivered += 1
    return True


def note_gaps(broker: Broker, session: Session, replay: LogScan) -> None:
    """Count what retention took before this session could read it."""
    for _ in replay.take_gaps():
        session.gaps += 1
        broker.statistics.lost_to_retention += 1


def feed(broker: Broker, session: Session) -> bool:
    """Read for a session as far as its client takes it; True if it can go on at once in another turn."""
    connection = session.connection
    flow = session.flow
    if connection is None or not connection.is_open:
        return False
    if session.recall is not None:
        if not session.recall.run():
            return session.recall.can_go_on
        session.recall = None
        broker.groups.relieve_all(session.groups())
        return True  # retained messages are before the log, and have waited for this
    if flow.is_following:
        return False
    if session.catch_up is None:
        session.catch_up = CatchUp.begin(broker, session)
        if session.catch_up is None:  # there is nothing to read for
            flow.follow()
            return False
    if session.catch_up.run():
        session.catch_up = None
        return False
    connection.lane.flush()  # what fills the outbox may be all that is in the way
    goes_on = connection.has_room() and flow.has_room()
    if not goes_on:
        broker.idle_readers.add(session)
    return goes_on


class IdleReaders:
    """Sessions whose clients are not reading: a limited number keep their read-ahead, the others read again later."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[Session, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, session: Session) -> None:
        """Let it keep what it has read; whoever waits longest may have to let go of theirs."""
        self._sessions[session] = None
        self._sessions.move_to_end(session)
        if len(self._sessions) > IDLE_MAX:
            longest, _ = self._sessions.popitem(last=False)
            longest.catch_up = None

    def forget(self, session: Session) -> None:
        """Its client is gone."""
        self._sessions.pop(session, None)
