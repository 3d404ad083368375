"""Retention of a whole log: the limit in bytes is for all shards together, so the oldest epochs of any shard go first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from braidmq.storage.format.rows import EpochRow
from braidmq.storage.shard.shard import Shard
from braidmq.storage.upkeep.floors import RetentionLimits, choose_floor


class LogRetention(Struct, frozen=True, gc=False):
    """How long records of all shards are kept, and how many bytes of them; None: no limit.

    Named readers may keep unread records for `pin_times` that time and size in addition, and no more.
    """

    age_us: int | None = None
    size_bytes: int | None = None
    pin_times: int = 1


def choose_floors(shards: Sequence[Shard], retention: LogRetention, now: int, pins: Callable[[int], list[int]]) -> dict[int, int]:
    """The floors to raise, by shard; `pins` returns the pinned positions of a shard."""
    size_bytes = retention.size_bytes
    kept = [None] * len(shards) if size_bytes is None else _shares(shards, size_bytes)
    pinned = [None] * len(shards) if size_bytes is None else _shares(shards, size_bytes * (1 + retention.pin_times))
    floors = {}
    for number, shard in enumerate(shards):
        share, with_pins = kept[number], pinned[number]
        limits = RetentionLimits(
            age_us=retention.age_us,
            size_bytes=share,
            pin_age_us=(retention.age_us or 0) * retention.pin_times,
            pin_bytes=with_pins - share if share is not None and with_pins is not None else 0,
        )
        floor = choose_floor(shard.epochs, limits, now, shard.watermark, pins(number), shard.floor, shard.epochs.size_bytes)
        if floor > shard.floor:
            floors[number] = floor
    return floors


def _shares(shards: Sequence[Shard], size_bytes: int) -> list[int | None]:
    """The bytes that each shard may keep so that the newest epochs of all shards fit the limit."""
    sizes = [shard.epochs.size_bytes for shard in shards]
    excess = sum(sizes) - size_bytes
    # From the oldest on, because little is removed compared with what is kept.
    oldest = heapq.merge(*(_sizes_by_end(number, shard.epochs) for number, shard in enumerate(shards)))
    while excess > 0:
        _, number, size = next(oldest)
        sizes[number] -= size
        excess -= size
    return [*sizes]


def _sizes_by_end(number: int, epochs: Iterable[EpochRow]) -> Iterator[tuple[int, int, int]]:
    return ((epoch.end, number, epoch.size_bytes) for epoch in epochs)
