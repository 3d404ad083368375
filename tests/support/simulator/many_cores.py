"""Several cores and the nodes between them in one process: real homes, real brokers, a real log for each core, no sockets.

The shards are dealt to the cores in turn, by name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Any, Self, cast

from braidmq.access.local import LocalAccess
from braidmq.base.config.cluster_settings import ClusterSettings
from braidmq.base.errors import Unavailable
from braidmq.broker.broker import Broker
from braidmq.broker.messages import hooks
from braidmq.broker.session.ports import NodePorts
from braidmq.cluster.home.home import Home
from braidmq.cluster.home.retained_pages import RetainedPages
from braidmq.cluster.membership.led_shards import LedShards
from braidmq.cluster.membership.member import Member
from braidmq.cluster.remote.cluster_link import ClusterLink
from braidmq.cluster.rlog.agent import PACE
from braidmq.mqtt.packets import MQTT5
from braidmq.net.connection import PeerConnection
from braidmq.net.frames import FrameKind
from braidmq.net.proto_v1_batches import BatchOpened, BatchRefused, OpenBatch
from braidmq.net.proto_v1_retained import RetainedFilters, RetainedMatches, RetainedPage, RetainedRead
from tests.support.simulator.core_calls import SimCalls
from tests.support.simulator.peer import Peer
from tests.support.simulator.world import StillLoop, World

HOME_WAIT_S = ClusterSettings().home_wait
_TURNS_MAX = 20_000
_QUIET_TURNS = 12

OnFrame = Callable[[FrameKind, int, int, memoryview], None]


class Wire:
    """One end of a connection; frames arrive in order, each in a turn of its own, while neither side stands still."""

    def __init__(self, cluster: ManyCores) -> None:
        self._cluster = cluster
        self.other: Wire | None = None
        self.on_frame: OnFrame | None = None
        self._passing: int | None = None  # so many frames still arrive, the rest stays on its way; None: all
        self.waiting_bytes = 0
        self._arrived: deque[tuple[FrameKind, int, int, bytes]] = deque()
        self._is_paused = False
        self._is_scheduled = False

    def send(self, kind: FrameKind, destination: int, body: bytes, flags: int = 0) -> None:
        if self.other is not None:
            self.other.arrive(kind, flags, destination, bytes(body))

    def arrive(self, kind: FrameKind, flags: int, destination: int, body: bytes) -> None:
        self._arrived.append((kind, flags, destination, body))
        self._schedule()

    def _schedule(self) -> None:
        if self._arrived and not self._is_paused and self._passing != 0 and not self._is_scheduled:
            self._is_scheduled = True
            self._cluster.loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._is_scheduled = False
        if self._arrived and not self._is_paused and self._passing != 0 and self.on_frame is not None:
            if self._passing is not None:
                self._passing -= 1
            kind, flags, destination, body = self._arrived.popleft()
            self._cluster.frames += 1
            self.on_frame(kind, flags, destination, memoryview(body))
        self._schedule()

    def flush(self) -> None:
        """What was sent is on its way already."""

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._schedule()

    def freeze(self, after: int = 0) -> None:
        """Nothing arrives any more, once so many frames have; it stays on its way."""
        self._passing = after

    def thaw(self) -> None:
        """What is on its way arrives."""
        self._passing = None
        self._schedule()

    def close(self, reason: str) -> None:
        """The tests cut connections themselves."""


class SimCore(World):
    """One core with its data directory."""

    def __init__(self, cluster: ManyCores, name: str, **tables: Any) -> None:
        self.cluster = cluster
        self.name = name
        self.is_up = True
        self._expected: list[Member] = []
        super().__init__(**tables)

    def _make_loop(self) -> StillLoop:
        return self.cluster.loop

    def _close_loop(self) -> None:
        """All cores share it."""

    def _restore(self) -> None:
        self.broker.restore(decides=self.home.is_ready)

    def _led_shards(self) -> Iterable[int]:
        return self.cluster.led[self.name]

    async def _make_broker(self, ports: NodePorts) -> Broker:
        term = self._lives + 1
        shards = self.cluster.led[self.name]
        led = LedShards(self.name, self.cluster.leaders, dict.fromkeys(shards, term))
        member = Member(self.name, term)
        self.home = Home(member, 2.0, PACE, self.log, undeclared=self._expected, led=led, clock=self.loop.time)
        broker = await super()._make_broker(self.home.ports)
        self.home.serve(broker)
        return broker

    @property
    def life(self) -> int:
        """How often it was started."""
        return self._lives

    def settle(self) -> None:
        self.cluster.settle()

    def die(self) -> None:
        """The process ends, now."""
        for node in self.cluster.nodes:
            node.cut(self)
        self.is_up = False
        self.home.close()
        self.cluster.cut_cores(self)

    def start_again(self) -> None:
        """A new process on what the last one has left."""
        self._expected = [node.member for node in self.cluster.nodes]
        self.crash()
        self.is_up = True

    def records(self) -> list[bytes]:
        """The payloads of everything in this core's log, shard by shard, in order."""
        scan = self.log.replay(["#"], 0, with_session_only=True)
        found: list[bytes] = []
        while not scan.is_caught_up:
            found += [record.payload for _, record in scan.next(1000, slice_s=1.0)]
        scan.close()
        return found


