"""Which shards of the log this core leads, and which ones the other cores lead (fixed when the cluster is created).

Every core's database has the families of all shards, and those of shards that it does not lead stay empty. Vectors over the
shards, in messages and rows, are always over all of them. What stands there for other cores' shards is:

- in what this core tells others: 0, and the receiver takes it from the shard's own leader;
- in what this core reads its own log with: what its own log says of an empty shard.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from braidmq.base.shards import shard_of

log = logging.getLogger("braidmq.cluster")


class LedShards:
    """The shards that this core leads, with their terms, and the leader of each shard by name."""

    __slots__ = ("count", "is_all", "leaders", "local", "terms")

    def __init__(self, local: str, leaders: Sequence[str], terms: Mapping[int, int]) -> None:
        """``local``: this core. ``leaders``: the core of each shard. ``terms``: of the shards that this core leads."""
        self.local = local
        self.leaders = tuple(leaders)
        self.count = len(self.leaders)
        self.terms = dict(terms)
        self.is_all = len(self.terms) == self.count
        assert {shard for shard, name in enumerate(self.leaders) if name == local} == set(self.terms), "terms of other shards"

    @classmethod
    def all(cls, local: str, count: int, term: int = 1) -> LedShards:
        """Those of the only core."""
        return cls(local, [local] * count, dict.fromkeys(range(count), term))

    def __contains__(self, shard: object) -> bool:
        return shard in self.terms

    def __iter__(self) -> Iterator[int]:
        return iter(self.terms)

    @property
    def others(self) -> dict[str, list[int]]:
        """The other cores, with their shards."""
        found: dict[str, list[int]] = {}
        for shard, name in enumerate(self.leaders):
            if name != self.local:
                found.setdefault(name, []).append(shard)
        return found

    def shard_of(self, name: str) -> int:
        """The shard of a client id, or of another text."""
        return shard_of(name, self.count)

    def has(self, name: str) -> bool:
        """Whether this core leads the shard of a client id, or of another text."""
        return self.is_all or self.shard_of(name) in self.terms

    def told(self, values: list[int]) -> list[int]:
        """A vector for others."""
        if self.is_all:
            return values
        return [value if shard in self.terms else 0 for shard, value in enumerate(values)]

    def own(self, positions: Sequence[int], marks: Sequence[int]) -> list[int]:
        """Positions to read this core's log from. ``marks``: what its log says of each shard."""
        return [position if shard in self.terms else marks[shard] for shard, position in enumerate(positions[: self.count])]


class Misdirected:
    """Counts what nodes send here although another core leads its shard: they have another map of the shards."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()  # by what it was: claims, blocks, rows

    def note(self, what: str, node: str, shard: int) -> None:
        """Count it; each kind is logged once."""
        if not self.counts[what]:
            log.warning("%s sends %s of shard %d, which another core leads; its map of the shards is not ours", node, what, shard)
        self.counts[what] += 1
