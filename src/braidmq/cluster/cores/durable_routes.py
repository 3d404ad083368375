"""Durable routes: which filters the durable sessions of each shard have, connected or not, for the homes of all publishers (C23).

Each core writes an origin of the replication log for each shard that it leads, with the shard's term as incarnation, and copies
those of all other shards. The rows outlive the core that has written them: those of its next term replace them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from braidmq.cluster.membership.led_shards import LedShards
from braidmq.cluster.rlog.origin_log import Entry
from braidmq.cluster.rlog.origins import durable_origin
from braidmq.cluster.rlog.tables import RowChange, Tables
from braidmq.lane.flows.group_flow import GroupFlow
from braidmq.lane.flows.log_flow import LogFlow
from braidmq.lane.path.state import State
from braidmq.lane.peers.peer import SilentFlow
from braidmq.lane.routing.routes import RouteTable
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.topics import EXCLUSIVE_PREFIX, SHARE_PREFIX
from braidmq.net.proto_v1 import Position

DURABLE: Final = b"d"  # the value of a filter's row
SHARED: Final = b"g"  # of a membership in a shared group, whose key is the subscription as a client writes it
EXCLUSIVE: Final = b"x"  # before the client id of the session that has an exclusive topic; the key is the whole subscription
_SHARE: Final = SHARE_PREFIX.encode()
_EXCLUSIVE_PREFIX: Final = EXCLUSIVE_PREFIX.encode()


def share_key(group: tuple[str, bytes]) -> bytes:
    """The key of a membership in a group of this name and filter."""
    name, topic_filter = group
    return b"%b%b/%b" % (_SHARE, name.encode(), topic_filter)


def group_of_key(key: bytes) -> tuple[str, bytes] | None:
    """Name and filter of the group that a key stands for; None if it is the key of a filter."""
    if not key.startswith(_SHARE):
        return None
    name, _, topic_filter = key.removeprefix(_SHARE).partition(b"/")
    return name.decode(), topic_filter


class DurableRoutes:
    """Writes the durable routes of the led shards."""

    def __init__(self, led: LedShards, tables: Tables, on_written: Callable[[], None]) -> None:
        """``on_written`` asks for a round of the replication log at the end of this turn."""
        self._led = led
        self._tables = tables
        self._on_written = on_written
        self._sessions: dict[int, Counter[bytes]] = {}  # how many have each filter, by shard
        self.origins = {durable_origin(shard): shard for shard in led}
        for shard, term in led.terms.items():
            tables.open(durable_origin(shard), term)
            self._sessions[shard] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._sessions.values()))

    def add(self, client_id: str, topic_filter: bytes) -> None:
        """A durable session has this filter."""
        shard = self._led.shard_of(client_id)
        sessions = self._sessions[shard]
        sessions[topic_filter] += 1
        if sessions[topic_filter] == 1:
            self._write(shard, Entry(topic_filter, SHARED if topic_filter.startswith(_SHARE) else DURABLE))

    def remove(self, client_id: str, topic_filter: bytes) -> None:
        """A durable session no longer has it."""
        shard = self._led.shard_of(client_id)
        sessions = self._sessions[shard]
        sessions[topic_filter] -= 1
        if not sessions[topic_filter]:
            del sessions[topic_filter]
            self._write(shard, Entry(topic_filter, None))

    def add_exclusive(self, client_id: str, topic: bytes) -> None:
        """A durable session has an exclusive topic."""
        self._write(self._led.shard_of(client_id), Entry(_EXCLUSIVE_PREFIX + topic, EXCLUSIVE + client_id.encode()))

    def remove_exclusive(self, client_id: str, topic: bytes) -> None:
        """It no longer has it."""
        self._write(self._led.shard_of(client_id), Entry(_EXCLUSIVE_PREFIX + topic, None))

    def _write(self, shard: int, entry: Entry) -> None:
        self._tables.write(durable_origin(shard), [entry])
        self._on_written()

    def positions(self) -> dict[str, Position]:
        """How far the logs have come; of one that was never written the sequence is 0."""
        logs = ((origin, self._tables.get(origin)) for origin in self.origins)
        return {origin: log.position for origin, log in logs if log is not None}


class NotedRoutes:
    """The core's own routes; those of durable sessions become durable routes. Implements the broker's ``Routes``."""

    def __init__(self, local: RouteTable, durable: DurableRoutes) -> None:
        self._local = local
        self._durable = durable

    @property
    def count(self) -> int:
        """Destinations of all filters."""
        return self._local.count

    def add(self, subscription: Subscription) -> bool:
        """Add or replace the flow's subscription to its filter; True if it is new."""
        is_new = self._local.add(subscription)
        if is_new and _is_session(subscription.flow):
            self._durable.add(subscription.flow.client_id, subscription.topic_filter)
        return is_new

    def remove(self, topic_filter: bytes, flow: object) -> bool:
        """Remove the flow's subscription to this filter; False if there was none."""
        was_there = self._local.remove(topic_filter, flow)
        if was_there and _is_session(flow):
            assert isinstance(flow, LogFlow)
            self._durable.remove(flow.client_id, topic_filter)
        return was_there

    def add_share(self, client_id: str, key: bytes) -> None:
        """A durable session on a node is a member of a shared group."""
        self._durable.add(client_id, key)

    def remove_share(self, client_id: str, key: bytes) -> None:
        """It no longer is."""
        self._durable.remove(client_id, key)

    def note_member(self, group: tuple[str, bytes], flow: object, is_member: bool) -> None:
        """A shared group here has a member more or less: a durable session that waits here counts for other cores."""
        if not _is_session(flow) or isinstance(flow, SilentFlow):
            return
        assert isinstance(flow, LogFlow)
        change = self._durable.add if is_member else self._durable.remove
        change(flow.client_id, share_key(group))

    def is_known(self) -> bool:
        """The core has no clients of its own that wait for that."""
        return True

    def when_known(self, callback: Callable[[], None]) -> None:
        """Call back at once."""
        callback()


def _is_session(flow: object) -> bool:
    return isinstance(flow, LogFlow) and flow.is_durable and not isinstance(flow, GroupFlow)


class RoutesElsewhere:
    """The durable routes of other cores' shards, in this core's routes: what matches one of them is recorded."""

    def __init__(self, routes: RouteTable, state: State, tables: Tables, led: LedShards) -> None:
        self._routes = routes
        self._tables = tables
        self._origins = frozenset(durable_origin(shard) for shards in led.others.values() for shard in shards)
        self._destination = Subscription(SilentFlow("", state), b"#", 2, retain_as_published=True)

    def apply(self, changes: Iterable[RowChange]) -> None:
        """Rows of the replication log have changed, and the tables have them."""
        wanted: dict[bytes, bool] = {}
        for origin, key, value in changes:
            if origin in self._origins and group_of_key(key) is None and not key.startswith(_EXCLUSIVE_PREFIX):
                wanted[key] = value is not None or self._is_wanted(key)
        if wanted:
            added = [key for key, is_wanted in wanted.items() if is_wanted]
            gone = [key for key, is_wanted in wanted.items() if not is_wanted]
            self._routes.apply_remote(added, gone, self._destination)

    def _is_wanted(self, key: bytes) -> bool:
        return any(self._tables.has_row(origin, key) for origin in self._origins)
