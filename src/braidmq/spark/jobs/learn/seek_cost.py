"""Estimates the cost of a filter in the broker's log with different sets of patterns.

In an epoch of a shard, the records of a pattern are adjacent, sorted by the names at its varying levels (as hashes). A filter
visits every pattern that it overlaps; a name with a pattern of its own is searched only there, not among the varying ones. In
each pattern the filter examines one key per place that it seeks to, and one per record that it finds:

    keys = records found + epochs x places
    places of a pattern = 1, if the filter gives no names, or names only at the first varying levels;
                          else, for each combination of the names before the last given one that the filter leaves open, 1

So one exact topic costs one place; `plant/+/temp` one per overlapping pattern; `plant/+/x7/#` one per name at the open level.
Patterns without records in an epoch are counted too, and the broker's caches are ignored: only the proportion matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

import msgspec

from braidmq.mqtt.topics import matches, overlaps
from braidmq.spark.jobs.framework.patterns import specificity, varying_levels
from braidmq.spark.jobs.learn.patterns import TopicStats

# Of more topics than this, a sample is used.
TOPICS_MAX = 20_000


class FilterCost(msgspec.Struct, frozen=True):
    """What a filter finds and examines with the current patterns, and with the proposed ones."""

    topic_filter: str
    records: int
    keys_before: int
    keys_after: int

    @property
    def per_hit_before(self) -> float:
        """Keys examined per record found."""
        return self.keys_before / max(self.records, 1)

    @property
    def per_hit_after(self) -> float:
        """The same with the proposed patterns."""
        return self.keys_after / max(self.records, 1)


def compare(
    filters: Iterable[str],
    topics: Sequence[TopicStats],
    before: Mapping[int, Sequence[str]],
    after: Sequence[str],
    epochs: Mapping[int, int],
) -> list[FilterCost]:
    """The costs of the filters with the current patterns of each shard, and with the new ones in every shard."""
    chosen = _share(topics)
    shards = sorted({each.shard for each in chosen} | set(before))
    of_shard = {shard: [each for each in chosen if each.shard == shard] for shard in shards}
    old = [_Shelves(before.get(shard, ()), of_shard[shard], epochs.get(shard, 1)) for shard in shards]
    new = [_Shelves(after, of_shard[shard], epochs.get(shard, 1)) for shard in shards]
    found = []
    for each in filters:
        keys_before = [shelves.keys(each) for shelves in old]
        keys_after = [shelves.keys(each) for shelves in new]
        records = sum(records for records, _ in keys_before)
        found.append(FilterCost(each, records, sum(keys for _, keys in keys_before), sum(keys for _, keys in keys_after)))
    return found


def _share(topics: Sequence[TopicStats]) -> list[TopicStats]:
    of = -(-len(topics) // TOPICS_MAX)
    return [each for each in topics if crc32(each.topic.encode()) % of == 0] if of > 1 else list(topics)


class _Shelves:
    """The topics of a shard, grouped by pattern; a topic that matches none forms its own pattern."""

    def __init__(self, patterns: Iterable[str], topics: Iterable[TopicStats], epochs: int) -> None:
        tree = _Tree(patterns)
        self._epochs = max(epochs, 1)
        self._topics: dict[str, list[TopicStats]] = {}
        for each in topics:
            self._topics.setdefault(tree.of(each.topic) or each.topic, []).append(each)
        # All prefixes of the patterns: the names kept separate, and where.
        self._edges = {tuple(levels[: depth + 1]) for levels in map(_levels, self._topics) for depth in range(len(levels))}

    def keys(self, topic_filter: str) -> tuple[int, int]:
        """The records that a filter finds, and the keys that it examines."""
        records = places = 0
        for pattern, topics in self._topics.items():
            if self._visits(topic_filter, pattern):
                places += _places(topic_filter, pattern, topics)
                records += sum(each.records for each in topics if matches(topic_filter, each.topic))
        return records, records + places * self._epochs

    def _visits(self, topic_filter: str, pattern: str) -> bool:
        levels = _levels(pattern)
        is_passed_by = any(
            level == "+" and name not in ("+", "#") and (*levels[:depth], name) in self._edges
            for depth, (level, name) in enumerate(zip(levels, _levels(topic_filter), strict=False))
        )
        return not is_passed_by and overlaps(topic_filter, pattern)


class _Tree:
    """Finds the most specific pattern of a topic without trying them all."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._first: dict[str, list[str]] = {}
        for each in sorted(patterns, key=specificity):
            self._first.setdefault(each.split("/", 1)[0], []).append(each)

    def of(self, topic: str) -> str | None:
        """The pattern; None if none matches."""
        head = topic.split("/", 1)[0]
        for candidates in (self._first.get(head, ()), self._first.get("+", ()), self._first.get("#", ())):
            for each in candidates:
                if matches(each, topic):
                    return each
        return None


def _levels(topic_filter: str) -> list[str]:
    return topic_filter.split("/")


def _places(topic_filter: str, pattern: str, topics: Sequence[TopicStats]) -> int:
    levels = topic_filter.split("/")
    is_open = levels[-1] == "#"
    varying = varying_levels(pattern)
    named = [place for place in varying if place < len(levels) - is_open and levels[place] != "+"]
    if not named:
        return 1
    free = [place for place in varying if place < named[-1] and place not in named]
    if not free:
        return 1
    return max(1, len({tuple(each.topic.split("/")[place] for place in free) for each in topics}))
