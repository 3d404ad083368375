"""Estimates of a range, epoch by epoch: how many records it has, and how many of them match.

For `#` the directory of epochs has the answer. For other filters a sample of epochs, spread over the range, is counted within a
limit of work, and the rest is assumed to be similar. If the limit is enough for all epochs, the estimates are exact, and epochs
without a match are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from typing import Final

from msgspec import Struct

from braidmq.history.planning.parts import Weight
from braidmq.history.planning.ranges import ShardRange
from braidmq.history.planning.searches import KeyRange, Searches
from braidmq.history.scanning.epoch_reading import UNLIMITED, EpochReading
from braidmq.history.view.follower import OpenLog
from braidmq.history.view.shard_view import EpochLost, FamilyView
from braidmq.lane.records.columns import Columns
from braidmq.storage.format.rows import EpochRow

# Maximum number of pairs examined for one plan; about 50 ms.
STEPS_MAX: Final = 65_536


class _Place(Struct):
    """An epoch in a range, the keys to search in it, and what is known about it."""

    family: str
    epoch: EpochRow
    start: int
    end: int
    ranges: list[KeyRange] = []
    counted: tuple[int, int] | None = None  # rows and bytes

    @property
    def rows_max(self) -> int:
        # No two records of a shard have the same timestamp.
        return min(self.epoch.count, self.end - self.start)

    def weight(self, share: float) -> Weight:
        """Its weight; if it was not counted, this share of its records is expected to match."""
        if self.counted is not None:
            rows, size_bytes = self.counted
            return Weight(self.start, self.end, rows, size_bytes, rows, size_bytes)
        rows_max, bytes_max = self.rows_max, self.epoch.size_bytes
        return Weight(self.start, self.end, rows_max, bytes_max, rows_max * share, bytes_max * share)


def estimate(
    log: OpenLog, wanted: Sequence[ShardRange], searches: Searches, steps_max: int = STEPS_MAX
) -> list[list[list[Weight]]]:
    """The estimates of each range, family by family, in order. Call without the lock of the log."""
    with log.lock:
        places = [[[*_places(each, family, searches)] for family in each.families] for each in wanted]
    share = 1.0
    if not searches.is_everything:
        share = _count(log, _spread([place for shard in places for family in shard for place in family]), steps_max).share
    return [[_weights(family, share) for family in shard] for shard in places]


def count_rows(log: OpenLog, wanted: Sequence[ShardRange], searches: Searches, steps_max: int = STEPS_MAX) -> tuple[int, bool]:
    """How many records of these ranges match, and whether that is an estimate. Call without the lock of the log."""
    with log.lock:
        places = [place for each in wanted for family in each.families for place in _places(each, family, searches)]
    # Epochs at the ends lie only partly in the range, so they must be counted. They are few, and not typical of the others.
    whole = [place for place in places if _is_whole(place)]
    counted = _count(log, [place for place in places if not _is_whole(place)], steps_max)
    share = _count(log, _spread(whole), steps_max - counted.steps).share
    return ceil(sum(place.weight(share).rows for place in places)), any(place.counted is None for place in places)


def _is_whole(place: _Place) -> bool:
    return place.start < place.epoch.start and place.end >= place.epoch.end


def _weights(places: Sequence[_Place], share: float) -> list[Weight]:
    return [weight for place in places if (weight := place.weight(share)).rows_max]


def _places(wanted: ShardRange, family: FamilyView, searches: Searches) -> Iterator[_Place]:
    for epoch in family.epochs_in(wanted.start, wanted.end):
        place = _Place(family.family, epoch, max(wanted.start, epoch.start - 1), min(wanted.end, epoch.end))
        try:
            place.ranges = family.ranges(epoch, searches)
        except EpochLost:
            yield place  # reading it will report the loss
        else:
            if place.ranges:
                yield place


class _Tally(Struct):
    """The result of a count: matching records, examined records, and the cost."""

    matched: int = 0
    looked_at: int = 0
    steps: int = 0

    @property
    def share(self) -> float:
        """The share of records that match; if none did, as if one of those examined had."""
        return self.matched / self.looked_at if self.matched else 1 / max(self.looked_at, 1)


def _count(log: OpenLog, places: Iterable[_Place], steps_max: int) -> _Tally:
    """Count epochs in order, as many as the steps allow."""
    counted = _Tally()
    for place in places:
        if counted.steps >= steps_max:
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
        counted.matched += len(columns)
        counted.looked_at += place.rows_max
        counted.steps += reading.steps
    return counted


def _spread(places: Sequence[_Place]) -> Iterator[_Place]:
    """All of them, in an order in which every prefix is evenly spread."""
    yield from places[:1]
    step = 1 << len(places).bit_length()
    while step > 1:
        yield from places[step // 2 :: step]
        step //= 2
