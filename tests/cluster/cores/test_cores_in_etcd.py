"""Several cores in a real etcd, over real connections: one map, one log, nodes that all know, links between the cores, deaths."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from braidmq.base.config import sources
from braidmq.base.config.settings import Settings
from braidmq.base.errors import ConfigError
from braidmq.cluster.cores.core_ports import MemberHome
from braidmq.cluster.cores.core_side import CoreSide
from braidmq.cluster.cores.several_cores import SeveralCores
from braidmq.cluster.membership.member import Member
from braidmq.cluster.remote.replicant_side import CoreAddress, ReplicantSide
from braidmq.net.calls import Calls
from braidmq.net.connection import PeerConnection
from braidmq.net.frames import FrameKind
from braidmq.net.proto_v1 import AskNode, NodeAnswer
from tests.support.etcd import Etcd, running_etcd
from tests.support.fakes.rows_in_memory import RowsInMemory

pytestmark = [pytest.mark.needs("etcd")]

SECRET = "a secret of the cluster"
CORES = ("core1", "core2", "core3")
LEASE_S = 2.0


class Rows(RowsInMemory):
    """The log of a core, as far as its side of the cluster is concerned."""

    def __init__(self, log_id: bytes, shards: int) -> None:
        super().__init__()
        self.log_id = log_id
        self.shards = shards


class QuietNode:
    """A node for which nothing is done. Also its connection for calls."""

    def __init__(self) -> None:
        self.calls = self

    def open(self, connection: object) -> None:
        """Nothing."""

    open_messages = open

    def lose(self) -> None:
        """Nothing."""

    lose_messages = note_room = lose

    def receive(self, *frame: object) -> None:
        """Nothing."""


class Core:
    """One start of a core, with a home that notes deaths, and links that note what comes over them."""

    def __init__(self, etcd: Etcd, folder: Path, name: str, **cluster: object) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir(exist_ok=True)
        tables = {"rpc_bind": "127.0.0.1:0", "secret": SECRET, "lease": LEASE_S, "home_wait": 15, **cluster}
        several = {"store": "etcd", "etcd": etcd.addresses, "initial_cores": list(CORES), **tables}
        self.settings: Settings = sources.from_tables({"node": {"name": name}, "cluster": several}).settings
        self.events: list[str] = []
        self.links: dict[str, tuple[Calls, PeerConnection]] = {}
        self.heard: list[bytes] = []
        self._changed = asyncio.Event()
        self.side: CoreSide | None = None
        self.several: SeveralCores | None = None

    async def start(self) -> CoreSide:
        self.several = several = await SeveralCores.open(self.settings, self.folder, shards=None, has_log=False)
        rows = Rows(several.map.log_id, several.map.shards)
        self.side = side = CoreSide(several.settings_for(self.settings), self.folder, rows, b"", several)
        await side.start()
        side.when_alone = lambda: self.note("alone")
        side.when_back = lambda: self.note("back")
        await side.accept(cast("MemberHome", self), self)
        return side

    async def stop(self) -> None:
        if self.side is not None:
            await self.side.stop()
        if self.several is not None:
            await self.several.close()
        self.side = self.several = None

    def note(self, event: str) -> None:
        self.events.append(event)
        self._changed.set()

    async def until(self, what: Callable[[], bool]) -> None:
        while not what():
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), 0.05)
            except TimeoutError:
                continue

    async def saw(self, event: str) -> None:
        await self.until(lambda: event in self.events)

    # The home

    def join(self, member: Member, registration_id: int) -> QuietNode:
        return QuietNode()

    def expect(self, member: Member) -> None:
        self.note(f"{member.name} expected")

    def bury(self, member: Member) -> None:
        self.note(f"{member.name} died")

    # The other cores

    def on_core_up(self, name: str, incarnation: int, calls: Calls, connection: PeerConnection) -> None:
        calls.serve({AskNode: lambda request: NodeAnswer(self.name.encode())})
        connection.on_frame = lambda kind, flags, destination, body: self.heard.append(bytes(body))
        self.links[name] = (calls, connection)
        self.note(f"{name} up")

    def on_core_down(self, name: str) -> None:
        del self.links[name]
        self.note(f"{name} down")


def replicant(core: Core, folder: Path, name: str = "r1") -> ReplicantSide:
    assert core.side is not None
    address = str(core.side.address)
    tables = {"core_nodes": [address], "secret": SECRET}
    settings = sources.from_tables({"node": {"name": name, "role": "replicant"}, "cluster": tables}).settings
    (folder / name).mkdir(exist_ok=True)
    return ReplicantSide(settings, folder / name, CoreAddress(SECRET.encode(), addresses=(address,)))


@pytest.fixture(name="etcd")
def one_member(tmp_path: Path) -> Iterator[Etcd]:
    (tmp_path / "etcd").mkdir()
    with running_etcd(tmp_path / "etcd") as running:
        yield running


@asynccontextmanager
async def started(cores: list[Core]) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for core in cores:
            stack.push_async_callback(core.stop)
        await asyncio.gather(*(core.start() for core in cores))
        yield


def run(etcd: Etcd, folder: Path, scenario: Callable[..., Awaitable[None]], *names: str) -> None:
    async def main() -> None:
        cores = [Core(etcd, folder, name) for name in names]
        async with asyncio.timeout(60), started(cores):
            await scenario(*cores)

    asyncio.run(main())


def has_heard(core: Core, name: bytes) -> bool:
    return name in core.heard


def test_cores_that_start_at_once_agree_on_one_map_and_reach_each_other(etcd: Etcd, tmp_path: Path) -> None:
    async def scenario(*cores: Core) -> None:
        severals = [core.several for core in cores if core.several is not None]
        assert len({(several.map.log_id, tuple(several.map.leaders)) for several in severals}) == 1
        assert severals[1].map.led_by("core2") == [1, 4, 7, 10]
        assert {shard: term.term for shard, term in severals[1].terms.items()} == {1: 1, 4: 1, 7: 1, 10: 1}
        for core in cores:
            for name in set(CORES) - {core.name}:
                await core.saw(f"{name} up")
        first, second = cores[0], cores[1]
        for one, other in ((first, second), (second, first)):
            assert await one.links[other.name][0].call(AskNode("who", b""), 5.0) == NodeAnswer(other.name.encode())
            one.links[other.name][1].send(FrameKind.MARKS, 0, one.name.encode())
            await other.until(partial(has_heard, other, one.name.encode()))
        entries = severals[0].entries()
        assert [(each.name, each.shards) for each in entries] == [
            ("core1", [0, 3, 6, 9]),
            ("core2", [1, 4, 7, 10]),
            ("core3", [2, 5, 8, 11]),
        ]
        assert [bool(each.address) for each in entries] == [False, True, True]

    run(etcd, tmp_path, scenario, *CORES)


def test_a_node_that_registers_at_one_core_is_known_to_all_and_dies_for_all(etcd: Etcd, tmp_path: Path) -> None:
    async def scenario(first: Core, second: Core) -> None:
        node = replicant(first, tmp_path)
        await node.start()
        assert node.registered is not None
        assert [each.name for each in node.registered.cores] == list(CORES)
        assert second.side is not None
        await second.until(lambda: [each.name for each in second.side.questions.nodes()] == ["r1"])  # type: ignore[union-attr]

        await node.stop()

        await first.saw("r1 died")
        await second.saw("r1 died")
        assert second.side.questions.nodes() == []

    run(etcd, tmp_path, scenario, "core1", "core2")


@pytest.mark.soak
def test_nodes_learn_where_a_core_is_that_is_started_late(etcd: Etcd, tmp_path: Path) -> None:
    async def scenario(first: Core, second: Core) -> None:
        node = replicant(first, tmp_path)
        await node.start()
        assert node.registered is not None
        assert {each.name: bool(each.address) for each in node.registered.cores}["core3"] is False
        late = Core(etcd, tmp_path, "core3")

        await late.start()

        await first.until(lambda: is_at_core3(node))
        await late.saw("r1 expected")
        await node.stop()
        await late.stop()

    def is_at_core3(node: ReplicantSide) -> bool:
        return node.states.get("core3") == ""

    run(etcd, tmp_path, scenario, "core1", "core2")


@pytest.mark.soak
def test_a_core_that_restarts_takes_new_terms_and_is_reached_again(etcd: Etcd, tmp_path: Path) -> None:
    async def scenario(first: Core, second: Core) -> None:
        await first.saw("core2 up")
        await second.stop()
        await first.saw("core2 down")
        first.events.clear()
        again = Core(etcd, tmp_path, "core2")

        await again.start()

        assert again.several is not None
        assert {term.term for term in again.several.terms.values()} == {2}
        await first.saw("core2 up")
        await again.saw("core1 up")
        await again.stop()

    run(etcd, tmp_path, scenario, "core1", "core2")


def test_a_core_that_is_alone_ends_its_connections_until_it_is_back(etcd: Etcd, tmp_path: Path) -> None:
    async def scenario(first: Core, second: Core) -> None:
        await first.saw("core2 up")
        node = replicant(first, tmp_path)
        await node.start()
        etcd.members[0].pause()
        await first.saw("alone")
        # The lease of one that is not alone yet may outlive the other's in etcd: then it rightly declares that one dead.
        await second.saw("alone")
        await first.until(lambda: "core2 down" in first.events and not connections(first))
        stranger = replicant(first, tmp_path, "r2")
        joining = asyncio.ensure_future(stranger.start())

        first.events.clear()
        etcd.members[0].go_on()

        await first.saw("back")
        await first.saw("core2 up")
        await joining
        assert "r1 died" not in first.events
        assert not (first.side and first.side.declared_dead.done())
        for each in (node, stranger):
            await each.stop()

    run(etcd, tmp_path, scenario, "core1", "core2")


def connections(core: Core) -> list[PeerConnection]:
    assert core.side is not None
    return [each for acceptor in core.side.acceptors for each in acceptor.connections]


@pytest.mark.soak
def test_a_core_that_was_replaced_while_it_was_away_must_end(etcd: Etcd, tmp_path: Path) -> None:
    async def scenario(first: Core) -> None:
        assert first.side is not None
        again = Core(etcd, tmp_path, "core1")
        await again.start()

        assert "started a second time" in await first.side.declared_dead
        await again.stop()

    run(etcd, tmp_path, scenario, "core1")


@pytest.mark.soak
def test_cores_of_another_configuration_are_refused(etcd: Etcd, tmp_path: Path) -> None:
    async def scenario(first: Core) -> None:
        for name, changes, key in (
            ("core4", {"initial_cores": ("core4",)}, "node.name"),
            ("core2", {"initial_cores": ("core1", "core2")}, "cluster.initial_cores"),
        ):
            with pytest.raises(ConfigError, match=key):
                await Core(etcd, tmp_path, name, **changes).start()
        core = Core(etcd, tmp_path, "core2")
        with pytest.raises(ConfigError, match=r"history\.shards"):
            await SeveralCores.open(core.settings, core.folder, shards=4, has_log=False)

    run(etcd, tmp_path, scenario, "core1")


def test_a_cluster_is_not_created_by_chance(etcd: Etcd, tmp_path: Path) -> None:
    async def scenario() -> None:
        for has_log, initial_cores, key in (
            (False, (), r"cluster\.initial_cores"),
            (True, CORES, r"cluster\.store"),
        ):
            core = Core(etcd, tmp_path, "core1", initial_cores=initial_cores)
            with pytest.raises(ConfigError, match=key):
                await SeveralCores.open(core.settings, core.folder, shards=None, has_log=has_log)

    asyncio.run(scenario())
