"""The log as the history service sees it: shards, the parts of a read, and the rows of each part.

A read sees what the node had committed when the read was requested, as far as a catch-up has brought it (`served_positions`).
Callers have validated the filters and checked the reader's access to them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Final

import pyarrow as pa

from braidmq.base.errors import Corruption, Unavailable, UsageError
from braidmq.flight.columns import choose
from braidmq.flight.wire import (
    Advance,
    Advanced,
    AskBacklog,
    Backlog,
    Part,
    Plan,
    Planned,
    Problem,
    Shards,
    ShardState,
    Ticket,
    gone_from_wire,
    to_wire,
)
from braidmq.history.planning.batch_end import AdvanceLimits, AdvanceSteps, Size, advance, whole
from braidmq.history.planning.estimates import STEPS_MAX, count_rows, estimate
from braidmq.history.planning.parts import split, target_of
from braidmq.history.planning.ranges import ShardRange, begin, ends_of, starts_of, with_all
from braidmq.history.planning.searches import Searches
from braidmq.history.planning.shared_batch import Steps
from braidmq.history.scanning.streams import stream
from braidmq.history.service.errors import HistoryError, fail
from braidmq.history.view.follower import Follower, OpenLog
from braidmq.history.view.shard_view import gone_after

# How long a read waits for a catch-up to its range.
_WAIT_S: Final = 5.0
# A secondary that has been idle for this long is closed.
_IDLE_S: Final = 60.0


class LogView:
    """Reads a log that another process writes. Methods may be called from any thread, may block, and raise HistoryError."""

    def __init__(self, follower: Follower, led: Collection[int] | None = None) -> None:
        """Use `LogView.open`."""
        self._follower = follower
        self._led = led

    @classmethod
    def open(cls, log_dir: Path, scratch_dir: Path, *, idle_s: float = _IDLE_S, led: Collection[int] | None = None) -> LogView:
        """The view of the log in `log_dir`, which is opened on first use; its own files go to `scratch_dir`.

        ``led``: the shards that it reads, and that callers name; None: all.
        """
        return cls(Follower(log_dir, scratch_dir, idle_s), led)

    def on_watermarks(self, watermarks: Mapping[int, int]) -> None:
        """Take the watermarks that the node reports."""
        self._follower.hear(watermarks)

    def shards(self) -> Shards:
        """The range and size of each shard."""
        with self._fresh() as log, log.lock:
            marks = self._watermarks(log)
            states = {}
            for number in marks:
                shard = log.shards[number]
                records = sum(family.epochs.count for family in shard.families)
                size_bytes = sum(family.epochs.size_bytes for family in shard.families)
                earliest = min(shard.earliest, marks[number])
                gone = gone_after(earliest, shard.families)
                states[str(number)] = ShardState(earliest, marks[number], records, size_bytes, gone)
            return Shards(log.log_id, time.time_ns() // 1000, states)

    def plan(self, plan: Plan) -> tuple[Planned, list[tuple[Ticket, Part]]]:
        """Divide a read into parts, without ranges that cannot match."""
        with self._fresh() as log:
            choose(plan.columns)
            self._reach(log, ends_of(plan.end, self._watermarks(log)))
            searches = Searches(plan.filters)
            with log.lock:
                # Read again, since it may have grown: `latest` means what is served now.
                marks = self._watermarks(log)
                starts, ends = starts_of(plan.start, marks), ends_of(plan.end, marks)
                ranges, gaps = begin(log, plan.filters, starts, ends, plan.on_loss, gone_from_wire(plan.start.gone))
            estimates = estimate(log, ranges, searches)
            all_weights = (weight for shard in estimates for family in shard for weight in family)
            target = target_of(all_weights, plan.partitions, plan.part_rows_max, plan.part_bytes_max)
            parts = [
                (_ticket(log, plan, each, part.start, part.end), Part(each.shard, part.rows_max, part.bytes_max))
                for each, families in zip(ranges, estimates, strict=True)
                for part in split(families, target)
            ]
            begun = to_wire({each.shard: each.start for each in ranges})
            ended = to_wire({each.shard: each.end for each in ranges})
            return Planned(log.log_id, begun, ended, {str(shard): gap for shard, gap in gaps.items()}), parts

    def size(self, plan: Plan) -> Size:
        """How much the read of a plan is expected to have."""
        with self._fresh() as log:
            self._reach(log, ends_of(plan.end, self._watermarks(log)))
            with log.lock:
                marks = self._watermarks(log)
                starts, ends = starts_of(plan.start, marks), ends_of(plan.end, marks)
                ranges, _ = begin(log, plan.filters, starts, ends, "skip", gone_from_wire(plan.start.gone))
            weights = [each for shard in estimate(log, ranges, Searches(plan.filters)) for family in shard for each in family]
            return Size(ceil(sum(each.rows for each in weights)), ceil(sum(each.size_bytes for each in weights)))

    def whole(self, wanted: Advance) -> Steps:
        """A batch without records yet, and at most what there is for it."""
        with self._fresh() as log:
            ranges, marks = self._ranges(log, wanted)
            return _steps(whole(log, ranges, Searches(wanted.filters), wanted.on_loss), marks)

    def advance(self, wanted: Advance) -> Advanced:
        """The end of a batch with limits."""
        found = self.advance_by(wanted, may_exceed=True)
        return Advanced(found.end, found.rows, found.latest)

    def advance_by(self, wanted: Advance, *, may_exceed: bool) -> Steps:
        """The same with what it costs. ``may_exceed``: the first record may be larger than the limit."""
        with self._fresh() as log:
            ranges, marks = self._ranges(log, wanted)
            limits = AdvanceLimits(wanted.rows_max, wanted.bytes_max, may_exceed)
            return _steps(advance(log, ranges, Searches(wanted.filters), limits, wanted.on_loss), marks)

    def _ranges(self, log: OpenLog, wanted: Advance) -> tuple[list[ShardRange], dict[int, int]]:
        """What a batch may go through, and the current end of the shards."""
        self._reach(log, with_all(wanted.end or {}, dict.fromkeys(self._watermarks(log), 0)))
        with log.lock:
            marks = self._watermarks(log)
            starts = with_all(wanted.start, dict.fromkeys(marks, 0))
            ends = marks if wanted.end is None else with_all(wanted.end, marks)
            ranges, _ = begin(log, wanted.filters, starts, ends, wanted.on_loss, gone_from_wire(wanted.gone))
        return ranges, marks

    def backlog(self, wanted: AskBacklog, steps_max: int = STEPS_MAX) -> Backlog:
        """How many records in a range match the filters: counted, or estimated from the sample that the steps allow."""
        with self._fresh() as log:
            searches = Searches(wanted.filters)
            with log.lock:
                marks = self._watermarks(log)
                starts = with_all(wanted.start, dict.fromkeys(marks, 0))
                ends = marks if wanted.end is None else with_all(wanted.end, marks)
                ends = {shard: min(end, marks[shard]) for shard, end in ends.items()}
                ranges, _ = begin(log, wanted.filters, starts, ends, "skip", {})
            rows, is_estimate = count_rows(log, ranges, searches, steps_max)
            return Backlog(rows, is_estimate)

    def scan(self, ticket: Ticket) -> Generator[pa.RecordBatch, None, None]:
        """The rows of a ticket."""
        with _problems_in_words(), self._follower.using() as log:
            self._reach(log, {ticket.shard: ticket.end})
            yield from stream(log, ticket)

    def close(self) -> None:
        """Close the log as soon as it has no readers."""
        self._follower.close()

    @contextmanager
    def _fresh(self) -> Iterator[OpenLog]:
        """The log with everything committed before this call, as far as it can be reached in time."""
        with _problems_in_words(), self._follower.using() as log:
            self._follower.refresh(log, _WAIT_S)
            yield log

    def _watermarks(self, log: OpenLog) -> dict[int, int]:
        served = log.served
        numbers = range(len(log.shards))
        return {shard: served.get(shard, 0) for shard in numbers if self._led is None or shard in self._led}

    def _reach(self, log: OpenLog, positions: Mapping[int, int]) -> None:
        if not self._follower.reach(log, positions, _WAIT_S):
            fail("unavailable", "the history service has not reached the end of this range yet; try again in a moment")


def _steps(found: AdvanceSteps, marks: Mapping[int, int]) -> Steps:
    return Steps(to_wire(found.ends), found.rows, found.size_bytes, found.left, to_wire(dict(marks)))


def _ticket(log: OpenLog, plan: Plan, wanted: ShardRange, start: int, end: int) -> Ticket:
    gone = {name: position for name, position in wanted.gone.items() if position > start}
    return Ticket(log.log_id, plan.filters, wanted.shard, start, end, plan.columns, plan.on_loss, gone)


@contextmanager
def _problems_in_words() -> Iterator[None]:
    try:
        yield
    except UsageError as problem:
        raise HistoryError(Problem("bad-request", str(problem))) from problem
    except (Unavailable, Corruption) as problem:
        raise HistoryError(Problem("unavailable", str(problem))) from problem
