"""Moves the tables of a single node to etcd, so that a crash at any moment leaves one of two states: not moved, or moved.

    1. a claim: the row "moving" with the id of the node's log; no other node can move its tables to this cluster from then on
    2. the rows, in as many commits as they need, each on the condition that the claim is as it was and there is no cluster
    3. the map, the version, and the end of the claim, in one commit: from now on the cluster exists
    4. the row "moved" in the node's own tables: it refuses to be started with them

Each step can be repeated. After step 3 and before a core has been started with etcd, the rows are compared and copied once more:
the node may have been started with its own tables in between, if step 4 is missing. Once a core has taken a term in etcd, nothing
is written there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from braidmq.base.errors import ConfigError, Unavailable, UsageError
from braidmq.cluster.corestore.contract import ABSENT, Condition, CoreStore, DeleteRow, PutRow, RowWrite, revision_of
from braidmq.cluster.membership.cluster_view import LISTED
from braidmq.cluster.membership.members import DEATHS, LEASES, MEMBERS, live_member
from braidmq.cluster.membership.shard_map import (
    CLUSTER,
    MAP_KEY,
    TERMS,
    VERSION_KEY,
    MapRow,
    decode_map,
    next_version,
    shard_key,
)

MOVING_KEY: Final = b"moving"
MOVED_KEY: Final = b"moved"
_MOVED_TABLES: Final = tuple(table for table in LISTED if table not in (CLUSTER, LEASES))
_ROWS_PER_COMMIT: Final = 100
_BYTES_PER_COMMIT: Final = 512 * 1024


class MoveResult(Struct, frozen=True):
    """``rows``: written now. ``is_in_use``: a core has been started with the cluster before, and nothing was written."""

    rows: int
    is_in_use: bool = False


async def move_tables(source: CoreStore, target: CoreStore, proposal: MapRow, version: int) -> MoveResult:
    """Move the tables of a single node, which must not run. ``proposal``: its log, with itself as the only core.

    ``version``: what the node speaks. Raises UsageError if the cluster exists there or another node moves to it, and Unavailable.
    """
    map_row = await target.get(CLUSTER, MAP_KEY)
    if map_row is not None:
        found, is_in_use = decode_map(map_row), await target.get(TERMS, shard_key(0)) is not None
        if found.log_id != proposal.log_id or (is_in_use and found != proposal):
            hint = "give this node's cluster another name (node.cluster), or use another etcd"
            raise UsageError(f"etcd has this cluster already, with the cores {', '.join(found.cores)}", hint)
        if is_in_use:
            await _note_moved(source)
            return MoveResult(0, is_in_use=True)
        guards = [Condition(CLUSTER, MAP_KEY, map_row.revision), Condition(TERMS, shard_key(0), ABSENT)]
        rows = await _copy(source, target, guards)
        if found != proposal:  # the node was given another name
            await _commit(target, guards, [PutRow(CLUSTER, MAP_KEY, msgspec.msgpack.encode(proposal))])
            rows += 1
    else:
        guards = await _claim(target, proposal.log_id)
        rows = await _copy(source, target, guards) + await _create(source, target, guards, proposal, version)
    await _note_moved(source)
    return MoveResult(rows)


async def check_not_moved(store: CoreStore) -> None:
    """Raise ConfigError if the tables of this node are those of a cluster in etcd."""
    if await store.get(CLUSTER, MOVED_KEY) is not None:
        hint = 'set cluster.store = "etcd" and cluster.etcd'
        raise ConfigError("cluster.store", "the tables of this node were moved to etcd by `braidmq ctl cluster init`", hint)


async def _claim(target: CoreStore, log_id: bytes) -> list[Condition]:
    """The conditions on which this node alone moves its tables to the cluster. Raises UsageError if another one does."""
    absent = Condition(CLUSTER, MAP_KEY, ABSENT)
    found = await target.get(CLUSTER, MOVING_KEY)
    if found is None:
        await target.commit([absent, Condition(CLUSTER, MOVING_KEY, ABSENT)], [PutRow(CLUSTER, MOVING_KEY, log_id)])
        found = await target.get(CLUSTER, MOVING_KEY)
    if found is None or found.value != log_id:
        hint = "finish that there, or give this node's cluster another name (node.cluster)"
        raise UsageError("another node has begun to move its tables to this cluster in etcd", hint)
    return [absent, Condition(CLUSTER, MOVING_KEY, found.revision)]


async def _copy(source: CoreStore, target: CoreStore, guards: Sequence[Condition]) -> int:
    """Make these tables of the target what they are in the source; the number of rows that were written."""
    writes: list[RowWrite] = []
    for table in _MOVED_TABLES:
        wanted, there = (await source.list_rows(table)).rows, (await target.list_rows(table)).rows
        writes += [DeleteRow(table, key) for key in sorted(there.keys() - wanted.keys())]
        for key, row in sorted(wanted.items()):
            if key not in there or there[key].value != row.value:
                writes.append(PutRow(table, key, row.value))
    for piece in _cut(writes):
        await _commit(target, guards, piece)
    return len(writes)


async def _create(source: CoreStore, target: CoreStore, guards: Sequence[Condition], proposal: MapRow, version: int) -> int:
    rows, deaths = (await source.list_rows(MEMBERS)).rows, (await source.list_rows(DEATHS)).rows
    alive = [member.version for name in rows if (member := live_member(name, rows, deaths)) is not None]
    lowest = next_version(1, [version, *alive])
    writes: list[RowWrite] = [
        PutRow(CLUSTER, MAP_KEY, msgspec.msgpack.encode(proposal)),
        PutRow(CLUSTER, VERSION_KEY, lowest.to_bytes(8, "big")),
        DeleteRow(CLUSTER, MOVING_KEY),
    ]
    await _commit(target, guards, writes)
    return 2


async def _commit(target: CoreStore, guards: Sequence[Condition], writes: Sequence[RowWrite]) -> None:
    if await target.commit(guards, writes) is None:
        raise Unavailable("another process writes to this cluster in etcd; try again when it has ended")


async def _note_moved(source: CoreStore) -> None:
    row = await source.get(CLUSTER, MOVED_KEY)
    if row is None:
        await source.commit([Condition(CLUSTER, MOVED_KEY, revision_of(row))], [PutRow(CLUSTER, MOVED_KEY, b"etcd")])


def _cut(writes: Sequence[RowWrite]) -> list[list[RowWrite]]:
    """Pieces that fit into a commit."""
    pieces: list[list[RowWrite]] = []
    room = 0
    for write in writes:
        size = len(write.key) + (len(write.value) if isinstance(write, PutRow) else 0)
        if not pieces or len(pieces[-1]) >= _ROWS_PER_COMMIT or size > room:
            pieces.append([])
            room = _BYTES_PER_COMMIT
        pieces[-1].append(write)
        room -= size
    return pieces
