"""The values of the control paths for the durable log, and the lines of streaming responses.

A streaming response consists of JSON lines, each with a ``type``: first ``begin``, then the requested lines, with ``progress``
now and then, and last ``end``. A stream without ``end`` was interrupted. Timestamps are microseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

Encoding = Literal["utf-8", "base64"]


class ReadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Selects records that match a filter, from ``start`` on and before ``end``; both as clients write ``stream-offset``.

    ``limit`` 0 means no limit. With ``follow`` the stream does not stop at the end, but continues with new records.
    """

    filters: tuple[str, ...]
    start: str = "earliest"
    end: str = "latest"
    limit: int = 0
    follow: bool = False


class StreamLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=str.lower):
    """One line of a streaming response."""


class Begin(StreamLine, frozen=True):
    """The time range that the response covers."""

    start: int
    end: int


class RecordLine(StreamLine, frozen=True, tag="record"):
    """One record; ``client_id`` is its publisher's, empty for the node itself.

    ``encoding`` says what ``payload`` is: the text itself, or base64 of bytes that are not text.
    """

    shard: int
    timestamp: int
    topic: str
    payload: str
    encoding: Encoding
    qos: int
    retain: bool
    client_id: str
    published_at: int
    expires_at: int | None = None
    properties: dict[str, Any] | None = None


class Topic(StreamLine, frozen=True):
    """One topic, with statistics of its records in the requested time range."""

    topic: str
    records: int
    payload_bytes: int
    newest: int


class GapLine(StreamLine, frozen=True, tag="gap"):
    """Requested records of a shard, later than ``after`` and before ``floor``, that retention has deleted."""

    shard: int
    after: int
    floor: int


class ProgressLine(StreamLine, frozen=True, tag="progress"):
    """Everything up to ``position`` was read, and this many records were found."""

    position: int
    records: int


class Copying(StreamLine, frozen=True):
    """The progress of a backup."""

    done_bytes: int
    total_bytes: int


class Made(StreamLine, frozen=True):
    """The result of a backup; files and bytes are counted without the manifest.

    With several cores: the shards that it covers, and the cores that lead the others.
    """

    path: str
    log_id: str
    files: int
    total_bytes: int
    shards: list[int] = []
    other_cores: list[str] = []


class End(StreamLine, frozen=True):
    """The response is complete, unless ``is_cut``: then it stopped at the limit, or there was more than it can hold."""

    records: int = 0
    is_cut: bool = False


class Failed(StreamLine, frozen=True):
    """The response ends here because of this error."""

    message: str


AnyLine = Begin | RecordLine | Topic | GapLine | ProgressLine | Copying | Made | End | Failed


def encode_lines(lines: Sequence[StreamLine]) -> bytes:
    """The lines as sent over the wire, each with its line end."""
    return _ENCODER.encode_lines(lines)


def decode_line(line: bytes) -> AnyLine:
    """Decode one line; raises ``msgspec.DecodeError`` if it is invalid."""
    return _DECODER.decode(line)


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final[msgspec.json.Decoder[AnyLine]] = msgspec.json.Decoder(AnyLine)


class ShardInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One shard; ``oldest`` and ``newest`` are 0 if it is empty, bytes are those of the records before compression."""

    shard: int
    records: int
    size_bytes: int
    epochs: int
    generations: int
    oldest: int
    newest: int
    floor: int


class ReaderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A named reader and its lag; ``user`` is its owner.

    ``records_behind`` is the number of records of its ``filters`` that it has still to read. If the filters are unknown, or the
    history service is away and cannot count them, all records after the position count and ``is_upper_bound`` is set.
    """

    name: str
    records_behind: int
    lag_s: float
    pins: bool
    user: str | None = None
    filters: list[str] = []
    is_estimate: bool = False
    is_upper_bound: bool = False


class HistoryStats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the log. ``silent``: cores that did not answer, with the reason; their shards are missing."""

    log_id: str
    records: int
    size_bytes: int
    shards: list[ShardInfo]
    readers: list[ReaderInfo]
    readers_more: int = 0  # readers that are not in the list
    silent: dict[str, str] = {}


class GenerationInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One generation of a shard; the last one of a shard takes the writes."""

    shard: int
    number: int
    layout: str
    parameters: str
    first_epoch: int
    records: int
    size_bytes: int


class RelearnRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /ctl/history/relearn``: nothing, or topic filters whose ``+`` are the levels that vary.

    ``thresholds`` are the numbers of names distinguished before a level counts as varying, at the first level and at later ones.
    """

    patterns: tuple[str, ...] | None = None
    thresholds: tuple[int, ...] | None = None


class ShardPatterns(msgspec.Struct, frozen=True, kw_only=True):
    """The patterns that a shard has learned, as topic filters whose ``+`` are the levels that vary."""

    shard: int
    patterns: list[str]


class Relearned(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a generation was started, and the reason."""

    is_begun: bool
    reason: str


class TokenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The user and the validity of a token."""

    user: str
    valid_s: float


class Token(msgspec.Struct, frozen=True):
    """A token that readers of the history use instead of a password, and its expiry (seconds since 1970)."""

    token: str
    valid_until: float


class DurableShard(msgspec.Struct, frozen=True, kw_only=True):
    """The position up to which a shard is on disk (``watermark``) and from which on it is kept (``floor``)."""

    shard: int
    watermark: int
    floor: int


class DurabilityInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the log and its commits. Counters are since the start; None means unknown, or that it never happened."""

    at: float
    mode: str
    health: str
    reason: str
    needs_restart: bool
    congested: bool
    pending_bytes: int
    refused: int
    commits: int
    commit_s_total: float
    commit_s_max: float
    commit_s_max_recent: float | None
    commit_age_s: float | None
    clock_alarm: str
    disk_bytes: int
    disk_free_bytes: int
    pending_compaction_bytes: int
    shards: list[DurableShard]
