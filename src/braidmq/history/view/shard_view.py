"""The epochs, generations and floors of a log's shards, read through a secondary and updated after each catch-up.

Only new rows are read: the shard row says whether anything changed, epochs are appended to those known, and the layout of a
generation is read when a filter needs it. Rows may be ahead of what is committed; readers stop at the watermark.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from braidmq.base.errors import Corruption
from braidmq.history.planning.searches import KeyRange, Searches
from braidmq.storage.format.rows import (
    EPOCH_PREFIX,
    GENERATION_PREFIX,
    LAYOUT_PREFIX,
    SHARD_KEY,
    EpochRow,
    GenerationRow,
    ShardRow,
    decode_epoch,
    decode_generation,
    decode_shard,
    epoch_key,
    generation_key,
    layout_prefix,
)
from braidmq.storage.layouts import Layout, make_layout
from braidmq.storage.ports import Reads
from braidmq.storage.shard.classes import ClassTable
from braidmq.storage.shard.epochs import EpochDirectory, OpenEpoch

# Greater than any id.
_COMPLETE: Final = 1 << 32


class EpochLost(Exception):
    """Retention removed the epoch before all of it was read; everything below `floor` is deleted."""

    def __init__(self, floor: int) -> None:
        super().__init__(floor)
        self.floor = floor


def read_row(store: Reads, family: str) -> ShardRow:
    """The current row of a family; an empty one if nothing was ever written."""
    value = store.get(family, SHARD_KEY)
    return decode_shard(value) if value is not None else ShardRow()


class FamilyView:
    """One column family: a shard's records, or those of one of its classes. Requires the owner's lock."""

    def __init__(self, store: Reads, family: str, log_class: str) -> None:
        self.family = family
        self.log_class = log_class
        self.epochs = EpochDirectory()
        self.row = ShardRow()
        self._store = store
        self._generations: list[GenerationRow] = []
        # By number of the generation; the second value is the id from which more of it may be stored.
        self._layouts: dict[int, tuple[Layout, int]] = {}

    @property
    def floor(self) -> int:
        """Everything below it was deleted."""
        return self.row.floor

    def follow(self) -> None:
        """Read the rows written since the last call."""
        row = read_row(self._store, self.family)
        if row == self.row:
            return
        closed = self.epochs.closed
        lower = epoch_key(closed[-1].start + 1) if closed else EPOCH_PREFIX
        for pair in self._store.items(self.family, lower, GENERATION_PREFIX):
            self.epochs.close(decode_epoch(*pair))
        self.epochs.forget_below(row.floor)
        self.epochs.open = None
        if row.epoch_start:
            self.epochs.open = OpenEpoch(row.epoch_start, row.last, row.epoch_count, row.epoch_bytes, None)
        self._follow_generations(row.floor)
        self.row = row

    def _follow_generations(self, floor: int) -> None:
        known = self._generations
        lower = generation_key(known[-1].number + 1) if known else GENERATION_PREFIX
        known += (decode_generation(*pair) for pair in self._store.items(self.family, lower, LAYOUT_PREFIX))
        while len(known) > 1 and known[1].first_epoch <= floor:
            self._layouts.pop(known.pop(0).number, None)

    def epochs_in(self, start: int, end: int) -> list[EpochRow]:
        """The epochs that may contain records in (start, end], in order."""
        closed = self.epochs.closed
        first = bisect_right(closed, start, key=_end)
        last = bisect_right(closed, end, lo=first, key=_start)
        found = [*closed[first:last]]
        opened = self.epochs.open
        if opened is not None and opened.end > start and opened.start <= end:
            found.append(opened.row())
        return found

    def ranges(self, epoch: EpochRow, searches: Searches) -> list[KeyRange]:
        """The key ranges to search in an epoch; raises EpochLost if retention has removed it."""
        if epoch.start < self.floor:
            raise EpochLost(self.floor)
        return searches.ranges(epoch, self._layout(epoch).plan)

    def _layout(self, epoch: EpochRow) -> Layout:
        """The layout of an epoch, with everything that was learned up to the last `follow`."""
        place = bisect_right(self._generations, epoch.start, key=_first_epoch) - 1
        if place < 0:
            raise Corruption(f"no generation of {self.family} describes the layout of epoch {epoch.start}")
        row = self._generations[place]
        next_id = self.row.next_trie_id
        layout, complete_below = self._layouts.get(row.number, (None, 0))
        if layout is None or complete_below < next_id:
            prefix = layout_prefix(row.number)
            # Keys end in increasing ids. Since the last catch-up that counts, another one may have left holes.
            end = prefix + next_id.to_bytes(4, "big")
            rows = ((key[len(prefix) :], value) for key, value in self._store.items(self.family, prefix, end))
            layout = make_layout(row.layout, row.parameters, rows, 0)
            # A layout is removed with the last epoch of its generation, which a catch-up may have just revealed.
            floor = read_row(self._store, self.family).floor
            if epoch.start < floor:
                raise EpochLost(floor)
            # Only the last generation grows.
            is_last = place + 1 == len(self._generations)
            self._layouts[row.number] = layout, next_id if is_last else _COMPLETE
        return layout


class ShardView:
    """The families of one shard, the log itself first. Requires the owner's lock."""

    def __init__(self, families: Sequence[FamilyView], classes: ClassTable) -> None:
        self.families = tuple(families)
        self._classes = classes

    def follow(self) -> None:
        """Read the rows written since the last call."""
        for family in self.families:
            family.follow()

    def for_filters(self, filters: Sequence[str]) -> list[FamilyView]:
        """The families that may have records for these filters."""
        return [family for number, family in enumerate(self.families) if self._classes.may_hold(number, filters)]

    @property
    def earliest(self) -> int:
        """Every record is later than this position."""
        return max(min(family.floor for family in self.families) - 1, 0)


def gone_after(position: int, families: Iterable[FamilyView]) -> dict[str, int]:
    """The last deleted position of each class, where it is later than this position."""
    return {family.log_class: family.floor - 1 for family in families if family.floor - 1 > position}


def _start(epoch: EpochRow) -> int:
    return epoch.start


def _end(epoch: EpochRow) -> int:
    return epoch.end


def _first_epoch(generation: GenerationRow) -> int:
    return generation.first_epoch
