"""What a range is expected to come to, epoch by epoch: how many records, and how many of them match.

For `#` the directory of epochs says it. For other filters some epochs are counted, spread over the range, within a bound of work;
the others are taken to be like them. If the bound was enough for all, the weights are exact, and epochs without a match are left
out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from braidmq.history.follower import OpenLog
from braidmq.history.planning import Weight
from braidmq.history.ranges import ShardRange
from braidmq.history.scanning import UNLIMITED, EpochReading
from braidmq.history.searches import Range, Searches
from braidmq.history.shard_view import EpochLost, FamilyView
from braidmq.lane.columns import Columns
from braidmq.storage.format.rows import EpochRow

# Pairs that are looked at for one plan at most; about 50 ms.
_STEPS_MAX: Final = 65_536


class _Place(Struct):
    """An epoch in a range, where to look in it, and what is known of it."""

    family: str
    epoch: EpochRow
    start: int
    end: int
    ranges: list[Range] = []
    counted: tuple[int, int] | None = None  # rows and bytes

    @property
    def rows_max(self) -> int:
        # No two records of a shard have the same timestamp.
        return min(self.epoch.count, self.end - self.start)

    def weight(self, share: float) -> Weight:
        """Its weight; if it was not counted, this share of it is expected to match."""
        if self.counted is not None:
            rows, size_bytes = self.counted
            return Weight(self.start, self.end, rows, size_bytes, rows, size_bytes)
        rows_max, bytes_max = self.rows_max, self.epoch.size_bytes
        return Weight(self.start, self.end, rows_max, bytes_max, rows_max * share, bytes_max * share)


def weigh(
    log: OpenLog, wanted: Sequence[ShardRange], searches: Searches, steps_max: int = _STEPS_MAX
) -> list[list[list[Weight]]]:
    """The weights of each range, family by family, in order. Without the lock of the log."""
    with log.lock:
        places = [[[*_places(each, family, searches)] for family in each.families] for each in wanted]
    share = 1.0
    if not searches.is_everything:
        share = _count(log, [place for shard in places for family in shard for place in family], steps_max)
    return [[_weights(family, share) for family in shard] for shard in places]


def _weights(places: Sequence[_Place], share: float) -> list[Weight]:
    return [weight for place in places if (weight := place.weight(share)).rows_max]


def _places(wanted: ShardRange, family: FamilyView, searches: Searches) -> Iterator[_Place]:
    for epoch in family.epochs_in(wanted.start, wanted.end):
        place = _Place(family.family, epoch, max(wanted.start, epoch.start - 1), min(wanted.end, epoch.end))
        try:
            place.ranges = family.ranges(epoch, searches)
        except EpochLost:
            yield place  # the read will tell
        else:
            if place.ranges:
                yield place


def _count(log: OpenLog, places: Sequence[_Place], steps_max: int) -> float:
    """Count some, as many as the steps allow; returns the share of their records that match."""
    matched = looked_at = steps = 0
    for place in _spread(places):
        if steps >= steps_max:
            break
        if not place.ranges:
            continue
        columns = Columns(())
        reading = EpochReading(log.store, place.family, place.epoch, place.ranges, place.start, place.end)
        try:
            reading.collect(columns, UNLIMITED)
        except EpochLost:
            continue
        place.counted = len(columns), columns.size_bytes
        matched += len(columns)
        looked_at += place.rows_max
        steps += reading.steps
    return matched / looked_at if matched else 1 / max(looked_at, 1)


def _spread(places: Sequence[_Place]) -> Iterator[_Place]:
    """All of them, in such an order that those before any point are evenly spread."""
    yield from places[:1]
    step = 1 << len(places).bit_length()
    while step > 1:
        yield from places[step // 2 :: step]
        step //= 2
