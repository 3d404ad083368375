"""The messages of etcd's API version 3 that the core store uses, with only the fields that it uses.

Requests are built as bytes by functions; answers are decoded into structs. Both are golden-tested: the numbers are part of
etcd's API (``etcdserverpb``, ``mvccpb``) and do not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from braidmq.cluster.corestore.etcd.protobuf import fields, put_bytes, put_given_int, put_int, put_message

RANGE: Final = "/etcdserverpb.KV/Range"
TXN: Final = "/etcdserverpb.KV/Txn"
COMPACT: Final = "/etcdserverpb.KV/Compact"
WATCH: Final = "/etcdserverpb.Watch/Watch"
LEASE_GRANT: Final = "/etcdserverpb.Lease/LeaseGrant"
LEASE_REVOKE: Final = "/etcdserverpb.Lease/LeaseRevoke"
LEASE_KEEP_ALIVE: Final = "/etcdserverpb.Lease/LeaseKeepAlive"
AUTHENTICATE: Final = "/etcdserverpb.Auth/Authenticate"
STATUS: Final = "/etcdserverpb.Maintenance/Status"

_EQUAL: Final = 0
_MOD_REVISION: Final = 2
_DELETE: Final = 1


class EtcdHeader(Struct, frozen=True, gc=False):
    """Where an answer comes from. ``revision``: that of the whole store at the member that answered."""

    cluster_id: int = 0
    member_id: int = 0
    revision: int = 0


class EtcdRow(Struct, frozen=True, gc=False):
    """A key with its value."""

    key: bytes = b""
    value: bytes = b""
    mod_revision: int = 0
    lease: int = 0


class EtcdEvent(Struct, frozen=True):
    """A row was set, or deleted: then it has only its key and the revision of its end."""

    is_deleted: bool
    row: EtcdRow


class RangeAnswer(Struct, frozen=True):
    """Rows in the order of their keys. ``has_more``: the limit cut them off."""

    header: EtcdHeader
    rows: tuple[EtcdRow, ...]
    has_more: bool


class TxnAnswer(Struct, frozen=True):
    """Whether the comparisons held."""

    header: EtcdHeader
    is_done: bool


class WatchAnswer(Struct, frozen=True):
    """Something of a watch. ``is_part``: the next answer continues this one's events."""

    header: EtcdHeader
    watch_id: int = 0
    is_created: bool = False
    is_cancelled: bool = False
    compact_revision: int = 0
    cancel_reason: str = ""
    is_part: bool = False
    events: tuple[EtcdEvent, ...] = ()


class LeaseAnswer(Struct, frozen=True):
    """A lease. ``ttl_s``: the time it has left; 0: it has ended."""

    header: EtcdHeader
    lease: int
    ttl_s: int


class TokenAnswer(Struct, frozen=True):
    """What later calls prove the user with."""

    header: EtcdHeader
    token: str


class StatusAnswer(Struct, frozen=True):
    """A member of etcd. ``leader``: the member id of the one that leads; 0: there is none."""

    header: EtcdHeader
    version: str
    leader: int


# -- requests ----------------------------------------------------------------------------------------------------------


def range_request(key: bytes, range_end: bytes = b"", *, limit: int = 0, revision: int = 0) -> bytes:
    """One row, or all with key <= row < range_end; as of a revision, or of now. Linearizable."""
    out = bytearray()
    put_bytes(out, 1, key)
    put_bytes(out, 2, range_end)
    put_int(out, 3, limit)
    put_int(out, 4, revision)
    return bytes(out)


def comparison(key: bytes, mod_revision: int) -> bytes:
    """That a row was last written by this revision; 0: that it does not exist."""
    out = bytearray()
    put_int(out, 1, _EQUAL)
    put_int(out, 2, _MOD_REVISION)
    put_bytes(out, 3, key)
    put_given_int(out, 6, mod_revision)
    return bytes(out)


def put_operation(key: bytes, value: bytes, lease: int = 0) -> bytes:
    """Set a row; it ends with its lease."""
    put = bytearray()
    put_bytes(put, 1, key)
    put_bytes(put, 2, value)
    put_int(put, 3, lease)
    out = bytearray()
    put_message(out, 2, put)
    return bytes(out)


def delete_operation(key: bytes) -> bytes:
    """Remove a row."""
    delete = bytearray()
    put_bytes(delete, 1, key)
    out = bytearray()
    put_message(out, 3, delete)
    return bytes(out)


def txn_request(comparisons: Sequence[bytes], operations: Sequence[bytes]) -> bytes:
    """Carry out all operations if all comparisons hold."""
    out = bytearray()
    for each in comparisons:
        put_message(out, 1, each)
    for each in operations:
        put_message(out, 2, each)
    return bytes(out)


