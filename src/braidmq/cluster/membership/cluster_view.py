"""A copy of the cluster's tables in memory, and what changes in them, as a state machine without I/O.

A core lists all tables, then follows the commits. Tables are listed one after the other, so a commit may be in one listing and
not in another: it counts for a table only above the position of that table's listing.

After a restore from a backup the tables have forgotten what happened since. `plan_write_back` puts back what this core knows: of
incarnations, deaths, terms and numbers the highest (C27).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from braidmq.cluster.clock.reference import CLOCK, decode_ceiling, rank_ceiling
from braidmq.cluster.corestore.contract import (
    Condition,
    CoreCommit,
    CoreRow,
    PutRow,
    TableRows,
    revision_of,
)
from braidmq.cluster.membership.administration_rows import BANS, NUMBER_KEY, SETTINGS, change_number, number_of
from braidmq.cluster.membership.cluster_version import RAISING_KEY, version_of
from braidmq.cluster.membership.members import (
    COUNTERS,
    DEATHS,
    ENDPOINTS,
    LEASES,
    MEMBERS,
    DeathRow,
    LiveMember,
    MemberRow,
    kept_node,
    live_member,
)
from braidmq.cluster.membership.shard_map import (
    CLUSTER,
    CORES,
    MAP_KEY,
    TERMS,
    VERSION_KEY,
    MapRow,
    TermRow,
    decode_core,
    decode_map,
    decode_term,
    decode_terms,
    next_version,
)

FOLLOWED: Final = (CLUSTER, CORES, TERMS, MEMBERS, DEATHS, LEASES, SETTINGS, BANS)
LISTED: Final = (*FOLLOWED, COUNTERS, ENDPOINTS, CLOCK)  # what a restore must not take away


class ViewChanges(Struct):
    """What has happened, in this order: nodes have ended, others have joined, and some are kept by no core any more."""

    ended: list[LiveMember]
    joined: list[LiveMember]
    unkept: list[LiveMember]
    are_cores_changed: bool = False
    is_version_changed: bool = False
    are_settings_changed: bool = False
    bans: list[bytes] = []  # keys of rows that were written or removed


class ClusterView:
    """The rows by table and key. `load` every table, then `take` each commit; both say what has changed."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[bytes, CoreRow]] = {table: {} for table in LISTED}
        self.cores_number = 0  # rises with every change of the cores' addresses
        self._positions: dict[str, int] = {}
        self._alive: dict[str, LiveMember] = {}
        self._kept: dict[str, int] = {}  # how many cores keep a node

    @property
    def alive(self) -> Mapping[str, LiveMember]:
        """The nodes that are alive, by name."""
        return self._alive

    @property
    def map(self) -> MapRow:
        """The cores and their shards."""
        return decode_map(self.tables[CLUSTER][MAP_KEY])

    @property
    def version(self) -> int:
        """The version that all members understand."""
        return version_of(self.tables[CLUSTER].get(VERSION_KEY))

    @property
    def must_decide_version(self) -> bool:
        """Whether the version can be raised, or a core has begun to do so, as far as this core knows."""
        if RAISING_KEY in self.tables[CLUSTER]:
            return True
        return next_version(self.version, [member.version for member in self._alive.values()]) > self.version

    @property
    def administration_number(self) -> int:
        """The number of the latest change of settings or bans."""
        return number_of(self.tables[COUNTERS].get(NUMBER_KEY))

    @property
    def terms(self) -> dict[int, TermRow]:
        """The latest terms by shard; of shards whose cores have been started."""
        return decode_terms(self.tables[TERMS])

    @property
    def addresses(self) -> dict[str, str]:
        """Where nodes reach the cores, by name; of cores that have been started."""
        return {key.decode(): decode_core(row).address for key, row in self.tables[CORES].items()}

    def is_member(self, name: str, incarnation: int) -> bool:
        """Whether this incarnation of a node is alive, as far as this core knows."""
        member = self._alive.get(name)
        return member is not None and member.incarnation == incarnation

    def last_dead(self, name: str) -> int:
        """The latest incarnation of a node that has ended, as far as this core knows; 0: none."""
        row = self.tables[DEATHS].get(name.encode())
        return 0 if row is None else msgspec.msgpack.decode(row.value, type=DeathRow).incarnation

    def is_kept(self, name: str) -> bool:
        """Whether a core says that it hears the node."""
        return self._kept.get(name, 0) > 0

    def load(self, listings: Mapping[str, TableRows]) -> ViewChanges:
        """All tables were listed, again or for the first time.

        Nodes that no core keeps are not named in ``unkept``: when their leases ended is not known.
        """
        before, version = self.addresses, self.version
        settings, bans = self.tables[SETTINGS], self.tables[BANS]
        names = {key for table in (MEMBERS, DEATHS) for key in self.tables[table]}
        for table, listing in listings.items():
            self.tables[table] = dict(listing.rows)
            self._positions[table] = listing.position
        self._kept = {}
        for key in self.tables[LEASES]:
            self._note_kept(kept_node(key), 1)
        changes = self._judge(names | {key for table in (MEMBERS, DEATHS) for key in self.tables[table]})
        changes.is_version_changed = version != self.version
        changes.are_settings_changed = settings != self.tables[SETTINGS]
        changes.bans = [key for key in bans | self.tables[BANS] if bans.get(key) != self.tables[BANS].get(key)]
        self._note_cores(before, changes)
        return changes

    def take(self, commit: CoreCommit) -> ViewChanges:
        """A commit, in the order of their positions."""
        before = self.addresses if any(write.table == CORES for write in commit.writes) else {}
        version = self.version
        names: set[bytes] = set()
        lost: set[str] = set()
        is_cores = are_settings = False
        bans: list[bytes] = []
        for write in commit.writes:
            rows = self.tables.get(write.table)
            if rows is None or commit.position <= self._positions.get(write.table, 0):
                continue
            was = rows.get(write.key)
            if isinstance(write, PutRow):
                rows[write.key] = CoreRow(write.value, commit.position)
            else:
                rows.pop(write.key, None)
            if write.table == LEASES:
                name = kept_node(write.key)
                self._note_kept(name, (write.key in rows) - (was is not None))
                if not self.is_kept(name):
                    lost.add(name)
            elif write.table in (MEMBERS, DEATHS):
                names.add(write.key)
            elif write.table == BANS:
                bans.append(write.key)
            is_cores = is_cores or write.table == CORES
            are_settings = are_settings or write.table == SETTINGS
        changes = self._judge(names)
        changes.unkept = [self._alive[name] for name in sorted(lost) if name in self._alive and not self.is_kept(name)]
        if is_cores:
            self._note_cores(before, changes)
        changes.is_version_changed = version != self.version
        changes.are_settings_changed, changes.bans = are_settings, bans
        return changes

    def _note_kept(self, name: str, step: int) -> None:
        self._kept[name] = self._kept.get(name, 0) + step
        if not self._kept[name]:
            del self._kept[name]

    def _judge(self, names: Iterable[bytes]) -> ViewChanges:
        changes = ViewChanges([], [], [])
        for key in sorted(names):
            name = key.decode()
            was, now = self._alive.get(name), live_member(key, self.tables[MEMBERS], self.tables[DEATHS])
            if was is not None and (now is None or now.incarnation != was.incarnation):
                changes.ended.append(was)
                del self._alive[name]
            if now is not None:
                self._alive[name] = now
                if was is None or was.incarnation != now.incarnation:
                    changes.joined.append(now)
        return changes

    def _note_cores(self, before: Mapping[str, str], changes: ViewChanges) -> None:
        if before != self.addresses:
            self.cores_number += 1
            changes.are_cores_changed = True


