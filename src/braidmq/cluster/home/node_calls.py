"""A node's connection for calls, at its core: its claims and declarations, the decisions on them, and retained messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from braidmq.access.contract import Refused
from braidmq.broker.broker import Broker
from braidmq.broker.messages.producer_books import NotTaken
from braidmq.cluster.eventual.core_side import EventualCore
from braidmq.cluster.eventual.frames import EventualFrames
from braidmq.cluster.home.blocks.producer_batches import ProducerBatches
from braidmq.cluster.home.retained.sender import IntentSender
from braidmq.cluster.home.retained_pages import RetainedPages
from braidmq.cluster.home.sessions.held_session import GivenSession, NodeClaim
from braidmq.cluster.home.sessions.registry import HomeRegistry
from braidmq.cluster.membership.member import Member
from braidmq.cluster.protocol.claim_frames import BadClaims, ClaimFrames
from braidmq.cluster.protocol.operations import decode_will
from braidmq.cluster.protocol.parts import Send
from braidmq.cluster.protocol.producer_messages import decode_request, encode_start
from braidmq.cluster.registry.declaring import whole
from braidmq.cluster.registry.messages import ClaimGranted, ClaimRequest, Declaration, GrantedChannel, SweepAnswer
from braidmq.cluster.registry.versions import Version
from braidmq.net.frames import FrameKind
from braidmq.net.proto_v1_batches import BatchOpened, BatchRefused, OpenBatch
from braidmq.net.proto_v1_claims import (
    ClaimId,
    CloseChannel,
    Declare,
    DeclaredChannel,
    DeclarePart,
    EndedChannel,
    EndId,
    GrantId,
    ProbedId,
    ProbeId,
    RedeclaredId,
    RedeclareId,
    RejectId,
    SweepId,
    SweptId,
    VersionId,
)
from braidmq.net.proto_v1_retained import RetainedFilters, RetainedMatches, RetainedPage, RetainedRead


class NodeConnection(Protocol):
    """A connection to the node, as `net.connection` makes it."""

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

    def close(self, reason: str) -> None:
        """Write what waits, then end."""


class _Answers:
    """Says the home's decisions on claims over the node's connection for calls; implements `session_ports.ClaimAnswers`.

    The end of a fenced channel is also said on the connection for messages: a node that stood still may read that one first, and
    its client would get messages that belong to the session's new owner.
    """

    def __init__(self, frames: ClaimFrames, send_message: Send, term: int) -> None:
        self.frames = frames
        self._term = term
        self._messages = ClaimFrames(send_message, lambda: None)

    def grant(self, granted: ClaimGranted[Member], given: GivenSession) -> None:
        """The claim is granted."""
        version = version_id(granted.version, granted.bound_ms)
        producer = encode_start(given.producer)
        self.frames.say(
            GrantId(granted.claim.number, granted.guard, version, self._term, given.rows, producer, given.replaces_user)
        )

    def reject(self, number: int, refused: Refused) -> None:
        """The claim is rejected."""
        told = list(refused.told) if isinstance(refused, NotTaken) else None
        self.frames.say(RejectId(number, refused.reason, refused.detail, self._term, told))

    def probe(self, client_id: str, channel: int) -> None:
        """Say that you are there: a channel is about to lose its client id."""
        self.frames.say(ProbeId(client_id, channel, self._term))

    def end(self, client_id: str, version: Version, kicked: int = 0) -> None:
        """End the channels of the client id with lower versions, or one that is kicked."""
        self.frames.say(EndId(client_id, version_id(version), self._term, kicked))

    def fence(self, client_id: str, version: Version) -> None:
        """They are fenced: say it once more, ahead of every message from now on."""
        self._messages.say(EndId(client_id, version_id(version), self._term))
        self._messages.flush()

    def sweep(self, first: int, last: int) -> None:
        """Name your channels in this range."""
        self.frames.say(SweepId(first, last, self._term))

    def redeclare(self, channels: list[int]) -> None:
        """Declare these channels."""
        self.frames.say(RedeclareId(channels, self._term))

    def close_channel(self, channel: int, reason: int, detail: str) -> None:
        """Close the connection of a channel."""
        self.frames.say(CloseChannel(channel, reason, detail))


class NodeCalls:
    """What one node asks over its connections for calls, one after the other."""

    def __init__(
        self,
        member: Member,
        broker: Broker,
        registry: HomeRegistry,
        ask: Callable[[], None],
        send_message: Send,
        intents: IntentSender | None,
        eventual: EventualCore,
    ) -> None:
        """``ask`` asks for ``flush`` at the end of this turn of the loop. ``send_message``: over the connection for messages.

        ``intents``: retained messages for other homes, if there are several cores.
        """
        self._member = member
        self._registry = registry
        self._eventual = eventual
        self._ask = ask
        self._send_message = send_message
        self._retained = RetainedPages(broker.retained, broker.pipeline, intents)
        assert broker.producer_books is not None, "a home has the rows of its producers"
        leads = partial(registry.leads, member, "names of producers")
        self._batches = ProducerBatches(broker.producer_books, broker.turn_writer, leads, broker.loop)
        self._answers: _Answers | None = None
        self._declared: list[DeclarePart] = []  # of a declaration that is not complete
        self._eventual_frames: EventualFrames | None = None

    @property
    def is_connected(self) -> bool:
        """Whether there is such a connection."""
        return self._answers is not None

    def open(self, connection: NodeConnection) -> None:
        """The node has connected; it is told nothing before it has declared its channels."""
        self._declared = []
        self._answers = _Answers(ClaimFrames(connection.send, self._ask), self._send_message, self._registry.term)
        self._eventual_frames = EventualFrames(connection.send, self._ask)
        self._eventual.connected(self._member, self._eventual_frames.say)

    def receive_claims(self, flags: int, body: bytes | memoryview) -> None:
        """A frame of kind CLAIMS. Raises BraidError if it cannot be read."""
        assert self._answers is not None  # frames come after ``open``
        for message in self._answers.frames.receive(flags, body):
            match message:
                case ClaimId():
                    self._registry.ask(self._member, claim_of(message), message.term)
                case DeclarePart():
                    self._declared.append(message)
                case ProbedId():
                    self._registry.probed(self._member, message.client_id, message.channel)
                case SweptId():
                    answer = SweepAnswer(message.first, message.last, message.served, message.others)
                    self._registry.upkeep.swept(self._member, answer)
                case RedeclaredId():
                    found = [_declared(each) for each in message.channels]
                    self._registry.redeclared(self._member, found, _node_claims(message.channels))
                case _:
                    raise BadClaims(f"a node does not send {type(message).__name__}")

    def receive_eventual(self, flags: int, body: bytes | memoryview) -> None:
        """A frame of kind EVENTUAL. Raises BraidError if it cannot be read."""
        assert self._eventual_frames is not None  # frames come after ``open``
        for message in self._eventual_frames.receive(flags, body):
            self._eventual.receive(self._member, message)

    def declare(self, message: Declare) -> None:
        """The node names its channels and its unanswered claims. Raises BraidError if that cannot be read."""
        assert self._answers is not None  # it has connected
        parts, self._declared = self._declared, []
        message = whole(parts, message)
        channels = _node_claims(message.channels)
        claims = {each.number: claim_of(each) for each in message.claims}
        declaration = Declaration(
            [_declared(each) for each in message.channels],
            [claim.request for claim in claims.values()],
            message.claimed,
            [_declared(each) for each in message.ended],
        )
        self._registry.join(self._member, self._answers)
        self._registry.declare(self._member, declaration, channels, claims)

    def read_retained(self, request: RetainedRead | RetainedFilters) -> RetainedMatches | Awaitable[RetainedPage]:
        """A page of retained messages, or which filters have some. Raises Unavailable."""
        return self._retained.answer(request)

    def open_batch(self, request: OpenBatch) -> Awaitable[BatchOpened | BatchRefused]:
        """Open the batch of a producer's name for a part whose client id another core has. May raise Unavailable."""
        return self._batches.open(request)

    def flush(self) -> None:
        """Send the decisions of this turn."""
        if self._answers is not None:
            self._answers.frames.flush()
        if self._eventual_frames is not None:
            self._eventual_frames.flush()

    def lose(self) -> None:
        """The connection has ended."""
        self._retained.close()
        frames, self._eventual_frames = self._eventual_frames, None
        if frames is not None:
            self._eventual.lost(self._member, frames.say)
        answers, self._answers = self._answers, None
        if answers is not None:
            self._registry.lost(self._member, answers)


