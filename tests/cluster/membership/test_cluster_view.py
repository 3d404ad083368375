"""A core's copy of the tables: who joins, ends and is kept; and what it puts back after a restore."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from braidmq.cluster.corestore.contract import CoreRow, PutRow, TableRows
from braidmq.cluster.membership.cluster_tables import ClusterTables
from braidmq.cluster.membership.cluster_view import LISTED, ClusterView, ViewChanges, plan_write_back
from braidmq.cluster.membership.members import HearingCore, Members, RegistrationRequest
from tests.support.fakes.core_store import FakeCoreStore

NOON = 1_700_000_000_000
CORES = ("core1", "core2")


class Stage:
    """A store, its members, and a view that follows it."""

    def __init__(self) -> None:
        self.now = NOON
        self.store = FakeCoreStore()
        self.members = Members(self.store, lambda: self.now, CORES)
        self.tables = ClusterTables(self.store)
        self.view = ClusterView()
        self._seen = 0

    async def listings(self) -> dict[str, TableRows]:
        return {table: await self.store.list_rows(table) for table in LISTED}

    async def load(self) -> ViewChanges:
        self._seen = len(self.store.commits)
        return self.view.load(await self.listings())

    def follow(self) -> list[str]:
        """Take the new commits; what has changed, in words."""
        found: list[str] = []
        while self._seen < len(self.store.commits):
            found += in_words(self.view.take(self.store.commits[self._seen]))
            self._seen += 1
        return found

    async def register(self, name: str, core: str = "core1") -> int:
        lease = await self.store.grant_lease(10)
        admitted = await self.members.register(RegistrationRequest(name, name.encode(), "replicant"), HearingCore(core, lease))
        return getattr(admitted, "incarnation", 0)


def in_words(changes: ViewChanges) -> list[str]:
    return [
        *(f"{each.name} ended" for each in changes.ended),
        *(f"{each.name} joined" for each in changes.joined),
        *(f"{each.name} unkept" for each in changes.unkept),
        *(["cores"] if changes.are_cores_changed else []),
    ]


def test_joins_deaths_and_new_incarnations_are_seen_in_order() -> None:
    async def scenario() -> None:
        stage = Stage()
        await stage.load()

        first = await stage.register("r1")
        assert stage.follow() == ["r1 joined"]
        assert stage.view.is_member("r1", first)

        second = await stage.register("r1")
        assert stage.follow() == ["r1 ended", "r1 joined"]
        assert stage.view.is_member("r1", second)
        assert not stage.view.is_member("r1", first)

        await stage.members.declare_dead("r1", second, has_ended=True)
        assert stage.follow() == ["r1 ended"]
        assert not stage.view.alive

    asyncio.run(scenario())


def test_a_node_is_unkept_when_the_last_core_that_hears_it_lets_go() -> None:
    async def scenario() -> None:
        stage = Stage()
        await stage.load()
        incarnation = await stage.register("r1", "core1")
        lease = await stage.store.grant_lease(10)
        await stage.members.keep("r1", incarnation, HearingCore("core2", lease))
        assert stage.follow() == ["r1 joined"]

        await stage.members.let_go("r1", incarnation, "core1")
        assert stage.follow() == []
        assert stage.view.is_kept("r1")

        await stage.store.end_lease(lease)
        assert stage.follow() == ["r1 unkept"]
        assert not stage.view.is_kept("r1")

    asyncio.run(scenario())


def test_a_listing_says_what_was_missed_but_not_who_is_unkept() -> None:
    async def scenario() -> None:
        stage = Stage()
        gone = await stage.register("gone")
        await stage.register("stays")
        assert in_words(await stage.load()) == ["gone joined", "stays joined"]

        await stage.members.declare_dead("gone", gone, has_ended=True)
        await stage.members.let_go("stays", stage.view.alive["stays"].incarnation, "core1")
        await stage.register("new")

        assert in_words(await stage.load()) == ["gone ended", "new joined"]
        assert not stage.view.is_kept("stays")

    asyncio.run(scenario())


def test_a_commit_that_a_listing_had_already_is_not_counted_twice() -> None:
    async def scenario() -> None:
        stage = Stage()
        await stage.register("r1")
        await stage.load()
        old = list(stage.store.commits)

        assert [in_words(stage.view.take(commit)) for commit in old] == [[]] * len(old)
        await stage.members.let_go("r1", stage.view.alive["r1"].incarnation, "core1")

        assert stage.follow() == ["r1 unkept"]

    asyncio.run(scenario())


def test_a_core_with_a_new_address_is_seen() -> None:
    async def scenario() -> None:
        stage = Stage()
        await stage.load()

        await stage.tables.publish("core1", "10.0.0.1:4370")
        assert stage.follow() == ["cores"]
        await stage.tables.publish("core1", "10.0.0.1:4370")
        assert stage.follow() == []
        await stage.tables.publish("core1", "10.0.0.2:4370")
        assert stage.follow() == ["cores"]

        assert stage.view.addresses == {"core1": "10.0.0.2:4370"}
        assert stage.view.cores_number == 2

    asyncio.run(scenario())


@given(
    st.integers(0, 30), st.lists(st.tuples(st.sampled_from(["join", "die", "term", "go"]), st.sampled_from("abc")), max_size=30)
)
def test_after_a_restore_nothing_that_was_known_is_lower(backup_at: int, steps: list[tuple[str, str]]) -> None:
    """A core that has followed everything puts back incarnations, deaths, terms and numbers (C27)."""

    async def scenario() -> None:
        stage = Stage()
        backup: dict[str, TableRows] | None = None
        for number, (step, name) in enumerate(steps):
            if number == backup_at:
                backup = await stage.listings()
            stage.now += 1
            alive = stage.view.alive.get(name)
            if step == "join":
                await stage.register(name)
            elif step == "die" and alive is not None:
                await stage.members.declare_dead(name, alive.incarnation, has_ended=True)
            elif step == "term":
                await stage.tables.take_terms([ord(name)], "core1", stage.now, {})
            elif alive is not None:
                await stage.members.let_go(name, alive.incarnation, "core1")
            await stage.load()
        known = {table: dict(rows) for table, rows in stage.view.tables.items()}
        restored = {table: dict(listing.rows) for table, listing in (backup or await stage.listings()).items()}

        for each in plan_write_back(known, restored):
            there = restored[each.condition.table].get(each.condition.key)
            assert each.condition.revision == (0 if there is None else there.revision)
            assert isinstance(each.write, PutRow)
            restored[each.write.table][each.write.key] = CoreRow(each.write.value, 1)

        assert plan_write_back(known, restored) == []
        view = ClusterView()
        view.load({table: TableRows(1, rows) for table, rows in restored.items()})
        assert view.alive == stage.view.alive
        assert view.terms == stage.view.terms

    asyncio.run(scenario())