class WriteBack(Struct, frozen=True):
    """A row that the tables have forgotten."""

    condition: Condition
    write: PutRow


def plan_write_back(
    known: Mapping[str, Mapping[bytes, CoreRow]], found: Mapping[str, Mapping[bytes, CoreRow]]
) -> list[WriteBack]:
    """What to put back: ``known`` are the tables as this core knew them, ``found`` as they are after the restore."""
    plan: list[WriteBack] = []
    for table in LISTED:
        if table == LEASES:
            continue  # they belong to leases; each core keeps its nodes anew
        for key, row in sorted(known.get(table, {}).items()):
            there = found.get(table, {}).get(key)
            if there is None or _rank(table, key, row) > _rank(table, key, there):
                plan.append(WriteBack(Condition(table, key, revision_of(there)), PutRow(table, key, row.value)))
    return plan


def _rank(table: str, key: bytes, row: CoreRow) -> int:
    """The higher of two rows is kept; 0: the tables are right."""
    if table == MEMBERS:
        return msgspec.msgpack.decode(row.value, type=MemberRow).incarnation
    if table == DEATHS:
        return msgspec.msgpack.decode(row.value, type=DeathRow).incarnation
    if table == TERMS:
        return decode_term(row).term
    if table == CLOCK:
        return rank_ceiling(decode_ceiling(row))
    if table in (SETTINGS, BANS):
        return change_number(table, row)
    if table == COUNTERS or (table, key) == (CLUSTER, VERSION_KEY):
        return int.from_bytes(row.value, "big")
    return 0
