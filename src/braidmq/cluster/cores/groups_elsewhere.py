"""Shared groups that durable sessions of other cores' shards are members of.

Each core has every such group, with the positions of the shards that it leads, for as long as one of these sessions exists. While
none of its members is connected, messages for it are recorded and wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from braidmq.broker.shared.group import Group, Groups
from braidmq.cluster.cores.durable_routes import group_of_key
from braidmq.cluster.membership.led_shards import LedShards
from braidmq.cluster.rlog.origins import durable_origin
from braidmq.cluster.rlog.tables import RowChange, Tables
from braidmq.lane.path.state import State
from braidmq.lane.peers.peer import SilentFlow


class GroupsElsewhere:
    """Keeps these groups, by a member that is never connected and stands for all sessions elsewhere."""

    def __init__(self, groups: Groups, state: State, tables: Tables, led: LedShards, adopt: Callable[[Group], None]) -> None:
        """``adopt``: lets a group go on from its row, if it was here before a restart."""
        self._groups = groups
        self._tables = tables
        self._origins = frozenset(durable_origin(shard) for shards in led.others.values() for shard in shards)
        self._adopt = adopt
        self._flow = SilentFlow("", state)

    def apply(self, changes: Iterable[RowChange]) -> None:
        """Rows of the replication log have changed, and the tables have them."""
        for origin, key, value in changes:
            group = group_of_key(key) if origin in self._origins else None
            if group is None:
                continue
            if value is not None:
                self._join(group)
            elif not any(self._tables.has_row(each, key) for each in self._origins):
                self._leave(group)

    def _join(self, key: tuple[str, bytes]) -> None:
        found = self._groups.find(key)
        if found is not None and found.has_member(self._flow):
            return
        name, topic_filter = key
        self._groups.join(name, self._flow, topic_filter, 1, False, b"")
        group = self._groups.find(key)
        assert group is not None
        if found is None:
            self._adopt(group)
        self._groups.relieve_all([group])

    def _leave(self, key: tuple[str, bytes]) -> None:
        group = self._groups.find(key)
        if group is not None:
            self._groups.leave(group, self._flow)
