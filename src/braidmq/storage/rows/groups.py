"""Cursors of shared groups as rows of the log, each in the shard of the group and its filter, whose leader assigns (S10)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from braidmq.base.shards import shard_of
from braidmq.broker.ports import GroupRow
from braidmq.storage.format.group_rows import GROUP_PREFIX, GROUPS_END, decode_group, encode_group, group_key
from braidmq.storage.log import DurableLog
from braidmq.storage.rows.changes import Delete, Put


class LogGroups:
    """The rows of shared groups; implements `broker.ports.GroupStore`."""

    def __init__(self, log: DurableLog, shards: Iterable[int] | None = None) -> None:
        """``shards``: those that may have rows; None: all. Each of several cores has its own rows, in shards that it leads."""
        self._log = log
        self._shards = list(range(log.shards)) if shards is None else sorted(shards)

    def put(self, row: GroupRow) -> Put:
        """Set the positions and all outstanding records of a group."""
        return Put(self._shard_of(row.name, row.topic_filter), group_key(row.name, row.topic_filter), encode_group(row))

    def remove(self, name: str, topic_filter: str) -> Delete:
        """Remove a group, if it exists."""
        return Delete(self._shard_of(name, topic_filter), group_key(name, topic_filter))

    def load(self) -> Iterator[GroupRow]:
        """Every group as of the last flush, one at a time.

        Raises UsageError if a newer version wrote a row, Corruption if a row is invalid.
        """
        for shard in range(self._log.shards):
            for key, value in self._log.rows(shard, GROUP_PREFIX, GROUPS_END):
                yield decode_group(key, value)

    def load_one(self, name: str, topic_filter: str) -> GroupRow | None:
        """The row of a group as of the last flush; None if it has none. Raises as `load` does."""
        key = group_key(name, topic_filter)
        value = self._log.row(self._shard_of(name, topic_filter), key)
        return None if value is None else decode_group(key, value)

    def _shard_of(self, name: str, topic_filter: str) -> int:
        # By the format, a group has the shard that a client id with this text would have.
        return self._shards[shard_of(f"{name}\0{topic_filter}", len(self._shards))]
