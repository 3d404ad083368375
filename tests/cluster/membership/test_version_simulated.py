"""C35: the version of a cluster while nodes of several versions come and go, and cores raise it, in any order of their steps."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random

import pytest

from braidmq.base.errors import Unavailable
from braidmq.cluster.membership.cluster_version import RAISING_KEY, ClusterVersion, version_of
from braidmq.cluster.membership.members import (
    Admitted,
    Members,
    NotAdmitted,
    RegistrationRequest,
)
from braidmq.cluster.membership.shard_map import CLUSTER, VERSION_KEY
from tests.support.fakes.core_store import FakeCoreStore
from tests.support.stepping_store import SteppingStore

SEEDS = 300
NODES, CORES, LIVES, VERSIONS = 4, 3, 6, 3


class VersionStore(SteppingStore):
    """Its version never falls, and no member speaks less."""

    def __init__(self, chance: Random) -> None:
        super().__init__(chance)
        self._version = 1

    def spoken(self) -> list[int]:
        """The versions of the members that are alive."""
        return [member.version for member in self.alive()]

    def check(self) -> None:
        version = version_of(self._rows.get((CLUSTER, VERSION_KEY)))
        assert version >= self._version, "the version has fallen"
        assert all(spoken >= version for spoken in self.spoken()), f"version {version}, and members speak {self.spoken()}"
        self._version = version


class Cluster:
    """Nodes that register, end and come back with other versions; cores that raise the version by what they know."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.store = VersionStore(self.chance)
        self.time_ms = 1000
        self.is_over = False
        self.members = Members(self.store, self._now)

    def _now(self) -> int:
        self.time_ms += 1
        return self.time_ms

    async def node(self, name: str) -> None:
        for life in range(LIVES):
            version = self.chance.randint(1 + (life >= LIVES // 2), VERSIONS)
            decision = await self._register(RegistrationRequest(name, b"k", "replicant", version=version))
            if isinstance(decision, NotAdmitted):
                assert f"speaks version {version}" in decision.reason
                assert not decision.must_restart
                continue
            await self._live()
            if self.chance.random() < 0.5:
                await self.members.declare_dead(name, decision.incarnation)

    async def _register(self, request: RegistrationRequest) -> Admitted | NotAdmitted:
        while True:
            with suppress(Unavailable):  # it is being decided whether the node speaks enough
                return await self.members.register(request)
            await self._live()

    async def _live(self) -> None:
        for _ in range(self.chance.randint(0, 20)):
            await asyncio.sleep(0)

    async def core(self) -> None:
        while not self.is_over:
            known = self.store.spoken()
            await self._live()  # what it knows is no longer so
            raising = asyncio.ensure_future(self.members.raise_version(known))
            if self.chance.random() < 0.3:
                await self._live()
                raising.cancel()  # the core dies
            await asyncio.wait({raising})
            if not raising.cancelled():
                raising.result()

    async def run(self) -> None:
        cores = asyncio.gather(*(self.core() for _ in range(CORES)))
        await asyncio.gather(*(self.node(f"r{number}") for number in range(NODES)))
        self.is_over = True
        await cores


async def simulate(seed: int) -> int:
    """Returns the version in the end."""
    cluster = Cluster(seed)
    await cluster.run()
    for _ in range(3):
        await cluster.members.raise_version(cluster.store.spoken())
    rows = await ClusterVersion(cluster.store).read()
    spoken = cluster.store.spoken()
    assert not rows.raising, "nobody has decided"
    assert not spoken or rows.version == min(spoken)
    assert await cluster.store.get(CLUSTER, RAISING_KEY) is None
    return rows.version


def test_c35_no_member_speaks_less_than_the_cluster_uses_in_any_order_of_steps() -> None:
    reached = [asyncio.run(simulate(seed)) for seed in range(SEEDS)]

    # In their later lives nodes speak 2 at least. A simulation in which nothing is raised would show nothing.
    assert set(reached) == {2, 3}


def test_c35_a_node_of_an_older_version_is_refused_in_words() -> None:
    async def work() -> None:
        members = Members(FakeCoreStore(), lambda: 1)
        new, old = (RegistrationRequest(f"r{version}", b"k", "replicant", version=version) for version in (2, 1))
        assert isinstance(await members.register(new), Admitted)
        await members.raise_version([2])

        refused = await members.register(old)

        assert isinstance(refused, NotAdmitted)
        assert "speaks version 1" in refused.reason
        assert "has used version 2" in refused.reason
        assert isinstance(await members.register(new), Admitted)

    asyncio.run(work())


def test_c35_while_it_is_decided_an_older_node_has_to_wait_and_the_next_core_decides() -> None:
    async def work() -> None:
        store = FakeCoreStore()
        members = Members(store, lambda: 1)
        await members.register(RegistrationRequest("r2", b"k", "replicant", version=2))

        async def die() -> list[int]:
            raise OSError("the process ends")

        with pytest.raises(OSError, match="ends"):
            await ClusterVersion(store).raise_to([2], die)
        with pytest.raises(Unavailable, match="about to use version 2"):
            await members.register(RegistrationRequest("r1", b"k", "replicant", version=1))

        await members.raise_version([])
        assert (await ClusterVersion(store).read()).version == 2

    asyncio.run(work())
