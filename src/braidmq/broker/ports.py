"""The ports of durable storage that the broker needs. ``storage`` implements them, ``node`` connects them.

A ``Change`` is a row to be set or removed, in a form of the store's own: the broker only passes it on, to be written together
with a message or with other changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from braidmq.base.start_position import Start
from braidmq.lane.path.message import Message
from braidmq.lane.path.ports import Change as Change
from braidmq.lane.path.ports import Refusal as Refusal
from braidmq.lane.recording.recorder import Block
from braidmq.lane.records.records import Record
from braidmq.mqtt.packets import Will

Positions = tuple[int, ...]  # by shard: everything at or below was dealt with

# Rows are Structs with the options ``array_like`` and ``forbid_unknown_fields``, because they also travel between nodes: as short
# as possible, and never read in part.

SENT, RELEASED = 0, 1


class Gap(Protocol):
    """A requested part of the log that retention has deleted: positions above ``wanted``, below ``floor``."""

    @property
    def wanted(self) -> int:
        """The requested position."""
        ...

    @property
    def floor(self) -> int:
        """The first timestamp that still exists."""
        ...


class LogScan(Protocol):
    """Records in order of time, read in slices. The source may be remote: not ready for a while, or failing.

    Any call may raise Unavailable; then close it and open another one from the positions of what was handed out.
    """

    @property
    def is_caught_up(self) -> bool:
        """Whether everything committed has been returned."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Whether the last call of ``next`` found nothing because the source is not ready; ``when_ready`` says when it is."""
        ...

    def when_ready(self, callback: Callable[[], None]) -> None:
        """Call back once, on the loop, when ``next`` is worth another call; not within this call, and not after ``close``.

        Only while ``is_waiting``; another call replaces the callback. The callback schedules work and does none.
        """
        ...

    def close(self) -> None:
        """The reader no longer needs it: release its memory for others."""
        ...

    def positions(self) -> dict[int, int]:
        """Where to resume, by shard: everything at or below was returned or does not match."""
        ...

    def take_gaps(self) -> Mapping[int, Gap]:
        """What retention deleted before it could be read, by shard; each gap is returned once."""
        ...

    def next(self, count_max: int, *, slice_s: float) -> list[tuple[int, Record]]:
        """The next records with their shards, at most this many; none if nothing was found within the slice."""
        ...


class Fences(Protocol):
    """The highest guard of each client id: a connection with a lower one does not take the session any more (S5)."""

    def guard(self, client_id: str) -> int:
        """The highest guard; 0 if none is known."""
        ...

    def fence(self, client_id: str, guard: int) -> bool:
        """Reject lower guards from now on; False if a higher one is known."""
        ...

    def forget(self, client_id: str) -> None:
        """The client id has neither a connection nor a session any more."""
        ...


class MessageLog(Protocol):
    """The log of this node; everything is called on the event loop."""

    @property
    def fences(self) -> Fences:
        """The fences of client ids."""
        ...

    @property
    def watermarks(self) -> dict[int, int]:
        """The last committed timestamp of each shard."""
        ...

    @property
    def is_congested(self) -> bool:
        """Whether publishers should wait."""
        ...

    def shard_of(self, client_id: str) -> int:
        """The home of a client id."""
        ...

    def append_block(self, block: Block) -> None:
        """Record a turn's block with the next flush."""
        ...

    def change(self, changes: Iterable[Change], *, on_commit: Callable[[], None], on_refused: Callable[[Refusal], None]) -> None:
        """Write rows by the next flush; then one of the two is called."""
        ...

    def flush(self) -> None:
        """Write everything collected so far."""
        ...

    @property
    def has_commit(self) -> bool:
        """Whether a commit has ended whose waiters will be told in a later turn of the loop."""
        ...

    def size_of(self, changes: Iterable[Change]) -> int:
        """About how many bytes these changes take."""
        ...

    def on_relief(self, callback: Callable[[], None]) -> None:
        """Call this whenever publishers may continue."""
        ...

    def replay(self, filters: Sequence[str], start: Mapping[int, int] | int, *, with_session_only: bool = False) -> LogScan:
        """Read what matches one of the filters, later than the start, in order of time."""
        ...

    def positions_at(self, start: Start) -> dict[int, int]:
        """The positions of a start that a client has requested."""
        ...

    def gaps(self, start: Mapping[int, int] | int, filters: Sequence[str] = ...) -> Mapping[int, Gap]:
        """The records after these positions that retention has already deleted, by shard."""
        ...


