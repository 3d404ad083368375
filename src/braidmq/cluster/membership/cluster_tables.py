"""Carries out what `shard_map` decides: creates the cluster once, takes terms, publishes where a core is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from braidmq.base.errors import Unavailable
from braidmq.cluster.corestore.contract import ABSENT, Condition, CoreStore, PutRow, revision_of
from braidmq.cluster.membership.shard_map import (
    CLUSTER,
    CORES,
    MAP_KEY,
    TERMS,
    VERSION_KEY,
    CoreEntryRow,
    MapRow,
    TermRow,
    decode_map,
    next_term,
    shard_key,
)

_TERMS_PER_COMMIT: Final = 100
_ATTEMPTS_MAX: Final = 100


class ClusterTables:
    """The tables that every core has to read before it can open its log. Every call raises Unavailable."""

    def __init__(self, store: CoreStore) -> None:
        self._store = store

    async def find_map(self) -> MapRow | None:
        """The map of the cluster; None before it is created."""
        row = await self._store.get(CLUSTER, MAP_KEY)
        return None if row is None else decode_map(row)

    async def create(self, proposal: MapRow, version: int) -> MapRow:
        """Create the cluster, unless it exists; its map as it is now."""
        rows = [
            PutRow(CLUSTER, MAP_KEY, msgspec.msgpack.encode(proposal)),
            PutRow(CLUSTER, VERSION_KEY, version.to_bytes(8, "big")),
        ]
        try:
            await self._store.commit([Condition(CLUSTER, MAP_KEY, ABSENT)], rows)
        except Unavailable:  # perhaps it was carried out
            if await self.find_map() is None:
                raise
        found = await self.find_map()
        if found is None:
            raise Unavailable("the map of the cluster has just been removed")
        return found

    async def take_terms(
        self, shards: Iterable[int], core: str, incarnation: int, remembered: Mapping[int, int]
    ) -> dict[int, TermRow]:
        """Take a new term for each of these shards. ``remembered``: the last terms that this core knows of itself."""
        taken: dict[int, TermRow] = {}
        listed = sorted(shards)
        for first in range(0, len(listed), _TERMS_PER_COMMIT):
            taken.update(await self._take_terms(listed[first : first + _TERMS_PER_COMMIT], core, incarnation, remembered))
        return taken

    async def _take_terms(
        self, shards: list[int], core: str, incarnation: int, remembered: Mapping[int, int]
    ) -> dict[int, TermRow]:
        for _ in range(_ATTEMPTS_MAX):
            rows = (await self._store.list_rows(TERMS)).rows
            read = {shard: rows.get(shard_key(shard)) for shard in shards}
            terms = {shard: next_term(row, remembered.get(shard, 0), core, incarnation) for shard, row in read.items()}
            conditions = [Condition(TERMS, shard_key(shard), revision_of(row)) for shard, row in read.items()]
            writes = [PutRow(TERMS, shard_key(shard), msgspec.msgpack.encode(term)) for shard, term in terms.items()]
            if await self._store.commit(conditions, writes) is not None:
                return terms
        raise Unavailable("another process takes terms of the same shards")

    async def publish(self, core: str, address: str) -> None:
        """Say where nodes reach a core."""
        value = msgspec.msgpack.encode(CoreEntryRow(address))
        row = await self._store.get(CORES, core.encode())
        if row is None or row.value != value:
            await self._store.commit([], [PutRow(CORES, core.encode(), value)])
