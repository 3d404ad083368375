"""The other cores, as this one sees them: each has a link for the replication log and for probes.

The members' side makes the connections, and says when one is there or gone. Cores exchange durable routes only: what concerns
nodes, nodes say to every core themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

import msgspec

from braidmq.base.errors import BraidError
from braidmq.cluster.cores.durable_routes import DurableRoutes
from braidmq.cluster.cores.knowledge import KnownElsewhere
from braidmq.cluster.home.confidence import Confidence
from braidmq.cluster.membership.led_shards import LedShards
from braidmq.cluster.rlog.exchange import RlogExchange, RlogLink
from braidmq.cluster.rlog.origins import durable_origin
from braidmq.cluster.rlog.replica import ReplicaState
from braidmq.net.frames import BadFrame, FrameKind
from braidmq.net.proto_v1 import Position, ProbeAnswer

_encode: Final = msgspec.msgpack.Encoder().encode
_answer: Final = msgspec.msgpack.Decoder(ProbeAnswer)


class CorePeerConnection(Protocol):
    """The connection for messages between two cores, as `net.connection` makes it."""

    def send(self, kind: FrameKind, destination: int, body: bytes, flags: int = 0) -> None:
        """Send a frame."""


class Later(Protocol):
    """Calls back after a while; an event loop."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> object:
        """Call back after these seconds."""


def decode_probe_answer(body: bytes | memoryview) -> ProbeAnswer:
    """The answer to a probe. Raises BadFrame."""
    try:
        return _answer.decode(body)
    except msgspec.MsgspecError as problem:
        raise BadFrame(f"the answer to a probe cannot be read: {problem}") from None


class CorePeer:
    """One of them; subject of the home's probes."""

    def __init__(self, cores: CorePeers, name: str, shards: Iterable[int]) -> None:
        self.name = name
        self.origins = frozenset(durable_origin(shard) for shard in shards)
        self.link: RlogLink | None = None
        self.was_heard = False  # it has said everything that it knows, since this core was started
        self._cores = cores
        self._connection: CorePeerConnection | None = None

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    def open(self, connection: CorePeerConnection, exchange: RlogExchange) -> None:
        """There is a connection."""
        self._connection = connection
        self.link = exchange.open(self._send_frame, self.origins.__contains__)
        self.link.watch()

    def _send_frame(self, kind: FrameKind, destination: int, body: bytes, flags: int) -> None:
        if self._connection is not None:
            self._connection.send(kind, destination, body, flags)

    def probe(self, number: int) -> None:
        """Ask how far its durable routes have come."""
        self._send_frame(FrameKind.PROBE, number, b"", 0)

    def receive(self, kind: FrameKind, flags: int, destination: int, body: bytes | memoryview) -> None:
        """A frame of the connection for messages. Raises BraidError if a core does not send such frames to another one."""
        if self.link is None:
            return  # the connection is over
        match kind:
            case FrameKind.RLOG:
                self.link.receive(destination, flags, body)
                self.was_heard = self.was_heard or self.link.state is ReplicaState.NORMAL
            case FrameKind.PROBE:
                answer = self._cores.answer(self)
                self._send_frame(FrameKind.PROBE_ANSWER, destination, _encode(answer), 0)
            case FrameKind.PROBE_ANSWER:
                self._cores.confidence.answered(self.name, destination, decode_probe_answer(body).positions)
            case _:
                raise BraidError(f"a core does not send frames of kind {kind.name} to another core")

    def close(self) -> None:
        """The connection is gone."""
        link, self.link, self._connection = self.link, None, None
        if link is not None:
            link.close()


class CorePeers:
    """All of them."""

    def __init__(
        self,
        led: LedShards,
        durable: DurableRoutes,
        exchange: RlogExchange,
        confidence: Confidence[object],
        clock: Callable[[], float],
    ) -> None:
        """``clock``: seconds that go on while the machine is suspended."""
        self.confidence = confidence
        self._cores = {name: CorePeer(self, name, shards) for name, shards in led.others.items()}
        self._durable = durable
        self._exchange = exchange
        self._clock = clock
        self._known = KnownElsewhere(self._cores, clock())
        self._loop: Later | None = None
        self._is_scheduled = False
        for name in self._cores:
            confidence.expect(name)

    def serve(self, loop: Later) -> None:
        """Blocks can be taken from now on."""
        self._loop = loop

    def __getitem__(self, name: str) -> CorePeer:
        return self._cores[name]

    @property
    def connected(self) -> list[CorePeer]:
        """Those with a connection."""
        return [core for core in self._cores.values() if core.is_connected]

    @property
    def were_heard(self) -> bool:
        """Whether all of them have said what they know, since this core was started."""
        return all(core.was_heard for core in self._cores.values())

    def up(self, name: str, connection: CorePeerConnection) -> CorePeer:
        """There is a connection to a core, which may have restarted."""
        core = self._cores[name]
        core.close()
        self.confidence.lost(name)
        core.open(connection, self._exchange)
        self._exchange.ask()
        return core

    def down(self, name: str) -> None:
        """The connection to a core is gone; its routes stay."""
        self._cores[name].close()
        self.confidence.lost(name)

    def answer(self, core: CorePeer) -> ProbeAnswer:
        """How far this core's durable routes have come, for another core that is about to rely on it."""
        self._known.note_answer(core.name, self._clock())
        return ProbeAnswer(self._durable.positions())

    def note_applied(self, link: RlogLink, origin: str, position: Position) -> None:
        """A peer has this much of an origin."""
        for core in self._cores.values():
            if core.link is link:
                self._known.note_applied(core.name, origin, position)
                self._known.run(self._clock())
                return

    def when_known(self, on_done: Callable[[], None]) -> None:
        """Call back when all cores have the durable routes that were written so far, or are in doubt about them."""
        written = {origin: position for origin, position in self._durable.positions().items() if position.sequence}
        self._known.wait(written, self._clock(), on_done)
        self._watch_time()

    def _watch_time(self) -> None:
        due = self._known.next_due
        if due is not None and not self._is_scheduled and self._loop is not None:
            self._is_scheduled = True
            self._loop.call_later(max(0.0, due - self._clock()), self._on_time)

    def _on_time(self) -> None:
        self._is_scheduled = False
        self._known.run(self._clock())
        self._watch_time()