class InFlight(Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A message that was given a packet id and is not settled. ``value``: the whole record, for what is not in the log."""

    packet_id: int
    qos: int
    state: int  # SENT or RELEASED
    retain: bool
    shard: int = 0
    timestamp: int = 0
    value: bytes = b""


class SessionRow(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A durable session; its subscriptions, cursor and will have rows of their own. Times are wall-clock seconds."""

    client_id: str
    user_name: str | None
    expiry_s: int
    is_clean: bool
    created_at: float
    ended_at: float  # when the last connection ended; 0: it was connected
    guard: int  # the version of the connection that owns it; writes of an older one are refused
    stays_anonymous: bool = False  # it has no user and is never handed to one


class SubscriptionRow(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A subscription; recorded messages at or below ``start`` are not for it.

    ``cursor``: how far a replay has come, as long as it is behind the session's own cursor.
    """

    written: str  # the filter as the client wrote it
    qos: int
    no_local: bool
    retain_as_published: bool
    identifiers: bytes
    start: Positions
    cursor: Positions | None = None
    tells_end: bool = False  # the client waits to be told that the replay is over


class CursorRow(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How far a session has come: every record at or below the positions is acknowledged or in flight."""

    positions: Positions
    inflight: tuple[InFlight, ...]


class StoredSession(Struct):
    """All rows of one session, as they are found at start."""

    session: SessionRow
    cursor: CursorRow
    subscriptions: list[SubscriptionRow]
    will: Will | None
    received: list[int]  # packet ids of QoS 2 messages from the client that it has not released


class RowWriter(Protocol):
    """Writes rows at the end of a turn."""

    def change(
        self, changes: Iterable[Change], on_commit: Callable[[], None], on_refused: Callable[[Refusal], None] | None = None
    ) -> None:
        """Write rows; call back when they are on disk, or refused."""
        ...

    def write(self, *changes: Change) -> None:
        """Write rows without a callback."""
        ...


class SessionStore(Protocol):
    """Rows of durable sessions, in the home shard of their client id."""

    def put_session(self, row: SessionRow) -> Change:
        """Set the session row."""
        ...

    def put_subscription(self, client_id: str, row: SubscriptionRow) -> Change:
        """Set a subscription of the session."""
        ...

    def remove_subscription(self, client_id: str, written: str) -> Change:
        """Remove a subscription."""
        ...

    def put_cursor(self, client_id: str, row: CursorRow) -> Change:
        """Set how far the session has come."""
        ...

    def put_will(self, client_id: str, will: Will) -> Change:
        """Set its will."""
        ...

    def remove_will(self, client_id: str) -> Change:
        """Remove its will."""
        ...

    def put_received(self, client_id: str, packet_id: int) -> Change:
        """Note the packet id of a QoS 2 message; must be written in the batch of its record (S1)."""
        ...

    def remove_received(self, client_id: str, packet_id: int) -> Change:
        """Forget a packet id that the client has released."""
        ...

    def remove_session(self, client_id: str, written: Iterable[str], received: Iterable[int]) -> list[Change]:
        """Remove all of its rows: those of these subscriptions and packet ids, and the others."""
        ...

    def load(self) -> Iterator[StoredSession]:
        """Everything that is stored, at start."""
        ...

    def load_one(self, client_id: str) -> StoredSession | None:
        """The session of a client id as it is on disk; None if there is none."""
        ...


class StoredMessage(Struct):
    """A retained or delayed message as it is found at start; ``due`` is wall-clock seconds, for delayed ones."""

    message: Message
    user_name: str | None
    due: float = 0.0
    stored_at: float = 0.0  # wall-clock seconds
    row_id: bytes = b""  # of a delayed message: what ``remove`` takes


class RetainedRows(Protocol):
    """Rows of retained messages, in shard hash(topic)."""

    def put(self, message: Message, user_name: str | None, stored_at: float = 0.0) -> Change:
        """Keep a message; one without payload says that the topic has none. ``stored_at``: wall-clock seconds; 0: now."""
        ...

    def remove(self, topic: bytes) -> Change:
        """Forget a message."""
        ...

    def read(self, topic: bytes) -> StoredMessage | None:
        """The message of a topic as it is on disk; None if there is none."""
        ...

    def load(self) -> Iterator[StoredMessage]:
        """Everything that is stored, at start."""
        ...


class DelayedRows(Protocol):
    """Rows of delayed messages, in order of when they are due, in the publisher's home shard."""

    def put(self, message: Message, user_name: str | None, due: float) -> tuple[bytes, Change]:
        """Keep a message; its id, which is empty if another node publishes it when it is due."""
        ...

    def remove(self, publisher: str, row_id: bytes) -> Change:
        """Forget a message."""
        ...

    def read(self, shard: int, row_id: bytes) -> StoredMessage | None:
        """A message that is on disk, by the shard of its publisher; None if it is not there."""
        ...

    def load(self) -> Iterator[StoredMessage]:
        """Everything that is stored, at start."""
        ...


class Storage(Struct):
    """All durable storage, as the node passes it in."""

    log: MessageLog
    sessions: SessionStore
    retained: RetainedRows
    delayed: DelayedRows
    groups: GroupStore
    parse_start: Callable[[str], Start]  # raises UsageError
    producers: ProducerStore | None  # None: the homes of clients have them


class GroupRow(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The cursor that a shared group of durable sessions has in common.

    Every record at or below the positions was given to a member. ``outstanding``: those among them, by shard and timestamp, that
    went out with QoS 1 and are not acknowledged; after a crash they are the group's again. QoS 2 leases are the session's own.
    ``since``: where the log was when the group was made, as long as it still reads what is older than that.
    """

    name: str
    topic_filter: str
    positions: Positions
    outstanding: tuple[tuple[int, int], ...]
    since: Positions = ()


class GroupStore(Protocol):
    """Rows of shared groups, each in shard hash(name, filter)."""

    def put(self, row: GroupRow) -> Change:
        """Set the positions and all outstanding records of a group."""

    def remove(self, name: str, topic_filter: str) -> Change:
        """Remove a group, if it is there."""

    def load(self) -> Iterator[GroupRow]:
        """Every group, one at a time; for the start."""

    def load_one(self, name: str, topic_filter: str) -> GroupRow | None:
        """The row of a group as it is on disk; None if it has none."""


class ProducerStore(Protocol):
    """The sequences of producers, and the keys of their messages: by name, in batches identified by their base."""

    @property
    def shards(self) -> int:
        """How many there are."""

    def name_of(self, client_id: str, user_name: str | None) -> bytes:
        """The name under which the sequence of a user's client is written with its records."""

    def mark(self, client_id: str, user_name: str | None) -> tuple[int, int | None]:
        """A client's last sequence, 0 if it has none, and crc32 of topic and payload of that message, if it is known."""

    def open_batch(self, name: str) -> tuple[int, int, int, str | None] | None:
        """The base of the batch that is open under a name, that below which no keys are left, its parts and its owner."""

    def put_batch(self, name: str, base: int, swept_below: int, parts: int, owner: str | None) -> Change:
        """Open a batch under a name, or note that it is still in use."""

    def has_key(self, keys: str, base: int, key: bytes) -> bool:
        """Whether a message with this key was written."""

    def put_key(self, keys: str, base: int, key: bytes) -> Change:
        """Note the key of a message; must be written in the batch of its record."""

    def old_keys(self, keys: str, first: int, end: int, after: Change | None, count_max: int) -> list[Change]:
        """Remove keys of batches with first <= base < end, some of them; ``after``: the last one of the last call."""
