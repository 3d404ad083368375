"""The exclusive topics of durable sessions, as rows of the durable routes, which the home of each client id writes for all cores.

A row says who has the topic from the commit of the subscription to its end, with or without a client. So it ends as a durable
route does, and the next term of its shard replaces it by mark and sweep (C38).
"""

from __future__ import annotations

from collections.abc import Callable

from braidmq.cluster.cores.durable_routes import EXCLUSIVE, DurableRoutes
from braidmq.cluster.rlog.origins import durable_origin
from braidmq.cluster.rlog.tables import Tables
from braidmq.mqtt.topics import EXCLUSIVE_PREFIX


class ExclusiveRows:
    """Implements the broker's ``ExclusiveTopics`` on a core of several, for the sessions that are at home there."""

    def __init__(self, durable: DurableRoutes, tables: Tables, shards: int, ask_flush: Callable[[], None]) -> None:
        self._durable = durable
        self._tables = tables
        self._origins = [durable_origin(shard) for shard in range(shards)]
        self._ask_flush = ask_flush
        self._owners: dict[bytes, str] = {}
        self._released: dict[bytes, str] = {}  # in this turn: a session that moves takes its topics again

    def __len__(self) -> int:
        """How many topics the durable sessions have that are at home here."""
        return len(self._owners)

    def ask(self, topic_filters: list[bytes], client_id: str, on_answer: Callable[[], None]) -> bool:
        """Never: a core of several has no clients."""
        return False

    def is_free(self, topic_filter: bytes, client_id: str) -> bool:
        """Whether no other session that is at home here has it."""
        return self._owners.get(topic_filter, client_id) == client_id

    def take(self, topic_filter: bytes, client_id: str) -> None:
        """A durable session has the topic."""
        self._released.pop(topic_filter, None)
        if self._owners.get(topic_filter) != client_id:
            self._owners[topic_filter] = client_id
            self._durable.add_exclusive(client_id, topic_filter)

    def release(self, topic_filter: bytes, client_id: str, *, is_moving: bool = False) -> None:
        """It no longer has it, from the end of this turn on."""
        if not is_moving and self._owners.get(topic_filter) == client_id:
            self._released[topic_filter] = client_id
            self._ask_flush()

    def flush(self) -> None:
        """The turn is over: remove the rows of topics that were given up."""
        if not self._released:
            return
        released, self._released = self._released, {}
        for topic_filter, client_id in released.items():
            del self._owners[topic_filter]
            self._durable.remove_exclusive(client_id, topic_filter)

    def has_other(self, topic: bytes, client_id: str) -> bool:
        """Whether a durable session of another client id has the topic, at whichever core that is at home."""
        key, own = EXCLUSIVE_PREFIX.encode() + topic, EXCLUSIVE + client_id.encode()
        return any(self._tables.row(origin, key) not in (None, own) for origin in self._origins)