class SimNode:
    """A node without a database."""

    def __init__(self, cluster: ManyCores, name: str, number: int) -> None:
        self.cluster = cluster
        self.name = name
        self._number = number
        self.member = Member(name, number)
        settings = next(iter(cluster.cores.values())).settings
        self.link = ClusterLink(self.member, cluster.led, cluster.loop, settings.cluster, settings.registry)
        self._wires: dict[str, list[Wire]] = {}
        self._met: dict[str, int] = {}  # which life of each core this node has met
        self.is_ready = False

    async def make(self) -> None:
        settings = next(iter(self.cluster.cores.values())).settings
        self.access = LocalAccess(settings)
        self.broker = Broker(
            settings, self.access, hooks.load((), 1.0), self.link.storage, self.cluster.loop.time, self.link.ports
        )
        self.link.serve(self.broker)
        self.link.on_ready = self._on_ready

    def _on_ready(self) -> None:
        self.is_ready = True

    def connect(self, core: SimCore) -> None:
        """Register at a core and connect, as `core_reach` does."""
        home = self.link.home(core.name)
        if self._met.get(core.name, core.life) != core.life:
            home.meet_new_core()
        self._met[core.name] = core.life
        peer = core.home.join(self.member, self._number)
        here, there = self._wires_between()

        def receive_here(kind: FrameKind, flags: int, destination: int, body: memoryview) -> None:
            (home.receive_claims if kind is FrameKind.CLAIMS else home.receive_eventual)(flags, body)

        def receive_there(kind: FrameKind, flags: int, destination: int, body: memoryview) -> None:
            (peer.calls.receive_claims if kind is FrameKind.CLAIMS else peer.calls.receive_eventual)(flags, body)

        here.on_frame, there.on_frame = receive_here, receive_there
        peer.calls.open(there)
        self.cluster.settle()  # what the core says before the node knows that it is registered
        peer.calls.declare(home.open_calls(here, core.home.registry.term))
        home.blocks.wants_presence = peer.wants_presence
        here_too, there_too = self._wires_between()
        here_too.on_frame, there_too.on_frame = home.receive, peer.receive
        peer.open_messages(there_too)
        assert core.home.retained is not None
        pages = RetainedPages(core.broker.retained, core.broker.pipeline, core.home.retained.sender)

        async def ask_retained(request: RetainedRead | RetainedFilters) -> RetainedPage | RetainedMatches:
            if core.name not in self._wires:
                raise Unavailable("the core is not connected", 1.0)
            answer = pages.answer(request)
            return answer if isinstance(answer, RetainedMatches) else await answer

        async def ask_batch(request: OpenBatch) -> BatchOpened | BatchRefused:
            if core.name not in self._wires:
                raise Unavailable("the core is not connected", 1.0)
            return await peer.calls.open_batch(request)

        home.ask_retained = ask_retained
        home.ask_batch = ask_batch
        self._wires[core.name] = [here, there, here_too, there_too]
        home.open_messages(here_too)

    def _wires_between(self) -> tuple[Wire, Wire]:
        one, two = Wire(self.cluster), Wire(self.cluster)
        one.other, two.other = two, one
        return one, two

    def cut(self, core: SimCore) -> None:
        """Lose both connections to a core, with everything on its way."""
        wires = self._wires.pop(core.name, None)
        if wires is None:
            return
        for wire in wires:
            wire.other = wire.on_frame = None
        peer = core.home.join(self.member, self._number)
        peer.calls.lose()
        peer.lose_messages()
        home = self.link.home(core.name)
        home.lose_calls()
        home.lose_messages()

    def freeze(self, core: SimCore, *, after: int = 0) -> None:
        """The core says nothing more, once each end of each connection has had so many frames; the connections stay."""
        for wire in self._wires[core.name]:
            wire.freeze(after)

    def thaw(self, core: SimCore) -> None:
        """The core goes on."""
        for wire in self._wires[core.name]:
            wire.thaw()

    def is_connected(self, core: SimCore) -> bool:
        return core.name in self._wires

    def open(self, version: int = MQTT5) -> Peer:
        """A connection on which nothing was sent yet."""
        return Peer(self.broker, version, self.cluster.loop, settle=self.cluster.settle)

    def client(self, client_id: str, **fields: Any) -> Peer:
        """A client that is connected to this node."""
        return self.open().connect(client_id, **fields)


