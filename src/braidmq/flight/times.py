"""Converts times as users write them into bounds of the protocol."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import assert_never

from braidmq.base.errors import UsageError
from braidmq.base.start_position import Ago, At, Earliest, Latest, parse_start
from braidmq.flight import wire

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_microseconds(moment: datetime) -> int:
    """Microseconds since 1970; raises UsageError for a time without a time zone."""
    if moment.tzinfo is None:
        raise UsageError(f"{moment.isoformat()} has no time zone", "write datetime(..., tzinfo=UTC)")
    return (moment - _EPOCH) // timedelta(microseconds=1)


def to_bound(moment: str | datetime, now: Callable[[], int]) -> wire.RangeBound:
    """Convert a time; `now`, the server's clock in microseconds since 1970, is called only for relative times."""
    if isinstance(moment, datetime):
        return wire.RangeBound(time=max(to_microseconds(moment), 0))
    start = parse_start(moment)
    match start:
        case Latest():
            return wire.LATEST
        case Earliest():
            return wire.EARLIEST
        case At(timestamp_us):
            return wire.RangeBound(time=timestamp_us)
        case Ago(span_us):
            return wire.RangeBound(time=max(now() - span_us, 0))
        case _:
            assert_never(start)
