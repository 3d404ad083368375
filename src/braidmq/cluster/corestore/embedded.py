"""The core store of a cluster with one core: rows of the core's own database.

    0xEE | 0x00                    the position of the last commit (8)
    0xEE | table | 0x00 | key      version (1) | revision (8) | value

All rows are in shard 0. They are few, so they are also kept in memory; a row counts there once it is on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from struct import Struct as Packed
from typing import Final, Protocol

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
    check_writes,
    revision_of,
)
from braidmq.storage.rows.changes import Change, Delete, Put, WriteRefusal

CORE_PREFIX: Final = b"\xee"
CORE_ROWS_END: Final = b"\xef"
POSITION_KEY: Final = CORE_PREFIX + b"\0"
VERSION: Final = 1
SHARD: Final = 0
_HEAD: Final = Packed(">BQ")
_POSITION: Final = Packed(">Q")


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
        self._tasks: set[asyncio.Task[int | None]] = set()
        position = 0
        for key, value in log.rows(SHARD, CORE_PREFIX, CORE_ROWS_END):
            if key == POSITION_KEY:
                position = _decode_position(value)
            else:
                table, name = _decode_key(key)
                self._tables.setdefault(table, {})[name] = _decode_row(value)
        self._stream = CommitStream(position)

    async def get(self, table: str, key: bytes) -> CoreRow | None:
        """A row; None if it does not exist."""
        return self._row(table, key)

    async def list_rows(self, table: str) -> TableRows:
        """All rows of a table."""
        return TableRows(self._stream.position, dict(self._tables.get(table, {})))

    async def commit(self, conditions: Sequence[Condition], writes: Sequence[RowWrite]) -> int | None:
        """Write all rows if all conditions hold: the position of the commit; None: one did not hold. Raises Unavailable."""
        check_writes(writes)
        # A task of its own: a caller that gives up must not let the next commit overtake this one.
        task = asyncio.get_running_loop().create_task(self._commit(conditions, writes))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _commit(self, conditions: Sequence[Condition], writes: Sequence[RowWrite]) -> int | None:
        # Conditions are judged by what is on disk, so a commit waits for the one before it.
        async with self._one_at_a_time:
            if any(revision_of(self._row(each.table, each.key)) != each.revision for each in conditions):
                return None
            position = self._stream.position + 1
            await self._write([_change(write, position) for write in writes], position)
            for write in writes:
                self._apply(write, position)
            self._stream.add(CoreCommit(position, tuple(writes)))
            return position

    def watch(self, after: int) -> AsyncIterator[CoreCommit]:
        """The commits above a position, in order. Raises CommitsMissed."""
        return self._stream.after(after)

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
            case PutRow(table, key, value):
                self._tables.setdefault(table, {})[key] = CoreRow(value, position)
            case DeleteRow(table, key):
                self._tables.get(table, {}).pop(key, None)


def _change(write: RowWrite, position: int) -> Change:
    key = CORE_PREFIX + write.table.encode() + b"\0" + write.key
    match write:
        case PutRow():
            return Put(SHARD, key, _HEAD.pack(VERSION, position) + write.value)
        case DeleteRow():
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
