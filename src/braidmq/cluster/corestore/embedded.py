"""The core store of a cluster with one core: rows of the core's own database.

    0xEE | 0x00                    the position of the last commit (8)
    0xEE | table | 0x00 | key      version (1) | revision (8) | value

All rows are in shard 0. They are few, so they are also kept in memory; a row counts there once it is on disk.
Leases belong to this process, so they end with it, and rows that are bound to one are only in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from struct import Struct as Packed
from time import monotonic
from typing import Any, Final, Protocol, TypeVar

from braidmq.base.errors import Corruption, Unavailable, UsageError
from braidmq.cluster.corestore.commit_stream import CommitStream
from braidmq.cluster.corestore.contract import (
    ABSENT,
    Condition,
    CoreCommit,
    CoreRow,
    DeleteRow,
    PutRow,
    RowWrite,
    TableRows,
    check_conditions,
    check_writes,
    revision_of,
)
from braidmq.cluster.corestore.lease_table import LeaseTable
from braidmq.storage.rows.changes import Change, Delete, Put, WriteRefusal

CORE_PREFIX: Final = b"\xee"
CORE_ROWS_END: Final = b"\xef"
POSITION_KEY: Final = CORE_PREFIX + b"\0"
VERSION: Final = 1
SHARD: Final = 0
_HEAD: Final = Packed(">BQ")
_POSITION: Final = Packed(">Q")
_RETRY_S: Final = 1.0

Result = TypeVar("Result")


class RowLog(Protocol):
    """What the store needs of the log; `DurableLog` has it."""

    def change(
        self, changes: Iterable[Change], *, on_commit: Callable[[], None], on_refused: Callable[[WriteRefusal], None]
    ) -> None:
        """Write rows with the next flush; later one of the two callbacks is called."""
        ...

    def flush(self) -> None:
        """Write what was collected."""
        ...

    def rows(self, shard: int, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows with lower <= key < upper, in order."""
        ...