class ManyCores:
    """The cluster."""

    def __init__(self, cores: int = 3, shards: int = 6, **tables: Any) -> None:
        self.loop = StillLoop()
        self.frames = 0  # that have arrived
        self.nodes: list[SimNode] = []
        names = [f"core{number + 1}" for number in range(cores)]
        self.led = {name: [shard for shard in range(shards) if shard % cores == at] for at, name in enumerate(names)}
        self.leaders = [names[shard % cores] for shard in range(shards)]
        tables = {**tables, "history": {"topics": ["#"], "shards": shards, **tables.get("history", {})}}
        self.cores: dict[str, SimCore] = {}
        self._links: dict[frozenset[str], tuple[Wire, Wire]] = {}
        self.calls: dict[tuple[str, str], SimCalls] = {}  # by who asks, and who is asked
        for name in names:
            self.cores[name] = SimCore(self, name, **tables)
        self.link_cores()

    def link_cores(self) -> None:
        """Connect the cores that are up with each other."""
        up = [core for core in self.cores.values() if core.is_up]
        for one, other in combinations(up, 2):
            if (pair := frozenset((one.name, other.name))) in self._links:
                continue
            here, there = Wire(self), Wire(self)
            here.other, there.other = there, here
            self._links[pair] = here, there
            calls = self.calls[one.name, other.name], self.calls[other.name, one.name] = SimCalls.pair(self.loop)
            for core, peer, wire, end in ((one, other, here, calls[0]), (other, one, there, calls[1])):
                core.home.on_core_up(peer.name, peer.life, end.as_calls, cast(PeerConnection, wire))
        self.settle()

    def cut_cores(self, core: SimCore) -> None:
        """A core is gone, for all others."""
        for pair in [each for each in self._links if core.name in each]:
            for wire in self._links.pop(pair):
                wire.other = wire.on_frame = None
            one, other = pair
            self.calls.pop((one, other)).cut()
            del self.calls[other, one]
            for name in pair - {core.name}:
                self.cores[name].home.on_core_down(core.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for core in self.cores.values():
            core.close()
        self.loop.close()

    def node(self, name: str, *, is_ready: bool = True) -> SimNode:
        """Another node, connected to every core that is up."""
        node = SimNode(self, name, 1000 + len(self.nodes))
        self.loop.run_until_complete(node.make())
        self.nodes.append(node)
        self.connect(node)
        assert node.is_ready or not is_ready
        return node

    def connect(self, node: SimNode) -> None:
        """Connect a node to every core that is up."""
        for core in self.cores.values():
            if core.is_up and not node.is_connected(core):
                node.connect(core)
        self.settle()

    def restart(self, core: SimCore) -> None:
        """A core comes back, and all nodes find it."""
        core.start_again()
        self.link_cores()
        for node in self.nodes:
            self.connect(node)

    def core_of(self, client_id: str) -> SimCore:
        """The home of a client id."""
        shard = self.nodes[0].link.shard_of(client_id)
        return next(self.cores[name] for name, led in self.led.items() if shard in led)

    def client_of(self, core: SimCore, prefix: str = "c") -> str:
        """A client id that is at home at a core."""
        return next(name for number in range(1000) if self.core_of(name := f"{prefix}{number}") is core)

    def settle(self) -> None:
        """Let everything happen that happens without time."""
        quiet = 0
        for _ in range(_TURNS_MAX):
            before = self._activity()
            for core in self.cores.values():
                if core.is_up:
                    core.sync()
            for core in self.cores.values():
                core.turn()
                break
            quiet = quiet + 1 if before == self._activity() else 0
            if quiet == _QUIET_TURNS:
                return
        raise AssertionError("the cluster does not come to rest")

    def _activity(self) -> tuple[int, ...]:
        brokers = [core.broker for core in self.cores.values()] + [node.broker for node in self.nodes if hasattr(node, "broker")]
        traffic = [
            value
            for broker in brokers
            for value in (broker.state.counters.bytes_sent, broker.state.counters.bytes_received, broker.state.turn)
        ]
        pending = [core.log.pending_bytes + core.is_writing for core in self.cores.values() if core.is_up]
        return (*pending, *traffic, self.frames)

    def wait(self, seconds: float) -> None:
        """Time passes, half a second at a time."""
        while seconds > 0:
            self.loop.now += min(0.5, seconds)
            seconds -= 0.5
            self.settle()
