"""Settings and bans of a cluster on one of its cores, over a store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import pytest

from braidmq.access.bans import Ban
from braidmq.base.errors import ConfigError
from braidmq.cluster.administration.cluster_administration import ClusterAdministration
from braidmq.cluster.administration.node_copies import CopyOf, NewestCopy
from braidmq.cluster.membership.administration_rows import BANS, SETTINGS, AdministrationTables
from braidmq.cluster.membership.cluster_view import ClusterView, ViewChanges, plan_write_back
from braidmq.cluster.membership.embedded_tables import EmbeddedTables
from braidmq.cluster.membership.members import Members
from tests.support.fakes.core_store import FakeCoreStore


class Core:
    """One core; others may share its store."""

    def __init__(self, store: FakeCoreStore) -> None:
        self.store = store
        self.bans: dict[str | None, Ban] = {}
        self.stored: list[int] = []  # how many bans were in the file when it was written
        self.used: list[dict[str, object]] = []
        self.refusal: Exception | None = None
        self.is_loaded = False
        self.tables = EmbeddedTables(store, Members(store, lambda: 1), self)
        self.administration = ClusterAdministration(store, self.tables.view, self, self.use)

    async def start(self) -> None:
        await self.tables.load()
        self.administration.load()
        self.is_loaded = True
        self.tables.start()
        self.administration.start()

    def on_version(self) -> None:
        """All nodes speak the same."""

    def on_administered(self, changes: ViewChanges) -> None:
        if self.is_loaded:
            self.administration.take(changes)

    def stop(self) -> None:
        self.tables.stop()
        self.administration.stop()

    async def use(self, settings: Mapping[str, object]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.used.append(dict(settings))

    def take_bans(self, put: Sequence[Ban], lifted: Sequence[Ban]) -> None:
        self.bans |= {ban.client_id: ban for ban in put}
        for ban in lifted:
            del self.bans[ban.client_id]

    def replace_bans(self, bans: Sequence[Ban]) -> None:
        self.bans = {ban.client_id: ban for ban in bans}

    async def store_bans(self) -> None:
        self.stored.append(len(self.bans))


def run(scenario: Callable[[Core, Core], Awaitable[None]]) -> None:
    """The second core is not started."""

    async def work() -> None:
        store = FakeCoreStore()
        one, two = Core(store), Core(store)
        await one.start()
        await scenario(one, two)
        one.stop()
        two.stop()

    asyncio.run(work())


def accept(settings: Mapping[str, object]) -> None:
    """Any values."""


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(1000):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it has not happened")


def test_a_change_is_used_and_in_its_file_when_the_operator_has_the_answer() -> None:
    async def scenario(one: Core, two: Core) -> None:
        await one.administration.set_setting("a", 1, accept)
        assert one.used[-1] == {"a": 1}

        await one.administration.ban(Ban(client_id="c", since=1.0))
        assert list(one.bans) == ["c"]
        assert one.stored[-1] == 1

        assert await one.administration.unban(Ban(client_id="c", since=0.0))
        assert (one.bans, one.stored[-1]) == ({}, 0)
        assert not await one.administration.unban(Ban(client_id="c", since=0.0))
        assert one.administration.number == 3

    run(scenario)


def test_another_core_follows_and_one_that_starts_later_has_everything() -> None:
    async def scenario(one: Core, two: Core) -> None:
        await one.administration.set_setting("a", 1, accept)
        await one.administration.ban(Ban(client_id="c", since=1.0))

        await two.start()
        assert list(two.bans) == ["c"]
        await until(lambda: two.used == [{"a": 1}])

        await two.administration.set_setting("b", 2, accept)
        await two.administration.unban(Ban(client_id="c", since=0.0))
        await until(lambda: one.used[-1] == {"a": 1, "b": 2} and not one.bans)

    run(scenario)


def test_settings_that_one_core_cannot_use_are_used_by_the_others_and_reported() -> None:
    async def scenario(one: Core, two: Core) -> None:
        await two.start()
        two.refusal = ConfigError("a", "contradicts its file")
        await one.administration.set_setting("a", 1, accept)
        await until(lambda: bool(two.administration.trouble))

        assert "contradicts its file" in two.administration.trouble
        assert not one.administration.trouble
        two.refusal = None
        await one.administration.set_setting("a", 2, accept)
        await until(lambda: not two.administration.trouble)
        assert two.used[-1] == {"a": 2}

    run(scenario)


def test_a_file_that_cannot_be_written_holds_the_answer_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidmq.cluster.administration.cluster_administration._RETRY_S", 0.0)

    async def scenario(one: Core, two: Core) -> None:
        one.refusal = OSError("the disk is full")
        change = asyncio.ensure_future(one.administration.set_setting("a", 1, accept))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not change.done()

        one.refusal = None
        await change
        assert one.used[-1] == {"a": 1}

    run(scenario)


def test_a_restored_store_gets_the_newest_settings_and_bans_back() -> None:
    async def work() -> None:
        store = FakeCoreStore()
        tables = AdministrationTables(store)
        await tables.set_setting("a", 1, accept)
        await tables.set_setting("b", 1, accept)
        backup = {table: dict((await store.list_rows(table)).rows) for table in (SETTINGS, BANS)}
        await tables.set_setting("a", 2, accept)
        await tables.set_setting("b", None, accept)
        await tables.put_ban(Ban(client_id="c", since=1.0))
        view = ClusterView()
        view.load({table: await store.list_rows(table) for table in view.tables})

        plan = plan_write_back(view.tables, backup)

        written = {(each.write.table, each.write.key): each.write.value for each in plan}
        assert written[SETTINGS, b"a"] == view.tables[SETTINGS][b"a"].value
        assert written[SETTINGS, b"b"] == view.tables[SETTINGS][b"b"].value
        assert [table for table, _ in written].count(BANS) == 1
        assert plan_write_back(backup, view.tables) == []

    asyncio.run(work())


def test_a_node_does_not_take_what_a_core_says_that_knows_less_than_another() -> None:
    newest = NewestCopy()

    assert newest.take(CopyOf("core1", 5))
    assert not newest.take(CopyOf("core2", 4))
    assert newest.take(CopyOf("core2", 5))
    assert newest.take(CopyOf("core2", 3))  # its store was restored: it alone contradicts itself
    assert newest.take(CopyOf("core1", 4))
