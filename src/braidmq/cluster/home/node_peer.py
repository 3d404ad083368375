"""One node as its core sees it, from its registration to its death.

It has two connections, for calls and for messages, which come and go together. What a turn of the loop has for the node is sent
at the end of the turn, in this order: messages and records, the answers to its blocks, the marks of its feed. So subscribers on
the node have a message no later than its publisher has the acknowledgement.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final

import msgspec
from msgspec import Struct

from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.cluster.cores.core_peers import decode_probe_answer
from braidmq.cluster.eventual.core_side import EventualCore
from braidmq.cluster.home.blocks.blocks import HomeBlocks
from braidmq.cluster.home.confidence import Confidence
from braidmq.cluster.home.feeds import FeedNeeds, NodeFeed
from braidmq.cluster.home.forwarding import Forwarding
from braidmq.cluster.home.led_log import LedLog
from braidmq.cluster.home.lending import Lending, NodeDesk
from braidmq.cluster.home.node_calls import NodeCalls, NodeConnection
from braidmq.cluster.home.retained.sender import IntentSender
from braidmq.cluster.home.scans import HomeScans, ScannedLog
from braidmq.cluster.home.sessions.registry import HomeRegistry
from braidmq.cluster.membership.led_shards import LedShards
from braidmq.cluster.membership.member import Member
from braidmq.cluster.protocol.lease_frames import STATEMENT, decode_results, decode_statement
from braidmq.cluster.protocol.parts import BodyParts, split
from braidmq.cluster.rlog.exchange import RlogExchange, RlogLink
from braidmq.cluster.rlog.origins import written_with
from braidmq.cluster.routes import origin_of
from braidmq.cluster.slow_subscribers import RELEASED
from braidmq.lane.path.message import Message
from braidmq.lane.peers.peer import PeerFlow, PeerOutlet
from braidmq.lane.peers.peer_receiver import PeerReceiver
from braidmq.lane.records.records import VALUE_BYTES_MAX
from braidmq.lane.routing.routes import Route
from braidmq.lane.routing.subscription import Subscription
from braidmq.net.frames import BODY_BYTES_MAX, BadFrame, FrameKind
from braidmq.net.proto_v1 import FeedStart, Marks, Position
from braidmq.storage.log import DurableLog

log = logging.getLogger("braidmq.cluster")

OUTLET_BYTES_MAX: Final = 8 * 1024 * 1024  # for one node; beyond it QoS 0 is dropped and the feed reads the log
_FILTERS_MAX: Final = 1000  # looked at for a feed that reads the log

# Why nothing is read from a node.
_BUSY, _FULL, _EARLY = "its QoS 0 messages are too many for one turn", "too many blocks are unanswered", "nodes have to declare"

_encode: Final = msgspec.msgpack.Encoder().encode
_feed_start: Final = msgspec.msgpack.Decoder(FeedStart)


class PeerView(Struct, frozen=True, kw_only=True):
    """Figures about one node. The feed's lag is in microseconds of the log, that of the replication log in entries."""

    is_connected: bool
    is_lagging: bool
    is_feeding: bool
    is_behind: bool
    feed_lag_us: int
    outlet_bytes: int
    unanswered_bytes: int
    rlog_lag: int
    rlog_state: str
    routes: int
    rlog_sequence: int
    scans: int
    blocks_refused: int
    entries_fenced: int