def compact_request(revision: int) -> bytes:
    """Forget what is older than a revision."""
    out = bytearray()
    put_int(out, 1, revision)
    put_int(out, 2, True)
    return bytes(out)


def watch_request(key: bytes, range_end: bytes, start_revision: int) -> bytes:
    """All events with key <= row < range_end from a revision on, with notes of progress; large ones in parts."""
    create = bytearray()
    put_bytes(create, 1, key)
    put_bytes(create, 2, range_end)
    put_int(create, 3, start_revision)
    put_int(create, 4, True)
    put_int(create, 8, True)
    out = bytearray()
    put_message(out, 1, create)
    return bytes(out)


def progress_request() -> bytes:
    """Ask a watch for a sign of life."""
    out = bytearray()
    put_message(out, 3, b"")
    return bytes(out)


def lease_grant_request(ttl_s: int) -> bytes:
    """A new lease."""
    out = bytearray()
    put_int(out, 1, ttl_s)
    return bytes(out)


def lease_request(lease: int) -> bytes:
    """Renew or revoke a lease."""
    out = bytearray()
    put_int(out, 1, lease)
    return bytes(out)


def authenticate_request(user: str, password: str) -> bytes:
    """Log in."""
    out = bytearray()
    put_bytes(out, 1, user.encode())
    put_bytes(out, 2, password.encode())
    return bytes(out)


# -- answers: each function raises ValueError if the bytes are not valid -------------------------------------------------


def decode_range(data: bytes) -> RangeAnswer:
    """The answer to a range request."""
    read = _Fields(data)
    return RangeAnswer(read.header(), tuple(_decode_row(each) for each in read.messages(2)), bool(read.number(3)))


def decode_txn(data: bytes) -> TxnAnswer:
    """The answer to a transaction."""
    read = _Fields(data)
    return TxnAnswer(read.header(), bool(read.number(2)))


def decode_watch(data: bytes) -> WatchAnswer:
    """A message of a watch."""
    read = _Fields(data)
    return WatchAnswer(
        read.header(),
        watch_id=read.number(2),
        is_created=bool(read.number(3)),
        is_cancelled=bool(read.number(4)),
        compact_revision=read.number(5),
        cancel_reason=read.text(6),
        is_part=bool(read.number(7)),
        events=tuple(_decode_event(each) for each in read.messages(11)),
    )


def decode_lease(data: bytes) -> LeaseAnswer:
    """The answer to a grant or a renewal."""
    read = _Fields(data)
    return LeaseAnswer(read.header(), read.number(2), read.number(3))


def decode_token(data: bytes) -> TokenAnswer:
    """The answer to a login."""
    read = _Fields(data)
    return TokenAnswer(read.header(), read.text(2))


def decode_status(data: bytes) -> StatusAnswer:
    """The answer to a request for the status."""
    read = _Fields(data)
    return StatusAnswer(read.header(), read.text(2), read.number(4) % (1 << 64))


def decode_header(data: bytes) -> EtcdHeader:
    """The header, which is the first field of every answer."""
    return _Fields(data).header()


def _decode_event(data: bytes) -> EtcdEvent:
    read = _Fields(data)
    return EtcdEvent(read.number(1) == _DELETE, _decode_row(read.data(2)))


def _decode_row(data: bytes) -> EtcdRow:
    read = _Fields(data)
    return EtcdRow(read.data(1), read.data(5), read.number(3), read.number(6))


class _Fields:
    """The fields of a message by number; of a field that is repeated, all values."""

    def __init__(self, data: bytes) -> None:
        self._values: dict[int, list[int | bytes]] = {}
        for number, value in fields(data):
            self._values.setdefault(number, []).append(value)

    def number(self, field: int) -> int:
        value = self._last(field, 0)
        if not isinstance(value, int):
            raise ValueError(f"the field {field} is not a number")
        return value

    def data(self, field: int) -> bytes:
        value = self._last(field, b"")
        if not isinstance(value, bytes):
            raise ValueError(f"the field {field} is a number")
        return value

    def text(self, field: int) -> str:
        return self.data(field).decode(errors="replace")

    def messages(self, field: int) -> list[bytes]:
        return [_as_bytes(value, field) for value in self._values.get(field, ())]

    def header(self) -> EtcdHeader:
        read = _Fields(self.data(1))
        return EtcdHeader(read.number(1) % (1 << 64), read.number(2) % (1 << 64), read.number(3))

    def _last(self, field: int, default: int | bytes) -> int | bytes:
        values = self._values.get(field)
        return values[-1] if values else default


def _as_bytes(value: int | bytes, field: int) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError(f"the field {field} is a number")
    return value
