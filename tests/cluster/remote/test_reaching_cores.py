"""A node reaches every core that any of them names, over real connections, and says which one is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import msgspec
import pytest

from braidmq.base.config import sources
from braidmq.broker.broker import Broker
from braidmq.cluster.cores.core_ports import MemberHome
from braidmq.cluster.cores.core_side import CoreSide
from braidmq.cluster.membership.members import RegistrationRequest
from braidmq.cluster.remote.cluster_link import ClusterLink
from braidmq.cluster.remote.core_reach import CoreReach
from braidmq.cluster.remote.replicant_side import CoreAddress, ReplicantSide
from braidmq.net.proto_v1 import CoreEntry, Registered
from tests.support.cutting_proxy import CuttingProxy
from tests.support.log_lines import lines_of
from tests.support.quiet_home import QuietHome, SharedRows

SECRET = "a secret of the cluster"
DEADLINE_S = 20.0


class NamingCore(CoreSide):
    """A core that names others as well."""

    entries: list[CoreEntry]
    asked = 0  # for an incarnation
    gate: asyncio.Event | None = None  # nobody is registered before it opens

    def share_members(self, others: list[NamingCore]) -> None:
        """Keep the members that another core keeps, as cores do that have one store."""
        if others:
            self._members = others[0].members

    async def register(self, request: RegistrationRequest) -> Registered:
        self.asked += not request.incarnation
        if self.gate is not None:
            await self.gate.wait()
        answer = await super().register(request)
        own = next(entry for entry in answer.cores)
        cores = [msgspec.structs.replace(each, address="") if each.name == own.name else each for each in self.entries]
        return msgspec.structs.replace(answer, cores=cores)


@asynccontextmanager
async def two_cores(folder: Path) -> AsyncIterator[list[NamingCore]]:
    cores: list[NamingCore] = []
    for name in ("core1", "core2"):
        tables = {
            "node": {"name": name},
            "cluster": {"rpc_bind": "127.0.0.1:0", "secret": SECRET, "lease": "1s"},
        }
        own = folder / name
        own.mkdir()
        core = NamingCore(sources.from_tables(tables).settings, own, SharedRows())
        await core.start()
        core.share_members(cores)
        await core.accept(cast("MemberHome", QuietHome()))
        cores.append(core)
    entries = [CoreEntry(f"core{at + 1}", str(core.address), [at, at + 2]) for at, core in enumerate(cores)]
    for core in cores:
        core.entries = entries
    try:
        yield cores
    finally:
        for core in cores:
            await core.stop()


def side_of(folder: Path, cores: list[NamingCore]) -> ReplicantSide:
    addresses = tuple(str(core.address) for core in cores)
    tables = {
        "node": {"name": "r1", "role": "replicant"},
        "cluster": {"core_nodes": list(addresses), "secret": SECRET, "lease": "1s"},
    }
    run_dir = folder / "r1"
    run_dir.mkdir()
    return ReplicantSide(sources.from_tables(tables).settings, run_dir, CoreAddress(SECRET.encode(), addresses=addresses))


async def reach(side: ReplicantSide, count: int) -> None:
    """Start, and wait until so many cores have this node as a member."""
    with lines_of("braidmq.cluster") as lines:
        await side.start()
        while count:
            count -= (await lines.get()).startswith("member ")


def test_a_core_names_the_others_and_all_are_reached_with_one_incarnation(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_cores(tmp_path) as cores, asyncio.timeout(DEADLINE_S):
            side = side_of(tmp_path, cores[:1])
            await reach(side, 2)

            assert side.states == {"core1": "", "core2": ""}
            assert side.state == ""
            assert [core.asked for core in cores] == [1, 0]
            assert sorted(home.name for home in side.link) == ["core1", "core2"]
            await side.stop()

    asyncio.run(scenario())


def test_a_core_that_is_silent_for_a_lease_is_away_until_it_is_heard_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_cores(tmp_path) as cores, asyncio.timeout(DEADLINE_S):
            assert cores[1].address is not None
            with CuttingProxy(int(str(cores[1].address).rpartition(":")[2])) as line:
                for core in cores:
                    core.entries[1] = msgspec.structs.replace(core.entries[1], address=f"127.0.0.1:{line.port}")
                side = side_of(tmp_path, cores[:1])
                await reach(side, 2)

                with lines_of("braidmq.cluster") as lines:
                    line.stall(to_server=False)
                    while "the connection to core core2 has ended: core core2 was silent for 3 s" not in await lines.get():
                        pass
                    assert side.states["core1"] == ""
                    assert side.states["core2"].startswith("no connection to core core2")
                    line.go_on()
                    while not (await lines.get()).startswith("core core2 is back"):
                        pass
                assert side.states == {"core1": "", "core2": ""}
                await side.stop()

    asyncio.run(scenario())


def test_of_two_seeds_one_is_asked_for_an_incarnation(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_cores(tmp_path) as cores, asyncio.timeout(DEADLINE_S):
            side = side_of(tmp_path, cores)
            await reach(side, 2)

            assert sum(core.asked for core in cores) == 1
            await side.stop()

    asyncio.run(scenario())


def test_a_core_that_starts_elsewhere_is_found(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_cores(tmp_path) as cores, asyncio.timeout(DEADLINE_S):
            known = cores[0].entries
            cores[0].entries = [known[0], msgspec.structs.replace(known[1], address="")]  # it was never started
            side = side_of(tmp_path, cores[:1])
            await reach(side, 1)
            assert side.states == {"core1": ""}

            with lines_of("braidmq.cluster") as lines:
                cores[0].entries = known
                while not (await lines.get()).startswith("member "):
                    pass

            assert side.states == {"core1": "", "core2": ""}
            await side.stop()

    asyncio.run(scenario())


class QuietLog:
    """The log of a node that serves nobody."""

    def flush_all(self) -> None:
        """Nothing."""


class QuietLink:
    """A node's link that serves nobody."""

    on_ready: object = None
    log = QuietLog()

    def serve(self, broker: object) -> None:
        """Nothing."""

    def home(self, name: str) -> str:
        return name

    def leave_out(self) -> None:
        """Nothing."""

    close = leave_out


