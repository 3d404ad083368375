"""The messages of the history service other than record batches: commands, tickets, actions and errors, all JSON.

A range of the log is `(start, end]` for each shard, in positions; positions are tokens, and gaps between them are legal. JSON has
texts as keys, so that shards are texts here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeVar

import msgspec

from braidmq.base.errors import UsageError

# Raised when an older peer could not understand what is sent.
VERSION: Final = 1

# Actions, by name. The body is one of the structs below, and so is the one result.
SHARDS: Final = "shards"  # Nothing -> Shards
ADVANCE: Final = "advance"  # Advance -> Advanced
NOTE_READER: Final = "note-reader"  # NoteReader -> Nothing
BACKLOG: Final = "backlog"  # AskBacklog -> Backlog

Positions = dict[str, int]
# By shard, and in it by class of the log (empty: the log itself): the last position that is gone. What was gone when a reader
# began is no loss for it.
Gone = dict[str, Positions]

# What to do with what retention took before it could be read: the read fails, or begins where the log begins.
OnLoss = Literal["fail", "skip"]


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No arguments, or no result."""


class RangeBound(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a range begins or ends: a position for each shard, a time in microseconds since 1970, or `earliest` or `latest`.

    A range that begins at a time has what was stored at it or later; one that ends at a time has what was stored before it.
    Shards that `positions` does not name begin at their beginning, and end where they end now. `gone` is of a reader that goes on
    from positions that it has come to: what was gone when it began, where that is more than they are.
    """

    positions: Positions | None = None
    time: int | None = None
    at: Literal["earliest", "latest"] | None = None
    gone: Gone = {}

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.positions, self.time, self.at)) != 1:
            raise ValueError("a place needs exactly one of positions, time and at")
        if self.gone and self.positions is None:
            raise ValueError("`gone` needs positions")


EARLIEST: Final = RangeBound(at="earliest")
LATEST: Final = RangeBound(at="latest")


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The command of GetFlightInfo: which records, of them which columns (None: all), in about how many parts."""

    filters: list[str]
    start: RangeBound = EARLIEST
    end: RangeBound = LATEST
    columns: list[str] | None = None
    partitions: int = 0  # 0: as many as the size suggests
    part_rows_max: int | None = None  # about so many in a part; None: as usual
    part_bytes_max: int | None = None
    on_loss: OnLoss = "fail"
    version: int = VERSION


class ShardGap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a shard's records later than `wanted` those before `kept` are gone: retention removed them."""

    wanted: int
    kept: int


class Planned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`app_metadata` of the answer: the range that was planned, the log that it is of, and what is missing of it (`on_loss`)."""

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
    """What DoGet streams: a shard's records of a range.

    Rows of one topic come in the order of their positions; rows of different topics are in no order. `gone` is how much of a
    class of the log (empty: the log itself) was gone when it was planned, where that is more than the start: it is no loss.
    """

    log: str
    filters: list[str]
    shard: int
    start: int
    end: int
    columns: list[str] | None = None
    on_loss: OnLoss = "fail"
    gone: Positions = {}
    version: int = VERSION


class ShardState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A shard's range: everything that it has is in `(earliest, latest]`; of classes in `gone` only what is later than that."""

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
    """How far may a batch go from `start`, with at most so many rows and bytes of records? `end` bounds it; None: what is there.

    Shares of the limits follow the backlog of each shard. It goes on by at least one record if there is one. `gone` as in Place.
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
    """The end that was found; rows in the range at most; and where the shards end now."""

    end: Positions
    rows_max: int
    latest: Positions


class AskBacklog(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How many records of these filters are later than `start`, and up to `end`? None: what is there."""

    filters: list[str]
    start: Positions
    end: Positions | None = None
    version: int = VERSION


class Backlog(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number of records; an estimate from a sample if counting all would be too much work."""

    rows: int
    is_estimate: bool


class NoteReader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reader by this name has dealt with everything up to these positions: shown as its lag, and retention waits for it.

    `filters` are what it reads: who may not subscribe to them has no business with it.
    """

    name: str
    positions: Positions
    filters: list[str] = msgspec.field(default_factory=lambda: ["#"])
    version: int = VERSION


Code = Literal[
    "bad-request",  # not understood: an unknown column, a filter that is none, a newer version
    "unauthenticated",
    "forbidden",
    "data-loss",  # retention took what was wanted; `gaps` says what
    "other-log",  # the positions are of another log
    "unavailable",  # worth another try, here or elsewhere
    "busy",  # too many streams of this reader at a time; worth another try
]


class Problem(msgspec.Struct, frozen=True):
    """`extra_info` of every error."""

    code: Code
    detail: str
    gaps: dict[str, ShardGap] = {}


T = TypeVar("T")


def encode(value: msgspec.Struct) -> bytes:
    """The JSON of one of the structs."""
    return msgspec.json.encode(value)


def decode(data: bytes, kind: type[T]) -> T:
    """The struct in a JSON text; raises UsageError if it is not one."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as problem:
        raise UsageError(f"not a {kind.__name__.lower()} that this version understands: {problem}") from None


def to_wire(positions: dict[int, int]) -> Positions:
    """Positions with texts as keys."""
    return {str(shard): position for shard, position in sorted(positions.items())}


def from_wire(positions: Positions) -> dict[int, int]:
    """Positions with numbers as keys; raises UsageError for what is no shard or no position."""
    _check(positions.values())
    return _by_number(positions)


def gone_to_wire(gone: Mapping[int, Positions]) -> Gone:
    """The same with texts as keys, in order."""
    return {str(shard): dict(sorted(classes.items())) for shard, classes in sorted(gone.items())}


def gone_from_wire(gone: Gone) -> dict[int, Positions]:
    """The same with numbers as keys; raises UsageError for what is no shard or no position."""
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
