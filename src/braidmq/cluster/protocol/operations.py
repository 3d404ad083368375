"""Changes of rows that a node asks a home to make, and stored sessions that a home hands to a node; both as bytes.

Version 1. Once a release has it, nothing here changes: a new operation is used when all members know it, and an operation that
the receiver does not know ends the connection, because a change that is left out loses data (C35).
Messages travel as the values of their rows (`storage.format.kept_messages`), wills as theirs (`storage.format.session_rows`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import msgspec

from braidmq.base.errors import BraidError, Corruption, UsageError
from braidmq.broker.ports import CursorRow, GroupRow, SessionRow, StoredSession, SubscriptionRow
from braidmq.lane.records.records import VALUE_BYTES_MAX
from braidmq.mqtt.packets import Will
from braidmq.storage.format import session_rows

COUNT_MAX: Final = 65_536  # operations in one list
# Of one list of operations, or one session: a whole message, and room for what stands beside it.
BYTES_MAX: Final = VALUE_BYTES_MAX + 1024 * 1024

PacketId = Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class BadOperation(BraidError):
    """A peer sent operations or a session that this node does not understand; the connection must be closed."""


class _RowOperation(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """One change of stored rows. Each states the result, so that making it twice changes nothing more."""


# Sessions: rows in the shard of the client id


class PutSession(_RowOperation, frozen=True):
    """Set the session's own row."""

    row: SessionRow

    @property
    def client_id(self) -> str:
        """The client that the session belongs to."""
        return self.row.client_id


class PutSubscription(_RowOperation, frozen=True):
    """Set a subscription, by its filter as the client wrote it."""

    client_id: str
    row: SubscriptionRow


class RemoveSubscription(_RowOperation, frozen=True):
    """Remove a subscription, if it is there."""

    client_id: str
    written: str


class PutCursor(_RowOperation, frozen=True):
    """Set how far the session has come, and everything in flight."""

    client_id: str
    row: CursorRow


class PutWill(_RowOperation, frozen=True):
    """Set the will; ``value``: see ``encode_will``."""

    client_id: str
    value: bytes


class RemoveWill(_RowOperation, frozen=True):
    """Remove the will, if there is one."""

    client_id: str


class PutReceived(_RowOperation, frozen=True):
    """Note the packet id of a QoS 2 message; in the entry of its record (S1)."""

    client_id: str
    packet_id: PacketId


class RemoveReceived(_RowOperation, frozen=True):
    """Forget a packet id that the client has released."""

    client_id: str
    packet_id: PacketId


class RemoveSession(_RowOperation, frozen=True):
    """Remove all rows of a session: those of these subscriptions and packet ids, and the others."""

    client_id: str
    written: list[str]
    received: list[PacketId]


# Memberships in shared groups and exclusive topics: no rows of their own, but in order with what else the client does


class JoinGroup(_RowOperation, frozen=True):
    """A client of the node is a member of a group, or is one in another way than before.

    ``number``: under which the node knows the membership. ``window``: how many messages the client can be lent at a time.
    ``start``: where a new group begins to read the log. ``is_stored``: the client's session is durable.
    ``channel``: the client's, if another core decides about its id. Such a member is a *guest* here, known by node and channel;
    it comes in an entry of the node's own. 0: the entry's channel is the client's.
    """

    client_id: str
    number: int
    name: str
    topic_filter: str
    qos: int
    retain_as_published: bool
    window: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    start: list[int] | None
    is_stored: bool
    channel: int = 0


class LeaveGroup(_RowOperation, frozen=True):
    """A client of the node is no longer a member of a group. ``channel``: that of a guest, as for `JoinGroup`."""

    client_id: str
    name: str
    topic_filter: str
    channel: int = 0


class ReleaseGuest(_RowOperation, frozen=True):
    """The channel of a guest has ended: it is in no group any more, and what it was lent and has no result is the groups' again.

    In an entry of the node's own, behind its other operations on the guest: those of one guest are in the blocks of one shard.
    """

    client_id: str
    channel: int


class TakeExclusive(_RowOperation, frozen=True):
    """A client of the node wants an exclusive topic; the entry is refused if another client has it.

    With several cores it goes to the home of the topic, in an entry of the node's own, and names the client's channel.
    ``is_durable``: the client's session is. ``is_held``: it was granted before, by a home that has restarted since.
    """

    client_id: str
    topic_filter: bytes
    channel: int = 0
    is_durable: bool = False
    is_held: bool = False


class ReleaseExclusive(_RowOperation, frozen=True):
    """A client of the node no longer has an exclusive topic. ``is_kept``: its channel has ended, and its session may keep it."""

    client_id: str
    topic_filter: bytes
    channel: int = 0
    is_kept: bool = False


# Messages that wait: rows in the shard of the topic, or of the publisher


