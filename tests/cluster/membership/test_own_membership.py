"""A core as a member of a cluster, over a store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from braidmq.base.errors import Unavailable
from braidmq.cluster.corestore.contract import Condition, CoreRow, RowWrite, TableRows
from braidmq.cluster.corestore.etcd.identity import StoreRestored
from braidmq.cluster.corestore.guarded import GuardedStore
from braidmq.cluster.membership.cluster_view import ViewChanges
from braidmq.cluster.membership.members import LiveMember, Members, RegistrationRequest
from braidmq.cluster.membership.own_membership import ClusterMembership
from tests.support.fakes.core_store import FakeCoreStore

LEASE_S = 10.0


class MemoryStore(FakeCoreStore):
    """Can be emptied, as if an old backup had been put back."""

    mark = None

    def __init__(self) -> None:
        super().__init__()
        self.is_restored = False
        self.gate = asyncio.Event()  # closed, a table that is written to stays unwritten
        self.gate.set()
        self.is_waiting = asyncio.Event()

    def restore(self) -> None:
        self._rows.clear()
        self._leases.clear()
        self.is_restored = True

    async def get(self, table: str, key: bytes) -> CoreRow | None:
        self._check()
        return await super().get(table, key)

    async def list_rows(self, table: str) -> TableRows:
        self._check()
        return await super().list_rows(table)

    async def commit(self, conditions: Sequence[Condition], writes: Sequence[RowWrite]) -> int | None:
        self._check()
        if not self.gate.is_set():
            self.is_waiting.set()
            await self.gate.wait()
        return await super().commit(conditions, writes)

    async def renew_lease(self, lease: int) -> bool:
        self._check()
        return await super().renew_lease(lease)

    def _check(self) -> None:
        if self.is_restored:
            raise StoreRestored("it is empty")

    async def accept_restored(self) -> None:
        self.is_restored = False

    async def close(self) -> None:
        """Nothing."""


class NotingPort:
    """A core that notes what it is told of its cluster."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_joined(self, member: LiveMember) -> None:
        self.events.append(f"{member.name} joined")

    def on_ended(self, member: LiveMember) -> None:
        self.events.append(f"{member.name} ended")

    def on_cores(self) -> None:
        """Nothing."""

    def on_alone(self) -> None:
        self.events.append("alone")

    def on_version(self) -> None:
        self.events.append("version")

    def on_administered(self, changes: ViewChanges) -> None:
        self.events.append("administered")

    def on_back(self) -> None:
        self.events.append("back")

    def on_declared_dead(self, reason: str) -> None:
        self.events.append("dead")


class Joined:
    """A core that is a member."""

    def __init__(self, lease_s: float = LEASE_S) -> None:
        self.tables = MemoryStore()
        self.store = GuardedStore(self.tables)
        self.members = Members(self.store, lambda: 1, ("core1",))
        self.port = NotingPort()
        self.membership = ClusterMembership(self.store, self.members, "core1", lease_s, self.port)

    async def start(self) -> Joined:
        await self.membership.join(RegistrationRequest("core1", b"key", "core"))
        self.membership.start()
        for _ in range(20):
            await asyncio.sleep(0)  # all of it waits
        return self


async def at_last(call: Callable[[], Awaitable[bool]]) -> bool:
    """The answer, as soon as there is one."""
    async with asyncio.timeout(30.0):
        while True:
            try:
                return await call()
            except Unavailable:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("turns", range(6))
def test_a_member_stops_whatever_it_was_told_just_before(turns: int) -> None:
    """Python 3.11's ``asyncio.wait_for`` forgets that it was cancelled, if what it waits for happens in the same moment."""

    async def scenario() -> None:
        membership = (await Joined().start()).membership

        membership.keep(("r1", 5))
        for _ in range(turns):
            await asyncio.sleep(0)
        stopping = asyncio.ensure_future(membership.stop())
        done, _ = await asyncio.wait({stopping}, timeout=30.0)

        stopping.cancel()  # which cancels its tasks once more
        assert done

    asyncio.run(scenario())


def test_nobody_reads_the_tables_before_the_rows_are_back_that_a_restore_has_taken() -> None:
    """Else nodes that live would be told that they are dead, this core among them."""

    async def scenario() -> None:
        core = await Joined(lease_s=0.3).start()
        core.tables.gate.clear()
        core.tables.restore()
        await asyncio.wait_for(core.tables.is_waiting.wait(), 30.0)  # the first row is about to be written

        with pytest.raises(Unavailable):
            await core.members.is_member("core1", core.membership.incarnation)
        core.tables.gate.set()

        assert await at_last(lambda: core.members.is_member("core1", core.membership.incarnation))
        assert "dead" not in core.port.events
        await core.membership.stop()

    asyncio.run(scenario())
