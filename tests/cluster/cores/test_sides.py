"""A core and its replicants over real connections: joining, coming back, being refused, dying."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import msgspec
import pytest

from braidmq.base.config import sources
from braidmq.base.config.settings import Settings
from braidmq.base.errors import UsageError
from braidmq.cluster.cores.core_ports import MemberHome
from braidmq.cluster.cores.core_side import CoreSide
from braidmq.cluster.membership.member import Member
from braidmq.cluster.remote.replicant_side import CoreAddress, ReplicantSide
from tests.support.certificates import Authority
from tests.support.log_lines import lines_of
from tests.support.quiet_home import QuietHome, SharedRows

DEADLINE_S = 20.0
SECRET = "a secret of the cluster"
WORKER_SECRET = b"a secret of the workers"


class House:
    """A core and the directories of its cluster."""

    def __init__(self, folder: Path, **cluster: object) -> None:
        self.folder = folder
        self.rows = SharedRows()
        self.cluster = {"rpc_bind": "127.0.0.1:0", "secret": SECRET, "lease": "1s", **cluster}
        self.deaths: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self.core: CoreSide | None = None

    @asynccontextmanager
    async def core_runs(self) -> AsyncIterator[CoreSide]:
        """One start of the core."""
        settings = sources.from_tables({"cluster": self.cluster}).settings
        self.core = CoreSide(settings, self.folder, self.rows, WORKER_SECRET)
        await self.core.start()
        await self.core.accept(cast("MemberHome", QuietHome(self._note_death)))
        try:
            yield self.core
        finally:
            await self.core.stop()

    def _note_death(self, member: Member) -> None:
        self.deaths.put_nowait((member.name, member.incarnation))

    def replicant(self, name: str = "r1", folder: str = "", secret: str = SECRET, **changes: object) -> ReplicantSide:
        assert self.core is not None
        address = str(self.core.address)
        return ReplicantSide(
            self._settings(name, address, **changes),
            self._folder(folder or name),
            CoreAddress(secret.encode(), addresses=(address,)),
        )

    def worker(self, secret: bytes = WORKER_SECRET) -> ReplicantSide:
        assert self.core is not None
        core = CoreAddress(secret, socket_path=str(self.core.socket_path))
        return ReplicantSide(self._settings("core1-w1", "127.0.0.1:1"), self._folder("w1"), core)

    def _settings(self, name: str, address: str, **changes: object) -> Settings:
        keys = ("cert_file", "key_file", "ca_file")
        files = {key: self.cluster[key] for key in keys if key in self.cluster}
        tables = {"core_nodes": [address], "secret": SECRET, **files}
        settings = sources.from_tables({"node": {"name": name, "role": "replicant"}, "cluster": tables}).settings
        return msgspec.structs.replace(settings, node=msgspec.structs.replace(settings.node, **changes))

    def _folder(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return folder


def run(scenario: Callable[[], object]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await scenario()  # type: ignore[misc]

    asyncio.run(bounded())


async def refusal_of(side: ReplicantSide) -> str:
    """Why a node cannot connect, after its first attempt."""
    with lines_of("braidmq.net") as lines:
        starting = asyncio.ensure_future(side.start())
        while not (line := await lines.get()).startswith("cannot connect"):
            pass
        assert side.state.removeprefix("no connection to the core: ") in line
        starting.cancel()
        await side.stop()
    return line


def test_a_replicant_becomes_a_member(tmp_path: Path) -> None:
    async def scenario() -> None:
        house = House(tmp_path)
        async with house.core_runs() as core:
            side = house.replicant()
            await side.start()

            assert side.registered is not None
            assert (side.registered.shards, side.registered.log_id) == (4, b"l" * 16)
            assert side.registered.core_incarnation == core.incarnation
            assert side.state == ""
            assert [each.name for each in await core.members.alive()] == ["core1", "r1"]
            await side.stop()

    run(scenario)


def test_a_replicant_over_tls_becomes_a_member(tmp_path: Path) -> None:
    async def scenario() -> None:
        authority = Authority(tmp_path)
        pair = authority.node()
        house = House(tmp_path, cert_file=pair.cert_file, key_file=pair.key_file, ca_file=authority.cert_file)
        async with house.core_runs():
            side = house.replicant()
            await side.start()
            await side.stop()

    run(scenario)


def test_a_worker_that_disconnects_is_dead_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        house = House(tmp_path, lease="50m", home_wait="1h")
        async with house.core_runs() as core:
            side = house.worker()
            await side.start()
            assert side.registered is not None

            await side.stop()

            assert await house.deaths.get() == ("core1-w1", side.registered.incarnation)
            assert [each.name for each in await core.members.alive()] == ["core1"]

    run(scenario)


def test_what_a_node_has_gathered_for_its_core_is_sent_before_it_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        house = House(tmp_path)
        async with house.core_runs():
            side = house.replicant()
            await side.start()
            states: list[dict[str, str]] = []
            monkeypatch.setattr(side.link.log, "flush_all", lambda: states.append(side.states))

            await side.stop()

            assert states == [{"core1": ""}], "while it was connected"

    run(scenario)


def test_a_replicant_that_disconnects_is_dead_after_its_lease(tmp_path: Path) -> None:
    async def scenario() -> None:
        house = House(tmp_path)
        async with house.core_runs() as core:
            side = house.replicant()
            await side.start()
            assert side.registered is not None

            await side.stop()

            assert "r1" in [each.name for each in await core.members.alive()]
            assert await house.deaths.get() == ("r1", side.registered.incarnation)

    run(scenario)


def test_a_replicant_keeps_its_incarnation_over_a_restart_of_its_core(tmp_path: Path) -> None:
    async def scenario() -> None:
        house = House(tmp_path)
        async with house.core_runs() as core:
            side = house.replicant()
            await side.start()
            before = side.registered
            house.cluster["rpc_bind"] = str(core.address)
        assert "no connection to the core" in side.state
        with lines_of("braidmq.cluster") as lines:
            async with house.core_runs() as core:
                while not (await lines.get()).startswith("the core has a new start"):
                    pass
                assert before is not None
                assert side.registered is not None
                assert side.registered.core_incarnation == core.incarnation > before.core_incarnation
                assert side.registered.incarnation == before.incarnation
                assert house.deaths.empty()
                await side.stop()

    run(scenario)


def test_a_worker_of_an_earlier_core_is_dead(tmp_path: Path) -> None:
    async def scenario() -> None:
        house = House(tmp_path)
        async with house.core_runs():
            side = house.worker()
            await side.start()
            kept = dict(house.rows.kept)  # as if the core was killed now
            await side.stop()
            await house.deaths.get()
        house.rows.kept = kept
        async with house.core_runs() as core:
            assert [each.name for each in await core.members.alive()] == ["core1"]

    run(scenario)


def test_another_node_of_the_same_name_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        house = House(tmp_path)
        async with house.core_runs():
            first = house.replicant()
            await first.start()
            second = house.replicant(folder="elsewhere")

            with pytest.raises(UsageError, match="another node with the name 'r1' is alive"):
                await second.start()

            await second.stop()
            assert first.state == ""
            await first.stop()

    run(scenario)


def test_a_node_that_is_started_a_second_time_ends_the_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        house = House(tmp_path)
        async with house.core_runs() as core:
            first = house.replicant()
            await first.start()
            second = house.replicant()
            await second.start()
            assert first.registered is not None
            assert await house.deaths.get() == ("r1", first.registered.incarnation)

            for connection in [each for acceptor in core.acceptors for each in acceptor.connections]:
                connection.abort()

            assert "started a second time" in await first.wait_ended()
            await first.stop()
            await second.stop()

    run(scenario)


def test_a_wrong_secret_another_cluster_and_another_role_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        house = House(tmp_path)
        async with house.core_runs() as core:
            assert "the secrets differ" in await refusal_of(house.replicant(secret="wrong"))
            assert "belongs to cluster 'other'" in await refusal_of(house.replicant(cluster="other"))
            assert "the secrets differ" in await refusal_of(house.worker(SECRET.encode()))
            assert [each.name for each in await core.members.alive()] == ["core1"]

    run(scenario)
