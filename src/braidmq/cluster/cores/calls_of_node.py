"""A node's connection for calls, at its core."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from braidmq.base.errors import UsageError
from braidmq.cluster.administration.questions import NodeQuestions
from braidmq.cluster.clock.core_time import CoreTime
from braidmq.cluster.home.node_peer import NodePeer
from braidmq.cluster.membership.leases import NodeIncarnation
from braidmq.cluster.membership.member import Member
from braidmq.cluster.membership.members import RegistrationRequest
from braidmq.net.calls import Calls
from braidmq.net.connection import PeerConnection
from braidmq.net.frames import FrameKind
from braidmq.net.proto_v1 import AskNode, NodeAnswer, Register, Registered
from braidmq.net.proto_v1_batches import BatchOpened, BatchRefused, OpenBatch
from braidmq.net.proto_v1_claims import Declare, Declared
from braidmq.net.proto_v1_clock import AskTime
from braidmq.net.proto_v1_retained import RetainedFilters, RetainedMatches, RetainedPage, RetainedRead


class CallsOwner(Protocol):
    """Whom a node calls; `core_side.CoreSide`. ``time``: of the cluster."""

    time: CoreTime

    @property
    def questions(self) -> NodeQuestions:
        """Asks the nodes."""
        ...

    async def register(self, request: RegistrationRequest) -> Registered:
        """Make a node a member. Raises UsageError if it is refused, Unavailable."""
        ...

    def on_connected(self, node: NodeIncarnation) -> None:
        """A connection of a member was made."""
        ...

    def on_disconnected(self, node: NodeIncarnation, role: str) -> None:
        """A connection of a member has ended, and everything that it brought was handed out."""
        ...

    def peer_of(self, node: NodeIncarnation) -> NodePeer:
        """The node as the home knows it."""
        ...


class CallsOfNode:
    """What the core answers on one connection."""

    def __init__(self, core: CallsOwner, connection: PeerConnection) -> None:
        self._core = core
        self._connection = connection
        self._node: NodeIncarnation | None = None  # once it is a member
        self._peer: NodePeer | None = None
        requests = Register | Declare | RetainedRead | RetainedFilters | OpenBatch | AskTime | AskNode
        self._calls = Calls(connection, requests=requests, answers=NodeAnswer)
        self._calls.serve(
            {
                Register: self._register,
                Declare: self._declare,
                RetainedRead: self._read_retained,
                RetainedFilters: self._read_retained,
                OpenBatch: self._open_batch,
                AskTime: core.time.tell,
                AskNode: self._answer_node,
            }
        )
        connection.on_frame = self._receive
        connection.on_lost = self._on_lost

    def _receive(self, kind: FrameKind, flags: int, destination: int, body: memoryview) -> None:
        if kind is FrameKind.CLAIMS:
            self._member().calls.receive_claims(flags, body)
        elif kind is FrameKind.EVENTUAL:
            self._member().calls.receive_eventual(flags, body)
        else:
            self._calls.receive(kind, flags, destination, body)

    async def _register(self, request: Register) -> Registered:
        peer = self._connection.peer
        if request.name != peer.name:
            raise UsageError(f"{peer.name!r} cannot register as {request.name!r}")
        registered = await self._core.register(
            RegistrationRequest(request.name, request.key, peer.role, request.incarnation, peer.version_max, request.mode)
        )
        if self._node is None and self._connection.is_open:
            self._node = (request.name, registered.incarnation)
            self._core.on_connected(self._node)
            self._peer = self._core.peer_of(self._node)
            self._peer.calls.open(self._connection)
            self._core.questions.connect(Member(*self._node), self._calls, self._connection.address)
        return registered

    def _declare(self, request: Declare) -> Declared:
        node = self._member()
        node.calls.declare(request)
        return Declared(node.wants_presence)

    def _read_retained(self, request: RetainedRead | RetainedFilters) -> RetainedMatches | Awaitable[RetainedPage]:
        return self._member().calls.read_retained(request)

    def _open_batch(self, request: OpenBatch) -> Awaitable[BatchOpened | BatchRefused]:
        return self._member().calls.open_batch(request)

    async def _answer_node(self, request: AskNode) -> NodeAnswer:
        """What a node asks for its own operator."""
        self._member()
        return NodeAnswer(await self._core.questions.answer_node(request.operation, request.arguments))

    def _member(self) -> NodePeer:
        if self._peer is None:
            raise UsageError(f"{self._connection.peer.name!r} is no member of this cluster", "register first")
        return self._peer

    def _on_lost(self, reason: str) -> None:
        self._calls.lost(reason)
        if self._peer is not None:
            self._peer.calls.lose()
        if self._node is not None:
            self._core.questions.disconnect(Member(*self._node), self._calls)
            self._core.on_disconnected(self._node, self._connection.peer.role)
