"""Figures of the log, for operators."""

from __future__ import annotations

from msgspec import Struct

from braidmq.storage.shard import Shard


class GenerationStats(Struct, frozen=True, gc=False):
    """One generation of a shard: its number, its layout, and the timestamp it begins with."""

    number: int
    layout: str
    first_epoch: int


class ShardStats(Struct, frozen=True):
    """One shard; times are microseconds since 1970, 0 if it is empty, bytes as they were appended, before compression."""

    shard: int
    records: int
    size_bytes: int
    epochs: int
    generations: tuple[GenerationStats, ...]
    oldest: int
    newest: int
    floor: int
    tail_bytes: int


class LogStats(Struct, frozen=True):
    """The whole log."""

    log_id: str
    records: int
    size_bytes: int
    pending_bytes: int
    refused: int
    shards: tuple[ShardStats, ...]
    store: dict[str, int]


def shard_stats(number: int, shard: Shard) -> ShardStats:
    """The figures of a shard; records that are written and not committed count."""
    oldest = next(iter(shard.epochs), None)
    generations = (each.row for each in shard.generations)
    return ShardStats(
        shard=number,
        records=shard.epochs.count,
        size_bytes=shard.epochs.size_bytes,
        epochs=len(shard.epochs),
        generations=tuple(GenerationStats(row.number, row.layout, row.first_epoch) for row in generations),
        oldest=oldest.start if oldest is not None else 0,
        newest=shard.watermark if oldest is not None else 0,
        floor=shard.floor,
        tail_bytes=shard.tail.size_bytes,
    )
