"""Sessions that are behind read the log until they have caught up, as fast as their clients take it.

A durable session that comes back after a restart first reads the messages that were in flight when the process ended, for they
keep their packet ids and their order; then what is above its cursor. A subscription gets only what is later than its own start
(S3). Reading stops where the client's window or outbox is full and goes on from there, so nothing is copied and nothing is sent
twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from operator import itemgetter
from time import monotonic
from typing import TYPE_CHECKING

from braidmq.broker.ports import InFlight, Replay
from braidmq.lane.log_flow import LogFlow
from braidmq.lane.message import from_record
from braidmq.lane.records import Record
from braidmq.lane.routes import RouteTable, Subscription, merge

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker
    from braidmq.broker.sessions import Session

_SLICE_S = 0.001  # of reading for one session, before others have their turn
_READ = 256  # records asked for at a time
_ALL = ["#", "$SYS/#"]
_TOPICS_MAX = 4096  # whose subscriptions are remembered
_FILTERS = 32  # of a session, taken in between two looks at the clock

_Numbered = tuple[int, Subscription, tuple[int, ...]]  # with where it starts, by shard


class Wanted:
    """Which subscription of a session a record is for; ``take_in`` comes before ``find``."""

    def __init__(self, session: Session) -> None:
        self._client_id = session.client_id
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
            if (shard >= len(start) or timestamp > start[shard]) and not (each.no_local and publisher == self._client_id)
        ]
        merged = merge(wanted)
        if self._is_plain:
            if len(self._plain) >= _TOPICS_MAX:
                self._plain.clear()
            self._plain[topic] = merged
        return merged


class CatchUp:
    """One session's reading of the log, from its cursor to the end."""

    def __init__(self, broker: Broker, session: Session, log_replay: Replay, wanted: Wanted) -> None:
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
        return cls(broker, session, broker.keeper.log.replay(filters, start, with_session_only=True), wanted)

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
    message = from_record(shard, record, broker.state.wall_offset)
    expiry = -1
    if message.expires_at:
        expiry = ceil(message.expires_at - monotonic())
        if expiry <= 0:  # [MQTT-3.3.2-5]
            broker.state.counters.dropped_expired += 1
            broker.state.drop("expired", flow.client_id, message.topic)
            return True
    if broker.hooks.delivers:
        changed = broker.publisher.ask_deliver_hooks(message, flow.client_id)
        if changed is None:
            return True
        message = changed
    qos = min(message.qos, subscription.qos)
    if not flow.take(message, subscription, qos, message.retain and subscription.retain_as_published, expiry):
        return False
    broker.state.counters.delivered += 1
    return True


def note_gaps(broker: Broker, session: Session, replay: Replay) -> None:
    """Count what retention took before this session could read it."""
    for _ in replay.take_gaps():
        session.gaps += 1
        broker.statistics.lost_to_retention += 1


class Recall:
    """Reads the messages that were in flight when the process ended; until then the session sends nothing."""

    def __init__(self, broker: Broker, session: Session, entries: Iterable[InFlight]) -> None:
        self._broker = broker
        self._session = session
        # By shard and timestamp: a look-back may have sent what another subscription has sent too.
        self._missing: dict[tuple[int, int], list[InFlight]] = {}
        for entry in entries:
            self._missing.setdefault((entry.shard, entry.timestamp), []).append(entry)
        self._unmatched: dict[tuple[int, int], list[InFlight]] = {}  # not found by the filters that there are now
        self._filters = list(dict.fromkeys(each.topic_filter.decode() for each in session.subscriptions.values())) or _ALL
        self._replay = self._open()

    def _open(self) -> Replay:
        """Read from the first that is missing, in each shard."""
        first = dict(enumerate(self._broker.state.marks))
        for shard, timestamp in self._missing:
            first[shard] = min(first[shard], timestamp - 1)
        return self._broker.keeper.log.replay(self._filters, first, with_session_only=True)

    def run(self) -> bool:
        """Read for a slice; True when everything was found or is known to be gone."""
        records = self._replay.next(_READ, slice_s=_SLICE_S)
        before = len(self._missing)
        for shard, record in records:
            for entry in self._missing.pop((shard, record.timestamp), ()):
                message = from_record(shard, record, self._broker.state.wall_offset)
                self._broker.durable.found(self._session, entry, message)
        is_in_vain = len(self._missing) == before
        self._give_up_passed()
        if not self._missing and self._unmatched:
            # Their subscriptions are gone, but what was begun is to be finished [MQTT-3.10.4-3].
            self._missing, self._unmatched = self._unmatched, {}
            self._filters = _ALL
            self._replay = self._open()
            return False
        if self._missing and records and is_in_vain:
            self._replay = self._open()  # what a look-back has in flight may be days older than the rest: pass over those days
        return not self._missing

    def _give_up_passed(self) -> None:
        """What reading has passed without finding it is no longer there."""
        positions = {} if self._replay.is_caught_up else self._replay.positions()
        for shard, timestamp in list(self._missing):
            if shard not in positions or positions[shard] >= timestamp:
                entries = self._missing.pop((shard, timestamp))
                if self._filters != _ALL:
                    self._unmatched[shard, timestamp] = entries
                    continue
                for entry in entries:
                    self._broker.durable.lost(self._session, entry)


def feed(broker: Broker, session: Session) -> bool:
    """Read for a session as far as its client takes it; True if it can go on at once in another turn."""
    connection = session.connection
    flow = session.flow
    if connection is None or not connection.is_open:
        return False
    if session.recall is not None:
        if session.recall.run():
            session.recall = None
            session.unread = []
            flow.attach(connection, connection.window)
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
    return connection.has_room() and flow.has_room()
