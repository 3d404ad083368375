"""Retained messages as rows of the log, each in the shard of its topic, so that all publishers share one order (S9)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from braidmq.base.errors import Corruption
from braidmq.broker.ports import StoredMessage
from braidmq.lane.path.message import Message
from braidmq.storage.format.kept_messages import RETAINED_END, RETAINED_PREFIX, retained_key
from braidmq.storage.log import DurableLog
from braidmq.storage.rows.changes import Delete, Put
from braidmq.storage.rows.messages import MessageRows


class LogRetained:
    """The rows of retained messages; implements `broker.ports.RetainedRows`."""

    def __init__(
        self,
        log: DurableLog,
        shards: Iterable[int] | None = None,
        *,
        wall: Callable[[], float] = time.time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``shards``: those that may have rows; None: all. Each of several cores has the topics of the shards that it leads."""
        self._log = log
        self._shards = range(log.shards) if shards is None else sorted(shards)
        self._messages = MessageRows(wall, now)

    def put(self, message: Message, user_name: str | None, stored_at: float = 0.0) -> Put:
        """Set the retained message of its topic; raises UsageError if it is too large to be stored."""
        row = self._messages.row_of(message, user_name, stored_at)
        return Put(self._shard_of(message.topic), retained_key(message.topic), row)

    def remove(self, topic: bytes) -> Delete:
        """Remove the retained message of a topic, if there is one."""
        return Delete(self._shard_of(topic), retained_key(topic))

    def load(self) -> Iterator[StoredMessage]:
        """Every retained message as of the last flush, one at a time, including expired ones.

        Raises UsageError if a newer version wrote a row, Corruption if a row is invalid.
        """
        for shard in self._shards:
            for key, value in self._log.rows(shard, RETAINED_PREFIX, RETAINED_END):
                yield self._stored(key[len(RETAINED_PREFIX) :], value)

    def read(self, topic: bytes) -> StoredMessage | None:
        """The retained message of a topic as of the last flush; None if there is none. Raises as `load` does."""
        value = self._log.row(self._shard_of(topic), retained_key(topic))
        return None if value is None else self._stored(topic, value)

    def _stored(self, topic: bytes, value: bytes) -> StoredMessage:
        name = f"the retained message of topic {topic.decode(errors='replace')!r}"
        stored = self._messages.message_of(value, name)
        if stored.message.topic != topic:
            raise Corruption(f"{name} belongs to another topic, {stored.message.topic.decode(errors='replace')!r}")
        return stored

    def _shard_of(self, topic: bytes) -> int:
        # By the format, a topic has the shard that a client id with the same text would have.
        return self._log.shard_of(topic.decode())
