"""Durable sessions as rows of the log, each in the shard of its client id; `format.session_rows` defines their format.

Nothing is written here: the caller receives changes and writes them through the log, in one batch with everything they depend on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from braidmq.base.errors import Corruption
from braidmq.broker.ports import CursorRow, SessionRow, StoredSession, SubscriptionRow
from braidmq.mqtt.packets import Will
from braidmq.storage.format import session_rows as rows
from braidmq.storage.log import DurableLog
from braidmq.storage.rows.changes import Change, Delete, Put

_NO_CURSOR: Final = CursorRow((), ())


class LogSessions:
    """The rows of sessions; implements `broker.ports.SessionStore`."""

    def __init__(self, log: DurableLog) -> None:
        self._log = log

    def put_session(self, row: SessionRow) -> Put:
        """Set the session's own row."""
        return Put(self._log.shard_of(row.client_id), rows.session_key(row.client_id), rows.encode_session(row))

    def put_subscription(self, client_id: str, row: SubscriptionRow) -> Put:
        """Set a subscription, replacing one with the same written filter."""
        key = rows.subscription_key(client_id, row.written)
        return Put(self._log.shard_of(client_id), key, rows.encode_subscription(row))

    def remove_subscription(self, client_id: str, written: str) -> Delete:
        """Remove a subscription, if it exists."""
        return Delete(self._log.shard_of(client_id), rows.subscription_key(client_id, written))

    def put_cursor(self, client_id: str, row: CursorRow) -> Put:
        """Set the positions and the whole in-flight map."""
        return Put(self._log.shard_of(client_id), rows.cursor_key(client_id), rows.encode_cursor(row))

    def put_will(self, client_id: str, will: Will) -> Put:
        """Set the will."""
        return Put(self._log.shard_of(client_id), rows.will_key(client_id), rows.encode_will(will))

    def remove_will(self, client_id: str) -> Delete:
        """Remove the will, if there is one."""
        return Delete(self._log.shard_of(client_id), rows.will_key(client_id))

    def put_received(self, client_id: str, packet_id: int) -> Put:
        """Note that a QoS 2 message with this packet id was received; must be in the batch of its record (S1)."""
        return Put(self._log.shard_of(client_id), rows.received_key(client_id, packet_id), rows.RECEIVED_VALUE)

    def remove_received(self, client_id: str, packet_id: int) -> Delete:
        """Remove a packet id that the client has released."""
        return Delete(self._log.shard_of(client_id), rows.received_key(client_id, packet_id))

    def remove_session(self, client_id: str, written: Iterable[str], received: Iterable[int]) -> list[Change]:
        """Remove the session's rows, with those of these subscriptions and packet ids, which must be all that it has.

        One range would be shorter, but each removed range makes every later read of the shard slower: after 10 000 of them a read
        took a millisecond.
        """
        shard = self._log.shard_of(client_id)
        keys = [rows.session_key(client_id), rows.cursor_key(client_id), rows.will_key(client_id)]
        keys += [rows.subscription_key(client_id, each) for each in written]
        keys += [rows.received_key(client_id, each) for each in received]
        return [Delete(shard, key) for key in keys]

    def load(self) -> Iterator[StoredSession]:
        """Every session as of the last flush, one at a time; without a stored cursor a session has no positions.

        Raises UsageError if a newer version wrote a row, Corruption if a row is invalid or belongs to no session.
        """
        for shard in range(self._log.shards):
            yield from _sessions(self._log.rows(shard, rows.SESSION_PREFIX, rows.SESSIONS_END))

    def load_one(self, client_id: str) -> StoredSession | None:
        """The session of a client id as of the last flush; None if there is none. Raises as `load` does."""
        lower = rows.session_prefix(client_id) + b"\0"
        found = self._log.rows(self._log.shard_of(client_id), lower, lower[:-1] + b"\x01")
        return next(_sessions(found), None)


def _sessions(found: Iterable[tuple[bytes, bytes]]) -> Iterator[StoredSession]:
    stored: StoredSession | None = None
    owner = b""  # the prefix of the session's keys, including the 0x00
    for key, value in found:
        if stored is None or not key.startswith(owner):
            if stored is not None:
                yield stored
            owner, stored = _begin(key, value)
        else:
            _add(stored, key[len(owner) :], value)
    if stored is not None:
        yield stored


def _begin(key: bytes, value: bytes) -> tuple[bytes, StoredSession]:
    name, end, tail = key[len(rows.SESSION_PREFIX) :].partition(b"\0")
    try:
        client_id = name.decode()
    except UnicodeDecodeError:
        raise Corruption(f"a session's row has a key that is not UTF-8: {key[:64]!r}") from None
    if not end or tail != bytes((rows.SESSION,)):
        raise Corruption(f"client {client_id!r} has session rows, but the row of the session itself is missing")
    session = rows.decode_session(client_id, value)
    return key[: -len(tail)], StoredSession(session, _NO_CURSOR, [], None, [])


def _add(stored: StoredSession, tail: bytes, value: bytes) -> None:
    client_id = stored.session.client_id
    match tail[0] if tail else None:
        case rows.SUBSCRIPTION:
            try:
                written = tail[1:].decode()
            except UnicodeDecodeError:
                raise rows.broken(client_id, "subscription", value) from None
            stored.subscriptions.append(rows.decode_subscription(client_id, written, value))
        case rows.CURSOR if len(tail) == 1:
            stored.cursor = rows.decode_cursor(client_id, value)
        case rows.WILL_KIND if len(tail) == 1:
            stored.will = rows.decode_will(client_id, value)
        case rows.RECEIVED if len(tail) == 3:
            rows.check_received(client_id, value)
            stored.received.append(int.from_bytes(tail[1:], "big"))
        case _:
            raise Corruption(f"client {client_id!r} has a row of unknown kind: {tail[:16].hex()}")
