"""What every core store does: rows with revisions, commits that hold or do not, one order that readers can follow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from braidmq.base.config.settings import HistorySettings
from braidmq.base.errors import Unavailable, UsageError
from braidmq.cluster.corestore.commit_stream import COMMITS_KEPT_MAX
from braidmq.cluster.corestore.contract import (
    ABSENT,
    KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
    CommitsMissed,
    Condition,
    CoreCommit,
    CoreRow,
    CoreStore,
    DeleteRow,
    PutRow,
)
from braidmq.cluster.corestore.embedded import CORE_PREFIX, POSITION_KEY, EmbeddedCoreStore
from braidmq.storage.log import DurableLog
from braidmq.storage.rows.changes import Change, Delete, Put, WriteRefusal
from tests.support.fakes.core_store import FakeCoreStore


class RowsInMemory:
    """The rows of a log. Commits come in a later turn of the loop, or are refused."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.refusal: WriteRefusal | None = None
        self._waiting: list[Callable[[], None]] = []

    def change(
        self, changes: Iterable[Change], *, on_commit: Callable[[], None], on_refused: Callable[[WriteRefusal], None]
    ) -> None:
        listed = list(changes)

        def land() -> None:
            if self.refusal is not None:
                on_refused(self.refusal)
                return
            for change in listed:
                match change:
                    case Put(_, key, value):
                        self.kept[key] = value
                    case Delete(_, key):
                        self.kept.pop(key, None)
            on_commit()

        self._waiting.append(land)

    def flush(self) -> None:
        while self._waiting:
            asyncio.get_running_loop().call_soon(self._waiting.pop(0))

    def rows(self, shard: int, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield from sorted((key, value) for key, value in self.kept.items() if lower <= key < upper)


def make_embedded() -> CoreStore:
    return EmbeddedCoreStore(RowsInMemory())


@pytest.fixture(params=[make_embedded, lambda: FakeCoreStore(COMMITS_KEPT_MAX)], ids=["embedded", "fake"])
def make(request: pytest.FixtureRequest) -> Callable[[], CoreStore]:
    made: Callable[[], CoreStore] = request.param
    return made


Make = Callable[[], CoreStore]


def put(key: bytes, value: bytes = b"v", table: str = "t") -> PutRow:
    return PutRow(table, key, value)


def test_a_row_has_the_revision_of_its_commit(make: Make) -> None:
    async def scenario() -> None:
        store = make()

        first = await store.commit([], [put(b"a", b"1"), put(b"b", b"1")])
        second = await store.commit([], [put(b"a", b"2")])

        assert (first, second) == (1, 2)
        assert await store.get("t", b"a") == CoreRow(b"2", 2)
        assert await store.get("t", b"b") == CoreRow(b"1", 1)
        assert await store.get("t", b"c") is None

    asyncio.run(scenario())


def test_tables_do_not_share_keys(make: Make) -> None:
    async def scenario() -> None:
        store = make()

        await store.commit([], [put(b"a", b"1", "t"), put(b"a", b"2", "tt"), put(b"ta", b"3", "t")])

        listed = await store.list_rows("t")
        assert listed.position == 1
        assert listed.rows == {b"a": CoreRow(b"1", 1), b"ta": CoreRow(b"3", 1)}
        assert (await store.list_rows("tt")).rows == {b"a": CoreRow(b"2", 1)}
        assert (await store.list_rows("other")).rows == {}

    asyncio.run(scenario())


def test_a_commit_happens_only_if_all_its_conditions_hold(make: Make) -> None:
    async def scenario() -> None:
        store = make()
        await store.commit([], [put(b"a", b"1")])

        assert await store.commit([Condition("t", b"a", ABSENT)], [put(b"a", b"2"), put(b"b")]) is None
        assert await store.commit([Condition("t", b"a", 1), Condition("t", b"b", 1)], [put(b"a", b"2")]) is None
        assert await store.commit([Condition("t", b"a", 1), Condition("t", b"b", ABSENT)], [put(b"a", b"3")]) == 2

        assert await store.get("t", b"a") == CoreRow(b"3", 2)
        assert await store.get("t", b"b") is None

    asyncio.run(scenario())


def test_a_row_that_was_removed_and_set_again_has_a_new_revision(make: Make) -> None:
    async def scenario() -> None:
        store = make()
        await store.commit([], [put(b"a", b"1")])
        await store.commit([], [DeleteRow("t", b"a")])
        assert await store.get("t", b"a") is None

        await store.commit([Condition("t", b"a", ABSENT)], [put(b"a", b"1")])

        assert await store.commit([Condition("t", b"a", 1)], [put(b"a", b"2")]) is None

    asyncio.run(scenario())


def test_one_of_two_simultaneous_commits_wins(make: Make) -> None:
    async def scenario() -> None:
        store = make()

        tries = [store.commit([Condition("t", b"a", ABSENT)], [put(b"a", str(number).encode())]) for number in range(5)]
        results = await asyncio.gather(*tries)

        assert sorted(results, key=str) == [1, None, None, None, None]
        row = await store.get("t", b"a")
        assert row is not None
        assert row.value == str(results.index(1)).encode()

    asyncio.run(scenario())


def test_a_reader_gets_every_commit_above_its_position_in_order(make: Make) -> None:
    async def scenario() -> None:
        store = make()
        for number in range(3):
            await store.commit([], [put(b"a", b"%d" % number)])

        watch = store.watch(1)
        seen = [await anext(watch), await anext(watch)]
        coming = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        assert not coming.done()
        await store.commit([], [DeleteRow("t", b"a")])

        assert seen == [CoreCommit(2, (put(b"a", b"1"),)), CoreCommit(3, (put(b"a", b"2"),))]
        assert await coming == CoreCommit(4, (DeleteRow("t", b"a"),))

    asyncio.run(scenario())


def test_a_reader_that_is_too_slow_is_told_to_list_again(make: Make) -> None:
    async def scenario() -> None:
        store = make()
        watch = store.watch(0)
        await store.commit([], [put(b"a")])
        await anext(watch)

        for _ in range(COMMITS_KEPT_MAX + 1):
            await store.commit([], [put(b"a")])

        with pytest.raises(CommitsMissed):
            await anext(watch)
        assert (await anext(store.watch(2))).position == 3

    asyncio.run(scenario())


def test_a_position_that_does_not_exist_yet_is_no_start(make: Make) -> None:
    async def scenario() -> None:
        with pytest.raises(CommitsMissed):
            await anext(make().watch(7))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "writes",
    [
        [],
        [put(b"a"), put(b"a")],
        [put(b"a"), DeleteRow("t", b"a")],
        [put(b"")],
        [put(b"k" * (KEY_BYTES_MAX + 1))],
        [put(b"a", b"v" * (VALUE_BYTES_MAX + 1))],
        [put(b"a", table="")],
        [put(b"a", table="t\0")],
    ],
)
def test_rows_that_cannot_be_written_are_rejected(make: Make, writes: list[PutRow | DeleteRow]) -> None:
    async def scenario() -> None:
        store = make()

        with pytest.raises(UsageError):
            await store.commit([], writes)

        assert await store.commit([], [put(b"a")]) == 1

    asyncio.run(scenario())


# -- the embedded store alone ------------------------------------------------------------------------------------------


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
