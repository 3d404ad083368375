"""Routes between nodes: each node announces which filters its own subscribers have, and learns those of all others.

The filters of a node are the rows of its origin in the replication log: the key is the filter, the value its kind. A row is
written when a filter gets its first subscriber, and removed with its last one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Final

from braidmq.broker.session.ports import Routes
from braidmq.cluster.rlog.origin_log import Entry
from braidmq.cluster.rlog.origins import ROUTES
from braidmq.cluster.rlog.tables import RowChange, Tables
from braidmq.lane.routing.routes import RouteTable
from braidmq.lane.routing.subscription import Subscription

LIVE: Final = b"l"  # the kind of a filter with subscribers that are connected
GROUP: Final = b"g"  # of one that only shared groups have, as far as its first subscriber says


def origin_of(name: str) -> str:
    """The origin of a node's routes."""
    return ROUTES + name


def node_of(origin: str) -> str | None:
    """The node whose routes these are; None if the origin has other rows."""
    return origin.removeprefix(ROUTES) if origin.startswith(ROUTES) else None


def count_routes(tables: Tables, own: str) -> tuple[int, int]:
    """The filters that a node has announced itself, and those of all other nodes."""
    counts = {origin: len(log.rows) for origin, log in tables if node_of(origin) is not None}
    mine = counts.pop(own, 0)
    return mine, sum(counts.values())


class OwnRoutes:
    """The routes of this node's subscribers, announced to others; implements the broker's ``Routes`` around the local ones."""

    def __init__(
        self, local: Routes, tables: Tables, origin: str, on_written: Callable[[], None], *, is_known_at_once: bool = False
    ) -> None:
        """``on_written`` asks for a round of the replication log at the end of this turn.

        ``is_known_at_once``: this node is the only core, and publishers' messages of QoS 1 and 2 come here.
        """
        self._local = local
        self._tables = tables
        self._origin = origin
        self._on_written = on_written
        self._subscribers: Counter[bytes] = Counter()  # by filter
        self._is_known_at_once = is_known_at_once
        self._known = 0  # the sequence up to which every core has this node's routes
        self._unknown: dict[bytes, int] = {}  # filters that not every core knows, with their sequences, which rise
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []  # a heap: sequence, order of arrival, callback
        self._order = count()
        self._waited_for = 0  # the highest sequence that a caller has waited for
        self.on_wait: Callable[[int], None] | None = None  # called with a sequence that a caller of ``when_known`` waits for

    @property
    def count(self) -> int:
        """Destinations of all filters of this node."""
        return self._local.count

    @property
    def sequence(self) -> int:
        """The last entry that this node has written."""
        log = self._tables.get(self._origin)
        return log.sequence if log is not None else 0

    def add(self, subscription: Subscription) -> bool:
        """Add or replace a subscription; announce its filter if it is the first."""
        is_new = self._local.add(subscription)
        if is_new:
            topic_filter = subscription.topic_filter
            self._subscribers[topic_filter] += 1
            if self._subscribers[topic_filter] == 1:
                self._write(Entry(topic_filter, LIVE if subscription.group is None else GROUP))
                self._unknown[topic_filter] = self.sequence
        return is_new

    def remove(self, topic_filter: bytes, flow: object) -> bool:
        """Remove a subscription; announce that the filter is gone if it was the last."""
        was_there = self._local.remove(topic_filter, flow)
        if was_there:
            self._subscribers[topic_filter] -= 1
            if not self._subscribers[topic_filter]:
                del self._subscribers[topic_filter]
                self._write(Entry(topic_filter, None))
        return was_there

    def _write(self, entry: Entry) -> None:
        self._tables.write(self._origin, [entry])
        self._on_written()

    # Who knows of them

    def is_known(self) -> bool:
        """Whether every core has the routes that were written so far."""
        return self._is_known_at_once or self._known >= self.sequence

    def has_all(self, filters: Sequence[str]) -> bool:
        """Whether every core knows that this node wants these filters."""
        return not self._unknown or not any(each.encode() in self._unknown for each in filters)

    def when_known(self, callback: Callable[[], None]) -> None:
        """Call back when every core has the routes that were written so far: at once, if that is so."""
        sequence = self.sequence
        if self._is_known_at_once or self._known >= sequence:
            callback()
        else:
            heappush(self._waiting, (sequence, next(self._order), callback))
            if self.on_wait is not None and sequence > self._waited_for:
                self._waited_for = sequence
                self.on_wait(sequence)

    def note_known(self, sequence: int) -> None:
        """Every core has this node's routes up to here."""
        self._known = max(self._known, sequence)
        while self._unknown and next(iter(self._unknown.values())) <= self._known:
            del self._unknown[next(iter(self._unknown))]
        self.release(self._known)

    def release(self, sequence: int) -> None:
        """Call back those that wait for the routes up to here, whether every core has them or not."""
        while self._waiting and self._waiting[0][0] <= sequence:
            heappop(self._waiting)[2]()

    def forget_known(self) -> None:
        """The core has restarted, and has to be told everything again."""
        self._known = 0


class WantedRoutes:
    """Filters that other nodes want, as destinations in this node's routes.

    On a core each node is a destination of its own. A replicant has one for all of them: the core, which passes messages on.
    """

    def __init__(
        self, routes: RouteTable, tables: Tables, own: str, destination: Callable[[str], Subscription | None], *, shares: bool
    ) -> None:
        """``destination``: where messages for a node go; None: nowhere, because the node is gone.

        ``shares``: all nodes have the same destination.
        """
        self._routes = routes
        self._tables = tables
        self._own = own
        self._destination = destination
        self._shares = shares

    def apply(self, changes: Sequence[RowChange]) -> None:
        """Rows of the replication log have changed."""
        wanted: dict[Subscription, dict[bytes, bool]] = {}  # a key may have changed more than once: the last time counts
        for origin, key, value in changes:
            node = node_of(origin)
            if node is None or origin == self._own:
                continue
            destination = self._destination(node)
            if destination is None:
                continue
            wanted.setdefault(destination, {})[key] = value is not None or self._is_wanted(key)
        for destination, keys in wanted.items():
            added = [key for key, is_wanted in keys.items() if is_wanted]
            gone = [key for key, is_wanted in keys.items() if not is_wanted]
            self._routes.apply_remote(added, gone, destination)

    def _is_wanted(self, key: bytes) -> bool:
        """Whether another node behind the same destination wants the filter."""
        if not self._shares:
            return False
        others = (origin for origin, _ in self._tables if origin != self._own and node_of(origin) is not None)
        return any(self._tables.has_row(origin, key) for origin in others)
