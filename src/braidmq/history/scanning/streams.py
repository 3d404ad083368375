"""A ticket as a stream of record batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from braidmq.flight.columns import choose
from braidmq.flight.wire import ShardGap, Ticket
from braidmq.history.planning.ranges import fail_for_loss
from braidmq.history.planning.searches import Searches
from braidmq.history.scanning.batches import Batches
from braidmq.history.scanning.epoch_reading import BatchLimits, EpochReading
from braidmq.history.service.errors import fail
from braidmq.history.view.follower import OpenLog
from braidmq.history.view.shard_view import EpochLost, FamilyView, read_row

# Small batches first: a reader that wants only a few rows gets them at once and ends early.
_ROWS: Final = (1024, 8192)
_ROWS_MAX: Final = 32_768
_BYTES_MAX: Final = 4 * 1024 * 1024


def stream(log: OpenLog, ticket: Ticket) -> Iterator[pa.RecordBatch]:
    """The rows of a ticket; its end must be served already. Raises HistoryError, Corruption, Unavailable."""
    if ticket.log != log.log_id:
        fail("other-log", f"the positions belong to log {ticket.log}, but this is log {log.log_id}: start again without them")
    if not 0 <= ticket.shard < len(log.shards):
        fail("bad-request", f"the log has {len(log.shards)} shards and no shard {ticket.shard}")
    searches = Searches(ticket.filters)
    batches = Batches(choose(ticket.columns), ticket.shard)
    with log.lock:
        families = log.shards[ticket.shard].for_filters(ticket.filters)
        # Sorted by start: a topic that moved to another class continues in an epoch that starts later (`classes`).
        epochs = sorted(
            ((epoch, family) for family in families for epoch in family.epochs_in(ticket.start, ticket.end)),
            key=lambda each: each[0].start,
        )
    # Checked after the epochs were listed, so the floors include everything that retention deleted before that.
    _check_floors(log, ticket, families)
    sizes = iter(_ROWS)
    limits = BatchLimits(next(sizes), _BYTES_MAX)
    for epoch, family in epochs:
        try:
            with log.lock:
                ranges = family.ranges(epoch, searches)
            reading = EpochReading(log.store, family.family, epoch, ranges, ticket.start, ticket.end)
            while not reading.collect(batches.columns, limits):
                yield batches.take()
                limits = BatchLimits(next(sizes, _ROWS_MAX), _BYTES_MAX)
        except EpochLost as lost:
            if ticket.on_loss == "fail":
                fail_for_loss({ticket.shard: ShardGap(max(ticket.start, epoch.start - 1), lost.floor)})
    if len(batches.columns):
        yield batches.take()


def _check_floors(log: OpenLog, ticket: Ticket, families: list[FamilyView]) -> None:
    if ticket.on_loss == "skip":
        return
    for family in families:
        floor = read_row(log.store, family.family).floor
        known = max(ticket.start, ticket.gone.get(family.log_class, 0))
        if known < min(floor - 1, ticket.end):
            fail_for_loss({ticket.shard: ShardGap(known, floor)})
