"""Maintenance of a log: retention, reclaiming disk space, and new generations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from braidmq.base.errors import UsageError
from braidmq.storage.engine.batch import Batch
from braidmq.storage.engine.store import Store
from braidmq.storage.format.rows import EpochLimits
from braidmq.storage.layouts.learned import LearnedLayout
from braidmq.storage.layouts.lessons import Lesson
from braidmq.storage.rows.named_readers import NamedReaders
from braidmq.storage.shard.class_shard import LogShard, families_of
from braidmq.storage.shard.classes import ClassTable
from braidmq.storage.shard.shard import Shard, records_below
from braidmq.storage.upkeep.generations import GenerationStats, RelearnGain, find_gain, find_patterns, list_generations
from braidmq.storage.upkeep.key_expiry import expire_keys
from braidmq.storage.upkeep.retention import LogRetention, choose_floors

_PRODUCER_IDLE_US: Final = 30 * 86_400 * 1_000_000


class WriteFamilies(Protocol):
    """Seals, writes and adopts the drafts of some families."""

    def __call__(self, batch: Batch, families: Iterable[Shard], *, frees_space: bool = False) -> int:
        """Returns the number of the write; raises Unavailable, and then the caller must discard the drafts."""


class LogUpkeep:
    """Maintains the families of a log. Created by `DurableLog`, which flushes before it calls anything that writes."""

    def __init__(
        self,
        store: Store,
        shards: Sequence[LogShard],
        classes: ClassTable,
        retentions: Sequence[LogRetention],
        write: WriteFamilies,
        readers: NamedReaders,
    ) -> None:
        """`retentions` are those of the classes, by number."""
        self._store = store
        self._shards = shards
        self._classes = classes
        self._retentions = retentions
        self._write = write
        self._readers = readers
        self._families = [family for shard in shards for family in shard]
        self._producers_at = [b""] * len(self._families)
        self._keys_at = [b""] * len(shards)

    def retain(self, now: int) -> None:
        """Raise the floors of all classes as far as retention requires, and remove some unused producers."""
        batch = self._store.batch()
        touched: list[Shard] = []
        try:
            for number, retention in enumerate(self._retentions):
                families = families_of(self._shards, number)
                for shard, floor in choose_floors(families, retention, now, self._readers.pins).items():
                    touched.append(families[shard])
                    families[shard].raise_floor(batch, floor)
            for place, family in enumerate(self._families):
                after = family.expire_producers(batch, now - _PRODUCER_IDLE_US, self._producers_at[place])
                self._producers_at[place] = after or b""
            for place, family in enumerate(families_of(self._shards, 0)):
                idle_since = now - _PRODUCER_IDLE_US
                self._keys_at[place] = expire_keys(self._store, family.family, batch, idle_since, self._keys_at[place])
            if len(batch):
                self._write(batch, touched, frees_space=True)
        finally:
            discard(touched)

    def reclaim(self) -> None:
        """Free the disk space of removed records; slow, for a thread; only reads state that the loop may change."""
        for family in self._families:
            self._store.compact(family.family, *records_below(family.floor))

    def generations(self) -> list[GenerationStats]:
        """Every generation, by shard, class and number."""
        names = ["", *(each.name for each in self._classes.classes)]
        return [
            each
            for number, shard in enumerate(self._shards)
            for name, family in zip(names, shard, strict=True)
            for each in list_generations(number, name, family)
        ]

    def add_generation(self, layout: str, parameters: bytes, limits: EpochLimits) -> None:
        """Start a new generation in every family with its next record."""
        batch = self._store.batch()
        try:
            for family in self._families:
                family.add_generation(batch, layout, parameters, limits)
            self._write(batch, self._families)
        finally:
            discard(self._families)

    def relearn_gain(self) -> RelearnGain:
        """What could be learned from the topics so far; read-only."""
        with self._store.kept_open():
            return find_gain(self._store, self._families)

    def relearn(self, gain: RelearnGain) -> None:
        """Start a generation with better patterns in each family for which that is worth it."""
        pairs = zip(self._families, gain.lessons, strict=True)
        chosen = [(family, lesson) for family, lesson in pairs if lesson is not None and lesson.is_worth_it]
        batch = self._store.batch()
        try:
            for family, lesson in chosen:
                family.add_generation(batch, family.generations.current.row.layout, lesson=lesson)
            if chosen:
                self._write(batch, [family for family, _ in chosen])
        finally:
            discard(self._families)

    def patterns(self) -> dict[int, list[str]]:
        """The learned topic patterns of each shard, all classes together; read only."""
        with self._store.kept_open():
            return {
                number: sorted({each for patterns in find_patterns(self._store, list(shard)) for each in patterns})
                for number, shard in enumerate(self._shards)
            }

    def teach(self, lesson: Lesson) -> None:
        """Start a generation with the lesson in every family."""
        batch = self._store.batch()
        try:
            for family in self._families:
                family.add_generation(batch, LearnedLayout.name, lesson=lesson)
            self._write(batch, self._families)
        finally:
            discard(self._families)

    def drop_generation(self, number: int, log_class: str) -> None:
        """Remove the records of a generation of a class from every shard; it must be the oldest there."""
        names = ["", *(each.name for each in self._classes.classes)]
        if log_class not in names:
            raise UsageError(
                f"there is no class {log_class!r}",
                f"the classes are {', '.join(names[1:])}" if names[1:] else "no classes are configured",
            )
        families = families_of(self._shards, names.index(log_class))
        having = [family for family in families if any(each.row.number == number for each in family.generations)]
        if not having:
            raise UsageError(f"there is no generation {number}", "`braidmq history generations` lists them")
        batch = self._store.batch()
        try:
            for family in having:
                family.drop_generation(batch, number)
            self._write(batch, having, frees_space=True)
        finally:
            discard(having)


def discard(families: Iterable[Shard]) -> None:
    """Drop the drafts that were not adopted, if there are any."""
    for family in families:
        family.discard()
