"""Parses replay requests of SUBSCRIBE.

In MQTT 5, user properties of SUBSCRIBE apply to all its filters: ``stream-offset`` (the start), ``replay-end`` = 1 (send a marker
when the replay has caught up) and ``replay-complete`` = 1 (reject if history is incomplete). In every version a single filter can
be written as ``$replay/<start>/<filter>``; ``,end`` and ``,complete`` after the start correspond to the two properties. Both
forms apply to shared filters too, except for the end marker: the first member decides where its group starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from braidmq.base.errors import UsageError
from braidmq.base.start_position import Start
from braidmq.broker.ports import MessageLog
from braidmq.mqtt.text_pairs import first_pairs

_OFFSET, _END, _COMPLETE = "stream-offset", "replay-end", "replay-complete"
_LATEST = "latest"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ReplayRequest(Struct, frozen=True):
    """``start`` None: only what comes from now on."""

    start: Start | None = None
    tells_end: bool = False
    is_complete: bool = False


NOTHING = ReplayRequest()


def read_properties(pairs: Sequence[tuple[str, str]], parse_start: Callable[[str], Start]) -> ReplayRequest:
    """The replay request in the user properties of a SUBSCRIBE; raises UsageError if a value is invalid or repeated."""
    asked: dict[str, str] = {}
    for name, value in first_pairs(pairs):
        if name in (_OFFSET, _END, _COMPLETE):
            if name in asked:
                raise UsageError(f"{name} is given twice")
            asked[name] = value
    if not asked:
        return NOTHING
    start = asked.get(_OFFSET, _LATEST)
    return ReplayRequest(
        None if start == _LATEST else parse_start(start),
        _is_set(_END, asked.get(_END, "0")),
        _is_set(_COMPLETE, asked.get(_COMPLETE, "0")),
    )


def _is_set(name: str, value: str) -> bool:
    if value not in ("0", "1"):
        raise UsageError(f"{name} must be 0 or 1")
    return value == "1"


def read_start(text: str, packet: ReplayRequest, parse_start: Callable[[str], Start]) -> ReplayRequest:
    """The request of a ``$replay`` filter's ``<start>``, combined with that of its packet; raises UsageError if it is invalid."""
    start, *words = text.split(",")
    for word in words:
        if word not in ("end", "complete"):
            raise UsageError(f"unknown option {word!r} after the start of a $replay filter", "write end or complete")
    return ReplayRequest(
        None if start == _LATEST else parse_start(start),
        packet.tells_end or "end" in words,
        packet.is_complete or "complete" in words,
    )


class Incomplete(UsageError):
    """Part of the requested history is gone, and the client wants all or nothing."""


def find_start(log: MessageLog, request: ReplayRequest, topic_filter: str, marks: Sequence[int]) -> tuple[list[int], int]:
    """The positions at which to begin, and from when on everything is there, in microseconds since 1970; 0: nothing is missing.

    Nothing is later than ``marks``. Raises Incomplete if something is missing and the client wanted it.
    """
    assert request.start is not None  # else there is nothing to look back to
    wanted = log.positions_at(request.start)
    positions = [min(wanted[shard], mark) for shard, mark in enumerate(marks)]
    gaps = log.gaps(dict(enumerate(positions)), [topic_filter])
    whole_from = max((gap.floor for gap in gaps.values()), default=0)
    if whole_from and request.is_complete:
        raise Incomplete(f"the history of {topic_filter} goes back to {time_text(whole_from)} only")
    return positions, whole_from


def time_text(timestamp_us: int) -> str:
    """A time as RFC 3339 in UTC, with microseconds."""
    return (_EPOCH + timedelta(microseconds=timestamp_us)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