def test_a_core_that_takes_the_node_while_others_serve_it_already_serves_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[str] = []
    monkeypatch.setattr(CoreReach, "serve", lambda self, home: served.append(home))

    async def scenario() -> None:
        async with two_cores(tmp_path) as cores, asyncio.timeout(DEADLINE_S):
            for core in cores:  # none has heard where the other one is: the node knows both from its configuration
                core.entries = [msgspec.structs.replace(each, address="") for each in core.entries]
            cores[1].gate = asyncio.Event()
            side = side_of(tmp_path, cores)
            await reach(side, 1)
            side._link = cast("ClusterLink", QuietLink())
            serving = asyncio.ensure_future(side.serve(cast("Broker", None)))
            await asyncio.sleep(0)
            assert served == ["core1"]
            with lines_of("braidmq.cluster") as lines:
                cores[1].gate.set()
                while not (await lines.get()).startswith("member "):
                    pass

            assert served == ["core1", "core2"]
            serving.cancel()
            await side.stop()

    asyncio.run(scenario())


def test_a_new_member_serves_nobody_for_a_lease_while_it_cannot_reach_a_core(tmp_path: Path) -> None:
    """By then that core knows it from the store, or has no lease any more: it cannot be sure of all routes without this node."""

    class PatientLink(QuietLink):
        def __init__(self) -> None:
            self.left_out = asyncio.Event()

        def leave_out(self) -> None:
            self.left_out.set()

    async def scenario() -> None:
        async with two_cores(tmp_path) as cores, asyncio.timeout(DEADLINE_S):
            for core in cores:
                core.entries = [core.entries[0], msgspec.structs.replace(core.entries[1], address="")]
            side = side_of(tmp_path, cores[:1])
            await reach(side, 1)
            link = PatientLink()
            side._link = cast("ClusterLink", link)
            began = asyncio.get_running_loop().time()

            serving = asyncio.ensure_future(side.serve(cast("Broker", None)))
            await link.left_out.wait()

            assert asyncio.get_running_loop().time() - began >= 1.0
            assert not serving.done()
            serving.cancel()
            await side.stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CoreReach, "serve", lambda self, home: None)
        asyncio.run(scenario())


def test_a_core_that_goes_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_cores(tmp_path) as cores, asyncio.timeout(DEADLINE_S):
            side = side_of(tmp_path, cores)
            await reach(side, 2)

            with lines_of("braidmq.cluster") as lines:
                await cores[1].stop()
                while not (await lines.get()).startswith("the connection to core core2 has ended"):
                    pass

            assert side.states["core1"] == ""
            assert side.state.startswith("no connection to core core2")
            await side.stop()

    asyncio.run(scenario())
