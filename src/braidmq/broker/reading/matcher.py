"""Finds the subscription of a session that a record is delivered by, among thousands of filters.

The subscriptions are sorted by filter first, in slices. Those of shared groups and those that replay read the log for themselves.
"""

from __future__ import annotations

from operator import itemgetter
from time import monotonic

from braidmq.broker.reading.cursor import is_new
from braidmq.broker.session.session import Session
from braidmq.lane.routing.delivery_rules import for_publisher, merge
from braidmq.lane.routing.routes import RouteTable
from braidmq.lane.routing.subscription import Subscription

_TOPICS_MAX = 4096  # whose subscriptions are remembered
_FILTERS = 32  # of a session that are sorted between two checks of the clock

_Numbered = tuple[int, Subscription, tuple[int, ...]]  # with its number in the session, and its start by shard


class Matcher:
    """The current subscriptions of one session; call ``take_in`` until it returns True, then ``find``."""

    def __init__(self, session: Session) -> None:
        self._positions = tuple(session.flow.positions)
        self._subscriptions = [
            (subscription, session.starts.get(written, ()))
            for written, subscription in session.subscriptions.items()
            if subscription.group is None and not subscription.is_behind
        ]
        self._untaken = enumerate(self._subscriptions)
        # Two subscriptions in different forms ($exclusive/a and a) may have the same filter.
        self._by_filter: dict[bytes, list[_Numbered]] = {}
        self._wild = RouteTable(levels_max=0)  # one subscription of each filter; it makes no routes
        self._by_topic: dict[bytes, list[_Numbered]] = {}
        # Most records are for one subscription that receives everything the session still has to read.
        self._is_plain = True
        self._plain: dict[bytes, Subscription | None] = {}
        self.only: Subscription | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the session has no subscription to read for."""
        return not self._subscriptions

    @property
    def filters(self) -> list[str]:
        """All filters, each once."""
        return [each.decode() for each in dict.fromkeys(subscription.topic_filter for subscription, _ in self._subscriptions)]

    def take_in(self, deadline: float) -> bool:
        """Sort the subscriptions by filter; False if the deadline came first, and then it must be called again."""
        for number, (subscription, starts) in self._untaken:
            same = self._by_filter.setdefault(subscription.topic_filter, [])
            if not same:
                self._wild.add(subscription)
            same.append((number, subscription, starts))
            if subscription.no_local or any(start > at for start, at in zip(starts, self._positions, strict=False)):
                self._is_plain = False
            if not number % _FILTERS and monotonic() >= deadline:
                return False
        # A single subscription needs no search: everything that was read matches it.
        if self._is_plain and len(self._subscriptions) == 1:
            self.only = self._subscriptions[0][0]
        return True

    def find(self, shard: int, timestamp: int, topic: bytes, publisher: str) -> Subscription | None:
        """The subscription that delivers the record; None if it is for no subscription of this session."""
        if self._is_plain and topic in self._plain:
            return self._plain[topic]
        found = self._by_topic.get(topic)
        if found is None:
            if len(self._by_topic) >= _TOPICS_MAX:
                self._by_topic.clear()
            found = list(self._by_filter.get(topic, ()))
            for one in self._wild.match_wild(topic):
                found += self._by_filter[one.topic_filter]
            found.sort(key=itemgetter(0))  # they are merged in the session's order
            self._by_topic[topic] = found
        wanted = [
            each for _, each, start in found if is_new(shard, timestamp, start) and for_publisher(each, publisher) is not None
        ]
        merged = merge(wanted)
        if self._is_plain:
            if len(self._plain) >= _TOPICS_MAX:
                self._plain.clear()
            self._plain[topic] = merged
        return merged
