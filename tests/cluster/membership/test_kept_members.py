"""Members of a cluster with several cores, which keep them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from braidmq.base.errors import Unavailable
from braidmq.cluster.corestore.contract import Condition, RowWrite
from braidmq.cluster.membership.members import (
    DEATH_KEPT_MS,
    MEMBERS,
    Admitted,
    HearingCore,
    Members,
)
from tests.cluster.membership.registering import Clock, ask
from tests.support.fakes.core_store import FakeCoreStore


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Kept:
    """A cluster with two cores, and a node that the first of them hears."""

    def __init__(self, clock: Clock) -> None:
        self.store = FakeCoreStore()
        self.members = Members(self.store, clock, ("core1", "core2"))
        self.incarnation = 0
        self.hearing: dict[str, HearingCore] = {}

    async def start(self) -> None:
        for core in ("core1", "core2"):
            self.hearing[core] = HearingCore(core, await self.store.grant_lease(10))
        result = await self.members.register(ask(), self.hearing["core1"])
        assert isinstance(result, Admitted)
        self.incarnation = result.incarnation

    async def is_declared_dead(self) -> bool:
        return await self.members.declare_dead("r1", self.incarnation)


def test_a_node_dies_only_when_no_core_hears_it(clock: Clock) -> None:
    async def scenario() -> None:
        kept = Kept(clock)
        await kept.start()
        assert await kept.members.keep("r1", kept.incarnation, kept.hearing["core2"])

        assert not await kept.is_declared_dead()
        await kept.members.let_go("r1", kept.incarnation, "core1")
        assert not await kept.is_declared_dead()
        await kept.store.end_lease(kept.hearing["core2"].lease)

        assert await kept.is_declared_dead()

    asyncio.run(scenario())


def test_a_dead_node_is_not_kept_again(clock: Clock) -> None:
    async def scenario() -> None:
        kept = Kept(clock)
        await kept.start()
        await kept.members.let_go("r1", kept.incarnation, "core1")
        assert await kept.is_declared_dead()

        assert not await kept.members.keep("r1", kept.incarnation, kept.hearing["core1"])

    asyncio.run(scenario())


def test_of_a_death_and_a_renewal_at_once_only_one_happens(clock: Clock) -> None:
    """C31: every order of the commits of both, each of which has read before the other commits."""

    class Paused(FakeCoreStore):
        """Lets every commit wait for its turn."""

        turns: list[asyncio.Event]

        async def commit(self, conditions: Sequence[Condition], writes: Sequence[RowWrite]) -> int | None:
            if turns := getattr(self, "turns", None):
                await turns.pop(0).wait()
            return await super().commit(conditions, writes)

    async def scenario(is_death_first: bool) -> tuple[bool, bool]:
        kept = Kept(clock)
        kept.store = store = Paused()
        kept.members = Members(store, clock, ("core1", "core2"))
        await kept.start()
        await kept.members.let_go("r1", kept.incarnation, "core1")
        first, second = asyncio.Event(), asyncio.Event()
        store.turns = [first, second] if is_death_first else [second, first]
        dying = asyncio.ensure_future(kept.is_declared_dead())
        await asyncio.sleep(0)
        keeping = asyncio.ensure_future(kept.members.keep("r1", kept.incarnation, kept.hearing["core2"]))
        await asyncio.sleep(0)
        first.set()
        await asyncio.wait({dying, keeping}, return_when=asyncio.FIRST_COMPLETED)
        second.set()
        return await dying, await keeping

    assert asyncio.run(scenario(True)) == (True, False)
    assert asyncio.run(scenario(False)) == (False, True)


def test_a_process_that_has_ended_is_dead_whoever_has_heard_it(clock: Clock) -> None:
    async def scenario() -> None:
        kept = Kept(clock)
        await kept.start()

        assert await kept.members.declare_dead("r1", kept.incarnation, has_ended=True)

        assert not (await kept.store.list_rows("leases")).rows

    asyncio.run(scenario())


def test_a_core_that_lets_an_older_incarnation_go_still_keeps_the_new_one(clock: Clock) -> None:
    async def scenario() -> None:
        kept = Kept(clock)
        await kept.start()
        result = await kept.members.register(ask(), kept.hearing["core1"])
        assert isinstance(result, Admitted)

        await kept.members.let_go("r1", kept.incarnation, "core1")

        assert not await kept.members.declare_dead("r1", result.incarnation)

    asyncio.run(scenario())


def test_a_core_whose_lease_has_ended_admits_and_keeps_nobody(clock: Clock) -> None:
    async def scenario() -> None:
        kept = Kept(clock)
        await kept.start()
        await kept.store.end_lease(kept.hearing["core2"].lease)

        with pytest.raises(Unavailable):
            await kept.members.register(ask("r2"), kept.hearing["core2"])
        with pytest.raises(Unavailable):
            await kept.members.keep("r1", kept.incarnation, kept.hearing["core2"])
        assert [each.name for each in await kept.members.alive()] == ["r1"]

    asyncio.run(scenario())


def test_every_registration_can_be_read_at_one_place(clock: Clock) -> None:
    """A core that has read as far as that has heard of every node."""

    async def scenario() -> None:
        kept = Kept(clock)
        await kept.start()
        incarnation = 0
        for request in (ask("r2"), ask("r2"), ask("r1")):  # a new node, and two that start again
            before = await kept.members.last_joined()
            admitted = await kept.members.register(request, kept.hearing["core2"])
            assert isinstance(admitted, Admitted)
            incarnation = admitted.incarnation

            row = await kept.store.get(MEMBERS, request.name.encode())
            assert row is not None
            assert before < await kept.members.last_joined() == row.revision

        before = await kept.members.last_joined()
        await kept.members.register(ask("r1", incarnation=incarnation), kept.hearing["core2"])  # it had only lost its connection
        assert await kept.members.last_joined() == before

    asyncio.run(scenario())


def test_cores_are_never_forgotten(clock: Clock) -> None:
    async def scenario() -> None:
        kept = Kept(clock)
        await kept.start()
        core = await kept.members.register(ask("core1"), kept.hearing["core1"])
        assert isinstance(core, Admitted)
        await kept.members.declare_dead("core1", core.incarnation, has_ended=True)
        await kept.members.declare_dead("r1", kept.incarnation, has_ended=True)
        clock.now += DEATH_KEPT_MS

        assert await kept.members.sweep() == ["r1"]

    asyncio.run(scenario())
