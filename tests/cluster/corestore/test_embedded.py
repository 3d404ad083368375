"""The core store in the database of the only core."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from braidmq.base.config.settings import HistorySettings
from braidmq.base.errors import Unavailable, UsageError
from braidmq.cluster.corestore.commit_stream import COMMITS_KEPT_MAX
from braidmq.cluster.corestore.contract import ABSENT, CommitsMissed, Condition, CoreRow, DeleteRow, PutRow
from braidmq.cluster.corestore.embedded import CORE_PREFIX, POSITION_KEY, EmbeddedCoreStore
from braidmq.storage.log import DurableLog
from braidmq.storage.rows.changes import WriteRefusal
from tests.support.fakes.rows_in_memory import RowsInMemory


def put(key: bytes, value: bytes = b"v", table: str = "t") -> PutRow:
    return PutRow(table, key, value)


def test_a_reader_that_is_too_slow_is_told_to_list_again() -> None:
    async def scenario() -> None:
        store = EmbeddedCoreStore(RowsInMemory())
        watch = store.watch(0)
        await store.commit([], [put(b"a")])
        await anext(watch)

        for _ in range(COMMITS_KEPT_MAX + 1):
            await store.commit([], [put(b"a")])

        with pytest.raises(CommitsMissed):
            await anext(watch)
        assert (await anext(store.watch(2))).position == 3

    asyncio.run(scenario())


def test_rows_with_a_lease_end_with_the_process() -> None:
    async def scenario() -> None:
        rows = RowsInMemory()
        before = EmbeddedCoreStore(rows)
        await before.commit([], [put(b"a", b"1"), put(b"b", b"1")])
        lease = await before.grant_lease(60)
        await before.commit([], [PutRow("t", b"a", b"2", lease)])
        before.close()

        after = EmbeddedCoreStore(rows)

        assert (await after.list_rows("t")).rows == {b"b": CoreRow(b"1", 1)}

    asyncio.run(scenario())


def test_rows_of_a_lease_go_when_the_disk_takes_writes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidmq.cluster.corestore.embedded._RETRY_S", 0.01)

    async def scenario() -> None:
        rows = RowsInMemory()
        store = EmbeddedCoreStore(rows)
        lease = await store.grant_lease(60)
        await store.commit([], [PutRow("t", b"a", b"1", lease)])
        rows.refusal = WriteRefusal("the disk is full", 5.0)

        ending = asyncio.ensure_future(store.end_lease(lease))
        await asyncio.sleep(0.03)
        assert not await store.renew_lease(lease)
        assert not ending.done()
        rows.refusal = None
        await ending

        assert await store.get("t", b"a") is None
        store.close()

    asyncio.run(scenario())


def test_rows_and_position_survive_a_restart() -> None:
    async def scenario() -> None:
        rows = RowsInMemory()
        before = EmbeddedCoreStore(rows)
        await before.commit([], [put(b"a", b"1"), put(b"b", b"\0")])
        await before.commit([], [DeleteRow("t", b"a")])

        after = EmbeddedCoreStore(rows)

        assert (await after.list_rows("t")).rows == {b"b": CoreRow(b"\0", 1)}
        assert await after.commit([], [put(b"c")]) == 3
        with pytest.raises(CommitsMissed):
            await anext(after.watch(1))

    asyncio.run(scenario())


def test_the_rows_have_these_bytes() -> None:
    async def scenario() -> None:
        rows = RowsInMemory()

        await EmbeddedCoreStore(rows).commit([], [put(b"r1", b"value", "members")])

        assert rows.kept == {
            b"\xee\0": bytes(7) + b"\1",
            b"\xeemembers\0r1": b"\1" + bytes(7) + b"\1" + b"value",
        }

    asyncio.run(scenario())


def test_a_newer_format_is_not_read() -> None:
    rows = RowsInMemory()
    rows.kept = {CORE_PREFIX + b"t\0a": b"\2" + bytes(8), POSITION_KEY: bytes(8)}

    async def scenario() -> None:
        with pytest.raises(UsageError, match="newer"):
            EmbeddedCoreStore(rows)

    asyncio.run(scenario())


def test_a_commit_that_the_disk_refuses_changes_nothing() -> None:
    async def scenario() -> None:
        rows = RowsInMemory()
        store = EmbeddedCoreStore(rows)
        rows.refusal = WriteRefusal("the disk is full", 5.0)

        with pytest.raises(Unavailable, match="the disk is full"):
            await store.commit([], [put(b"a")])
        assert await store.get("t", b"a") is None
        rows.refusal = None

        assert await store.commit([Condition("t", b"a", ABSENT)], [put(b"a")]) == 1

    asyncio.run(scenario())


def test_a_commit_whose_caller_gave_up_still_counts() -> None:
    async def scenario() -> None:
        store = EmbeddedCoreStore(RowsInMemory())
        given_up = asyncio.ensure_future(store.commit([], [put(b"a", b"1")]))
        await asyncio.sleep(0)
        given_up.cancel()

        assert await store.commit([Condition("t", b"a", ABSENT)], [put(b"a", b"2")]) is None

        assert await store.get("t", b"a") == CoreRow(b"1", 1)

    asyncio.run(scenario())


def test_the_rows_are_in_the_database_of_the_core(tmp_path: Path) -> None:
    async def write() -> None:
        log = DurableLog.open(tmp_path, HistorySettings())
        log.start(asyncio.get_running_loop().call_soon_threadsafe)
        try:
            await EmbeddedCoreStore(log).commit([], [put(b"a", b"kept")])
        finally:
            log.close()

    async def read() -> CoreRow | None:
        log = DurableLog.open(tmp_path, HistorySettings())
        log.start(asyncio.get_running_loop().call_soon_threadsafe)
        try:
            return await EmbeddedCoreStore(log).get("t", b"a")
        finally:
            log.close()

    asyncio.run(write())

    assert asyncio.run(read()) == CoreRow(b"kept", 1)
