"""One shard of the log: it stamps records, places them in epochs and generations, and knows what is committed.

The life of a batch, all in one turn of the loop:

    append(batch, ...), add_generation, raise_floor     any number of times, into a draft; invisible to readers
    seal(batch)                                         rows of layout, producers and generations, and the shard row
    store.write(batch)                                  returns a number, or raises and has written nothing
    adopt(number) | discard()                           the draft becomes the shard's state, or is discarded

and later commit(number), when that write is on disk: the watermark rises and the records enter the tail.

- A record's timestamp is max(last + 1, clock): unique and strictly rising, with gaps. It is the record's identity.
- A record is stamped first; then the shard checks whether the open epoch can still take it (S7).
- The shard row is in every batch, so that recovery need not search for the last record, which is not under the last key.
- A failed write leaves no trace, except for what the layout has learned: its rows go into the next batch.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from braidmq.base.errors import Corruption, UsageError
from braidmq.lane.records.records import KEY_BYTES, Record, place
from braidmq.storage.format.rows import (
    EPOCH_PREFIX,
    GENERATION_PREFIX,
    SHARD_KEY,
    TIMESTAMP_MAX,
    EpochLimits,
    EpochRow,
    GenerationRow,
    ShardRow,
    decode_epoch,
    decode_shard,
    encode_epoch,
    encode_shard,
    epoch_key,
)
from braidmq.storage.layouts.contract import Layout
from braidmq.storage.layouts.learned import LearnedLayout
from braidmq.storage.layouts.lessons import Lesson
from braidmq.storage.ports import Reads, StoreBatch
from braidmq.storage.shard.clock import ShardClock, StampOrder
from braidmq.storage.shard.draft import Draft
from braidmq.storage.shard.epochs import EpochDirectory, OpenEpoch, are_listable
from braidmq.storage.shard.generations import Generation, Generations, MakeLayout, check_limits
from braidmq.storage.shard.producer_marks import ProducerMark, ProducerMarks
from braidmq.storage.shard.tail import Tail

# Topic, and the record as `encode_record` returns it.
Entry = tuple[bytes, bytes]

_RECORDS_LOWER: Final = bytes(8)


def records_below(floor: int) -> tuple[bytes, bytes]:
    """The range of keys with all records of epochs that begin below the floor."""
    return _RECORDS_LOWER, floor.to_bytes(8, "big")


class ShardOptions(NamedTuple):
    """How a new shard begins, and how much of a shard is kept in memory."""

    layout: str = "learned"
    parameters: bytes = b""
    limits: EpochLimits = EpochLimits()
    tail_bytes_max: int = 16 * 1024 * 1024


DEFAULT_OPTIONS: Final = ShardOptions()


class Shard:
    """The log of one column family; used from one thread. Call `recover` first."""

    def __init__(
        self,
        store: Reads,
        family: str,
        clock: ShardClock,
        make_layout: MakeLayout,
        options: ShardOptions = DEFAULT_OPTIONS,
        order: StampOrder | None = None,
    ) -> None:
        """Families that share an `order` have one sequence of timestamps."""
        self.family = family
        self.floor = 0
        self.watermark = 0
        self.committed_records = self.committed_bytes = self.replayed_records = 0  # since the start
        self.epochs = EpochDirectory()
        self.generations = Generations([])
        self.tail = Tail(0, options.tail_bytes_max)
        self._store = store
        self._clock = clock
        self._order = order or StampOrder()
        self._make_layout = make_layout
        self._options = options
        self._row = ShardRow()
        self._draft: Draft | None = None
        self._uncommitted: deque[tuple[int, list[Record], int]] = deque()
        self._producers = ProducerMarks(store, family)

    @property
    def last(self) -> int:
        """The latest timestamp of a written record, committed or not."""
        return self._row.last

    def recover(self) -> None:
        """Read the shard's rows, except records; everything found counts as committed. Raises Corruption, UsageError."""
        value = self._store.get(self.family, SHARD_KEY)
        if value is None:
            if next(self._store.items(self.family, b"\x00", SHARD_KEY), None) is not None:
                raise Corruption(f"{self.family} has records but no shard row")
            return
        row = decode_shard(value)
        closed = (decode_epoch(*pair) for pair in self._store.items(self.family, EPOCH_PREFIX, GENERATION_PREFIX))
        self.epochs = EpochDirectory(epoch for epoch in closed if epoch.start >= row.floor)
        if row.epoch_start:
            self.epochs.open = OpenEpoch(row.epoch_start, row.last, row.epoch_count, row.epoch_bytes, None)
        self.generations = Generations.load(self._store, self.family, self._make_layout, row.next_trie_id)
        if not len(self.generations):
            raise Corruption(f"{self.family} has a shard row but no generation")
        self._row = row
        self.floor = row.floor
        self.watermark = row.last
        self.tail = Tail(row.last, self._options.tail_bytes_max)
        self._clock.recovered(row.last)
        self._order.last = max(self._order.last, row.last)

    # Appending

    def append(self, batch: StoreBatch, entries: list[Entry]) -> list[int]:
        """Stamp the records, which must have passed `check_entries`, and add them to the batch; returns their timestamps."""
        draft = self._begin()
        index_of = draft.generation.layout.index
        # All indexes before the first put: a topic that the layout rejects must not leave half of an append in the batch.
        indexes = [index_of(topic) for topic, _ in entries]
        return self._place(batch, draft, entries, indexes)

    def _place(self, batch: StoreBatch, draft: Draft, entries: list[Entry], indexes: list[bytes]) -> list[int]:
        limits = draft.generation.row.limits
        now = self._clock.stamp()
        bytes_max = limits.bytes_max
        rows: list[tuple[bytes, bytes]] = []
        stamps: list[int] = []
        last = max(draft.last, self._order.last)
        while len(rows) < len(entries):
            if draft.epoch_start:
                done = len(rows)
                used = place(
                    entries,
                    indexes,
                    last,
                    now,
                    draft.epoch_start,
                    draft.epoch_start + limits.age_max_us,
                    limits.count_max - draft.epoch_count,
                    bytes_max - draft.epoch_bytes,
                    draft.static_ids,
                    rows,
                    draft.records,
                    stamps,
                )
                draft.epoch_count += len(rows) - done
                draft.epoch_bytes += used
                draft.size_bytes += used
                if len(rows) > done:
                    draft.last = last = stamps[-1]
            if len(rows) < len(entries):
                self._close_epoch(batch, draft)
                draft.epoch_start = max(now, last + 1)
                # A record larger than an epoch gets an epoch of its own.
                bytes_max = max(limits.bytes_max, len(entries[len(rows)][1]) + len(indexes[len(rows)]) + KEY_BYTES)
        self._order.last = last
        batch.put_all(self.family, rows)
        return stamps

    def mark_producer(self, producer: bytes, mark: ProducerMark) -> None:
        """Set the last sequence of a producer, written with its records of this batch."""
        self._begin().producers[producer] = mark

    def producer_mark(self, producer: bytes) -> ProducerMark:
        """The last sequence of a producer, including the open draft."""
        if self._draft is not None and producer in self._draft.producers:
            return self._draft.producers[producer]
        return self._producers.get(producer)

    def expire_producers(self, batch: StoreBatch, unused_since: int, after: bytes = b"", count_max: int = 1000) -> bytes | None:
        """Remove rows of producers unused since then, examining some; returns where to continue, None at the end."""
        used = {} if self._draft is None else self._draft.producers
        return self._producers.expire(batch, unused_since, after, count_max, used)

    # Generations and retention

    def add_generation(
        self,
        batch: StoreBatch,
        layout: str,
        parameters: bytes = b"",
        limits: EpochLimits | None = None,
        lesson: Lesson | None = None,
    ) -> int:
        """Start a new generation with the next record; returns its number.

        The same layout inherits what was learned, or starts with the lesson, if given. Raises UsageError if it cannot learn.
        """
        limits = limits or self._options.limits
        check_limits(limits)
        draft = self._begin()
        old = draft.generation
        made: Layout
        if lesson is not None:
            if not isinstance(old.layout, LearnedLayout):
                hint = "set history.layout to learned and restart the node"
                raise UsageError(f"the layout {old.layout.name} learns no patterns", hint)
            made = old.layout.inherit_lesson(lesson)
        elif old.layout.name == layout:
            made = old.layout.inherit(parameters)
        else:
            made = self._make_layout(layout, parameters, (), old.layout.next_id)
        self._close_epoch(batch, draft)
        row = GenerationRow(old.row.number + 1, draft.last + 1, layout, made.parameters(), limits)
        # Rows that the old layout has not returned yet belong to records of this batch.
        draft.layout_rows.append((old, old.write_layout(batch, self.family)))
        draft.add_generation(Generation(row, made))
        return row.number

    def drop_generation(self, batch: StoreBatch, number: int) -> int:
        """Remove the records of the oldest generation by raising the floor above them; returns the floor."""
        known = list(self.generations)
        if len(known) < 2 or known[0].row.number != number:
            raise UsageError(f"generation {number} is not the oldest, or it is the current one", "delete the oldest first")
        first = known[1].row.first_epoch
        floor = self.raise_floor(batch, first)
        if all(epoch.start >= first or epoch.end < floor for epoch in self.epochs):
            # It has no records left, or never had any for the floor to follow.
            self._set_floor(batch, self._begin(), max(floor, first))
        return self._begin().floor

    def raise_floor(self, batch: StoreBatch, floor: int) -> int:
        """Remove the epochs that end below the floor; returns the resulting floor, which lies between epochs.

        Uncommitted records are not removed. An open epoch that is entirely below the floor is closed first.
        """
        draft = self._begin()
        # The state after this batch, which may have closed an epoch or extended the open one.
        epochs = [(epoch.start, epoch.end) for epoch in (*self.epochs.closed, *draft.closed)]
        if draft.epoch_start:
            epochs.append((draft.epoch_start, draft.last))
        gone = [(start, end) for start, end in epochs if draft.floor <= end < floor and end <= self.watermark]
        if not gone:
            return draft.floor
        start, end = gone[-1]
        if start == draft.epoch_start:
            self._close_epoch(batch, draft)
        self._set_floor(batch, draft, end + 1)
        return draft.floor

    def _set_floor(self, batch: StoreBatch, draft: Draft, floor: int) -> None:
        draft.floor = floor
        lower, upper = records_below(floor)
        batch.delete_range(self.family, lower, upper)
        batch.delete_range(self.family, EPOCH_PREFIX, EPOCH_PREFIX + upper)
        draft.ended = self.generations.ended_before(floor)
        for generation in draft.ended:
            generation.erase(batch, self.family)

    def close_epoch(self, batch: StoreBatch) -> None:
        """Close the open epoch, if there is one: the next record begins a new one."""
        if self.epochs.open is not None:
            self._close_epoch(batch, self._begin())

    def _close_epoch(self, batch: StoreBatch, draft: Draft) -> None:
        if not draft.epoch_start:
            return
        known = self.epochs.open
        ids: frozenset[bytes] | None = frozenset(draft.static_ids)
        if known is not None and known.start == draft.epoch_start:
            ids = None if known.static_ids is None else frozenset(known.static_ids | draft.static_ids)
        if ids is not None and not are_listable(ids):
            ids = None
        row = EpochRow(draft.epoch_start, draft.last, draft.epoch_count, draft.epoch_bytes, ids)
        batch.put(self.family, epoch_key(row.start), encode_epoch(row))
        draft.closed.append(row)
        draft.forget_epoch()

    # The life of a batch

    def _begin(self) -> Draft:
        if self._draft is None:
            self._draft = Draft(self._row, self._first_generation() if not len(self.generations) else self.generations.current)
            if not len(self.generations):
                self._draft.add_generation(self._draft.generation)
        if self._draft.row is not None:
            raise UsageError("a sealed draft cannot be extended", "adopt or discard it first")
        return self._draft

    def _first_generation(self) -> Generation:
        options = self._options
        check_limits(options.limits)
        layout = self._make_layout(options.layout, options.parameters, (), 0)
        return Generation(GenerationRow(1, 0, options.layout, layout.parameters(), options.limits), layout)

    def seal(self, batch: StoreBatch) -> None:
        """Add to the batch everything that belongs to its records; the draft must not be extended afterwards."""
        draft = self._draft
        if draft is None:
            return
        if draft.last > TIMESTAMP_MAX:
            raise UsageError("the clock is beyond the year 4200")
        for added in draft.generations:
            added.write(batch, self.family)
        draft.layout_rows.append((draft.generation, draft.generation.write_layout(batch, self.family)))
        self._producers.write(batch, draft.producers, self._clock.now())
        draft.row = ShardRow(
            draft.last,
            draft.epoch_start,
            draft.epoch_count,
            draft.epoch_bytes,
            draft.generation.layout.next_id,
            self._row.term,
            draft.floor,
        )
        batch.put(self.family, SHARD_KEY, encode_shard(draft.row))

    def discard(self) -> None:
        """Drop the draft: its batch was not written."""
        if self._draft is not None:
            for generation, rows in self._draft.layout_rows:
                generation.layout.return_rows(rows)
            self._draft = None

    def adopt(self, number: int) -> None:
        """Make the sealed draft the shard's state: its batch is the store's write with this number."""
        draft = self._draft
        if draft is None:
            return
        if draft.row is None:
            raise UsageError("only a sealed draft can be adopted")
        self._draft = None
        self._row = draft.row
        for generation in draft.generations:
            self.generations.add(generation)
        self._adopt_epochs(draft)
        for producer, mark in draft.producers.items():
            self._producers.adopt(producer, mark)
        self.floor = draft.floor
        self.epochs.forget_below(draft.floor)
        self.generations.forget(draft.ended)
        if draft.records:
            self._uncommitted.append((number, draft.records, draft.size_bytes))

    def _adopt_epochs(self, draft: Draft) -> None:
        known = self.epochs.open
        for closed in draft.closed:
            self.epochs.close(closed)
        if not draft.epoch_start:
            self.epochs.open = None
        elif known is not None and known.start == draft.epoch_start:
            known.end, known.count, known.size_bytes = draft.last, draft.epoch_count, draft.epoch_bytes
            known.add_static_ids(draft.static_ids)
        else:
            opened = OpenEpoch(draft.epoch_start, draft.last, draft.epoch_count, draft.epoch_bytes, set())
            opened.add_static_ids(draft.static_ids)
            self.epochs.open = opened

    def commit(self, number: int) -> list[Record]:
        """Every write up to this number is on disk; returns the records that became visible, in order."""
        visible: list[Record] = []
        while self._uncommitted and self._uncommitted[0][0] <= number:
            _, records, size_bytes = self._uncommitted.popleft()
            self.committed_bytes += size_bytes
            visible.extend(records)
        if visible:
            self.committed_records += len(visible)
            self.tail.extend(visible)
            self.watermark = visible[-1].timestamp
        return visible
