"""A replicant's core, put together: what the node's broker finds behind its ports, and the connections behind that.

`replicant_side` makes the connections; everything here is called on the loop of the node's broker. The two connections, for calls
and for messages, come and go together: `replicant_side` opens the one for messages when the core has the node's declaration.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

import msgspec

from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.broker.ports import Storage
from braidmq.broker.session.ports import NodePorts, RetainedReads, Routes
from braidmq.broker.shared.membership import Memberships
from braidmq.broker.turn import Phase
from braidmq.cluster.claim_frames import ClaimFrames
from braidmq.cluster.member import Member
from braidmq.cluster.node_claims import NodeClaims
from braidmq.cluster.remote.exclusive import NodeExclusiveTopics
from braidmq.cluster.remote.leases import NodeLeases
from braidmq.cluster.remote.log import RemoteLog
from braidmq.cluster.remote.registry import NodeRegistry
from braidmq.cluster.remote.retained import AskPage, CoreRetained
from braidmq.cluster.remote.rows import RemoteDelayed, RemoteGroups, RemoteProducers, RemoteRetained, RemoteSessions
from braidmq.cluster.remote.scans import RemoteScans
from braidmq.cluster.rlog.exchange import RlogExchange, RlogLink
from braidmq.cluster.rlog.replica import ReplicaState
from braidmq.cluster.rlog.tables import RowChange, Tables
from braidmq.cluster.routes import OwnRoutes, WantedRoutes, count_routes, origin_of
from braidmq.lane.path.peer import PeerFlow, PeerOutlet
from braidmq.lane.path.peer_receiver import PeerReceiver
from braidmq.lane.path.subscription import Subscription
from braidmq.lane.records.records import VALUE_BYTES_MAX
from braidmq.mqtt.reasons import Reason
from braidmq.net.frames import BODY_BYTES_MAX, BadFrame, FrameKind
from braidmq.net.proto_v1 import ClaimMessage, Declare, FeedStart, Marks, Position, ReleaseEntry, WithdrawEntry
from braidmq.storage.reading.positions import parse_start

log = logging.getLogger("braidmq.cluster")

OUTLET_BYTES_MAX: Final = 8 * 1024 * 1024  # for the core; beyond it QoS 0 is dropped

_encode: Final = msgspec.msgpack.Encoder().encode
_marks: Final = msgspec.msgpack.Decoder(Marks)


class CoreConnection(Protocol):
    """A connection to the core, as `net.connection` makes it."""

    @property
    def waiting_bytes(self) -> int:
        """What was sent and not written yet."""

    def send(self, kind: FrameKind, destination: int, body: bytes, flags: int = 0) -> None:
        """Send a frame."""

    def pause_reading(self) -> None:
        """Hand out no more frames."""

    def resume_reading(self) -> None:
        """Hand out frames again."""


class CoreLink:
    """The core as its replicant sees it. ``storage`` and ``ports`` are for the broker; ``serve`` follows with the broker."""

    def __init__(
        self, member: Member, shards: int, loop: asyncio.AbstractEventLoop, home_wait_s: float, ask_page: AskPage
    ) -> None:
        """``member``: this node. ``ask_page`` asks the core for retained messages."""
        self._member = member
        self._origin = origin_of(member.name)
        self._loop = loop
        self._ask_page = ask_page
        self._broker: Broker | None = None
        self._calls: ClaimFrames | None = None
        self._messages: CoreConnection | None = None
        self._fences: ClaimFrames | None = None  # claims on the connection for messages: the ends of fenced channels
        self._outlet: PeerOutlet | None = None
        self._receiver: PeerReceiver | None = None
        self._link: RlogLink | None = None
        self._forwards = 0  # the number of the first forwarded message of the body at work
        self._received = 0  # messages before it
        self._is_new_core = False  # it has to be told of group members and exclusive topics
        self._is_fed = False  # the core has said where the feed starts
        self.on_ready: Callable[[], None] | None = None  # called once, when clients can be served
        self._scans = RemoteScans(self._send)
        producers = RemoteProducers(shards)
        self.registry = NodeRegistry(NodeClaims(), self, loop, self._say_claim, self._close_client, producers.learn, home_wait_s)
        self.log = RemoteLog(
            shards,
            self._send,
            self._scans,
            self.registry,
            loop.call_later,
            home_wait_s=home_wait_s,
            on_fenced=self.registry.on_fenced,
        )
        self.storage = Storage(
            self.log,
            RemoteSessions(shards),
            RemoteRetained(shards),
            RemoteDelayed(shards),
            RemoteGroups(shards),
            parse_start,
            producers,
        )
        self._leases = NodeLeases(shards, self._send, self._ask, lambda channel: self.registry.client_of(channel) is not None)
        self._exclusive = NodeExclusiveTopics(shards, self.registry.of_client)
        self._tables = Tables(self._on_rows)
        self._tables.open(self._origin, member.incarnation)
        self._exchange = RlogExchange(self._tables, self._origin, is_core=False, ask=self._ask, on_applied=self._on_applied)
        self._routes: OwnRoutes | None = None
        self._wanted: WantedRoutes | None = None
        self._uplink: Subscription | None = None
        self._flow: PeerFlow | None = None

    @property
    def ports(self) -> NodePorts:
        """What the node's broker uses in place of its own parts."""
        return NodePorts(
            registry=self.registry,
            groups=self._leases,
            exclusive=self._exclusive,
            extend_routes=self._extend_routes,
            extend_retained=self._extend_retained,
            is_home=False,
        )

    def _extend_routes(self, routes: Routes) -> Routes:
        self._routes = OwnRoutes(routes, self._tables, self._origin, self._ask)
        return self._routes

    def _extend_retained(self, retained: RetainedReads) -> RetainedReads:
        return CoreRetained(retained, self._ask_page, self._loop)

    def serve(self, broker: Broker) -> None:
        """The broker is made: from now on the core can be connected."""
        self._broker = broker
        recorder = broker.turn_writer.recorder
        recorder.is_remote = True
        broker.routes.keep_all = True
        self.log.outcomes = recorder.outcomes
        self.log.collect = broker.turn_writer.pass_on
        self.log.ask_flush = partial(broker.turn.ask, Phase.WRITE)
        source = broker.sharing.source
        source.showing.is_remote = True
        source.may_follow = self._may_follow
        broker.turn.at_end(Phase.PEERS, self._flush)
        assert isinstance(broker.groups, Memberships)  # made of the ports
        self._leases.serve(broker.groups)
        self._exclusive.serve(broker.turn_writer)
        self._flow = PeerFlow("core", broker.state, is_uplink=True)
        self._uplink = uplink = Subscription(self._flow, b"#", 0, retain_as_published=True)
        self._wanted = WantedRoutes(broker.routes, self._tables, self._origin, lambda node: uplink, shares=True)

    # What the registry asks

    def shard_of(self, client_id: str) -> int:
        """The shard of a client id."""
        return self.log.shard_of(client_id)

    def add_entry(self, shard: int, entry: ReleaseEntry | WithdrawEntry, on_answer: Callable[[], None]) -> None:
        """Put an entry behind everything that was collected so far, and behind what became of messages that were lent."""
        self._leases.flush()
        self._exclusive.forget(entry.channel)

        def answered() -> None:
            self._leases.forget(entry.channel)
            on_answer()

        self.log.add_entry(shard, entry, answered)

    def _say_claim(self, message: ClaimMessage) -> None:
        if self._calls is not None:
            self._calls.say(message)

    def _close_client(self, client_id: str) -> None:
        """Another connection has the client id."""
        assert self._broker is not None
        session = self._broker.sessions.get(client_id)
        if session is not None and session.connection is not None:
            self._broker.statistics.taken_over += 1
            session.connection.close(Reason.SESSION_TAKEN_OVER, "another connection uses this client id")
            self._broker.lane.flush()

    # The connection for calls

    def open_calls(self, connection: CoreConnection) -> Declare:
        """The node is connected for calls; what the core has to be told before the connection for messages is opened."""
        self._calls = ClaimFrames(connection.send, self._ask)
        return self.registry.declaration()

    def receive_claims(self, flags: int, body: bytes | memoryview) -> None:
        """A frame of kind CLAIMS. Raises BraidError if it cannot be read."""
        assert self._calls is not None  # frames come after ``open_calls``
        for message in self._calls.receive(flags, body):
            self.registry.receive(message)

    def lose_calls(self) -> None:
        """The connection for calls has ended."""
        self._calls = None

    def meet_new_core(self) -> None:
        """The core has restarted: it has to be told this node's routes again."""
        if self._routes is not None:
            self._routes.forget_known()
        self._leases.forget_all()
        self._is_new_core = True

    # The connection for messages

    def open_messages(self, connection: CoreConnection) -> None:
        """The node is connected for messages."""
        broker, flow = self._broker, self._flow
        assert broker is not None
        assert flow is not None
        self._messages = connection
        self._outlet = PeerOutlet("core", broker.state, OUTLET_BYTES_MAX, BODY_BYTES_MAX)
        self._outlet.on_work = self._ask
        flow.attach(self._outlet, 0)
        outcomes = broker.turn_writer.recorder.outcomes
        self._receiver = PeerReceiver(broker.lane, outcomes, flow, VALUE_BYTES_MAX)
        self._link = self._exchange.open(self._send, lambda origin: origin != self._origin)
        self._link.watch()
        self._fences = ClaimFrames(self._send, self._ask)
        assert self._routes is not None
        positions = list(broker.state.marks) if self._is_fed else []
        self._send(FrameKind.MARKS, 0, _encode(FeedStart(positions, self._routes.sequence)), 0)
        self._scans.connected()
        self._leases.connected()
        self.log.connected()
        if self._is_new_core:
            self._is_new_core = False
            self._leases.announce_again()
            self._exclusive.announce_again(self.registry.client_of)

    def _send(self, kind: FrameKind, destination: int, body: bytes, flags: int) -> None:
        if self._messages is not None:
            self._messages.send(kind, destination, body, flags)

    def receive(self, kind: FrameKind, flags: int, destination: int, body: memoryview) -> None:
        """A frame of the connection for messages. Raises BraidError if a core does not send such frames."""
        assert self._link is not None  # frames come after ``open_messages``
        match kind:
            case FrameKind.QOS0 | FrameKind.FEED | FrameKind.FORWARD:
                self._receive_messages(kind, flags, destination, bytes(body))
            case FrameKind.LEASES:
                self._leases.receive(flags, body)
                if self._broker is not None:
                    self._broker.lane.flush()
            case FrameKind.BLOCK_ANSWERS:
                self.log.on_answer(destination, flags, body)
            case FrameKind.CLAIMS:
                assert self._fences is not None
                for message in self._fences.receive(flags, body):
                    self.registry.receive(message)
            case FrameKind.RLOG:
                self._link.receive(destination, flags, body)
                self._judge_ready()
            case FrameKind.MARKS:
                self._on_marks(body)
            case FrameKind.SCAN:
                self._scans.on_frame(destination, flags, body)
            case _:
                raise BraidError(f"a core does not send frames of kind {kind.name}")

    def _receive_messages(self, kind: FrameKind, flags: int, destination: int, body: bytes) -> None:
        receiver, broker = self._receiver, self._broker
        assert receiver is not None
        assert broker is not None
        if kind is FrameKind.FORWARD:
            self._forwards, self._received = destination, receiver.messages
        if receiver.take(kind, flags, destination, body):
            self._on_processed(kind)
            return
        assert self._messages is not None
        self._messages.pause_reading()
        broker.turns.repeat(self, partial(self._go_on, receiver, kind))

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
        broker, receiver = self._broker, self._receiver
        assert broker is not None
        assert receiver is not None
        if kind is FrameKind.FORWARD and receiver.messages > self._received:
            last = self._forwards + receiver.messages - self._received - 1
            confirm = partial(self._send, FrameKind.FORWARDED, last, b"", 0)
            broker.turn_writer.recorder.outcomes.after_shown(confirm)
        elif kind is FrameKind.FEED:
            broker.turn_writer.on_shown()

    def _on_marks(self, body: memoryview) -> None:
        broker = self._broker
        assert broker is not None
        try:
            marks = _marks.decode(body)
        except msgspec.MsgspecError as problem:
            raise BadFrame(f"marks cannot be read: {problem}") from None
        self.log.on_marks(marks)
        broker.turn_writer.recorder.outcomes.advance_marks(marks.positions)
        broker.turn_writer.on_shown()
        self._is_fed = True
        self._judge_ready()

    def lose_messages(self) -> None:
        """The connection for messages has ended."""
        if self._messages is None:
            return
        self._messages = None
        if self._link is not None:
            self._link.close()
        if self._flow is not None:
            self._flow.detach()
        self._outlet = self._receiver = self._link = self._fences = None
        self._scans.lost()
        self._leases.lost()
        self.log.lost()

    # Routes

    def _on_rows(self, changes: list[RowChange]) -> None:
        if self._wanted is not None:
            self._wanted.apply(changes)

    def _on_applied(self, link: RlogLink, origin: str, position: Position) -> None:
        """The core has this much of this node's routes."""
        if origin == self._origin and position.incarnation == self._member.incarnation and self._routes is not None:
            self._routes.note_known(position.sequence)
            if self._broker is not None:
                self._broker.turn_writer.on_shown()  # readers may have waited for that

    def _may_follow(self, filters: Sequence[str]) -> bool:
        return self._routes is None or self._routes.has_all(filters)

    # Turns

    def _ask(self) -> None:
        if self._broker is not None:
            self._broker.turn.ask(Phase.PEERS)

    def _flush(self) -> None:
        self._exchange.run()
        if self._calls is not None:
            self._calls.flush()
        self._leases.flush()
        connection, outlet = self._messages, self._outlet
        if connection is None or outlet is None:
            return
        for kind, flags, destination, body in outlet.take_frames():
            connection.send(FrameKind(kind), destination, body, flags)
        outlet.note_unwritten(connection.waiting_bytes)

    def note_room(self) -> None:
        """The connection for messages takes more."""
        if self._messages is not None and self._outlet is not None:
            self._outlet.note_unwritten(self._messages.waiting_bytes)

    def _judge_ready(self) -> None:
        if self.on_ready is None or not self._is_fed or self._link is None or self._link.state is not ReplicaState.NORMAL:
            return
        on_ready, self.on_ready = self.on_ready, None
        on_ready()

    @property
    def outlet_bytes(self) -> int:
        """What waits to be sent to the core, blocks aside."""
        outlet = self._outlet
        return 0 if outlet is None else outlet.waiting_bytes + outlet.unwritten_bytes

    @property
    def scans(self) -> int:
        """Scans of the core's log that are open."""
        return len(self._scans)

    def count_routes(self) -> tuple[int, int]:
        """The filters that this node has announced, and those of all others."""
        return count_routes(self._tables, self._origin)

    def close(self) -> None:
        """The node stops."""
        self.log.close()