class NodePeer:
    """One node. `home.Home` makes it, and gives it its connections."""

    def __init__(
        self,
        member: Member,
        broker: Broker,
        registry: HomeRegistry,
        exchange: RlogExchange,
        blocks: HomeBlocks,
        forwarding: Forwarding,
        lending: Lending,
        log: DurableLog,
        clock: Callable[[], int],
        ask: Callable[[], None],
        led: LedShards,
        confidence: Confidence[object] | None,
        hold_elsewhere: Callable[[str, bool], None],
        intents: IntentSender | None,
        eventual: EventualCore,
    ) -> None:
        """``clock``: that of the log, in microseconds. ``ask`` asks for ``flush`` at the end of this turn of the loop.

        ``hold_elsewhere``: the node has no room for what a client publishes, wherever that is; or it has room again. ``intents``:
        retained messages for other homes, if there are several cores.
        """
        self.member = member
        self.calls = NodeCalls(member, broker, registry, ask, self._send, intents, eventual)
        self.flow = PeerFlow(member.name, broker.state)
        self.destination = Subscription(self.flow, b"#", 2, retain_as_published=True)
        self._broker = broker
        self._registry = registry
        self._exchange = exchange
        self._blocks = blocks
        self._forwarding = forwarding
        self._lending = lending
        self._desk: NodeDesk | None = None
        self._statements = BodyParts()
        self._log = log
        self._led = led
        self._confidence = confidence
        self._hold_elsewhere = hold_elsewhere
        self._holding: set[str] = set()  # the publishers that this node has no room for
        self._read: ScannedLog = log if led.is_all else LedLog(log, led)
        self._scans: HomeScans | None = None
        self._clock = clock
        self._ask = ask
        self._messages: NodeConnection | None = None
        self._outlet: PeerOutlet | None = None
        self._floors: list[int] = []  # as the node was told
        self._forwarded = 0  # the number of the last message that was forwarded on an earlier connection
        self._receiver: PeerReceiver | None = None
        self._link: RlogLink | None = None
        self._feed: NodeFeed | None = None
        self._answers: list[tuple[FrameKind, int, bytes, int]] = []  # to blocks, of this turn
        self._paused_for: set[str] = set()  # why nothing is read from the node
        self._start: FeedStart | None = None  # of the feed, until the core has the node's routes

    @property
    def wants_presence(self) -> bool:
        """Whether hooks on this core want to hear of clients that connect and disconnect."""
        return self._broker.hooks.follows_presence

    # The connection for messages

    def open_messages(self, connection: NodeConnection) -> None:
        """The node has connected for messages, and has declared its channels before."""
        broker = self._broker
        self._messages = connection
        outlet = self._outlet = PeerOutlet(self.member.name, broker.state, OUTLET_BYTES_MAX, BODY_BYTES_MAX, self._forwarded)
        outlet.on_work = self._ask
        self.flow.attach(outlet, 0)
        outcomes = broker.turn_writer.recorder.outcomes
        self._receiver = PeerReceiver(broker.lane, outcomes, self.flow, VALUE_BYTES_MAX)
        self._receiver.on_slow = self._publish_slow
        name = origin_of(self.member.name)
        self._link = self._exchange.open(self._send, written_with(name).__contains__)
        self._link.watch()
        self._feed = NodeFeed(self.member.name, self.flow, outlet, FeedNeeds(broker), self._filters)
        self._desk = self._lending.open(self.member, self._ask, OUTLET_BYTES_MAX)
        self._statements = BodyParts()
        self._blocks.connected(self._answer)
        self._scans = HomeScans(self._read, partial(broker.turns.add, ("scans", self.member)), self._send)
        if not self._registry.is_ready:
            self._pause(_EARLY)

    def _send(self, kind: FrameKind, destination: int, body: bytes, flags: int) -> None:
        if self._messages is not None:
            self._messages.send(kind, destination, body, flags)

    def _answer(self, kind: FrameKind, destination: int, body: bytes, flags: int) -> None:
        """Answer a block, behind the messages that this turn has for the node."""
        self._answers.append((kind, destination, body, flags))
        self._ask()

    def receive(self, kind: FrameKind, flags: int, destination: int, body: memoryview) -> None:
        """A frame of the connection for messages. Raises BraidError if a node does not send such frames."""
        assert self._link is not None  # frames come after ``open_messages``
        assert self._receiver is not None
        assert self._scans is not None
        match kind:
            case FrameKind.QOS0:
                if not self._receiver.take(kind, flags, destination, bytes(body)):
                    self._go_on_later()
            case FrameKind.BLOCK:
                self._blocks.on_frame(destination, flags, body)
                if self._blocks.is_full:
                    self._pause(_FULL)
            case FrameKind.RLOG:
                self._link.receive(destination, flags, body)
                self._begin_feed()
            case FrameKind.LEASE_RESULTS:
                self._on_lease_results(flags, body)
            case FrameKind.FORWARDED:
                self._forwarding.note_confirmed(self.flow, destination)
            case FrameKind.HOLD:
                self._on_hold(bytes(body).decode(errors="replace"), not flags)
            case FrameKind.MARKS:
                self._start = _decode_start(body)
                self._begin_feed()
            case FrameKind.SCAN:
                self._scans.on_frame(destination, flags, body)
            case FrameKind.PROBE_ANSWER if self._confidence is not None:
                self._confidence.answered(self.member, destination, decode_probe_answer(body).positions)
            case _:
                raise BraidError(f"a node does not send frames of kind {kind.name}")

    def hold_publisher(self, client_id: str, is_held: bool) -> None:
        """Let the node hold one of its clients, ahead of the answers to its blocks, or let that client go on."""
        self._send(FrameKind.HOLD, 0, client_id.encode(), 0 if is_held else RELEASED)

    def _on_hold(self, client_id: str, is_held: bool) -> None:
        if is_held:
            self._holding.add(client_id)
        else:
            self._holding.discard(client_id)
        self._hold_elsewhere(client_id, is_held)

    def end_holds(self) -> None:
        """The node is gone or lags: no publisher waits for its subscribers."""
        while self._holding:
            self._hold_elsewhere(self._holding.pop(), False)

    def _on_lease_results(self, flags: int, body: memoryview) -> None:
        if flags & STATEMENT:
            whole = self._statements.add(0, flags, body)
            if whole is not None and self._desk is not None:
                self._lending.resume(self._desk, self.member, decode_statement(whole))
            return
        for channel, lease, outcome in decode_results(body):
            client_id = self._registry.client_of(self.member, channel)
            self._lending.answer((self.member, channel) if client_id is None else client_id, lease, outcome)

    def _go_on_later(self) -> None:
        """QoS 0 messages of the node are too much work for one turn: go on in another one, and read nothing meanwhile."""
        self._pause(_BUSY)
        self._broker.turns.repeat(self.flow, partial(self._go_on, self._receiver))

    def _go_on(self, receiver: PeerReceiver | None) -> bool:
        if receiver is None or receiver is not self._receiver:
            return True  # its connection has ended
        if not receiver.go_on():
            return False
        self._resume(_BUSY)
        return True

    def probe(self, number: int) -> None:
        """Ask the node how far its routes have come."""
        self._send(FrameKind.PROBE, number, b"", 0)

    def note_blocks_room(self) -> None:
        """Enough of the node's blocks are answered to read on."""
        self._resume(_FULL)

    def note_home_ready(self) -> None:
        """All nodes have declared their channels: blocks can be taken (C16)."""
        self._resume(_EARLY)

    def _pause(self, reason: str) -> None:
        self._paused_for.add(reason)
        if self._messages is not None:
            self._messages.pause_reading()

    def _resume(self, reason: str) -> None:
        if reason in self._paused_for:
            self._paused_for.discard(reason)
            if not self._paused_for and self._messages is not None:
                self._messages.resume_reading()

    def _publish_slow(self, message: Message, route: Route) -> None:
        """A QoS 0 message whose route has flags. Its node has asked its own hooks, and retained it if it is to be."""
        self._broker.turn_writer.recorder.outcomes.show(message, self.flow, None, 0, 0)

    # The feed

    def _begin_feed(self) -> None:
        """Start the feed once the core has the routes that the node had when it connected (C11)."""
        start, feed = self._start, self._feed
        if start is None or feed is None:
            return
        routes = self._exchange.tables.get(origin_of(self.member.name))
        known = Position(0, 0) if routes is None else routes.position
        if start.sequence and known < Position(self.member.incarnation, start.sequence):
            return
        self._start = None
        feed.start(start.positions and self._led.own(start.positions, self._broker.state.marks))
        self._ask()

    def _filters(self) -> list[str]:
        routes = self._exchange.tables.get(origin_of(self.member.name))
        return [] if routes is None else [key.decode() for key in islice(routes.rows, _FILTERS_MAX)]

    def note_routes(self) -> None:
        """The node's routes have changed: a feed that reads the log looks at them anew."""
        if self._feed is not None:
            self._feed.note_routes()

    # The end of a turn, and of connections

    def flush(self) -> None:
        """Send what this turn has for the node."""
        self.calls.flush()
        connection, outlet, feed = self._messages, self._outlet, self._feed
        if connection is None or outlet is None or feed is None:
            return
        for kind, flags, destination, body in outlet.take_frames():
            connection.send(FrameKind(kind), destination, body, flags)
        desk = self._desk
        if desk is not None and (lent := desk.take()):
            for part, flag in split(lent):
                connection.send(FrameKind.LEASES, 0, part, flag)
        answers, self._answers = self._answers, []
        for answer in answers:
            self._send(*answer)
        marks = feed.take_marks()
        if marks is not None:
            connection.send(FrameKind.MARKS, 0, _encode(Marks(self._led.told(marks), self._clock(), self._new_floors())))
        connection.flush()
        outlet.note_unwritten(connection.waiting_bytes)
        if desk is not None:
            desk.note_unwritten(connection.waiting_bytes)

    def _new_floors(self) -> list[int]:
        """What retention has left, by shard, if the node does not know it."""
        floors = self._led.told(self._log.floors)
        if floors == self._floors:
            return []
        self._floors = floors
        return floors

    def note_room(self) -> None:
        """The connection for messages takes more."""
        if self._messages is not None and self._outlet is not None and self._feed is not None:
            self._outlet.note_unwritten(self._messages.waiting_bytes)
            self._feed.note_room()
            if self._desk is not None:
                self._desk.note_unwritten(self._messages.waiting_bytes)

    def lose_messages(self) -> None:
        """The connection for messages has ended; the node may come back."""
        if self._messages is None:
            return
        self._messages = None
        if self._confidence is not None:
            self._confidence.lost(self.member)
        self._desk = None
        self._lending.lose(self.member)
        if self._link is not None:
            self._link.close()
        if self._feed is not None:
            self._feed.close()
        if self._outlet is not None:
            self._forwarded = self._outlet.forwarded
        self.end_holds()
        self.flow.detach()
        self._forwarding.note_gone(self.flow)
        if self._scans is not None:
            self._scans.lost()
        self._outlet = self._receiver = self._link = self._feed = self._start = self._scans = None
        self._floors = []
        self._paused_for.clear()
        self._answers.clear()
        self._blocks.lost()

    def view(self) -> PeerView:
        """The node as the core's operator sees it."""
        outlet, feed, blocks = self._outlet, self._feed, self._blocks
        agent = None if self._link is None else self._exchange.server.agents.get(self._link)
        routes = self._exchange.tables.get(origin_of(self.member.name))
        return PeerView(
            is_connected=self._messages is not None,
            is_lagging=self.flow.is_lagging,
            is_feeding=feed is not None and self.flow.is_following,
            is_behind=feed is not None and feed.is_behind,
            feed_lag_us=0 if feed is None else feed.lag_us,
            outlet_bytes=0 if outlet is None else outlet.waiting_bytes + outlet.unwritten_bytes,
            unanswered_bytes=blocks.unanswered_bytes,
            rlog_lag=0 if agent is None else agent.lag,
            rlog_state="" if agent is None else agent.state.value,
            routes=0 if routes is None else len(routes.rows),
            rlog_sequence=0 if routes is None else routes.sequence,
            scans=0 if self._scans is None else len(self._scans),
            blocks_refused=blocks.refused,
            entries_fenced=blocks.fenced,
        )

    @property
    def is_connected(self) -> bool:
        """Whether the node has a connection of either kind."""
        return self.calls.is_connected or self._messages is not None

    def end(self) -> None:
        """The node is dead."""
        self.calls.lose()
        self.lose_messages()
        self.flow.discard()


def _decode_start(body: memoryview) -> FeedStart:
    try:
        return _feed_start.decode(body)
    except msgspec.MsgspecError as problem:
        raise BadFrame(f"the start of a feed cannot be read: {problem}") from None
