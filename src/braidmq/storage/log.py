"""The log of a node: its shards over one store, appended to together, committed together, read as one.

The life of a message, all on the loop:

    append_block()  collects it, each record in the shard of its client id; nothing is written
    flush()         once a turn: writes one batch for all shards, without fsync; if it is rejected, nothing of it was written
    (commit)        when the batch is on disk: watermarks rise, followers get the records, then waiters are called

- No record becomes visible, and none is acknowledged, before its commit (S6).
- Rows of sessions etc. go into the same batch, so changes that belong together reach the disk together (S1).
- The queue is bounded: beyond the bound appends are rejected, and `is_congested` makes publishers wait well before that.
- A write whose commit failed is in doubt until the next start: its waiters are told so, and it is never acknowledged.

A client id has one shard: crc32(client id) modulo the number of shards, which is fixed when the log is created.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from braidmq.base.config.settings import HistorySettings
from braidmq.base.errors import Corruption, Unavailable, UsageError
from braidmq.base.shards import shard_of
from braidmq.lane.records.records import check_entries
from braidmq.storage.append_queue import AppendQueue, OnRefused, PendingBlock
from braidmq.storage.engine.batch import Batch
from braidmq.storage.engine.health import Health
from braidmq.storage.engine.open import are_settled, family_of, open_log_store, settle_classes
from braidmq.storage.engine.rocksdb import Disk, Tuning
from braidmq.storage.engine.store import Store
from braidmq.storage.fences import FenceTable
from braidmq.storage.format.record import VALUE_BYTES_MAX
from braidmq.storage.format.rows import EpochLimits
from braidmq.storage.layouts import make_layout
from braidmq.storage.layouts.lessons import Lesson
from braidmq.storage.reading.followers import Followers, OnRecords, ShardFollower
from braidmq.storage.reading.merge import MergedScan
from braidmq.storage.reading.positions import Start, positions_at
from braidmq.storage.reading.reader import RetentionGap
from braidmq.storage.reading.replays import LogReaders
from braidmq.storage.rows.changes import Change, WriteRefusal, check_change, put_change
from braidmq.storage.rows.named_readers import READER_PREFIX, READERS_END, NamedReaders
from braidmq.storage.shard.class_shard import LogShard
from braidmq.storage.shard.classes import ClassTable, LogClass, retention_bytes
from braidmq.storage.shard.clock import ClockAlarm, ShardClock
from braidmq.storage.shard.producer_marks import ProducerMark
from braidmq.storage.shard.shard import Shard, ShardOptions
from braidmq.storage.upkeep.generations import GenerationStats, RelearnGain
from braidmq.storage.upkeep.retention import LogRetention
from braidmq.storage.upkeep.stamps import StampCeiling
from braidmq.storage.upkeep.stats import LogStats, log_stats
from braidmq.storage.upkeep.upkeep import LogUpkeep, discard

MIB: Final = 1024 * 1024
# The overhead in bytes of a waiting record.
_APPEND_COST: Final = 200
_RETRY_AFTER_FAULT_S: Final = 60.0


class LogOptions(NamedTuple):
    """Bounds of a log that are not configuration keys; sizes are for all shards together."""

    pending_bytes_max: int = 64 * MIB
    tail_bytes_max: int = 64 * MIB
    scan_bytes_max: int = 128 * MIB
    pin_times: int = 1
    limits: EpochLimits = EpochLimits()
    layout_parameters: bytes = b""
    tuning: Tuning | None = None
    disk: Disk | None = None


DEFAULT_OPTIONS: Final = LogOptions()


class DurableLog:
    """The durable log; used from one thread, the loop's. `open`, then `start`; `close` ends it."""

    def __init__(
        self, store: Store, classes: Sequence[LogClass], settings: HistorySettings, clock: ShardClock, options: LogOptions
    ) -> None:
        """Use `DurableLog.open`."""
        self.log_id = store.log_id
        self.clock_alarm: ClockAlarm | None = None
        self.fences = FenceTable()
        self._store = store
        self.on_reported: Callable[[], None] = _ignore  # called when those who waited for a commit have heard of it
        self._clock = clock
        self._options = options
        self._classes = table = ClassTable(classes)
        families = settings.shards * len(table)
        shard_options = ShardOptions(
            settings.layout, options.layout_parameters, options.limits, options.tail_bytes_max // families
        )
        names = ["", *(each.name for each in classes)]

        def make_shard(shard: int) -> LogShard:
            return LogShard(
                table,
                lambda each, order: Shard(store, family_of(shard, names[each]), clock, make_layout, shard_options, order),
            )

        self._shards = [make_shard(each) for each in range(settings.shards)]
        self._row_families = [shard.main.family for shard in self._shards]
        self._log_readers = LogReaders(store, self._shards, table, options.scan_bytes_max)
        self._queue = AppendQueue(options.pending_bytes_max)
        self._followers = Followers(settings.shards)
        self.readers = NamedReaders(self, self._shards, clock.now)
        size_bytes = retention_bytes("history.retention_bytes", settings.retention_bytes)
        retention = LogRetention(round(settings.retention * 1_000_000), size_bytes, options.pin_times)
        retentions = [retention, *(each.retention(options.pin_times) for each in classes)]
        self._upkeep = LogUpkeep(store, self._shards, table, retentions, self._write, self.readers)
        self._ceiling = StampCeiling(store.path, clock, self._shards, is_kept=settings.durability == "os")

    @classmethod
    def open(
        cls,
        data_dir: str | os.PathLike[str],
        settings: HistorySettings,
        *,
        clock: ShardClock | None = None,
        options: LogOptions = DEFAULT_OPTIONS,
        log_id: bytes = b"",
    ) -> DurableLog:
        """Open or create the log in `data_dir`/log, and recover it. Blocks while the write-ahead log is read.

        ``log_id``: that of the cluster; empty: a new log gets one of its own. Raises ConfigError (another id, another number of
        shards, classes that overlap), and what `Store.open` and `Shard.recover` raise.
        """
        store, classes = open_log_store(Path(data_dir) / "log", settings, options.tuning, options.disk, log_id)
        try:
            opened = cls(store, classes, settings, clock or ShardClock(), options)
            opened._recover(settings.layout)
        except BaseException:
            store.close()
            raise
        return opened

    def _recover(self, layout: str) -> None:
        batch = self._store.batch()
        changed: list[Shard] = []
        for number, shard in enumerate(self._shards):
            shard.recover(self._ceiling.found)
            self.readers.recover(number, self._store.items(shard.main.family, READER_PREFIX, READERS_END))
            for family in shard:
                if len(family.generations) and family.generations.current.row.layout != layout:
                    family.add_generation(batch, layout, self._options.layout_parameters, self._options.limits)
                    changed.append(family)
        if not are_settled(self._classes.classes):
            changed = [family for shard in self._shards for family in shard]
            for family in changed:
                family.close_epoch(batch)
            settle_classes(batch, self._classes.classes)
        if changed:
            self._write(batch, changed)
            self._store.sync()

    def start(self, loop_call: Callable[[Callable[[], None]], object]) -> None:
        """Start to commit; commits are handled in later calls through `loop_call` (`loop.call_soon_threadsafe`)."""
        self._store.start(loop_call, self._committed)

    def close(self) -> None:
        """Write and commit pending data, notify its waiters, and release the directory; blocks until done.

        Live iterators of `rows` keep the directory locked.
        """
        try:
            self.flush()
            self._store.close()
            self._ceiling.close()
        finally:
            self._committed(self._store.committed)
            self._queue.doubt("the log was closed before the write was committed", 0.0)
            self._log_readers.close()

    # Appending

    @property
    def shards(self) -> int:
        """The number of shards."""
        return len(self._shards)

    def shard_of(self, client_id: str) -> int:
        """The shard of a client id; fixed by the format."""
        return shard_of(client_id, len(self._shards))

    def append_block(self, block: PendingBlock) -> None:
        """Record all messages and changes of a block with the next `flush`; the block is notified once.

        The order is that of the calls, including `change`. `block.refused` may be called during this call. Raises UsageError
        if an entry is not a record, a shard does not exist, or a change is invalid; then nothing of the block is queued.
        """
        size = block.size_bytes
        count = 0
        for shard, entries in block.entries.items():
            if not 0 <= shard < len(self._shards):
                raise UsageError(f"there is no shard {shard}")
            try:
                check_entries(entries, VALUE_BYTES_MAX)
            except (ValueError, Corruption) as problem:
                raise UsageError(f"a block cannot be recorded: {problem}") from None
            count += len(entries)
        if block.changes:
            size += self.size_of(block.changes)
        self._queue.add_block(block, count, size + (count or 1) * _APPEND_COST)

    def change(self, changes: Iterable[Change], *, on_commit: Callable[[], None], on_refused: OnRefused) -> None:
        """Write rows with the next `flush`; later one of the two callbacks is called, as with a block."""
        listed = list(changes)
        self._queue.add_changes(listed, self.size_of(listed) + _APPEND_COST, on_commit, on_refused)

    def size_of(self, changes: Iterable[Change]) -> int:
        """The approximate size of these changes in bytes; raises UsageError if one is invalid."""
        return sum(check_change(change, len(self._shards)) for change in changes)

    @property
    def pending_bytes(self) -> int:
        """The bytes that are appended and not yet committed."""
        return self._queue.pending_bytes

    @property
    def is_congested(self) -> bool:
        """Whether publishers should wait: set at half of the bound, cleared at a quarter."""
        return self._queue.is_congested

    @property
    def has_commit(self) -> bool:
        """Whether a commit has ended whose waiters will be told in a later turn of the loop."""
        return self._queue.has_committed(self._store.committed)

    def on_relief(self, callback: Callable[[], None]) -> None:
        """Set the callback for when `is_congested` is cleared; it replaces an earlier one."""
        self._queue.on_relief = callback

    def flush(self) -> None:
        """Write the collected data; call it once per turn of the loop."""
        group = self._queue.take()
        if group is None:
            return
        numbers = {*group.shards, *(mark[0] for mark in group.marks)}
        touched = [family for number in numbers for family in self._shards[number]]
        batch = self._store.batch()
        try:
            stamps = {number: self._shards[number].append(batch, entries) for number, entries in group.shards.items()}
            self._ceiling.admit(stamps.values())
            for number, producer, sequence, check in group.marks:
                self._shards[number].main.mark_producer(producer, ProducerMark(sequence, check))
            for change in group.changes:
                put_change(batch, self._row_families, change)
            number = self._write(batch, touched)
        except Unavailable as problem:
            discard(touched)
            self._queue.refuse(group, WriteRefusal(problem.detail, problem.retry_after_s))
        except Exception as problem:
            discard(touched)
            self._queue.refuse(group, WriteRefusal(str(problem), _RETRY_AFTER_FAULT_S))
            raise
        else:
            self._queue.wrote(group, number, stamps)

    def _write(self, batch: Batch, families: Iterable[Shard], *, frees_space: bool = False) -> int:
        """Seal, write and adopt; the caller must discard the drafts if it raises."""
        drafted = list(families)
        for family in drafted:
            family.seal(batch)
        number = self._store.write(batch, frees_space=frees_space)
        for family in drafted:
            family.adopt(number)
        return number

    def _committed(self, number: int) -> None:
        done = self._queue.committed(number)
        touched = sorted({shard for group in done for shard in group.shards})
        # Followers before acknowledgements: a client whose message is acknowledged can rely on its delivery being under way.
        news = [(shard, self._shards[shard].commit(number)) for shard in touched]
        self._followers.hand_out([(shard, records) for shard, records in news if records])
        for group in done:
            self._queue.acknowledge(group)
        self.on_reported()

    def check(self) -> Health:
        """Check the store and the clock; call it every second. Waiters for a failed commit are told that it is in doubt."""
        self._log_readers.tick()
        self.clock_alarm = self._clock.check()
        self._ceiling.check()
        health = self._store.check()
        if health.needs_restart:
            self._committed(self._store.committed)
            self._queue.doubt(health.reason, _RETRY_AFTER_FAULT_S)
        return health

    # Reading

    def now(self) -> int:
        """The log's clock, in microseconds since 1970."""
        return self._clock.now()

    @property
    def watermarks(self) -> dict[int, int]:
        """The last committed timestamp of each shard."""
        return {number: shard.watermark for number, shard in enumerate(self._shards)}

    @property
    def floors(self) -> list[int]:
        """By shard: the timestamp below which retention has deleted records; without those of log classes."""
        return [shard.main.floor for shard in self._shards]

    def follow(self, shard: int, callback: OnRecords) -> ShardFollower:
        """Call back with the shard and its newly committed records, in order; each commit is a list that must not be changed.

        A reader that has caught up with `replay` and follows in the same turn of the loop gets every record exactly once.
        """
        return self._followers.add(shard, callback)

    def positions_at(self, start: Start) -> dict[int, int]:
        """The positions from which a replay begins at this start. A start in the future is `latest`."""
        return positions_at(start, self.watermarks, self._clock.now())

    def replay(self, filters: Sequence[str], start: Mapping[int, int] | int, *, with_session_only: bool = False) -> MergedScan:
        """Read records that match one of the filters, after one position or after one for each shard, in order of time.

        Session-only records are hidden unless requested. Filters must be valid, without `$share`.
        """
        return self._log_readers.replay(filters, start, with_session_only)

    def gaps(self, start: Mapping[int, int] | int, filters: Sequence[str] = ("#",)) -> dict[int, RetentionGap]:
        """The records after these positions that may match and that retention has already deleted, by shard."""
        return self._log_readers.gaps(start, filters)

    def producer_mark(self, shard: int, producer: bytes) -> ProducerMark:
        """The last sequence of a producer of a shard, as of the last flush."""
        return self._shards[shard].main.producer_mark(producer)

    def row(self, shard: int, key: bytes) -> bytes | None:
        """A row written by `change`, as of the last flush."""
        return self._store.get(self._shards[shard].main.family, key)

    def rows(self, shard: int, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows with lower <= key < upper, in order, as of the last flush."""
        return self._store.items(self._shards[shard].main.family, lower, upper)

    # Upkeep

    def retain(self, now: int | None = None) -> None:
        """One step of retention, and of the expiry of unused producers; for a timer. Raises Unavailable if it cannot be written.

        Works on a full disk too, as long as some of the reserve is left: see `reclaim`.
        """
        self.flush()
        self._upkeep.retain(self._clock.now() if now is None else now)

    def reclaim(self) -> None:
        """Free the disk space of records that retention removed, now rather than in the course of writing; for a thread.

        Needed when the disk is full: then nothing is written, and space would never be freed by itself.
        """
        self._upkeep.reclaim()

    def generations(self) -> list[GenerationStats]:
        """Every generation, by shard, class and number."""
        return self._upkeep.generations()

    def add_generation(self, layout: str, parameters: bytes = b"") -> None:
        """Start a new generation in every shard with its next record. Raises Unavailable if it cannot be written."""
        self.flush()
        self._upkeep.add_generation(layout, parameters, self._options.limits)

    def relearn_gain(self) -> RelearnGain:
        """How much a new generation could improve with what was learned so far; read-only, may run in a thread."""
        return self._upkeep.relearn_gain()

    def relearn(self, gain: RelearnGain | None = None) -> None:
        """Start a new generation with better patterns wherever that is worth it. Raises Unavailable.

        Without a gain it is computed here, which is slow if very much was learned.
        """
        self.flush()
        self._upkeep.relearn(gain or self._upkeep.relearn_gain())

    def patterns(self) -> dict[int, list[str]]:
        """The learned patterns of the topics of each shard, as topic filters; read-only, may run in a thread."""
        return self._upkeep.patterns()

    def teach(self, lesson: Lesson) -> None:
        """Start a new generation with a lesson. Raises UsageError if it cannot be learned, or Unavailable."""
        self.flush()
        self._upkeep.teach(lesson)

    def drop_generation(self, number: int, log_class: str = "") -> None:
        """Remove the records of the oldest generation, of one class, from all shards; uncommitted records stay.

        Raises UsageError if it is not the oldest, or the only one; Unavailable if it cannot be written.
        """
        self.flush()
        self._upkeep.drop_generation(number, log_class)

    def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Create a directory with the log as it is now, which can be opened as `data_dir`/log. For a thread."""
        self._store.checkpoint(path)

    def stats(self) -> LogStats:
        """Statistics of the whole log and of each shard."""
        return log_stats(self._store, self._shards, self._classes, self._queue)


def _ignore() -> None:
    """What ``on_reported`` is unless it is set."""
