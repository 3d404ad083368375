"""One core as a node sees it: the two connections to it, and what travels on them.

`replicant_side` makes the connections; everything here is called on the loop of the node's broker. The two connections, for calls
and for messages, come and go together: `replicant_side` opens the one for messages when the core has the node's declaration. What
a node has once, whatever the number of cores, is in `cluster_link`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

import msgspec

from braidmq.base.errors import BraidError, Unavailable
from braidmq.broker.broker import Broker
from braidmq.cluster.eventual.frames import EventualFrames
from braidmq.cluster.eventual.front import RegistryFront
from braidmq.cluster.protocol.claim_frames import ClaimFrames
from braidmq.cluster.protocol.parts import Send
from braidmq.cluster.registry.declaring import parts_of
from braidmq.cluster.remote.leases import CoreLeases, NodeLeases
from braidmq.cluster.remote.log.core_blocks import CoreBlocks
from braidmq.cluster.remote.log.remote_log import RemoteLog
from braidmq.cluster.remote.log.scans import RemoteScans
from braidmq.cluster.remote.producer_names import AskBatch
from braidmq.cluster.remote.registry import NodeRegistry
from braidmq.cluster.remote.retained_filters import AskRetained
from braidmq.cluster.rlog.exchange import RlogLink
from braidmq.cluster.rlog.replica import ReplicaState
from braidmq.cluster.slow_subscribers import RELEASED
from braidmq.lane.peers.peer import PeerFlow, PeerOutlet
from braidmq.lane.peers.peer_receiver import PeerReceiver
from braidmq.lane.records.records import VALUE_BYTES_MAX
from braidmq.net.frames import BODY_BYTES_MAX, BadFrame, FrameKind
from braidmq.net.proto_v1 import FeedStart, Marks, Position, ProbeAnswer
from braidmq.net.proto_v1_batches import BatchOpened, BatchRefused, OpenBatch
from braidmq.net.proto_v1_claims import ClaimId, Declare
from braidmq.net.proto_v1_retained import RetainedFilters, RetainedMatches, RetainedPage, RetainedRead

OUTLET_BYTES_MAX: Final = 8 * 1024 * 1024  # for one core; beyond it QoS 0 is dropped

_encode: Final = msgspec.msgpack.Encoder().encode
_marks: Final = msgspec.msgpack.Decoder(Marks)


class CoreConnection(Protocol):
    """A connection to a core, as `net.connection` makes it."""

    @property
    def waiting_bytes(self) -> int:
        """What was sent and not written yet."""

    def send(self, kind: FrameKind, destination: int, body: bytes, flags: int = 0) -> None:
        """Send a frame."""

    def flush(self) -> None:
        """Write now what was sent."""

    def pause_reading(self) -> None:
        """Hand out no more frames."""

    def resume_reading(self) -> None:
        """Hand out frames again."""


class LinkOwner(Protocol):
    """What the node has once, for all its cores; `cluster_link.ClusterLink`."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def broker(self) -> Broker: ...
    @property
    def registry(self) -> NodeRegistry: ...
    @property
    def front(self) -> RegistryFront:
        """Takes locks and ends channels, unless the linear registry alone decides."""

    @property
    def leases(self) -> NodeLeases: ...
    @property
    def log(self) -> RemoteLog: ...
    @property
    def flow(self) -> PeerFlow:
        """Stands for all other nodes among the destinations."""

    @property
    def sequence(self) -> int:
        """The last entry of this node's routes."""

    def own_position(self) -> dict[str, Position]:
        """How far this node's routes have come, by their origin."""

    def ask(self) -> None:
        """Ask for ``HomeLink.flush`` at the end of this turn."""

    def declaration(self, home: HomeLink) -> Declare:
        """The channels and claims of this node whose client ids are at home there."""

    def watch(self, home: HomeLink, send: Send) -> RlogLink:
        """A core is connected: tell it this node's routes."""

    def on_connected(self, home: HomeLink) -> None:
        """A core is connected for messages."""

    def on_lost(self, home: HomeLink) -> None:
        """A core is away."""

    def forget_routes(self, home: HomeLink) -> None:
        """A core has restarted, and has none of this node's routes."""

    def announce_again(self, home: HomeLink) -> None:
        """A core has restarted: tell it which clients are in groups and have exclusive topics."""

    def note_answer(self, home: HomeLink) -> None:
        """A core is told how far this node's routes have come."""

    def on_marks(self, home: HomeLink, marks: Marks) -> None:
        """A core has said how far the log, and the feed, are in its shards. Raises BadFrame."""

    def hold_publisher(self, client_id: str, is_held: bool) -> None:
        """What a client publishes fills a queue somewhere: it waits for a while, or goes on."""

    def judge_ready(self) -> None:
        """Something has changed on which it depends whether clients can be served."""


