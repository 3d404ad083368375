"""The messages of the history service other than record batches: commands, tickets, actions and errors, all JSON.

A range of the log is `(start, end]` for each shard, in positions; positions are opaque and need not be contiguous. Keys in JSON
are strings, so shards are strings here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeVar

import msgspec

from braidmq.base.errors import UsageError

# Incremented when older peers could not understand a message.
VERSION: Final = 1

# Actions, by name. The body is one of the structs below, and so is the one result.
SHARDS: Final = "shards"  # Nothing -> Shards
ADVANCE: Final = "advance"  # Advance -> Advanced
NOTE_READER: Final = "note-reader"  # NoteReader -> Nothing
BACKLOG: Final = "backlog"  # AskBacklog -> Backlog

Positions = dict[str, int]
# By shard, and in it by class of the log (empty: the log itself): the last deleted position. What was deleted before a reader
# began is not a loss.
Gone = dict[str, Positions]

# If retention has deleted requested records: the read fails, or begins at the earliest record.
OnLoss = Literal["fail", "skip"]


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No arguments, or no result."""


class RangeBound(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The start or end of a range: a position for each shard, a time in microseconds since 1970, or `earliest` or `latest`.

    A start time is inclusive, an end time is exclusive. Shards that `positions` does not name start at their beginning, and end
    at their current end. `gone` is for readers that resume: what had been deleted when they began, where that is later than
    `positions`.
    """

    positions: Positions | None = None
    time: int | None = None
    at: Literal["earliest", "latest"] | None = None
    gone: Gone = {}

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.positions, self.time, self.at)) != 1:
            raise ValueError("a bound needs exactly one of positions, time and at")
        if self.gone and self.positions is None:
            raise ValueError("`gone` needs positions")


EARLIEST: Final = RangeBound(at="earliest")
LATEST: Final = RangeBound(at="latest")


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The command of GetFlightInfo: the records and columns (None: all) to read, and the approximate number of parts."""

    filters: list[str]
    start: RangeBound = EARLIEST
    end: RangeBound = LATEST
    columns: list[str] | None = None
    partitions: int = 0  # 0: chosen by size
    part_rows_max: int | None = None  # approximate maximum per part; None: the default
    part_bytes_max: int | None = None
    on_loss: OnLoss = "fail"
    version: int = VERSION


class ShardGap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Retention deleted records of a shard between `wanted`, the requested start, and `kept`, the earliest record left."""

    wanted: int
    kept: int


class Planned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`app_metadata` of the answer: the log, the planned range, and its gaps (see `on_loss`)."""

    log: str
    start: Positions
    end: Positions
    gaps: dict[str, ShardGap] = {}


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`app_metadata` of an endpoint: its maximum size."""

    shard: int
    rows_max: int
    bytes_max: int


class Ticket(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The part that DoGet streams: a range of one shard.

    Rows of one topic are in order of position; topics are in no order. `gone` is what had been deleted of a class of the log
    (empty: the log itself) when the part was planned, where that is later than the start: it is not a loss.

    ``core`` leads the shard, and serves the part at ``location``; both are empty if there is only one core.
    """

    log: str
    filters: list[str]
    shard: int
    start: int
    end: int
    columns: list[str] | None = None
    on_loss: OnLoss = "fail"
    gone: Positions = {}
    core: str = ""
    location: str = ""
    version: int = VERSION


class ShardState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The range `(earliest, latest]` of a shard's records; those of classes in `gone` begin later."""

    earliest: int
    latest: int
    records: int
    size_bytes: int
    gone: Positions = {}


class Shards(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The log and its shards, and the server's clock in microseconds since 1970."""

    log: str
    now: int
    shards: dict[str, ShardState]


class Advance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Ask for the end of a batch from `start`, with maximum rows and bytes of records, up to `end` (None: the current end).

    The limits are divided in proportion to the backlog of each shard. A batch has at least one record, if there is one. `gone` as
    in RangeBound.
    """

    filters: list[str]
    start: Positions
    end: Positions | None = None
    rows_max: int | None = None
    bytes_max: int | None = None
    on_loss: OnLoss = "fail"
    gone: Gone = {}
    version: int = VERSION


class Advanced(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The end of the batch, its maximum number of rows, and the current end of the shards."""

    end: Positions
    rows_max: int
    latest: Positions


class AskBacklog(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Ask how many records match these filters after `start` and up to `end` (None: the current end)."""

    filters: list[str]
    start: Positions
    end: Positions | None = None
    version: int = VERSION


class Backlog(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number of records; estimated from a sample if counting all of them would be too much work."""

    rows: int
    is_estimate: bool


class NoteReader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Store the positions of a named reader: its lag is shown, and retention waits for it.

    `filters` are what it reads; the caller must be allowed to subscribe to them.
    """

    name: str
    positions: Positions
    filters: list[str] = msgspec.field(default_factory=lambda: ["#"])
    version: int = VERSION


Code = Literal[
    "bad-request",  # invalid: an unknown column, an invalid filter, a newer version
    "unauthenticated",
    "forbidden",
    "data-loss",  # retention deleted requested records; see `gaps`
    "other-log",  # the positions belong to another log
    "unavailable",  # retry, on this server or another
    "busy",  # the reader has too many open streams; retry
]


class Problem(msgspec.Struct, frozen=True):
    """The `extra_info` of every error."""

    code: Code
    detail: str
    gaps: dict[str, ShardGap] = {}


T = TypeVar("T")


def encode(value: msgspec.Struct) -> bytes:
    """The JSON of one of the structs."""
    return msgspec.json.encode(value)


def decode(data: bytes, kind: type[T]) -> T:
    """Decode a struct from JSON; raises UsageError if it is invalid."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as problem:
        raise UsageError(f"invalid {kind.__name__.lower()}, or one of a newer version: {problem}") from None


def to_wire(positions: dict[int, int]) -> Positions:
    """Convert keys to strings."""
    return {str(shard): position for shard, position in sorted(positions.items())}


def from_wire(positions: Positions) -> dict[int, int]:
    """Convert keys to numbers; raises UsageError for an invalid shard or position."""
    _check(positions.values())
    return _by_number(positions)


def gone_to_wire(gone: Mapping[int, Positions]) -> Gone:
    """Convert keys to strings, in order."""
    return {str(shard): dict(sorted(classes.items())) for shard, classes in sorted(gone.items())}


def gone_from_wire(gone: Gone) -> dict[int, Positions]:
    """Convert keys to numbers; raises UsageError for an invalid shard or position."""
    for classes in gone.values():
        _check(classes.values())
    return _by_number(gone)


def _by_number(shards: Mapping[str, T]) -> dict[int, T]:
    try:
        found = {int(shard): value for shard, value in shards.items()}
    except ValueError:
        raise UsageError(f"a shard must be a number, not one of {', '.join(sorted(shards))}") from None
    _check(found)
    return found


def _check(numbers: Iterable[int]) -> None:
    if not all(0 <= number < 1 << 63 for number in numbers):
        raise UsageError("shards and positions must be between 0 and 2**63 - 1")
