"""The start and end positions of a read, and what retention has deleted from it.

Position 0 is before all records: a read from there takes what exists, and has no gap. A read from any other position or time is
told if retention has deleted later records. Each class of a shard has its own floor, and a read from the beginning starts each
class at its floor. A reader that resumes such a read says how much of each class had been deleted when it began (`gone`): only
what was deleted since then is a loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NoReturn

from msgspec import Struct

from braidmq.base.errors import UsageError
from braidmq.flight.wire import OnLoss, Positions, RangeBound, ShardGap, from_wire
from braidmq.history.service.errors import fail
from braidmq.history.view.follower import OpenLog
from braidmq.history.view.shard_view import FamilyView, gone_after
from braidmq.storage.format.rows import TIMESTAMP_MAX

_BEGINNING: Final = 0
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ShardRange(Struct, frozen=True):
    """The range (start, end] of a shard, with the families that may match the filters; `gone` as in a ticket."""

    shard: int
    start: int
    end: int
    families: Sequence[FamilyView]
    gone: Positions


def begin(
    log: OpenLog,
    filters: Sequence[str],
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    on_loss: OnLoss,
    gone: Mapping[int, Positions],
) -> tuple[list[ShardRange], dict[int, ShardGap]]:
    """The ranges of the shards in ``starts``, and the gaps in them; raises HistoryError `data-loss` if gaps are not allowed.

    Requires the lock of the log. Records up to `gone` are not counted as missing.
    """
    ranges: list[ShardRange] = []
    gaps: dict[int, ShardGap] = {}
    for number in sorted(starts):
        families = log.shards[number].for_filters(filters)
        wanted, end = starts[number], ends[number]
        gap = _gap(families, wanted, end, gone.get(number, {}))
        if gap is not None:
            gaps[number] = gap
        begun = max(wanted, min(max(family.floor - 1, 0) for family in families))
        ranges.append(ShardRange(number, begun, max(end, begun), families, gone_after(begun, families)))
    if gaps and on_loss == "fail":
        fail_for_loss(gaps)
    return ranges, gaps


def _gap(families: Sequence[FamilyView], wanted: int, end: int, gone: Positions) -> ShardGap | None:
    """The missing part of (wanted, end], as one gap over all families."""
    if wanted == _BEGINNING:
        return None
    known = [(max(wanted, gone.get(family.log_class, 0)), family.floor) for family in families]
    lost = [(position, floor) for position, floor in known if position < min(floor - 1, end)]
    return ShardGap(min(position for position, _ in lost), max(floor for _, floor in lost)) if lost else None


def starts_of(bound: RangeBound, watermarks: Mapping[int, int]) -> dict[int, int]:
    """Where a range begins in each shard; 0 for the beginning."""
    if bound.positions is not None:
        return with_all(bound.positions, dict.fromkeys(watermarks, _BEGINNING))
    if bound.time is not None:
        return dict.fromkeys(watermarks, max(bound.time - 1, _BEGINNING))
    return dict(watermarks) if bound.at == "latest" else dict.fromkeys(watermarks, _BEGINNING)


def ends_of(bound: RangeBound, watermarks: Mapping[int, int]) -> dict[int, int]:
    """Where a range ends in each shard. Positions may be above the watermarks, times are not."""
    if bound.positions is not None:
        return with_all(bound.positions, watermarks)
    if bound.time is not None:
        return {shard: max(min(bound.time - 1, watermark), 0) for shard, watermark in watermarks.items()}
    return dict(watermarks) if bound.at == "latest" else dict.fromkeys(watermarks, _BEGINNING)


def with_all(positions: Positions, others: Mapping[int, int]) -> dict[int, int]:
    """The given positions, completed with `others` for the remaining shards. Raises UsageError for an unknown shard."""
    found = from_wire(positions)
    unknown = sorted(found.keys() - others.keys())
    if unknown:
        raise UsageError(f"the log has {len(others)} shards and no shard {unknown[0]}", "are these positions of another log?")
    return {**others, **found}


def fail_for_loss(gaps: Mapping[int, ShardGap]) -> NoReturn:
    """Raise HistoryError `data-loss`."""
    told = "; ".join(
        f"shard {shard} after {gap.wanted}{_time(gap.wanted)}, before {gap.kept}{_time(gap.kept)}"
        for shard, gap in sorted(gaps.items())
    )
    fail("data-loss", f"retention has removed requested records: {told}", gaps)


def _time(position: int) -> str:
    """The time of a position in parentheses, for error messages; empty if the position is out of range."""
    if position > TIMESTAMP_MAX:
        return ""
    return f" ({(_EPOCH + timedelta(microseconds=position)).isoformat(sep=' ', timespec='milliseconds')[:-6]} UTC)"
