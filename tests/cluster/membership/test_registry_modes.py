"""R21: members with "linear" and members with "eventual" never live side by side, in any order of their steps."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from braidmq.cluster.membership.members import (
    Admitted,
    Members,
    NotAdmitted,
    RegistrationRequest,
)
from tests.support.fakes.core_store import FakeCoreStore
from tests.support.stepping_store import SteppingStore

MODES = ("linear", "both", "eventual")


def request(name: str, mode: str, incarnation: int = 0) -> RegistrationRequest:
    return RegistrationRequest(name, b"key", "replicant", incarnation, mode=mode)


class Registrations:
    """Members in a store, one step after the other."""

    def __init__(self, store: FakeCoreStore | None = None) -> None:
        self.now = 1000
        self.store = store or FakeCoreStore()
        self.members = Members(self.store, self._tick)

    def _tick(self) -> int:
        self.now += 1
        return self.now

    async def admit(self, name: str, mode: str, incarnation: int = 0) -> Admitted:
        found = await self.members.register(request(name, mode, incarnation))
        assert isinstance(found, Admitted), found
        return found

    async def refusal(self, name: str, mode: str, incarnation: int = 0) -> str:
        found = await self.members.register(request(name, mode, incarnation))
        assert isinstance(found, NotAdmitted)
        assert not found.must_restart
        return found.reason


@pytest.mark.parametrize(("mode", "other"), [("linear", "eventual"), ("eventual", "linear")])
def test_r21_a_node_is_refused_beside_nodes_of_the_other_mode_and_told_the_way(mode: str, other: str) -> None:
    async def scenario() -> None:
        cluster = Registrations()
        await cluster.admit("r1", other)
        await cluster.admit("r2", "both")
        await cluster.admit("r3", other)

        refusal = await cluster.refusal("r4", mode)

        assert refusal.startswith(f'registry.mode: "{mode}" is not possible while r1, r3 have "{other}"')
        assert 'set "both" on all nodes first' in refusal
        await cluster.admit("r5", other)  # a refused node has changed nothing

    asyncio.run(scenario())


def test_r21_a_cluster_goes_from_eventual_over_both_to_linear_and_back_node_by_node() -> None:
    async def scenario() -> None:
        cluster = Registrations()
        names = ("r1", "r2", "r3")
        for mode in ("eventual", "both", "linear", "both", "eventual"):
            for name in names:
                await cluster.admit(name, mode)

        assert [member.mode for member in await cluster.members.alive()] == ["eventual"] * 3

    asyncio.run(scenario())


def test_r21_the_way_from_linear_to_eventual_is_closed_until_the_last_node_has_both() -> None:
    async def scenario() -> None:
        cluster = Registrations()
        for name in ("r1", "r2"):
            await cluster.admit(name, "linear")
        await cluster.admit("r1", "both")

        assert "while r2 has" in await cluster.refusal("r1", "eventual")
        await cluster.admit("r2", "both")
        await cluster.admit("r1", "eventual")

    asyncio.run(scenario())


def test_a_dead_node_does_not_count() -> None:
    async def scenario() -> None:
        cluster = Registrations()
        dead = await cluster.admit("r1", "eventual")
        await cluster.members.declare_dead("r1", dead.incarnation)

        await cluster.admit("r2", "linear")

    asyncio.run(scenario())


def test_the_only_node_may_start_again_in_any_mode() -> None:
    async def scenario() -> None:
        cluster = Registrations()
        for mode in ("linear", "eventual", "linear"):
            await cluster.admit("core1", mode)

    asyncio.run(scenario())


def test_a_node_announces_another_mode_without_a_restart() -> None:
    async def scenario() -> None:
        cluster = Registrations()
        first = await cluster.admit("r1", "linear")
        other = await cluster.admit("r2", "linear")

        again = await cluster.admit("r1", "both", first.incarnation)

        assert again.incarnation == first.incarnation
        assert [member.mode for member in await cluster.members.alive()] == ["both", "linear"]
        assert "while r2 has" in await cluster.refusal("r1", "eventual", first.incarnation)
        await cluster.admit("r2", "both", other.incarnation)
        await cluster.admit("r1", "eventual", first.incarnation)

    asyncio.run(scenario())


class ModeStore(SteppingStore):
    """Never has members of both kinds."""

    def check(self) -> None:
        alive = self.alive()
        assert not {"linear", "eventual"} <= {member.mode for member in alive}, f"both kinds are members: {alive}"


@pytest.mark.parametrize("block", range(3))
def test_r21_linear_and_eventual_members_never_meet_in_any_order_of_steps(block: int) -> None:
    async def node(cluster: Registrations, chance: Random, name: str) -> int:
        count = 0
        for _ in range(6):
            found = await cluster.members.register(request(name, chance.choice(MODES)))
            count += isinstance(found, Admitted)
            if isinstance(found, Admitted) and chance.random() < 0.5:
                await cluster.members.declare_dead(name, found.incarnation)
        return count

    async def scenario(seed: int) -> int:
        chance = Random(seed)
        cluster = Registrations(ModeStore(chance))
        return sum(await asyncio.gather(*(node(cluster, chance, f"r{number}") for number in range(4))))

    admitted = [asyncio.run(scenario(seed)) for seed in range(100 * block, 100 * (block + 1))]

    assert min(admitted) > 0
