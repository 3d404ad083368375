"""One shard of the log with its classes: a family for each, one order of timestamps over all of them.

A position of the shard is one timestamp, whatever the class: records are stamped in the order of the appends, and all families
are written and committed in one batch. So every family is complete up to the same watermark, the shard's, and readers merge the
records of several families by their timestamps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from braidmq.lane.records.records import Record
from braidmq.storage.ports import StoreBatch
from braidmq.storage.shard.classes import ClassTable
from braidmq.storage.shard.clock import StampOrder
from braidmq.storage.shard.shard import Entry, Shard


class LogShard:
    """The families of one shard, by number of the class; the log seals, adopts and discards each of them."""

    def __init__(self, classes: ClassTable, make_family: Callable[[int, StampOrder], Shard]) -> None:
        """`make_family` creates the family of a class."""
        self._classes = classes
        self._order = order = StampOrder()
        self.families = [make_family(number, order) for number in range(len(classes))]

    def __iter__(self) -> Iterator[Shard]:
        return iter(self.families)

    @property
    def main(self) -> Shard:
        """The family of all rows and of the records without a class."""
        return self.families[0]

    @property
    def watermark(self) -> int:
        """The last committed timestamp."""
        return self.main.watermark

    @property
    def last_stamp(self) -> int:
        """The last timestamp that was given, to a record that was written or to one that could not be."""
        return self._order.last

    def recover(self, ceiling: int = 0) -> None:
        """Read the rows of all families; see `Shard.recover`. Timestamps begin above the ceiling."""
        for family in self.families:
            family.recover()
        self._level()
        self._order.last = max(self._order.last, ceiling)

    def append(self, batch: StoreBatch, entries: list[Entry]) -> list[int]:
        """Stamp the records and put them into the batch, as `Shard.append` does, each in the family of its class."""
        if len(self.families) == 1:
            return self.main.append(batch, entries)
        stamps: list[int] = []
        for number, first, end in self._classes.runs(topic for topic, _ in entries):
            stamps += self.families[number].append(batch, entries[first:end])
        return stamps

    def commit(self, number: int) -> list[Record]:
        """Every write up to this number is on disk; returns the records that became visible, in order of time."""
        news = [records for family in self.families if (records := family.commit(number))]
        self._level()
        if len(news) <= 1:
            return news[0] if news else []
        return sorted((record for records in news for record in records), key=_timestamp)

    def _level(self) -> None:
        """Raise all families to one watermark: none has a record between its own and this one."""
        watermark = max(family.watermark for family in self.families)
        for family in self.families:
            family.watermark = watermark


def families_of(shards: Sequence[LogShard], number: int) -> list[Shard]:
    """The families of one class, by shard."""
    return [shard.families[number] for shard in shards]


def _timestamp(record: Record) -> int:
    return record.timestamp