class EmbeddedCoreStore:
    """Implements `CoreStore`. Used on the log's loop, which must be running."""

    def __init__(self, log: RowLog) -> None:
        """Read all rows. Raises UsageError if a newer version wrote one, Corruption if one is invalid."""
        self._log = log
        self._tables: dict[str, dict[bytes, CoreRow]] = {}
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        position = 0
        for key, value in log.rows(SHARD, CORE_PREFIX, CORE_ROWS_END):
            if key == POSITION_KEY:
                position = _decode_position(value)
            else:
                table, name = _decode_key(key)
                self._tables.setdefault(table, {})[name] = _decode_row(value)
        self._stream = CommitStream(position)
        self._leases = LeaseTable()

    async def get(self, table: str, key: bytes) -> CoreRow | None:
        """A row; None if it does not exist."""
        return self._row(table, key)

    async def list_rows(self, table: str) -> TableRows:
        """All rows of a table."""
        return TableRows(self._stream.position, dict(self._tables.get(table, {})))

    async def commit(self, conditions: Sequence[Condition], writes: Sequence[RowWrite]) -> int | None:
        """Write all rows if all conditions hold: the position of the commit; None: one did not hold. Raises Unavailable."""
        check_conditions(conditions)
        check_writes(writes)
        # A task of its own: a caller that gives up must not let the next commit overtake this one.
        return await asyncio.shield(self._run(self._commit(conditions, writes)))

    async def _commit(self, conditions: Sequence[Condition], writes: Sequence[RowWrite]) -> int | None:
        # Conditions are judged by what is on disk, so a commit waits for the one before it.
        async with self._one_at_a_time:
            if any(revision_of(self._row(each.table, each.key)) != each.revision for each in conditions):
                return None
            if not all(self._leases.is_held(each.lease) for each in writes if isinstance(each, PutRow) and each.lease):
                return None
            return await self._carry_out(writes)

    async def _carry_out(self, writes: Sequence[RowWrite]) -> int:
        position = self._stream.position + 1
        await self._write([_change(write, position) for write in writes], position)
        for write in writes:
            self._apply(write, position)
        self._stream.add(CoreCommit(position, tuple(writes)))
        return position

    def watch(self, after: int) -> AsyncGenerator[CoreCommit, None]:
        """The commits above a position, in order. Raises CommitsMissed."""
        return self._stream.after(after)

    async def grant_lease(self, ttl_s: float) -> int:
        """A new lease."""
        lease = self._leases.grant(ttl_s, monotonic())
        self._set_timer()
        return lease

    async def renew_lease(self, lease: int) -> bool:
        """Let a lease last for its whole time again; False: it has ended."""
        return self._leases.renew(lease, monotonic())

    async def end_lease(self, lease: int) -> None:
        """End a lease now, with its rows."""
        if self._leases.end(lease):
            await asyncio.shield(self._run(self._remove_rows_of(lease)))

    def close(self) -> None:
        """Stop watching over leases; commits under way are finished by the log."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        self.close()
        pause_s = self._leases.pause_s()
        if pause_s is not None:
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._on_timer)

    def _on_timer(self) -> None:
        for lease in self._leases.tick(monotonic()):
            self._run(self._remove_rows_of(lease))
        self._set_timer()

    async def _remove_rows_of(self, lease: int) -> None:
        while True:
            async with self._one_at_a_time:
                places = self._leases.places(lease)
                try:
                    if places:
                        await self._carry_out([DeleteRow(table, key) for table, key in places])
                    self._leases.forget(lease)
                    return
                except Unavailable:
                    pass  # the disk is full: the lease is over, and its rows go as soon as they can
            await asyncio.sleep(_RETRY_S)

    def _run(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _write(self, changes: list[Change], position: int) -> None:
        changes.append(Put(SHARD, POSITION_KEY, _POSITION.pack(position)))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_commit() -> None:
            if not done.done():
                done.set_result(None)

        def on_refused(refusal: WriteRefusal) -> None:
            if not done.done():
                done.set_exception(
                    Unavailable(f"the cluster's tables cannot be written: {refusal.reason}", refusal.retry_after_s)
                )

        self._log.change(changes, on_commit=on_commit, on_refused=on_refused)
        self._log.flush()
        await done

    def _row(self, table: str, key: bytes) -> CoreRow | None:
        return self._tables.get(table, {}).get(key)

    def _apply(self, write: RowWrite, position: int) -> None:
        match write:
            case PutRow(table, key, value, lease):
                self._tables.setdefault(table, {})[key] = CoreRow(value, position)
                self._leases.bind((table, key), lease)
            case DeleteRow(table, key):
                self._tables.get(table, {}).pop(key, None)
                self._leases.bind((table, key), 0)


def _change(write: RowWrite, position: int) -> Change:
    key = CORE_PREFIX + write.table.encode() + b"\0" + write.key
    match write:
        case PutRow(lease=0):
            return Put(SHARD, key, _HEAD.pack(VERSION, position) + write.value)
        case PutRow() | DeleteRow():
            return Delete(SHARD, key)


def _decode_key(key: bytes) -> tuple[str, bytes]:
    table, _, name = key[len(CORE_PREFIX) :].partition(b"\0")
    if not table or not name:
        raise Corruption(f"the row {key[:80].hex()} of the cluster's tables has no table or no key")
    return table.decode(errors="replace"), name


def _decode_row(value: bytes) -> CoreRow:
    if value and value[0] > VERSION:
        hint = "use the newer version of braidmq"
        raise UsageError(f"a row of the cluster's tables has the format {value[0]}, newer than {VERSION}", hint)
    if len(value) < _HEAD.size or value[0] != VERSION:
        raise Corruption(f"a row of the cluster's tables is not valid for version {VERSION}")
    revision = _HEAD.unpack_from(value)[1]
    if revision == ABSENT:
        raise Corruption("a row of the cluster's tables has no revision")
    return CoreRow(value[_HEAD.size :], revision)


def _decode_position(value: bytes) -> int:
    if len(value) != _POSITION.size:
        raise Corruption("the position of the cluster's tables is not valid")
    position: int = _POSITION.unpack(value)[0]
    return position
