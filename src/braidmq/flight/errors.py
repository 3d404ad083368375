"""Errors between a client and the history service, as exceptions of braidmq."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import msgspec
import pyarrow as pa
from pyarrow import flight

from braidmq.base.errors import BraidError, Unavailable, UsageError
from braidmq.flight import wire

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Not sent by the service: the connection broke, or was never established.
_BROKEN = (
    flight.FlightUnavailableError,
    flight.FlightTimedOutError,
    flight.FlightInternalError,
    flight.FlightCancelledError,
)


class Busy(Unavailable):
    """The service is available, but this reader has the maximum number of streams open; one is freed when another ends."""


class DataLoss(BraidError):
    """Retention deleted some of the requested records; ``gaps`` has the requested and earliest kept positions."""

    def __init__(self, gaps: Mapping[int, wire.ShardGap], hint: str = "") -> None:
        super().__init__(dict(gaps), hint)
        self.gaps = dict(gaps)
        self.hint = hint

    def __str__(self) -> str:
        sentence = f"retention removed part of the requested records: {describe_gaps(self.gaps)}"
        return f"{sentence}; {self.hint}" if self.hint else sentence


def describe_gaps(gaps: Mapping[int, wire.ShardGap]) -> str:
    """Describe gaps: shard, requested start and earliest kept record, as positions and times."""
    return "; ".join(
        f"shard {shard}: wanted everything after {_moment(gap.wanted)}, the earliest kept is {_moment(gap.kept)}"
        for shard, gap in sorted(gaps.items())
    )


def from_wire_gaps(gaps: Mapping[str, wire.ShardGap]) -> dict[int, wire.ShardGap]:
    """Gaps with numbers as keys."""
    return {int(shard): gap for shard, gap in gaps.items()}


def translate(error: pa.ArrowException) -> BraidError:
    """The exception to raise for one of pyarrow's; `Unavailable` if a retry or another server may help."""
    problem = _problem(error)
    if problem is None:
        if isinstance(error, _BROKEN):
            return Unavailable(_first_line(error))
        if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
            return UsageError(f"the history service denied access: {_first_line(error)}", _ACCESS_HINT)
        return BraidError(f"the history service failed: {_first_line(error)}")
    match problem.code:
        case "unavailable":
            return Unavailable(problem.detail)
        case "busy":
            return Busy(problem.detail)
        case "data-loss":
            return DataLoss(from_wire_gaps(problem.gaps))
        case "unauthenticated" | "forbidden":
            return UsageError(f"the history service denied access: {problem.detail}", _ACCESS_HINT)
        case "other-log":
            return UsageError(problem.detail, "these positions belong to another log; start again with a new checkpoint")
        case "bad-request":
            return UsageError(problem.detail)


_ACCESS_HINT = "check user and password, or token, and the broker's access rules for this user"


def _problem(error: pa.ArrowException) -> wire.Problem | None:
    info = getattr(error, "extra_info", None)
    if not info:
        return None
    try:
        return msgspec.json.decode(info, type=wire.Problem)
    except msgspec.MsgspecError:
        return None


def _first_line(error: pa.ArrowException) -> str:
    # gRPC appends debug details, and Python servers a traceback, to the relevant sentence.
    line = (str(error).splitlines() or [type(error).__name__])[0]
    for noise in (". Detail:", ". gRPC client debug context", " Detail: Python exception"):
        line = line.partition(noise)[0]
    for preface in ("with message: ", "last error: UNKNOWN: "):
        line = line.rpartition(preface)[2]
    return line


def _moment(position: int) -> str:
    try:
        return f"{position} ({(_EPOCH + timedelta(microseconds=position)).isoformat(timespec='microseconds')[:-6]}Z)"
    except OverflowError:
        return str(position)
