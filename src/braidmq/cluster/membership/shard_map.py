"""Who leads which shard of a cluster, and in which term, as decisions without I/O.

    cluster "map"       MapRow: the log's id, the cores, and the leader of each shard; written once, never changed
    cluster "version"   the version of rows and messages that all members understand (C35); it only rises
    terms   shard       TermRow: the latest term of a shard's leader
    cores   name        CoreEntryRow: where nodes reach a core

Every start of a core takes a new term for each shard that it leads, so what an earlier start wrote can be told from what it
writes now. A term is one more than the latest that the tables or the core itself know: tables that were restored from a backup
may have forgotten some (C27).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from braidmq.base.errors import ConfigError, Corruption
from braidmq.cluster.corestore.contract import CoreRow

CLUSTER: Final = "cluster"
MAP_KEY: Final = b"map"
VERSION_KEY: Final = b"version"
TERMS: Final = "terms"
CORES: Final = "cores"
SHARDS_OF_NEW_CLUSTER: Final = 12
SHARD_KEY_BYTES: Final = 2

Row = TypeVar("Row", bound=Struct)


class MapRow(Struct, frozen=True, array_like=True):
    """What is fixed when a cluster is created. ``leaders``: for each shard the index of its core in ``cores``."""

    log_id: bytes
    cores: list[str]
    leaders: list[int]

    @property
    def shards(self) -> int:
        """How many there are."""
        return len(self.leaders)

    @property
    def leader_names(self) -> list[str]:
        """For each shard its core."""
        return [self.cores[leader] for leader in self.leaders]

    def led_by(self, core: str) -> list[int]:
        """The shards of a core."""
        index = self.cores.index(core)
        return [shard for shard, leader in enumerate(self.leaders) if leader == index]

    def leader_of(self, shard: int) -> str:
        """The core that leads a shard."""
        return self.cores[self.leaders[shard]]


class TermRow(Struct, frozen=True, array_like=True):
    """The latest term of a shard, the core that took it, and in which incarnation."""

    term: int
    core: str
    incarnation: int


class CoreEntryRow(Struct, frozen=True, array_like=True):
    """Where nodes reach a core."""

    address: str


def deal(log_id: bytes, cores: Iterable[str], shards: int) -> MapRow:
    """The map of a new cluster: its shards go round its cores."""
    names = sorted(set(cores))
    return MapRow(log_id, names, [shard % len(names) for shard in range(shards)])


def check_map(row: MapRow, name: str, initial_cores: Sequence[str], shards: int | None) -> None:
    """Raise ConfigError if the configuration of a core is not that of the cluster. ``shards``: None if it is not configured."""
    if name not in row.cores:
        hint = "give this node the name of one of them; cores that join later are not supported yet"
        raise ConfigError("node.name", f"{name!r} is not among the cluster's cores ({', '.join(row.cores)})", hint)
    if initial_cores and sorted(set(initial_cores)) != row.cores:
        hint = "set it to these, or remove it: the cores of a cluster are fixed when it is created"
        raise ConfigError("cluster.initial_cores", f"differs from the cluster's cores ({', '.join(row.cores)})", hint)
    if shards is not None and shards != row.shards:
        hint = f"set it to {row.shards}, or remove it"
        raise ConfigError("history.shards", f"is {shards}, but the cluster has {row.shards}", hint)


def next_term(row: CoreRow | None, remembered: int, core: str, incarnation: int) -> TermRow:
    """The term that a core takes. ``remembered``: the last one that it knows of itself."""
    stored = 0 if row is None else decode_term(row).term
    return TermRow(max(stored, remembered) + 1, core, incarnation)


def next_version(current: int, versions: Iterable[int]) -> int:
    """The cluster's version once these are the versions of its live members; it never falls."""
    return max(current, min(versions, default=current))


def shard_key(shard: int) -> bytes:
    """The key of a shard's row."""
    return shard.to_bytes(SHARD_KEY_BYTES, "big")


def shard_of_key(key: bytes) -> int:
    """The shard of a key."""
    return int.from_bytes(key, "big")


def decode_map(row: CoreRow) -> MapRow:
    """The map as it was written. Raises Corruption."""
    found = _decode(row, MapRow)
    if not found.cores or not found.leaders or not all(0 <= each < len(found.cores) for each in found.leaders):
        raise Corruption("the map of the cluster's shards is not valid")
    return found


def decode_term(row: CoreRow) -> TermRow:
    """A term as it was written. Raises Corruption."""
    return _decode(row, TermRow)


def decode_core(row: CoreRow) -> CoreEntryRow:
    """A core's row as it was written. Raises Corruption."""
    return _decode(row, CoreEntryRow)


def decode_terms(rows: Mapping[bytes, CoreRow]) -> dict[int, TermRow]:
    """All terms by shard. Raises Corruption."""
    return {shard_of_key(key): decode_term(row) for key, row in rows.items()}


def _decode(row: CoreRow, type_: type[Row]) -> Row:
    try:
        return msgspec.msgpack.decode(row.value, type=type_)
    except msgspec.DecodeError as problem:
        raise Corruption(f"a row of the cluster's tables is not a {type_.__name__}: {problem}") from None
