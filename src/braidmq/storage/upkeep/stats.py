"""Statistics of the log, for operators."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from msgspec import Struct

from braidmq.storage.append_queue import AppendQueue
from braidmq.storage.engine.store import Store
from braidmq.storage.shard.class_shard import LogShard, families_of
from braidmq.storage.shard.classes import ClassTable
from braidmq.storage.upkeep.generations import GenerationStats, list_generations


class ShardStats(Struct, frozen=True):
    """One shard; times are microseconds since 1970, 0 if it is empty, bytes as they were appended, before compression.

    `floor` is that of the records without a class.
    """

    shard: int
    records: int
    size_bytes: int
    epochs: int
    generations: tuple[GenerationStats, ...]
    oldest: int
    newest: int
    floor: int
    committed_records: int  # from here on: since the start
    committed_bytes: int
    replayed_records: int


class LogStats(Struct, frozen=True):
    """The whole log; `classes` has the bytes of each class."""

    log_id: str
    records: int
    size_bytes: int
    pending_bytes: int
    refused: int
    shards: tuple[ShardStats, ...]
    classes: dict[str, int]
    store: dict[str, int]


def log_stats(store: Store, shards: Sequence[LogShard], classes: ClassTable, queue: AppendQueue) -> LogStats:
    """The statistics of the log and of each shard."""
    each_shard = tuple(shard_stats(number, shard, classes) for number, shard in enumerate(shards))
    sizes = {
        each.name: sum(family.epochs.size_bytes for family in families_of(shards, number))
        for number, each in enumerate(classes.classes, start=1)
    }
    return LogStats(
        log_id=store.log_id.hex(),
        records=sum(shard.records for shard in each_shard),
        size_bytes=sum(shard.size_bytes for shard in each_shard),
        pending_bytes=queue.pending_bytes,
        refused=queue.refused,
        shards=each_shard,
        classes=sizes,
        store=store.stats(),
    )


def shard_stats(number: int, shard: LogShard, classes: ClassTable) -> ShardStats:
    """The statistics of a shard, including its classes; uncommitted records count."""
    families = dict(zip(("", *(each.name for each in classes.classes)), shard, strict=True))
    oldest = min((epoch.start for family in shard for epoch in islice(family.epochs, 1)), default=0)
    return ShardStats(
        shard=number,
        records=sum(family.epochs.count for family in shard),
        size_bytes=sum(family.epochs.size_bytes for family in shard),
        epochs=sum(len(family.epochs) for family in shard),
        generations=tuple(each for name, family in families.items() for each in list_generations(number, name, family)),
        oldest=oldest,
        newest=shard.watermark if oldest else 0,
        floor=shard.main.floor,
        committed_records=sum(family.committed_records for family in shard),
        committed_bytes=sum(family.committed_bytes for family in shard),
        replayed_records=sum(family.replayed_records for family in shard),
    )
