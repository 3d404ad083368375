"""Turns the start of a read (`base.start_position`) into positions, by shard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, assert_never

from braidmq.base.start_position import Ago, At, Earliest, Latest, Start, parse_start
from braidmq.storage.format.rows import TIMESTAMP_MAX

__all__ = ["EARLIEST", "Ago", "At", "Earliest", "Latest", "Start", "parse_start", "positions_at"]

# The position before everything, for which gaps are never reported; and the first one for which they are.
EARLIEST: Final = 0
_BEFORE_ALL: Final = 1


def positions_at(start: Start, watermarks: Mapping[int, int], now: int) -> dict[int, int]:
    """The positions from which a replay begins at this start, by shard. A start in the future is `latest`."""
    match start:
        case Earliest():
            return dict.fromkeys(watermarks, EARLIEST)
        case Latest():
            wanted = TIMESTAMP_MAX
        case At(timestamp_us):
            wanted = timestamp_us - 1
        case Ago(span_us):
            wanted = now - span_us - 1
        case _:
            assert_never(start)
    return {shard: max(min(wanted, mark), _BEFORE_ALL) for shard, mark in watermarks.items()}
