"""Generations of a shard: runs of epochs with one key layout. A generation is a row and not a column family (H1)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Protocol

from braidmq.base.errors import Corruption, UsageError
from braidmq.storage.format.rows import (
    GENERATION_PREFIX,
    LAYOUT_PREFIX,
    OFFSET_MAX,
    EpochLimits,
    GenerationRow,
    decode_generation,
    encode_generation,
    generation_key,
    layout_prefix,
)
from braidmq.storage.layouts.contract import Layout, Row
from braidmq.storage.ports import Reads, StoreBatch


class MakeLayout(Protocol):
    """Restores a layout from its stored state."""

    def __call__(self, name: str, parameters: bytes, rows: Iterable[Row], next_id: int) -> Layout:
        """The layout, in which every topic has the index that it had; new ids begin at `next_id`."""


class Generation:
    """One generation: its row and its layout."""

    __slots__ = ("row", "layout")

    def __init__(self, row: GenerationRow, layout: Layout) -> None:
        self.row = row
        self.layout = layout

    def write(self, batch: StoreBatch, family: str) -> None:
        """Add the generation's row to the batch."""
        batch.put(family, generation_key(self.row.number), encode_generation(self.row))

    def write_layout(self, batch: StoreBatch, family: str) -> list[Row]:
        """Add the layout's new rows to the batch; returns them, for `return_rows` if the batch fails."""
        rows = self.layout.take_rows()
        prefix = layout_prefix(self.row.number)
        for suffix, value in rows:
            batch.put(family, prefix + suffix, value)
        return rows

    def erase(self, batch: StoreBatch, family: str) -> None:
        """Remove every row of the generation except its records."""
        batch.delete(family, generation_key(self.row.number))
        batch.delete_range(family, layout_prefix(self.row.number), layout_prefix(self.row.number + 1))


class Generations:
    """The generations of a shard in order of time; the last one takes the writes."""

    def __init__(self, generations: list[Generation]) -> None:
        self._generations = generations

    @classmethod
    def load(cls, store: Reads, family: str, make: MakeLayout, next_id: int) -> Generations:
        """Read the rows and restore the layouts."""
        found = []
        for key, value in store.items(family, GENERATION_PREFIX, LAYOUT_PREFIX):
            row = decode_generation(key, value)
            prefix, end = layout_prefix(row.number), layout_prefix(row.number + 1)
            rows = ((key[len(prefix) :], value) for key, value in store.items(family, prefix, end))
            found.append(Generation(row, make(row.layout, row.parameters, rows, next_id)))
        return cls(found)

    def __len__(self) -> int:
        return len(self._generations)

    def __iter__(self) -> Iterator[Generation]:
        return iter(self._generations)

    @property
    def current(self) -> Generation:
        """The generation that new records go into."""
        return self._generations[-1]

    def add(self, generation: Generation) -> None:
        """Add a later generation."""
        self._generations.append(generation)

    def of(self, epoch_start: int) -> Generation:
        """The generation that an epoch belongs to."""
        place = bisect_right(self._generations, epoch_start, key=lambda each: each.row.first_epoch)
        if place == 0:
            raise Corruption(f"no generation describes the layout of epoch {epoch_start}")
        return self._generations[place - 1]

    def ended_before(self, floor: int) -> list[Generation]:
        """The generations that end before the floor, whether they had records or not."""
        nexts = self._generations[1:]
        return [each for each, after in zip(self._generations, nexts, strict=False) if after.row.first_epoch <= floor]

    def forget(self, generations: Iterable[Generation]) -> None:
        """Drop these; the current one is never among them."""
        gone = set(map(id, generations))
        self._generations = [each for each in self._generations if id(each) not in gone]


def check_limits(limits: EpochLimits) -> None:
    """Raise UsageError if epochs of these limits could not be written or read."""
    if limits.count_max < 1 or limits.bytes_max < 1:
        raise UsageError("an epoch must allow at least one record and one byte")
    if not 0 < limits.age_max_us <= OFFSET_MAX:
        raise UsageError(f"an epoch lasts at most {OFFSET_MAX} us", "the offset in a record's key has four bytes")
