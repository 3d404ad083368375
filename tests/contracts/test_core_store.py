"""What every core store does: rows with revisions, commits that hold or do not, one order that readers can follow, leases.

And what is kept there in the same way whatever the store: the settings and bans of a cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
from msgspec import Struct

from braidmq.access.bans import Ban
from braidmq.base.errors import ConfigError, UsageError
from braidmq.cluster.corestore.commit_stream import COMMITS_KEPT_MAX
from braidmq.cluster.corestore.contract import (
    ABSENT,
    COMMIT_ROWS_MAX,
    KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
    CommitsMissed,
    Condition,
    CoreCommit,
    CoreRow,
    CoreStore,
    DeleteRow,
    PutRow,
    revision_of,
)
from braidmq.cluster.corestore.embedded import EmbeddedCoreStore
from braidmq.cluster.corestore.etcd.messages import COMPACT, compact_request, decode_header
from braidmq.cluster.corestore.etcd.store import EtcdCoreStore
from braidmq.cluster.membership.administration_rows import (
    BANS,
    NUMBER_KEY,
    SETTINGS,
    AdministrationTables,
    ban_of,
    change_number,
    number_of,
    settings_of,
)
from braidmq.cluster.membership.members import COUNTERS
from tests.support.etcd import Etcd, running_etcd
from tests.support.fakes.core_store import FakeCoreStore
from tests.support.fakes.rows_in_memory import RowsInMemory


class Form(Struct):
    """A store, and what makes it forget its commits and outlasts a lease of a short time."""

    store: CoreStore
    forget_commits: Callable[[], Awaitable[None]]
    outlast: Callable[[int], Awaitable[None]]
    lease_s: float  # the shortest lease


Make = Callable[[], AbstractAsyncContextManager[Form]]
CLUSTERS = count()


@asynccontextmanager
async def embedded() -> AsyncGenerator[Form, None]:
    store = EmbeddedCoreStore(RowsInMemory())

    async def forget_commits() -> None:
        for _ in range(COMMITS_KEPT_MAX + 1):
            await store.commit([], [put(b"x", table="other")])

    yield Form(store, forget_commits, lambda _: asyncio.sleep(0), lease_s=1)
    store.close()


@asynccontextmanager
async def fake() -> AsyncGenerator[Form, None]:
    store = FakeCoreStore(COMMITS_KEPT_MAX)

    async def forget_commits() -> None:
        for _ in range(COMMITS_KEPT_MAX + 1):
            await store.commit([], [put(b"x", table="other")])

    yield Form(store, forget_commits, store.end_lease, lease_s=1)


def in_etcd(etcd: Etcd) -> Make:
    @asynccontextmanager
    async def make() -> AsyncGenerator[Form, None]:
        store = EtcdCoreStore(etcd.addresses, f"c{next(CLUSTERS)}")

        async def forget_commits() -> None:
            position = await store.commit([], [put(b"x", table="other")])
            assert position is not None
            await store._client.call(COMPACT, compact_request(position), decode_header)

        yield Form(store, forget_commits, lambda _: asyncio.sleep(0), lease_s=1)
        await store.close()

    return make


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running_etcd(Path(tmp_path_factory.mktemp("etcd"))) as running:
        yield running


@pytest.fixture(params=["embedded", "fake", pytest.param("etcd", marks=pytest.mark.needs("etcd"))])
def make(request: pytest.FixtureRequest) -> Make:
    if request.param == "etcd":
        return in_etcd(request.getfixturevalue("etcd"))
    return embedded if request.param == "embedded" else fake


def run(make: Make, scenario: Callable[[Form], Awaitable[None]]) -> None:
    async def main() -> None:
        async with make() as form:
            await scenario(form)

    asyncio.run(main())


def put(key: bytes, value: bytes = b"v", table: str = "t") -> PutRow:
    return PutRow(table, key, value)


async def commit(store: CoreStore, *writes: PutRow | DeleteRow) -> int:
    position = await store.commit([], writes)
    assert position is not None
    return position


def test_a_row_has_the_revision_of_its_commit(make: Make) -> None:
    async def scenario(form: Form) -> None:
        store = form.store

        first = await commit(store, put(b"a", b"1"), put(b"b", b"1"))
        second = await commit(store, put(b"a", b"2"))

        assert ABSENT < first < second
        assert await store.get("t", b"a") == CoreRow(b"2", second)
        assert await store.get("t", b"b") == CoreRow(b"1", first)
        assert await store.get("t", b"c") is None

    run(make, scenario)


def test_tables_do_not_share_keys(make: Make) -> None:
    async def scenario(form: Form) -> None:
        store = form.store

        position = await commit(
            store, put(b"a", b"1", "t"), put(b"a", b"2", "tt"), put(b"ta", b"3", "t"), put(b"\0\xff", b"4", "t")
        )

        listed = await store.list_rows("t")
        assert listed.position >= position
        assert listed.rows == {b"a": CoreRow(b"1", position), b"ta": CoreRow(b"3", position), b"\0\xff": CoreRow(b"4", position)}
        assert (await store.list_rows("tt")).rows == {b"a": CoreRow(b"2", position)}
        assert (await store.list_rows("other")).rows == {}

    run(make, scenario)


def test_a_table_of_many_rows_is_listed_whole(make: Make) -> None:
    async def scenario(form: Form) -> None:
        keys = [b"%d" % number for number in range(4 * COMMIT_ROWS_MAX)]
        for start in range(0, len(keys), COMMIT_ROWS_MAX):
            await commit(form.store, *(put(key, key) for key in keys[start : start + COMMIT_ROWS_MAX]))

        rows = (await form.store.list_rows("t")).rows

        assert {key: row.value for key, row in rows.items()} == {key: key for key in keys}

    run(make, scenario)


def test_a_commit_happens_only_if_all_its_conditions_hold(make: Make) -> None:
    async def scenario(form: Form) -> None:
        store = form.store
        first = await commit(store, put(b"a", b"1"))

        assert await store.commit([Condition("t", b"a", ABSENT)], [put(b"a", b"2"), put(b"b")]) is None
        assert await store.commit([Condition("t", b"a", first), Condition("t", b"b", first)], [put(b"a", b"2")]) is None
        second = await store.commit([Condition("t", b"a", first), Condition("t", b"b", ABSENT)], [put(b"a", b"3")])

        assert second is not None
        assert await store.get("t", b"a") == CoreRow(b"3", second)
        assert await store.get("t", b"b") is None

    run(make, scenario)


def test_a_row_that_was_removed_and_set_again_has_a_new_revision(make: Make) -> None:
    async def scenario(form: Form) -> None:
        store = form.store
        first = await commit(store, put(b"a", b"1"))
        await commit(store, DeleteRow("t", b"a"))
        assert await store.get("t", b"a") is None

        await store.commit([Condition("t", b"a", ABSENT)], [put(b"a", b"1")])

        assert await store.commit([Condition("t", b"a", first)], [put(b"a", b"2")]) is None

    run(make, scenario)


def test_one_of_two_simultaneous_commits_wins(make: Make) -> None:
    async def scenario(form: Form) -> None:
        store = form.store

        tries = [store.commit([Condition("t", b"a", ABSENT)], [put(b"a", str(number).encode())]) for number in range(5)]
        results = await asyncio.gather(*tries)

        [winner] = [number for number, position in enumerate(results) if position is not None]
        assert await store.get("t", b"a") == CoreRow(str(winner).encode(), results[winner] or 0)

    run(make, scenario)


def test_a_reader_gets_every_commit_above_its_position_in_order(make: Make) -> None:
    async def scenario(form: Form) -> None:
        store = form.store
        first = await commit(store, put(b"a", b"0"))
        second = await commit(store, put(b"b", b"1"), put(b"a", b"1"), put(b"c", b"1"))
        third = await commit(store, put(b"a", b"2"), DeleteRow("t", b"b"))

        async with aclosing(store.watch(first)) as watch:
            seen = [await anext(watch), await anext(watch)]
            coming = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0)
            assert not coming.done()
            fourth = await commit(store, DeleteRow("t", b"a"))

            assert seen == [
                CoreCommit(second, (put(b"b", b"1"), put(b"a", b"1"), put(b"c", b"1"))),
                CoreCommit(third, (put(b"a", b"2"), DeleteRow("t", b"b"))),
            ]
            assert await coming == CoreCommit(fourth, (DeleteRow("t", b"a"),))

    run(make, scenario)


def test_a_listing_and_a_reader_from_its_position_leave_nothing_out(make: Make) -> None:
    async def scenario(form: Form) -> None:
        await commit(form.store, put(b"a"))
        listed = await form.store.list_rows("t")
        later = await commit(form.store, put(b"b"))

        async with aclosing(form.store.watch(listed.position)) as watch:
            assert await anext(watch) == CoreCommit(later, (put(b"b"),))

    run(make, scenario)


def test_commits_that_are_no_longer_kept_are_missed_and_listed_again(make: Make) -> None:
    async def scenario(form: Form) -> None:
        store = form.store
        first = await commit(store, put(b"a"))
        await commit(store, put(b"b"))
        await form.forget_commits()

        with pytest.raises(CommitsMissed):
            await anext(store.watch(first))

        listed = await store.list_rows("t")
        assert set(listed.rows) == {b"a", b"b"}
        later = await commit(store, put(b"c"))
        async with aclosing(store.watch(listed.position)) as watch:
            assert (await anext(watch)).position == later

    run(make, scenario)


def test_a_position_that_does_not_exist_yet_is_no_start(make: Make) -> None:
    async def scenario(form: Form) -> None:
        with pytest.raises(CommitsMissed):
            await anext(form.store.watch(1_000_000))

    run(make, scenario)


def test_rows_end_with_their_lease_in_one_commit(make: Make) -> None:
    async def scenario(form: Form) -> None:
        store = form.store
        lease = await store.grant_lease(form.lease_s)
        bound = await commit(store, PutRow("t", b"a", b"1", lease), PutRow("t", b"b", b"1", lease), put(b"c"))

        async with aclosing(store.watch(bound - 1)) as watch:
            assert (await anext(watch)).writes == (PutRow("t", b"a", b"1", lease), PutRow("t", b"b", b"1", lease), put(b"c"))
            await form.outlast(lease)
            ended = await anext(watch)

        assert set(ended.writes) == {DeleteRow("t", b"a"), DeleteRow("t", b"b")}
        assert set((await store.list_rows("t")).rows) == {b"c"}
        assert not await store.renew_lease(lease)
        assert await store.commit([], [PutRow("t", b"a", b"2", lease)]) is None

    run(make, scenario)


def test_a_lease_that_is_ended_takes_only_the_rows_that_are_still_bound_to_it(make: Make) -> None:
    async def scenario(form: Form) -> None:
        store = form.store
        lease, other = await store.grant_lease(60), await store.grant_lease(60)
        await commit(store, *(PutRow("t", key, b"1", lease) for key in (b"a", b"b", b"c", b"d")))
        await commit(store, put(b"b"), PutRow("t", b"c", b"2", other), DeleteRow("t", b"d"))
        await commit(store, put(b"d"))

        assert await store.renew_lease(lease)
        await store.end_lease(lease)
        await store.end_lease(lease)

        assert set((await store.list_rows("t")).rows) == {b"b", b"c", b"d"}
        assert not await store.renew_lease(lease)
        assert await store.renew_lease(other)

    run(make, scenario)


def test_one_commit_depends_on_the_end_of_a_lease(make: Make) -> None:
    async def scenario(form: Form) -> None:
        store = form.store
        lease = await store.grant_lease(60)
        await commit(store, PutRow("leases", b"r1", b"", lease))
        is_gone = Condition("leases", b"r1", ABSENT)

        assert await store.commit([is_gone], [put(b"r1", b"dead", "deaths")]) is None
        await store.end_lease(lease)

        assert await store.commit([is_gone], [put(b"r1", b"dead", "deaths")]) is not None

    run(make, scenario)


@pytest.mark.parametrize(
    "writes",
    [
        [],
        [put(b"a"), put(b"a")],
        [put(b"a"), DeleteRow("t", b"a")],
        [put(b"")],
        [put(b"k" * (KEY_BYTES_MAX + 1))],
        [put(b"a", b"v" * (VALUE_BYTES_MAX + 1))],
        [put(b"%d" % number, b"v" * VALUE_BYTES_MAX) for number in range(5)],
        [put(b"%d" % number) for number in range(COMMIT_ROWS_MAX + 1)],
        [put(b"a", table="")],
        [put(b"a", table="t\0")],
    ],
    ids=["none", "twice", "put-and-delete", "no-key", "long-key", "long-value", "many-bytes", "many-rows", "no-table", "null"],
)
def test_rows_that_cannot_be_written_are_rejected(make: Make, writes: list[PutRow | DeleteRow]) -> None:
    async def scenario(form: Form) -> None:
        with pytest.raises(UsageError):
            await form.store.commit([], writes)

        assert (await form.store.list_rows("t")).rows == {}

    run(make, scenario)


def test_the_largest_commit_is_accepted_and_read_as_one(make: Make) -> None:
    async def scenario(form: Form) -> None:
        large = [put(b"%d" % number, b"v" * (VALUE_BYTES_MAX - 100)) for number in range(4)]
        many = [put(b"%d" % number) for number in range(COMMIT_ROWS_MAX)]

        first = await commit(form.store, *large)
        await commit(form.store, *many)
        await form.store.commit([Condition("t", each.key, revision_of(None)) for each in many], many)

        async with aclosing(form.store.watch(first - 1)) as watch:
            assert [len((await anext(watch)).writes), len((await anext(watch)).writes)] == [4, COMMIT_ROWS_MAX]

    run(make, scenario)


# Settings and bans


def accept(settings: dict[str, object]) -> None:
    """Any values."""


def test_settings_are_set_and_unset_in_one_order(make: Make) -> None:
    async def scenario(form: Form) -> None:
        tables = AdministrationTables(form.store)

        numbers = [
            await tables.set_setting("session.queue_wait", 2.0, accept),
            await tables.set_setting("log.drops", True, accept),
            await tables.set_setting("history.topics", ["a/#", "b"], accept),
            await tables.set_setting("log.drops", None, accept),
        ]
        rows = (await form.store.list_rows(SETTINGS)).rows

        assert numbers == [1, 2, 3, 4]
        assert settings_of(rows) == await tables.settings() == {"session.queue_wait": 2.0, "history.topics": ["a/#", "b"]}
        assert {key: change_number(SETTINGS, row) for key, row in rows.items()} == {
            b"session.queue_wait": 1,
            b"history.topics": 3,
            b"log.drops": 4,
        }
        assert number_of(await form.store.get(COUNTERS, NUMBER_KEY)) == 4

    run(make, scenario)


def test_settings_that_do_not_fit_together_change_nothing(make: Make) -> None:
    def check(settings: dict[str, object]) -> None:
        if len(settings) > 1:
            raise ConfigError("b", f"contradicts {sorted(settings)}")

    async def scenario(form: Form) -> None:
        tables = AdministrationTables(form.store)
        await tables.set_setting("a", 1, check)

        with pytest.raises(ConfigError, match="contradicts"):
            await tables.set_setting("b", 1, check)
        with pytest.raises(UsageError, match="bytes together"):
            await tables.set_setting("a", "x" * 300_000, check)

        assert await tables.settings() == {"a": 1}
        assert number_of(await form.store.get(COUNTERS, NUMBER_KEY)) == 1

    run(make, scenario)


def test_of_changes_at_once_each_sees_the_ones_before_it(make: Make) -> None:
    async def scenario(form: Form) -> None:
        tables = AdministrationTables(form.store)
        seen: list[int] = []

        numbers = await asyncio.gather(
            *(tables.set_setting(f"k{i}", i, lambda settings: seen.append(len(settings))) for i in range(10))
        )

        assert sorted(numbers) == list(range(1, 11))
        assert len(await tables.settings()) == 10
        assert set(range(1, 11)) <= set(seen)

    run(make, scenario)


def test_bans_are_set_replaced_lifted_and_swept(make: Make) -> None:
    async def scenario(form: Form) -> None:
        tables = AdministrationTables(form.store, wall_s=lambda: 100.0)
        first = Ban(client_id="c" * 60_000, since=1.0)
        again = Ban(client_id="c" * 60_000, since=2.0, reason="again")
        short = Ban(address="192.0.2.0/24", since=1.0, until=99.0)
        long = Ban(user_name="u", since=1.0, until=101.0)

        for ban in (first, again, short, long):
            await tables.put_ban(ban)
        await tables.sweep()
        rows = (await form.store.list_rows(BANS)).rows

        assert sorted((ban_of(row) for row in rows.values()), key=lambda ban: ban.since) == [long, again]
        assert await tables.lift_ban(first) == 5
        assert await tables.lift_ban(first) == 0
        assert [ban_of(row) for row in (await form.store.list_rows(BANS)).rows.values()] == [long]

    run(make, scenario)


def test_files_are_taken_over_as_a_whole_and_only_what_differs_is_written(make: Make) -> None:
    async def scenario(form: Form) -> None:
        tables = AdministrationTables(form.store)
        bans = [Ban(client_id=f"c{number}", since=1.0) for number in range(250)]
        await tables.set_setting("old", 1, accept)
        await tables.put_ban(Ban(client_id="old", since=1.0))

        await tables.adopt({"a": 1, "b": "x"}, bans)
        number = number_of(await form.store.get(COUNTERS, NUMBER_KEY))
        await tables.adopt({"a": 1, "b": "x"}, bans)

        assert await tables.settings() == {"a": 1, "b": "x"}
        kept = [ban_of(row) for row in (await form.store.list_rows(BANS)).rows.values()]
        assert sorted(each.client_id or "" for each in kept) == sorted(each.client_id or "" for each in bans)
        assert number_of(await form.store.get(COUNTERS, NUMBER_KEY)) == number

    run(make, scenario)
