"""Cores as members of a cluster in a real etcd: joining, hearing of each other, being alone, dying, outliving a restore."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from time import time
from typing import TypeVar

import pytest

from braidmq.base.deadline_clock import time_since_boot
from braidmq.base.errors import Unavailable
from braidmq.cluster.corestore.etcd.client import EtcdTimes
from braidmq.cluster.corestore.etcd.store import EtcdCoreStore
from braidmq.cluster.corestore.guarded import GuardedStore
from braidmq.cluster.membership.cluster_tables import ClusterTables
from braidmq.cluster.membership.cluster_view import ViewChanges
from braidmq.cluster.membership.members import LEASES, Admitted, LiveMember, Members, RegistrationRequest, lease_key
from braidmq.cluster.membership.own_membership import ClusterMembership
from braidmq.cluster.membership.shard_map import TermRow
from tests.support.cutting_proxy import CuttingProxy
from tests.support.etcd import Etcd, running_etcd

pytestmark = [pytest.mark.needs("etcd")]

HASTY = EtcdTimes(attempt_s=0.5, call_s=1.0, silence_s=0.5)
DEAF = EtcdTimes(attempt_s=0.3, call_s=1.0, silence_s=60.0)  # a watch that hangs is not noticed
CORES = ("core1", "core2", "core3")
LEASE_S = 2.0

Result = TypeVar("Result")


class Core:
    """A core with nothing but its membership; its clock can be put forward, as if it had been stopped."""

    def __init__(self, etcd: Etcd, name: str, addresses: Sequence[str] = (), times: EtcdTimes = HASTY) -> None:
        """``addresses``: where it reaches etcd, if that is not directly."""
        self.events: list[str] = []
        self.name = name
        self.skipped_s = 0.0
        self._changed = asyncio.Event()
        self.store = GuardedStore(EtcdCoreStore(addresses or etcd.addresses, "c", times=times))
        self.members = Members(self.store, lambda: int(time() * 1000), CORES)
        self.tables = ClusterTables(self.store)
        self.membership = ClusterMembership(self.store, self.members, name, LEASE_S, self, clock=self._clock)

    def _clock(self) -> float:
        return time_since_boot() + self.skipped_s

    async def start(self, key: bytes = b"") -> int:
        admitted = await self.membership.join(RegistrationRequest(self.name, key or self.name.encode(), "core"))
        self.membership.start()
        return admitted.incarnation

    async def stop(self) -> None:
        await self.membership.stop()
        await self.store.close()

    async def add_node(self, name: str) -> tuple[str, int]:
        """A node registers here."""
        request = RegistrationRequest(name, name.encode(), "replicant")
        hearing = self.membership.hearing
        admitted = await self.members.register(request, hearing)
        assert isinstance(admitted, Admitted)
        node = (name, admitted.incarnation)
        self.membership.keep(node, hearing.lease)
        return node

    def keeps(self, node: tuple[str, int]) -> bool:
        """Whether its row says that it hears the node, and it may act."""
        row = self.membership.view.tables[LEASES].get(lease_key(node[0], self.name))
        return row is not None and int.from_bytes(row.value, "big") == node[1] and self.membership.check()

    async def until(self, what: Callable[[], bool]) -> None:
        while not what():
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), 0.1)
            except TimeoutError:
                continue

    async def saw(self, *events: str) -> None:
        await self.until(lambda: all(event in self.events for event in events))

    def _note(self, event: str) -> None:
        self.events.append(event)
        self._changed.set()

    def on_joined(self, member: LiveMember) -> None:
        self._note(f"{member.name} joined")

    def on_ended(self, member: LiveMember) -> None:
        self._note(f"{member.name} ended")

    def on_cores(self) -> None:
        self._note("cores")

    def on_alone(self) -> None:
        self._note("alone")

    def on_version(self) -> None:
        self._note("version")

    def on_administered(self, changes: ViewChanges) -> None:
        self._note("administered")

    def on_back(self) -> None:
        self._note("back")

    def on_declared_dead(self, reason: str) -> None:
        self._note("dead")


def has_terms(core: Core, terms: dict[int, TermRow]) -> bool:
    return core.membership.view.terms == terms


def endings(*cores: Core) -> list[tuple[str, str]]:
    """The cores that were told of a death, and of whose."""
    return [(core.name, event) for core in cores for event in core.events if event.endswith("ended") or event == "dead"]


@pytest.fixture(name="etcd")
def one_member(tmp_path: Path) -> Iterator[Etcd]:
    with running_etcd(tmp_path) as running:
        yield running


@asynccontextmanager
async def cores_of(etcd: Etcd, *names: str) -> AsyncIterator[list[Core]]:
    async with AsyncExitStack() as stack:
        cores = [Core(etcd, name) for name in names]
        for core in cores:
            stack.push_async_callback(core.stop)
            await core.start()
        yield cores


def run(etcd: Etcd, scenario: Callable[..., Awaitable[None]], *names: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), cores_of(etcd, *names) as cores:
            await scenario(*cores)

    asyncio.run(main())


def test_all_cores_learn_of_nodes_and_of_each_other(etcd: Etcd) -> None:
    async def scenario(first: Core, second: Core) -> None:
        await first.saw("core2 joined")
        assert "core1 joined" in second.events

        node = await first.add_node("r1")
        await second.saw("r1 joined")
        second.membership.keep(node)
        await second.until(lambda: second.keeps(node))
        assert first.keeps(node)

        first.membership.let_go(node)
        second.membership.let_go(node)
        await first.saw("r1 ended")
        await second.saw("r1 ended")

    run(etcd, scenario, "core1", "core2")


def test_a_core_that_is_gone_is_declared_dead_and_the_nodes_of_others_are_not(etcd: Etcd) -> None:
    async def scenario(first: Core, second: Core) -> None:
        only = await first.add_node("only")
        both = await first.add_node("both")
        await second.saw("both joined")
        second.membership.keep(both)
        await second.until(lambda: second.keeps(both))

        await first.stop()

        await second.saw("core1 ended", "only ended")
        assert "both ended" not in second.events
        assert not await second.members.is_member(*only)
        assert await second.members.is_member(*both)

    run(etcd, scenario, "core1", "core2")


def test_a_core_that_restarts_in_time_is_a_new_member_and_was_never_missed(etcd: Etcd) -> None:
    async def scenario(first: Core, second: Core) -> None:
        before = first.membership.incarnation
        await second.saw("core1 joined")
        second.events.clear()
        await first.stop()
        again = Core(etcd, "core1")

        assert await again.start() > before

        await second.saw("core1 ended", "core1 joined")
        assert second.events == ["core1 ended", "core1 joined"]
        await again.stop()

    run(etcd, scenario, "core1", "core2")


def test_a_core_that_is_started_twice_ends_the_first_one(etcd: Etcd) -> None:
    async def scenario(first: Core) -> None:
        again = Core(etcd, "core1")
        await again.start()

        await first.saw("dead")
        assert not first.membership.check()
        assert again.membership.check()
        await again.stop()

    run(etcd, scenario, "core1")


def test_without_etcd_a_core_is_alone_until_etcd_answers(etcd: Etcd) -> None:
    async def scenario(first: Core, second: Core) -> None:
        node = await first.add_node("r1")
        etcd.members[0].pause()
        await first.saw("alone")
        await second.saw("alone")
        assert not first.membership.check()

        etcd.members[0].go_on()

        await first.saw("back")
        await second.saw("back")
        await first.until(lambda: first.keeps(node))
        assert endings(first, second) == []

    run(etcd, scenario, "core1", "core2")


def test_a_core_that_renews_its_lease_and_hears_of_no_new_node_is_alone(etcd: Etcd) -> None:
    """Its watch hangs at one member of etcd, while it renews its lease at another; the node serves clients after a lease."""

    async def scenario(first: Core) -> None:
        port = int(etcd.addresses[0].rpartition(":")[2])
        with CuttingProxy(port) as hanging:
            deaf = Core(etcd, "core2", [f"127.0.0.1:{hanging.port}", *etcd.addresses], DEAF)
            await deaf.start()
            await first.add_node("r0")
            await deaf.saw("r0 joined")
            hanging.stall()
            await first.add_node("r1")

            await deaf.saw("alone")

            assert await at_last(lambda: deaf.members.is_member("core2", deaf.membership.incarnation))
            assert "r1 joined" not in deaf.events
            hanging.go_on()
            await deaf.saw("back")
            assert deaf.events.index("alone") < deaf.events.index("r1 joined") < deaf.events.index("back")
            await deaf.stop()

    run(etcd, scenario, "core1")


@pytest.mark.row("F5")
@pytest.mark.soak
def test_a_core_that_was_stopped_for_three_leases_learns_that_it_is_dead_and_acts_no_more(etcd: Etcd) -> None:
    async def scenario(first: Core, second: Core) -> None:
        await first.add_node("r1")
        await first.membership.stop()  # it renews nothing, and reads nothing
        await second.saw("core1 ended", "r1 ended")
        first.skipped_s = 3 * LEASE_S

        assert not first.membership.check()  # before it hears anything from anybody
        assert first.events[-1] == "alone"
        first.membership.start()

        await first.saw("dead")
        assert "back" not in first.events
        assert not first.membership.check()

    run(etcd, scenario, "core1", "core2")


@pytest.mark.soak
def test_the_death_of_the_leader_of_etcd_makes_nobody_alone(tmp_path: Path) -> None:
    async def scenario(first: Core, second: Core) -> None:
        leader = await asyncio.to_thread(etcd.leader)
        await asyncio.to_thread(leader.kill)

        node = await at_last(lambda: first.add_node("r1"))
        await second.saw("r1 joined")
        await asyncio.sleep(LEASE_S)  # renewals go on, or this shows it

        assert first.keeps(node)
        assert "alone" not in first.events + second.events

    with running_etcd(tmp_path, count=3) as etcd:
        run(etcd, scenario, "core1", "core2")


@pytest.mark.row("F4")
@pytest.mark.soak
def test_without_a_quorum_of_etcd_all_are_alone_and_come_back(tmp_path: Path) -> None:
    async def scenario(first: Core, second: Core) -> None:
        for member in etcd.members[1:]:
            await asyncio.to_thread(member.kill)
        await first.saw("alone")
        await second.saw("alone")

        for member in etcd.members[1:]:
            await asyncio.to_thread(member.launch)

        await first.saw("back")
        await second.saw("back")
        assert endings(first, second) == []

    with running_etcd(tmp_path, count=3) as etcd:
        run(etcd, scenario, "core1", "core2")


def test_after_a_restore_the_cores_put_back_what_the_backup_lacks(etcd: Etcd, tmp_path: Path) -> None:
    async def scenario(first: Core, second: Core) -> None:
        dead = await first.add_node("dead")
        await second.saw("dead joined")
        await asyncio.to_thread(back_up)
        await at_last(lambda: first.members.declare_dead(*dead, has_ended=True))
        node = await at_last(lambda: first.add_node("r1"))
        terms = await at_last(lambda: first.tables.take_terms([1, 2], "core1", 7, {}))
        for core in (first, second):
            await core.saw("dead ended", "r1 joined")
            await core.until(partial(has_terms, core, terms))
            core.events.clear()

        await asyncio.to_thread(restore)

        await first.until(lambda: first.store.mark is not None and first.store.mark.restores == 1)
        await second.until(lambda: second.store.mark is not None and second.store.mark.restores == 1)
        await first.until(lambda: first.membership.check() and first.keeps(node))
        assert await at_last(lambda: second.members.is_member(*node))
        assert not await second.members.is_member(*dead)
        assert await second.tables.take_terms([1], "core1", 8, {}) == {1: type(terms[1])(terms[1].term + 1, "core1", 8)}
        assert endings(first, second) == []

    def back_up() -> None:
        etcd.members[0].kill()
        etcd.members[0].back_up(tmp_path / "backup")
        etcd.members[0].start()

    def restore() -> None:
        etcd.members[0].kill()
        etcd.members[0].restore(tmp_path / "backup")
        etcd.members[0].start()

    run(etcd, scenario, "core1", "core2")


async def at_last(call: Callable[[], Awaitable[Result]]) -> Result:
    """Repeat a call that does no harm when it happens twice, until etcd answers."""
    while True:
        try:
            return await call()
        except Unavailable:
            await asyncio.sleep(0.1)
