"""A core and its replicants in one process, on one loop whose clock stands still: no sockets, real brokers, the real log."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from braidmq.access.local import LocalAccess
from braidmq.base.config.cluster_settings import ClusterSettings, RegistrySettings
from braidmq.base.errors import Unavailable
from braidmq.broker.broker import Broker
from braidmq.broker.messages import hooks
from braidmq.broker.session.ports import NodePorts
from braidmq.cluster.home.home import Home
from braidmq.cluster.home.retained_pages import RetainedPages
from braidmq.cluster.membership.member import Member
from braidmq.cluster.remote.cluster_link import ClusterLink
from braidmq.cluster.rlog.agent import PACE
from braidmq.mqtt.packets import MQTT5
from braidmq.net.frames import FrameKind
from braidmq.net.proto_v1_retained import RetainedFilters, RetainedMatches, RetainedPage, RetainedRead
from braidmq.storage.log import LogOptions
from tests.support.simulator.peer import Peer
from tests.support.simulator.world import World

OnFrame = Callable[[FrameKind, int, int, memoryview], None]


class NodeWire:
    """One end of a connection between two nodes; frames arrive in order, each in a turn of its own."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._loop = world.loop
        self.other: NodeWire | None = None
        self.on_frame: OnFrame | None = None
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

    @property
    def has_arrivals(self) -> bool:
        """Whether frames have arrived that were not handed out."""
        return bool(self._arrived)

    def _schedule(self) -> None:
        if self._arrived and not self._is_paused and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._is_scheduled = False
        if self._arrived and not self._is_paused and self.on_frame is not None:
            kind, flags, destination, body = self._arrived.popleft()
            self._world.frames += 1
            self.on_frame(kind, flags, destination, memoryview(body))
        self._schedule()

    def flush(self) -> None:
        """What was sent is on its way already."""

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._schedule()

    def close(self, reason: str) -> None:
        """The tests cut connections themselves."""


def wires(world: ClusterWorld) -> tuple[NodeWire, NodeWire]:
    """Two ends of a connection."""
    one, two = NodeWire(world), NodeWire(world)
    one.other, two.other = two, one
    return one, two


class Replicant:
    """A node without a database."""

    def __init__(self, world: ClusterWorld, name: str, number: int) -> None:
        self.world = world
        self.name = name
        self._number = number
        self.member = Member(name, number)
        self.node = ClusterLink(
            self.member, {"core1": range(world.log.shards)}, world.loop, ClusterSettings(), RegistrySettings()
        )
        self.link = self.node.home("core1")
        self.link.ask_retained = self._ask_retained
        self._pages: RetainedPages | None = None
        self._wires: list[NodeWire] = []
        self.is_ready = False

    async def make(self) -> None:
        settings = self.world.settings
        access = LocalAccess(settings)
        self.broker = Broker(settings, access, hooks.load((), 1.0), self.node.storage, self.world.loop.time, self.node.ports)
        self.node.serve(self.broker)

    async def _ask_retained(self, request: RetainedRead | RetainedFilters) -> RetainedPage | RetainedMatches:
        if self._pages is None:
            raise Unavailable("the core is not connected", 1.0)
        answer = self._pages.answer(request)
        return answer if isinstance(answer, RetainedMatches) else await answer

    def connect(self) -> None:
        """Register and connect, as `replicant_side` does."""
        home = self.world.home
        peer = home.join(self.member, self._number)
        here, there = wires(self.world)
        here.on_frame = lambda kind, flags, destination, body: self.link.receive_claims(flags, body)
        there.on_frame = lambda kind, flags, destination, body: peer.calls.receive_claims(flags, body)
        peer.calls.open(there)
        peer.calls.declare(self.link.open_calls(here, home.registry.term))
        self.link.blocks.wants_presence = peer.wants_presence
        here_too, there_too = wires(self.world)
        here_too.on_frame, there_too.on_frame = self.link.receive, peer.receive
        peer.open_messages(there_too)
        self.node.on_ready = self._on_ready
        self.link.open_messages(here_too)
        self._pages = RetainedPages(self.world.broker.retained, self.world.broker.pipeline)
        self._wires = [here, there, here_too, there_too]
        self.world.settle()

    @property
    def core_wire(self) -> NodeWire:
        """The core's end of the connection for messages."""
        return self._wires[3]

    @property
    def calls_wire(self) -> NodeWire:
        """The node's end of its connection for calls."""
        return self._wires[0]

    @property
    def messages_wire(self) -> NodeWire:
        """The node's end of its connection for messages."""
        return self._wires[2]

    def _on_ready(self) -> None:
        self.is_ready = True

    def cut(self) -> None:
        """Lose both connections, with everything on its way."""
        for wire in self._wires:
            wire.other = wire.on_frame = None
        peer = self.world.home.join(self.member, self._number)
        peer.calls.lose()
        peer.lose_messages()
        self.link.lose_calls()
        self.link.lose_messages()
        self._pages = None
        self.world.settle()

    def die(self) -> None:
        """The process ends; the core notices."""
        for wire in self._wires:
            wire.other = wire.on_frame = None
        self.world.home.bury(self.member)
        self.world.replicants.remove(self)
        self.world.settle()

    def open(self) -> Peer:
        """A connection to this node on which nothing was sent yet."""
        return Peer(self.broker, MQTT5, self.world.loop, settle=self.world.settle)

    def client(self, client_id: str, **fields: Any) -> Peer:
        """A client that is connected to this node."""
        return self.open().connect(client_id, **fields)


class ClusterWorld(World):
    """A core with its data directory, and replicants beside it."""

    def __init__(self, options: LogOptions | None = None, **tables: Any) -> None:
        self.replicants: list[Replicant] = []
        self._members = 0
        self.frames = 0  # that have arrived
        super().__init__(options, **tables)

    async def _make_broker(self, ports: NodePorts) -> Broker:
        self.home = self._make_home()
        broker = await super()._make_broker(self.home.ports)
        self.home.serve(broker)
        return broker

    def _make_home(self) -> Home:
        return Home(Member("core1", self._lives + 1), 2.0, PACE, self.log)

    def replicant(self, name: str) -> Replicant:
        """Another node, connected."""
        self._members += 1
        replicant = Replicant(self, name, 1000 + self._members)
        self.loop.run_until_complete(replicant.make())
        self.replicants.append(replicant)
        replicant.connect()
        assert replicant.is_ready
        return replicant

    def client(self, client_id: str, **fields: Any) -> Peer:
        """A client that is connected to the core."""
        return self.connect(client_id, **fields)

    def _activity(self) -> tuple[int, ...]:
        counters = [each.broker.state.counters for each in self.replicants if hasattr(each, "broker")]
        nodes = [value for each in counters for value in (each.bytes_sent, each.bytes_received)]
        return (*super()._activity(), *nodes, self.frames)
