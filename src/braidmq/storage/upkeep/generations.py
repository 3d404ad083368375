"""The generations of a log, and whether a new one with better patterns would need fewer seeks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec import Struct

from braidmq.lane.records.topic_trie import Entry
from braidmq.storage.format.rows import layout_prefix
from braidmq.storage.layouts.learned import LearnedLayout, entry_of
from braidmq.storage.layouts.lessons import Lesson, learn_from, patterns_of
from braidmq.storage.ports import Reads
from braidmq.storage.shard.shard import Shard


class GenerationStats(Struct, frozen=True, gc=False):
    """One generation of a shard: its layout as text, its first timestamp, and its remaining records."""

    shard: int
    log_class: str  # empty: the log itself
    number: int
    layout: str
    parameters: str
    first_epoch: int
    records: int
    size_bytes: int


class RelearnGain(Struct, frozen=True):
    """What each family could learn from its topics so far; None for families without topics."""

    lessons: tuple[Lesson | None, ...]

    @property
    def patterns_before(self) -> int:
        """The patterns that `#` below the first level visits now, in all families, each with a seek in every epoch."""
        return sum(lesson.before for lesson in self.lessons if lesson is not None)

    @property
    def patterns_after(self) -> int:
        """The patterns that it would visit after a new generation."""
        return sum(lesson.after for lesson in self.lessons if lesson is not None)

    @property
    def is_worth_it(self) -> bool:
        """Whether a new generation pays off in at least one family."""
        return any(lesson.is_worth_it for lesson in self.lessons if lesson is not None)

    @property
    def reason(self) -> str:
        """The numbers as text."""
        if all(lesson is None for lesson in self.lessons):
            return "the layout learns nothing, or nothing is recorded yet"
        return f"{self.patterns_before} topic patterns would become {self.patterns_after}"


def list_generations(number: int, log_class: str, shard: Shard) -> list[GenerationStats]:
    """The generations of a family, oldest first; uncommitted records count."""
    known = list(shard.generations)
    older = [shard.epochs.closed_between(each.row.first_epoch, after.row.first_epoch) for each, after in pairwise(known)]
    counts = [sum(epoch.count for epoch in epochs) for epochs in older]
    sizes = [sum(epoch.size_bytes for epoch in epochs) for epochs in older]
    # The open epoch belongs to the last generation, which has all remaining records.
    counts.append(shard.epochs.count - sum(counts))
    sizes.append(shard.epochs.size_bytes - sum(sizes))
    return [
        GenerationStats(
            shard=number,
            log_class=log_class,
            number=generation.row.number,
            layout=generation.row.layout,
            parameters=generation.layout.describe(),
            first_epoch=generation.row.first_epoch,
            records=records,
            size_bytes=size_bytes,
        )
        for generation, records, size_bytes in zip(known, counts, sizes, strict=False)
    ]


def find_gain(store: Reads, shards: Sequence[Shard]) -> RelearnGain:
    """Analyse the patterns of these families on disk; read-only, may run in a thread."""
    return RelearnGain(tuple(_lesson(store, shard) for shard in shards))


def find_patterns(store: Reads, shards: Sequence[Shard]) -> list[list[str]]:
    """The patterns of these families on disk; read-only, may run in a thread."""
    return [patterns_of(_entries(store, shard)) for shard in shards]


def _lesson(store: Reads, shard: Shard) -> Lesson | None:
    if not len(shard.generations):
        return None
    layout = shard.generations.current.layout
    return learn_from(_entries(store, shard), layout.entries_max // 2) if isinstance(layout, LearnedLayout) else None


def _entries(store: Reads, shard: Shard) -> Iterator[Entry]:
    """The patterns that the current generation of a family has learned, if its layout learns."""
    if not len(shard.generations) or not isinstance(shard.generations.current.layout, LearnedLayout):
        return
    number = shard.generations.current.row.number
    prefix, end = layout_prefix(number), layout_prefix(number + 1)
    for key, value in store.items(shard.family, prefix, end):
        yield entry_of((key[len(prefix) :], value))
