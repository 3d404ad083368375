"""Samples the topics of a history, enough to find the patterns of a table before its first batch is written.

The records of a part are grouped by topic, so parts are read whole and chosen evenly over shards and time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import pyarrow.compute as pc

from braidmq.flight import wire

if TYPE_CHECKING:
    from braidmq.flight.client import HistoryClient

T = TypeVar("T")

ROWS_MAX: Final = 50_000
_PART_ROWS: Final = 2_500


def sample_topics(client: HistoryClient, filters: Sequence[str], rows_max: int = ROWS_MAX) -> Counter[str]:
    """Count the topics in at least about this many records, or in all if there are fewer. Blocks."""
    plan = wire.Plan(filters=list(filters), columns=["topic"], on_loss="skip")
    parts = client.plan(plan).parts
    total = sum(part.rows_max for _, part in parts)
    if total > rows_max:
        parts = client.plan(msgspec.structs.replace(plan, partitions=-(-total // _PART_ROWS))).parts
        parts = evenly(parts, max(1, len(parts) * rows_max // total))
    counts: Counter[str] = Counter()
    for ticket, _ in parts:
        for batch in client.stream(ticket):
            for each in pc.value_counts(batch.column(0)).to_pylist():
                counts[each["values"]] += each["counts"]
    return counts


def evenly(items: Sequence[T], count: int) -> list[T]:
    """Choose this many items, evenly spread."""
    chosen = min(count, len(items))
    return [items[place * len(items) // chosen] for place in range(chosen)]