class HomeLink:
    """A core and the node's connections to it. `cluster_link` makes one for each core."""

    def __init__(self, node: LinkOwner, name: str, shards: Sequence[int], home_wait_s: float, bytes_max: int) -> None:
        """``shards``: those that the core leads."""
        self.name = name
        self.shards = shards
        self.ask_retained: AskRetained | None = None  # asks the core for retained messages; set while it can be called
        self.ask_batch: AskBatch | None = None  # opens batches of producers at the core; set like ``ask_retained``
        self.rlog: RlogLink | None = None
        self.outlet: PeerOutlet | None = None
        self.is_fed = False  # the core has said where the feed starts
        self.blocks = CoreBlocks(shards, self._send_block, node.loop.call_later, home_wait_s, bytes_max)
        self.scans = RemoteScans(self._send, shards=self.blocks.shards)
        self.leases: CoreLeases = node.leases.open(self._send, shards)
        self._node = node
        self.term = 0  # of its registry: the node accepts nothing of an earlier one (R14)
        self._calls: ClaimFrames | None = None
        self._eventual: EventualFrames | None = None
        self._messages: CoreConnection | None = None
        self._fences: ClaimFrames | None = None  # claims on the connection for messages: the ends of fenced channels
        self._receiver: PeerReceiver | None = None
        self._forwards = 0  # the number of the first forwarded message of the body at work
        self._received = 0  # messages before it
        self._is_new = False  # the core has to be told of group members and exclusive topics

    # The connection for calls

    def open_calls(self, connection: CoreConnection, term: int) -> Declare:
        """The node is connected for calls; what the core has to be told before the connection for messages is opened.

        ``term``: that of the core's registry.
        """
        self.term = max(self.term, term)
        self._calls = ClaimFrames(connection.send, self._node.ask)
        self._eventual = EventualFrames(connection.send, self._node.ask)
        self.open_eventual()
        parts, declare = parts_of(self._node.declaration(self))
        for part in parts:
            self._calls.say(part)
            self._calls.flush()
        return declare

    def receive_claims(self, flags: int, body: bytes | memoryview) -> None:
        """A frame of kind CLAIMS. Raises BraidError if it cannot be read."""
        assert self._calls is not None  # frames come after ``open_calls``
        for message in self._calls.receive(flags, body):
            answer = self._node.registry.receive(message, self.name)
            if answer is not None:
                self._calls.say(answer)

    def open_eventual(self) -> None:
        """The node takes locks and ends channels, or is connected for calls again."""
        if self._eventual is not None and self._node.front.node is not None:
            self._node.front.node.up(self.name, self._eventual.say)

    def receive_eventual(self, flags: int, body: bytes | memoryview) -> None:
        """A frame of kind EVENTUAL. Raises BraidError if it cannot be read, or this node has asked for no such thing."""
        if self._eventual is None or self._node.front.node is None:
            raise BraidError("this node takes no locks")
        for message in self._eventual.receive(flags, body):
            self._node.front.node.receive(self.name, message)

    def say_claim(self, message: ClaimId) -> None:
        """Ask for a client id that is at home here; nothing while the core is away: the declaration has it."""
        if self._calls is not None:
            self._calls.say(message)

    def lose_calls(self) -> None:
        """The connection for calls has ended."""
        self._calls = self._eventual = None
        if self._node.front.node is not None:
            self._node.front.node.down(self.name)

    def meet_new_core(self) -> None:
        """The core has restarted: it has to be told this node's routes again."""
        self._node.forget_routes(self)
        self.leases.forget_all()
        self._is_new = True

    async def read_retained(self, request: RetainedRead | RetainedFilters) -> RetainedPage | RetainedMatches:
        """A page of the core's retained messages, or which filters have some. Raises Unavailable."""
        if self.ask_retained is None:
            raise Unavailable(f"{self.name} is not connected", 1.0)
        return await self.ask_retained(request)

    async def open_batch(self, request: OpenBatch) -> BatchOpened | BatchRefused:
        """Open the batch of a producer's name at the core. Raises Unavailable and CallError."""
        if self.ask_batch is None:
            raise Unavailable(f"{self.name} is not connected", 1.0)
        return await self.ask_batch(request)

    # The connection for messages

    @property
    def is_connected(self) -> bool:
        """Whether the node is connected for messages."""
        return self._messages is not None

    def open_messages(self, connection: CoreConnection) -> None:
        """The node is connected for messages."""
        self.lose_messages()  # whose end was not noticed yet
        node = self._node
        broker, flow = node.broker, node.flow
        self._messages = connection
        self.outlet = PeerOutlet(self.name, broker.state, OUTLET_BYTES_MAX, BODY_BYTES_MAX)
        self.outlet.on_work = node.ask
        outcomes = broker.turn_writer.recorder.outcomes
        self._receiver = PeerReceiver(broker.lane, outcomes, flow, VALUE_BYTES_MAX)
        self.rlog = node.watch(self, self._send)
        self._fences = ClaimFrames(self._send, node.ask)
        positions = list(broker.state.marks) if self.is_fed else []
        self._send(FrameKind.MARKS, 0, _encode(FeedStart(positions, node.sequence)), 0)
        self.scans.connected()
        self.leases.connected()
        self.blocks.connected()
        node.on_connected(self)
        if self._is_new:
            self._is_new = False
            node.announce_again(self)

    def _send(self, kind: FrameKind, destination: int, body: bytes, flags: int) -> None:
        if self._messages is not None:
            self._messages.send(kind, destination, body, flags)

    def _send_block(self, kind: FrameKind, destination: int, body: bytes, flags: int) -> None:
        self._send(kind, destination, body, flags)
        self._node.ask()  # to have it written with what else the turn has

    def receive(self, kind: FrameKind, flags: int, destination: int, body: memoryview) -> None:
        """A frame of the connection for messages. Raises BraidError if a core does not send such frames."""
        assert self.rlog is not None  # frames come after ``open_messages``
        match kind:
            case FrameKind.QOS0 | FrameKind.FEED | FrameKind.FORWARD:
                if kind is FrameKind.FEED and destination not in self.blocks.shards:
                    raise BadFrame(f"a feed of shard {destination}, which {self.name} does not lead")
                self._receive_messages(kind, flags, destination, bytes(body))
            case FrameKind.LEASES:
                self.leases.receive(flags, body)
                self._node.broker.lane.flush()
            case FrameKind.BLOCK_ANSWERS:
                self._node.log.on_answer(self.blocks, destination, flags, body)
            case FrameKind.HOLD:
                self._node.hold_publisher(bytes(body).decode(errors="replace"), not flags)
            case FrameKind.CLAIMS:
                assert self._fences is not None
                for message in self._fences.receive(flags, body):
                    self._node.registry.receive(message, self.name)
            case FrameKind.RLOG:
                self.rlog.receive(destination, flags, body)
                self._node.judge_ready()
            case FrameKind.MARKS:
                self._on_marks(body)
            case FrameKind.SCAN:
                self.scans.on_frame(destination, flags, body)
            case FrameKind.PROBE:
                # It is in doubt about this node's routes until it has them so far (C23); and it must know all members by then.
                if not self._node.log.tell(self.blocks):
                    return
                self._node.note_answer(self)
                self._send(FrameKind.PROBE_ANSWER, destination, _encode(ProbeAnswer(self._node.own_position())), 0)
            case _:
                raise BraidError(f"a core does not send frames of kind {kind.name}")

    def say_hold(self, client_id: str, is_held: bool) -> None:
        """A subscriber here has no room for what a client publishes whose home is this core; or it has room again."""
        self._send(FrameKind.HOLD, 0, client_id.encode(), 0 if is_held else RELEASED)

    def _receive_messages(self, kind: FrameKind, flags: int, destination: int, body: bytes) -> None:
        receiver = self._receiver
        assert receiver is not None
        if kind is FrameKind.FORWARD:
            self._forwards, self._received = destination, receiver.messages
        if receiver.take(kind, flags, destination, body):
            self._on_processed(kind)
            return
        assert self._messages is not None
        self._messages.pause_reading()
        self._node.broker.turns.repeat(self, partial(self._go_on, receiver, kind))

    def _go_on(self, receiver: PeerReceiver, kind: FrameKind) -> bool:
        if receiver is not self._receiver or self._messages is None:
            return True  # its connection has ended
        if not receiver.go_on():
            return False
        self._on_processed(kind)
        self._messages.resume_reading()
        return True

    def _on_processed(self, kind: FrameKind) -> None:
        """A body has been handed to the recorder's outcomes, which show its messages."""
        broker, receiver = self._node.broker, self._receiver
        assert receiver is not None
        if kind is FrameKind.FORWARD and receiver.messages > self._received:
            last = self._forwards + receiver.messages - self._received - 1
            confirm = partial(self._send, FrameKind.FORWARDED, last, b"", 0)
            broker.turn_writer.recorder.outcomes.after_shown(confirm)
        elif kind is FrameKind.FEED:
            broker.turn_writer.on_shown()

    def _on_marks(self, body: memoryview) -> None:
        try:
            marks = _marks.decode(body)
        except msgspec.MsgspecError as problem:
            raise BadFrame(f"marks cannot be read: {problem}") from None
        self._node.on_marks(self, marks)
        self.is_fed = True
        self._node.judge_ready()

    def lose_messages(self, connection: CoreConnection | None = None) -> None:
        """The connection for messages has ended; nothing is lost if another one has taken its place."""
        if self._messages is None or connection not in (None, self._messages):
            return
        self._messages = None
        if self.rlog is not None:
            self.rlog.close()
        self.outlet = self._receiver = self.rlog = self._fences = None
        self.scans.lost()
        self._node.on_lost(self)
        self.leases.lost()
        self.blocks.lost()

    @property
    def is_following(self) -> bool:
        """Whether the node has all routes that the core has, and is told of new ones."""
        return self.rlog is not None and self.rlog.state is ReplicaState.NORMAL

    # Turns

    def flush(self) -> None:
        """Send what this turn has for the core."""
        if self._calls is not None:
            self._calls.flush()
        if self._eventual is not None:
            self._eventual.flush()
        self.leases.flush()
        connection, outlet = self._messages, self.outlet
        if connection is None or outlet is None:
            return
        for kind, flags, destination, body in outlet.take_frames():
            connection.send(FrameKind(kind), destination, body, flags)
        connection.flush()
        outlet.note_unwritten(connection.waiting_bytes)

    def note_room(self) -> None:
        """The connection for messages takes more."""
        if self._messages is not None and self.outlet is not None:
            self.outlet.note_unwritten(self._messages.waiting_bytes)

    @property
    def outlet_bytes(self) -> int:
        """What waits to be sent to the core, blocks aside."""
        outlet = self.outlet
        return 0 if outlet is None else outlet.waiting_bytes + outlet.unwritten_bytes
