"""`spark.readStream.format("braidmq")`: history as a stream, exactly once with idempotent sinks.

Runs in one process of the driver for the lifetime of the query; `read` runs on executors, in copies. Spark 4.2 passes the start
and the limit of each batch. 4.0 and 4.1 do not, so a batch begins where the last planned one ended.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from msgspec import structs
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from braidmq.base.errors import BraidError, ConfigError, UsageError
from braidmq.flight import wire
from braidmq.flight.client import HistoryClient
from braidmq.spark.option_table import warn_of_unknown
from braidmq.spark.source import offsets
from braidmq.spark.source.backlog import BacklogMeter
from braidmq.spark.source.limits import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from braidmq.spark.source.offsets import Offset, parse_offset
from braidmq.spark.source.options import LATEST
from braidmq.spark.source.reading import Reading, log, losses_in_words, range_bound, to_partitions


class StreamReader(Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets, parts and progress of one query."""

    _clock = staticmethod(time.monotonic)

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        """Raises ConfigError or UsageError for invalid options."""
        super().__init__(options, schema)
        if self._options.end is not None:
            name = "endingOffsets" if self._options.end.moment is None else "endingTimestamp"
            raise ConfigError(name, "is for spark.read", "a stream ends when it is stopped, or with trigger(availableNow=True)")
        self._initial: Offset | None = None
        self._target: Offset | None = None
        self._latest: Offset | None = None
        # For Spark 4.0 and 4.1 only: the ends of the last planned and the last offered batch.
        self._planned: Offset | None = None
        self._offered: Offset | None = None
        self._is_told_starts = True
        self._noted: dict[int, int] | None = None
        self._warnings: set[str] = set()
        self._ended_at: Mapping[int, int] = {}  # the end of the last offered batch
        self._began_batch_at: float | None = None
        self._can_count = True
        self._is_warned_of_options = False

    def initialOffset(self) -> dict[str, Any]:
        self._warn_of_options()
        bound = range_bound(self._options.start or LATEST, self._client)
        shards = self._client.shards()
        given = self._options.start.offset if self._options.start else None
        if given is not None:
            offsets.check_log(given, shards.log)
            offsets.check_shards(given, shards)
        initial = structs.replace(offsets.begin_at(bound, shards), filters=self._filters)
        self._initial = self._planned = initial
        return initial.to_json()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """The end of the next batch. Called without arguments by Spark 4.0 and 4.1; limits are then kept as far as possible."""
        self._warn_of_options()
        if start is None:
            self._is_told_starts = False
            first = self._planned
            end = self._next_by_memory()
        else:
            first = parse_offset(start)
            self._check_filters(first)
            end = self._next(first, is_limited=not isinstance(limit, ReadAllAvailable))
        self._ended_at = end.shards
        if first is not None and end.is_at(first):
            return first.to_json()
        end = structs.replace(end, filters=self._filters)
        return (structs.replace(end, began=first) if first is not None and first == self._initial else end).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark supports one limit at a time; latestOffset applies the other one as well.
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        if self._options.rows_min is not None:
            return ReadMinRows(self._options.rows_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        shards = self._client.shards()
        self._target = Offset(offsets.latest_of(shards), shards.log)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end of the log, and how many matching rows are left up to there after the last offered batch.

        This is the only figure that Spark shows of a Python source: it cannot set `sources[].metrics`.
        """
        if self._latest is None:
            return None
        latest = structs.replace(self._latest, filters=self._filters).to_json()
        if self._can_count:
            try:
                latest["behind"] = self._backlog.behind(self._ended_at, self._latest.shards)
            except BraidError as problem:
                self._cannot_count(problem)
        return latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        last = parse_offset(end)
        first = last.began or parse_offset(start)
        self._warn_of_options()
        self._check_filters(last)
        if not self._is_told_starts:
            self._check_filters(first)
        self._planned = last
        if offsets.is_empty(first, last):
            return []
        until = wire.RangeBound(positions=offsets.ends_to_ask_for(first.shards, last.shards))
        # The filters that the batch was offered with: a repeated batch has the same rows.
        filters = self._options.filters if last.filters is None else last.filters
        planning = self._plan(self._client, filters, first.to_bound(), until)
        offsets.check_log(first, planning.planned.log)
        offsets.check_log(last, planning.planned.log)
        # A shard that the end does not name was created later and belongs to a later batch.
        return to_partitions([ticket for ticket, _ in planning.parts if ticket.shard in last.shards])

    def commit(self, end: dict[str, Any]) -> None:
        """Everything up to here is processed. Only a hint: it comes late, and never for the last batch of a run."""
        self._note(parse_offset(end))

    def stop(self) -> None:
        self._client.close()

    @cached_property
    def _client(self) -> HistoryClient:
        return self._connect()

    @cached_property
    def _backlog(self) -> BacklogMeter:
        def ask(start: Mapping[int, int], end: Mapping[int, int]) -> wire.Backlog:
            wanted = wire.AskBacklog(self._options.filters, wire.to_wire(dict(start)), wire.to_wire(dict(end)))
            return self._client.backlog(wanted)

        return BacklogMeter(ask)

    def _cannot_count(self, problem: BraidError) -> None:
        """Warn once. An older service cannot count and is not asked again; others may be busy."""
        self._can_count = not isinstance(problem, UsageError)
        told = f"the history service cannot report the remaining rows: {problem}"
        self._warn_once(told if self._options.rows_min is None else f"{told}; minRowsPerTrigger is ignored")

    @property
    def _filters(self) -> tuple[str, ...]:
        return offsets.to_filters(self._options.filters)

    def _check_filters(self, kept: Offset) -> None:
        """Raise UsageError if the checkpoint belongs to other filters, unless the options allow it."""
        try:
            offsets.check_filters(kept, self._options.filters)
        except UsageError as problem:
            if not self._options.continues_with_other_filters:
                raise
            self._warn_once(f"{problem.detail}, which it reads from the checkpoint on (onFilterChange=continue)")

    @losses_in_words()
    def _next(self, start: Offset, *, is_limited: bool) -> Offset:
        shards = self._client.shards()
        offsets.check_log(start, shards.log)
        start = offsets.settle(start, shards)
        # Everything before the start of a batch has been processed.
        self._note(start)
        self._latest = Offset(offsets.latest_of(shards), shards.log)
        within = offsets.bounds(start, self._latest.shards, self._target)
        if is_limited and self._target is None and self._has_too_few(start.shards, within):
            return offsets.end_of_batch(start, start.shards)
        rows_max, bytes_max = self._options.rows_max, self._options.bytes_max
        if not is_limited or (rows_max is None and bytes_max is None) or offsets.is_empty(start, Offset(within)):
            return offsets.end_of_batch(start, within)
        advance = wire.Advance(
            self._options.filters,
            wire.to_wire(start.shards),
            end=offsets.ends_to_ask_for(start.shards, dict.fromkeys(self._latest.shards, 0) | within),
            rows_max=rows_max,
            bytes_max=bytes_max,
            on_loss=self._options.on_loss,
            gone=wire.gone_to_wire(start.gone),
        )
        return offsets.end_of_batch(start, within, wire.from_wire(self._client.advance(advance).end))

    def _has_too_few(self, start: Mapping[int, int], within: Mapping[int, int]) -> bool:
        """Whether the next batch should wait for more rows: there are too few, and the last batch was recent."""
        least, now = self._options.rows_min, self._clock()
        if least is None:
            return False
        is_time = self._began_batch_at is None or now - self._began_batch_at >= self._options.delay_s
        try:
            if not is_time and self._can_count and self._backlog.rows_after(start, within) < least:
                return True
        except UsageError as problem:
            self._cannot_count(problem)
        if any(position > start.get(shard, 0) for shard, position in within.items()):
            self._began_batch_at = now
        return False

    def _next_by_memory(self) -> Offset:
        limited = self._options.rows_max is not None or self._options.bytes_max is not None
        if limited:
            self._warn_once(
                "this version of Spark does not pass the start and the trigger of a batch to a source: "
                "the first batch after a restart and that of availableNow are not limited; use Spark 4.2 or later"
            )
        if self._planned is None:
            # Restarted from a checkpoint that this process does not know.
            shards = self._client.shards()
            return Offset(offsets.latest_of(shards), shards.log)
        end = self._next(self._planned, is_limited=True)
        if self._offered is not None:
            # Offered but not planned yet: offsets must not go back.
            end = offsets.end_of_batch(end, offsets.bounds(self._offered, end.shards, None))
        self._offered = end
        return end

    def _note(self, offset: Offset) -> None:
        """Report the position of a named reader. Failures do not stop the query: the next report replaces this one."""
        if not self._options.reader_name or offset.shards == self._noted:
            return
        try:
            self._client.note_reader(self._options.reader_name, offset.shards, self._options.filters)
            self._noted = offset.shards
        except BraidError as problem:
            self._warn_once(f"the position of {self._options.reader_name!r} could not be sent to the broker: {problem}")

    def _warn_of_options(self) -> None:
        """Warn in this process only, which lives as long as the query: others parse the options as well."""
        if not self._is_warned_of_options:
            self._is_warned_of_options = True
            warn_of_unknown(self._options.unknown)

    def _warn_once(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.add(text)
            log.warning("%s", text)