class PutRetained(_RowOperation, frozen=True):
    """Set the retained message of its topic. ``value``: the message, its user, and when it was stored."""

    value: bytes


class RemoveRetained(_RowOperation, frozen=True):
    """Remove the retained message of a topic, if there is one."""

    topic: bytes


class PutDelayed(_RowOperation, frozen=True):
    """Keep a message that the home publishes when it is due, in wall-clock seconds. ``value``: as for a retained message."""

    value: bytes
    due: float


# Shared groups: rows in the shard of name and filter


class PutGroup(_RowOperation, frozen=True):
    """Set the positions and all outstanding records of a group."""

    row: GroupRow


class RemoveGroup(_RowOperation, frozen=True):
    """Remove a group, if it is there."""

    name: str
    topic_filter: str


SessionOperation = (
    PutSession
    | PutSubscription
    | RemoveSubscription
    | PutCursor
    | PutWill
    | RemoveWill
    | PutReceived
    | RemoveReceived
    | RemoveSession
    | JoinGroup
    | LeaveGroup
    | TakeExclusive
    | ReleaseExclusive
)
Operation = SessionOperation | ReleaseGuest | PutRetained | RemoveRetained | PutDelayed | PutGroup | RemoveGroup


class _SessionRows(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """A stored session; ``will`` is empty if there is none."""

    session: SessionRow
    cursor: CursorRow
    subscriptions: list[SubscriptionRow]
    will: bytes
    received: list[PacketId]


_encoder: Final = msgspec.msgpack.Encoder()
_operations: Final = msgspec.msgpack.Decoder(list[Operation])
_sessions: Final = msgspec.msgpack.Decoder(_SessionRows)


def encode(operations: Sequence[Operation]) -> bytes:
    """Operations that are carried out together; raises UsageError if they are too many or too large."""
    if len(operations) > COUNT_MAX:
        raise UsageError(f"{len(operations)} row operations cannot be sent together", f"the maximum is {COUNT_MAX}")
    return _bounded(_encoder.encode(operations))


def decode(data: bytes) -> list[Operation]:
    """The operations of these bytes; raises BadOperation if one is unknown or not valid."""
    _check_size(data)
    try:
        operations = _operations.decode(data)
    except msgspec.MsgspecError as problem:
        raise BadOperation(f"row operations cannot be read: {problem}") from None
    if len(operations) > COUNT_MAX:
        raise BadOperation(f"{len(operations)} row operations came together; the maximum is {COUNT_MAX}")
    return operations


def encode_session(stored: StoredSession | None) -> bytes:
    """A stored session for a grant; empty if there is none. Raises UsageError if it is too large."""
    if stored is None:
        return b""
    rows = _SessionRows(stored.session, stored.cursor, stored.subscriptions, encode_will(stored.will), stored.received)
    return _bounded(_encoder.encode(rows))


def decode_session(data: bytes) -> StoredSession | None:
    """The stored session of these bytes, None if they are empty; raises BadOperation if they are not valid."""
    if not data:
        return None
    _check_size(data)
    try:
        rows = _sessions.decode(data)
    except msgspec.MsgspecError as problem:
        raise BadOperation(f"a session cannot be read: {problem}") from None
    return StoredSession(rows.session, rows.cursor, rows.subscriptions, decode_will(rows.will), rows.received)


def encode_will(will: Will | None) -> bytes:
    """A will for a claim or a row; empty if there is none."""
    return b"" if will is None else session_rows.encode_will(will)


def decode_will(data: bytes) -> Will | None:
    """The will of these bytes, None if they are empty; raises BadOperation if they are not valid."""
    if not data:
        return None
    try:
        return session_rows.decode_will("", data)
    except (Corruption, UsageError) as problem:
        raise BadOperation(f"a will cannot be read: {problem}") from None


def client_of(operation: Operation) -> str | None:
    """The client whose session an operation is about; None for all other rows, and for guests."""
    return operation.client_id if isinstance(operation, SessionOperation) and not is_of_guest(operation) else None


def is_of_guest(operation: Operation) -> bool:
    """Whether an operation is about a member of groups whose client id another core decides about."""
    return isinstance(operation, ReleaseGuest) or (isinstance(operation, JoinGroup | LeaveGroup) and operation.channel != 0)


def size_of(operations: Iterable[Operation]) -> int:
    """The bytes that operations take when they are sent."""
    return sum(len(_encoder.encode(each)) for each in operations)


def _bounded(data: bytes) -> bytes:
    if len(data) > BYTES_MAX:
        raise UsageError(f"{len(data)} bytes of rows cannot be sent together", f"the maximum is {BYTES_MAX} bytes")
    return data


def _check_size(data: bytes) -> None:
    if len(data) > BYTES_MAX:
        raise BadOperation(f"{len(data)} bytes of rows came together; the maximum is {BYTES_MAX}")