def version_id(version: Version, bound_ms: int = 0) -> VersionId:
    """A version as it is sent."""
    return VersionId(version.ms, version.registration, version.counter, version.arrival, bound_ms)


def _declared(channel: DeclaredChannel | EndedChannel) -> GrantedChannel:
    version, times = channel.version, channel.times
    return GrantedChannel(
        channel.client_id,
        channel.channel,
        channel.guard,
        Version(version.ms, version.registration, version.counter, version.arrival),
        version.bound_ms,
        times.ms,
        times.bound_ms,
    )


def _node_claims(channels: list[DeclaredChannel]) -> dict[int, NodeClaim]:
    """What a home keeps of channels that are declared, by number. Raises BadOperation if a will cannot be read."""
    return {
        each.channel: NodeClaim(
            ClaimRequest(0, each.client_id, each.channel), each.user_name, False, each.expiry_s, decode_will(each.will)
        )
        for each in channels
    }


def claim_of(message: ClaimId) -> NodeClaim:
    """The claim that a node's message is about. Raises BadOperation if its will cannot be read."""
    times = message.times
    request = ClaimRequest(
        message.number, message.client_id, message.channel, times.ms, times.bound_ms, times.made_ms, times.age_ms
    )
    will = decode_will(message.will)
    producer = decode_request(message.producer)
    return NodeClaim(request, message.user_name, message.clean_start, message.expiry_s, will, message.peer_host, producer)
