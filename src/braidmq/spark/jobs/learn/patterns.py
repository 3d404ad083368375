"""Finds the topic levels that vary, and derives patterns and thresholds from the whole history. Plain Python, on the driver.

The names below a prefix vary if there are more of them than `names_max` for that level, or at least half as many that each have
names below them and are used about evenly (entropy at least 0.9 of the maximum): devices look like that, kinds of values do not.
Varying names become `+`, and the levels below them are examined together. All other names stay separate, and so do a few names
among varying ones that share no name below them with any other.

The broker decides in the same way while it records, based on the names that arrive first. With the whole history available, early
names need no patterns of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import ceil, log2
from typing import Final

import msgspec

# Maximum number of separate names at the first level and at all others, as in the broker's `learned` layout.
NAMES_MAX: Final = (100, 10)
# The depth of the broker's patterns.
DEPTH_MAX: Final = 16
_EVEN: Final = 0.9
_SLACK: Final = 1.25
_THRESHOLD_MIN: Final = 4
_THRESHOLD_MAX: Final = 65_535


class TopicStats(msgspec.Struct, frozen=True, gc=False):
    """Records and bytes of a topic in a shard."""

    topic: str
    records: int
    payload_bytes: int = 0
    shard: int = 0


class LevelStats(msgspec.Struct, frozen=True):
    """The names below a prefix, itself a pattern: how many, how evenly used (bits), and whether they vary."""

    prefix: str
    depth: int
    names: int
    entropy: float
    records: int
    varies: bool


class PatternStats(msgspec.Struct, frozen=True):
    """A pattern, and the number of topics, records and bytes that belong to it."""

    pattern: str
    topics: int
    records: int
    payload_bytes: int


class Proposal(msgspec.Struct, frozen=True):
    """The result: patterns, largest first; levels in the order of the walk; thresholds for the broker."""

    patterns: list[PatternStats]
    levels: list[LevelStats]
    thresholds: list[int]


def propose(topics: Iterable[TopicStats], names_max: Sequence[int] = NAMES_MAX) -> Proposal:
    """Propose patterns for these topics; a topic may occur once per shard."""
    merged: dict[str, tuple[int, int]] = {}
    for one in topics:
        records, payload_bytes = merged.get(one.topic, (0, 0))
        merged[one.topic] = records + one.records, payload_bytes + one.payload_bytes
    walk = _Walk(names_max)
    everything: list[_Topic] = [(topic.split("/"), *counts) for topic, counts in sorted(merged.items())]
    # `+` at the first level does not match names that begin with $, so these never count as varying.
    walk.look([each for each in everything if not each[0][0].startswith("$")], [])
    dollars: dict[str, list[_Topic]] = {}
    for each in everything:
        if each[0][0].startswith("$"):
            dollars.setdefault(each[0][0], []).append(each)
    for name, below in dollars.items():
        walk.look(below, [name])
    patterns = sorted(walk.patterns, key=lambda each: (-each.records, each.pattern))
    return Proposal(patterns, walk.levels, walk.thresholds())


_Topic = tuple[list[str], int, int]


class _Walk:
    """Walks from the first level to the last, over topics with the same prefix."""

    def __init__(self, names_max: Sequence[int]) -> None:
        self._names_max = names_max
        self.patterns: list[PatternStats] = []
        self.levels: list[LevelStats] = []

    def look(self, topics: list[_Topic], prefix: list[str]) -> None:
        """Learn from the topics below a prefix."""
        depth = len(prefix)
        ending = [each for each in topics if len(each[0]) == depth]
        if ending:
            self._add("/".join(prefix), ending)
        below: dict[str, list[_Topic]] = {}
        for each in topics:
            if len(each[0]) > depth:
                below.setdefault(each[0][depth], []).append(each)
        if not below:
            return
        if depth == DEPTH_MAX:
            self._add("/".join([*prefix, "#"]), [each for some in below.values() for each in some])
            return
        records = {name: sum(each[1] for each in some) for name, some in below.items()}
        spread = entropy(records.values())
        have_more_below = all(any(len(each[0]) > depth + 1 for each in some) for some in below.values())
        varies = self._varies(len(below), depth, spread, have_more_below)
        self.levels.append(LevelStats("/".join(prefix), depth, len(below), spread, sum(records.values()), varies))
        apart = self._odd_names(below, depth) if varies else list(below)
        for name in apart:
            self.look(below.pop(name), [*prefix, name])
        if below:
            self.look([each for some in below.values() for each in some], [*prefix, "+"])

    def _room(self, depth: int) -> int:
        return self._names_max[min(depth, len(self._names_max) - 1)]

    def _odd_names(self, below: dict[str, list[_Topic]], depth: int) -> list[str]:
        """The names that share no name below them with another one, if they are few."""
        tails = {name: {"/".join(each[0][depth + 1 : depth + 2]) for each in some} for name, some in below.items()}
        used = Counter(tail for each in tails.values() for tail in each)
        odd = [name for name, each in tails.items() if all(used[tail] == 1 for tail in each)]
        return odd if len(odd) * 2 < min(self._room(depth), len(below)) else []

    def _varies(self, names: int, depth: int, spread: float, have_more_below: bool) -> bool:
        room = self._room(depth)
        is_even = names > 1 and spread >= _EVEN * log2(names)
        return names > room or (names * 2 >= room and names > 1 and have_more_below and is_even)

    def _add(self, pattern: str, topics: list[_Topic]) -> None:
        records = sum(each[1] for each in topics)
        self.patterns.append(PatternStats(pattern, len(topics), records, sum(each[2] for each in topics)))

    def thresholds(self) -> list[int]:
        """Thresholds with room for the names that do not vary and some more, for the first level and all others."""
        told_apart = [
            max((each.names for each in self.levels if not each.varies and (each.depth == 0) == is_first), default=0)
            for is_first in (True, False)
        ]
        return [min(max(_THRESHOLD_MIN, ceil(names * _SLACK)), _THRESHOLD_MAX) for names in told_apart]


def entropy(counts: Iterable[int]) -> float:
    """Entropy in bits: log2 of the number of names if all are used equally, 0 if only one is used."""
    used = [each for each in counts if each > 0]
    total = sum(used)
    return max(0.0, -sum(each / total * log2(each / total) for each in used))


def example_filters(proposal: Proposal, topics: Iterable[TopicStats], patterns_max: int = 20) -> list[str]:
    """Typical filters: each of the largest patterns, and everything below the busiest name at its first varying level."""
    chosen = [each.pattern.split("/") for each in proposal.patterns[:patterns_max]]
    names: dict[tuple[str, ...], Counter[str]] = {
        tuple(levels[: levels.index("+")]): Counter() for levels in chosen if "+" in levels
    }
    for each in topics:
        levels = each.topic.split("/")
        for prefix, counter in names.items():
            place = len(prefix)
            if len(levels) > place and tuple(levels[:place]) == prefix:
                counter[levels[place]] += each.records
    filters = ["/".join(levels) for levels in chosen]
    for prefix, counter in names.items():
        if counter:
            busiest = max(counter.items(), key=lambda pair: (pair[1], pair[0]))[0]
            filters.append("/".join([*prefix, busiest, "#"]))
    return list(dict.fromkeys(filters))
