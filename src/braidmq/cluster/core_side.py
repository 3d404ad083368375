"""What a core does for the other nodes of its cluster: accepts them, makes them members, and declares them dead.

A worker is dead when its connections have ended. A replicant on another host has its lease (`leases.py`) to come back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Coroutine
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final, Protocol

from braidmq.base.config.addresses import Address
from braidmq.base.config.settings import Settings
from braidmq.base.errors import Unavailable, UsageError
from braidmq.cluster.corestore.embedded import EmbeddedCoreStore, RowLog
from braidmq.cluster.home.node_peer import OUTLET_BYTES_MAX, NodePeer
from braidmq.cluster.leases import TICK_S, Leases, NodeIncarnation
from braidmq.cluster.member import Member
from braidmq.cluster.members import Admitted, Members, RegistrationRequest
from braidmq.cluster.node_key import read_or_make_key
from braidmq.cluster.questions import NodeQuestions
from braidmq.net import tls
from braidmq.net.acceptor import Acceptor
from braidmq.net.calls import Calls
from braidmq.net.connection import PeerConnection
from braidmq.net.frames import FrameKind
from braidmq.net.handshake import hello
from braidmq.net.proto_v1 import (
    CoreEntry,
    Declare,
    Declared,
    Hello,
    NodeAnswer,
    Register,
    Registered,
    RetainedPage,
    RetainedRead,
)

log = logging.getLogger("braidmq.cluster")

CORE: Final = "core"
REPLICANT: Final = "replicant"
WORKER: Final = "worker"
CALLS: Final = "calls"
MESSAGES: Final = "messages"
SOCKET_NAME: Final = "cluster.sock"
# A node that comes back sends everything again that is not answered, up to 64 MiB; a connection takes eight times this.
WRITE_BYTES_MAX: Final = 16 * 1024 * 1024


class CoreLog(RowLog, Protocol):
    """What the core's side needs of the log; `DurableLog` has it."""

    @property
    def log_id(self) -> bytes:
        """Identifies the cluster's log."""

    @property
    def shards(self) -> int:
        """How many there are."""


class MemberHome(Protocol):
    """What the core does for its members; `home.home.Home`."""

    def join(self, member: Member, registration_id: int) -> NodePeer:
        """A node has registered, or connects again."""

    def bury(self, member: Member) -> None:
        """A node is dead."""


class CoreSide:
    """A core's side of the cluster; call `start`, then `accept` with what the members find here, then `stop`.

    It belongs to the loop of the log.
    """

    def __init__(self, settings: Settings, data_dir: Path, message_log: CoreLog, worker_secret: bytes = b"") -> None:
        """``worker_secret``: what workers prove themselves with on the Unix socket; empty: there are none."""
        self.incarnation = 0  # new at every start
        self.expected: list[Member] = []  # replicants that lived when an earlier process of this core ended
        self.expected_ids: list[tuple[int, int]] = []  # their registration ids and incarnations
        self.ended: list[Member] = []  # its workers
        self._settings = settings
        self._data_dir = data_dir
        self._log = message_log
        self._worker_secret = worker_secret
        self._members: Members | None = None
        self._home: MemberHome | None = None
        self._registrations: dict[NodeIncarnation, int] = {}  # registration ids of members
        self._leases = Leases(settings.cluster.lease, monotonic())
        self._alive: dict[str, int] = {}  # incarnations by name, of members
        self.questions = NodeQuestions()
        self._connected: dict[NodeIncarnation, int] = {}  # connections of members
        self.acceptors: list[Acceptor] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def members(self) -> Members:
        """The members of the cluster, once started."""
        assert self._members is not None, "the core's side of the cluster is not started"
        return self._members

    @property
    def socket_path(self) -> Path:
        """Where workers connect."""
        return (self._data_dir / SOCKET_NAME).absolute()

    @property
    def address(self) -> Address | None:
        """Where replicants connect."""
        return next((address for acceptor in self.acceptors for address in acceptor.addresses), None)

    async def start(self) -> None:
        """Take a new incarnation, and declare workers of an earlier one dead. Raises ConfigError and Unavailable."""
        key = await asyncio.to_thread(read_or_make_key, self._data_dir)
        self._members = members = Members(EmbeddedCoreStore(self._log), _wall_ms)
        admitted = await members.register(RegistrationRequest(self._settings.node.name, key, CORE))
        if not isinstance(admitted, Admitted):
            raise UsageError(admitted.reason)
        self.incarnation = admitted.incarnation
        for member in await members.alive():
            node = Member(member.name, member.incarnation)
            if member.role == WORKER:
                # There is one core, so a worker that is alive in the tables was started by an earlier process of this core.
                await self._declare_dead(*node, "it belonged to an earlier start of this core")
                self.ended.append(node)
            elif member.role == REPLICANT:
                self._alive[member.name] = member.incarnation
                self._leases.add(node)
                self.expected.append(node)
                self.expected_ids.append((member.registration_id, member.incarnation))
                self.questions.add(node, member.role)
        await members.sweep()

    async def accept(self, home: MemberHome) -> None:
        """Accept nodes. Raises ConfigError."""
        self._home = home
        await self._accept()
        self._run(self._keep_leases())

    async def stop(self) -> None:
        """Accept no node any more, and end all connections."""
        for task in list(self._tasks):
            task.cancel()
        for acceptor in self.acceptors:
            await acceptor.close()
        self.acceptors = []

    async def _accept(self) -> None:
        settings, cluster = self._settings, self._settings.cluster
        mine = hello(settings.node.cluster, settings.node.name, CORE, self.incarnation, "", self._log.shards)
        if self._worker_secret:
            check = partial(self._check, WORKER)
            self.acceptors.append(
                Acceptor(
                    mine,
                    self._worker_secret,
                    on_peer=self._on_peer,
                    check=check,
                    path=self.socket_path,
                    write_bytes_max=WRITE_BYTES_MAX,
                )
            )
        if cluster.rpc_bind:
            context = None
            if cluster.cert_file:
                files = (cluster.cert_file, cluster.key_file, cluster.ca_file)
                context = await asyncio.to_thread(tls.accepting_context, "cluster", *files)
            self.acceptors.append(
                Acceptor(
                    mine,
                    cluster.secret.encode(),
                    on_peer=self._on_peer,
                    check=partial(self._check, REPLICANT),
                    bind=cluster.rpc_bind,
                    tls=context,
                    write_bytes_max=WRITE_BYTES_MAX,
                )
            )
        for acceptor in self.acceptors:
            await acceptor.start()

    def _check(self, role: str, peer: Hello) -> str | None:
        """Why a node that knows the secret is not accepted; None: it is."""
        if peer.role != role:
            return f"a node of role {peer.role!r} cannot connect here"
        if peer.shards not in (0, self._log.shards):
            return f"it counts {peer.shards} shards, this cluster has {self._log.shards}"
        if peer.purpose == CALLS:
            return None
        if peer.purpose != MESSAGES:
            return f"it wants a connection for {peer.purpose!r}, which this core does not know"
        return None if self._alive.get(peer.name) == peer.incarnation else "it is no member of this cluster; register first"

    def _on_peer(self, connection: PeerConnection) -> None:
        if connection.purpose == CALLS:
            _CallsOfNode(self, connection)
        else:
            self._open_messages(connection, (connection.peer.name, connection.peer.incarnation))

    def _open_messages(self, connection: PeerConnection, node: NodeIncarnation) -> None:
        peer = self.peer_of(node)

        def on_lost(reason: str) -> None:
            peer.lose_messages()
            self.on_disconnected(node, connection.peer.role)

        connection.on_frame = peer.receive
        connection.on_room = peer.note_room
        connection.room_bytes = OUTLET_BYTES_MAX // 8
        connection.on_lost = on_lost
        self.on_connected(node)
        peer.open_messages(connection)

    def peer_of(self, node: NodeIncarnation) -> NodePeer:
        """The node as the home knows it."""
        assert self._home is not None  # connections are accepted once it is there
        return self._home.join(Member(*node), self._registrations[node])

    def _bury(self, name: str, incarnation: int) -> None:
        if self._home is not None:
            self._home.bury(Member(name, incarnation))

    # Members

    async def register(self, request: RegistrationRequest) -> Registered:
        """Make a node a member. Raises UsageError if it is refused, Unavailable."""
        decision = await self.members.register(request)
        if not isinstance(decision, Admitted):
            raise UsageError(decision.reason)
        node = (request.name, decision.incarnation)
        if decision.ended:
            self._forget((request.name, decision.ended))
            self._bury(request.name, decision.ended)
        self._registrations[node] = decision.registration_id
        self._alive[request.name] = decision.incarnation
        self.questions.add(Member(*node), request.role)
        if request.role == REPLICANT:
            self._leases.add(node)
        log.info("%s is member %d (incarnation %d)", request.name, decision.registration_id, decision.incarnation)
        cores = [CoreEntry(self._settings.node.name, "", list(range(self._log.shards)))]
        return Registered(
            decision.registration_id, decision.incarnation, self.incarnation, self._log.log_id, self._log.shards, cores
        )

    def on_connected(self, node: NodeIncarnation) -> None:
        """A connection of a member was made."""
        self._connected[node] = self._connected.get(node, 0) + 1
        self._leases.on_connected(node)

    def on_disconnected(self, node: NodeIncarnation, role: str) -> None:
        """A connection of a member has ended, and everything that it brought was handed out."""
        left = self._connected.get(node, 1) - 1
        self._connected[node] = left
        self._leases.on_disconnected(node)
        if left:
            return
        del self._connected[node]
        if role == WORKER and self._alive.get(node[0]) == node[1]:
            self._run(self._declare_dead(*node, "its connections have ended"))

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for name, incarnation in self._leases.tick(monotonic()):
                try:
                    await self._declare_dead(name, incarnation, f"it was away for {self._settings.cluster.lease:g} s")
                except Unavailable as problem:  # it stays in the list, for the next tick
                    log.warning("%s cannot be declared dead: %s", name, problem)

    async def declare_dead(self, name: str, reason: str) -> None:
        """End the connections of a node and its membership. Raises UsageError for an unknown name, and Unavailable."""
        incarnation = self._alive.get(name)
        if incarnation is None:
            raise UsageError(f"there is no node {name!r}")
        for acceptor in self.acceptors:
            for connection in [each for each in acceptor.connections if each.peer.name == name]:
                connection.abort(reason)
        await self._declare_dead(name, incarnation, reason)

    async def _declare_dead(self, name: str, incarnation: int, reason: str) -> None:
        is_new = await self.members.declare_dead(name, incarnation)
        self._forget((name, incarnation))
        if is_new:
            log.info("%s (incarnation %d) is dead: %s", name, incarnation, reason)
            self._bury(name, incarnation)

    def _forget(self, node: NodeIncarnation) -> None:
        self._leases.remove(node)
        self._registrations.pop(node, None)
        self.questions.remove(Member(*node))
        if self._alive.get(node[0]) == node[1]:
            del self._alive[node[0]]

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler({"message": "a task of the cluster died", "exception": error, "task": task})


class _CallsOfNode:
    """A node's connection for calls."""

    def __init__(self, core: CoreSide, connection: PeerConnection) -> None:
        self._core = core
        self._connection = connection
        self._node: NodeIncarnation | None = None  # once it is a member
        self._peer: NodePeer | None = None
        self._calls = Calls(connection, requests=Register | Declare | RetainedRead, answers=NodeAnswer)
        self._calls.serve({Register: self._register, Declare: self._declare, RetainedRead: self._read_retained})
        connection.on_frame = self._receive
        connection.on_lost = self._on_lost

    def _receive(self, kind: FrameKind, flags: int, destination: int, body: memoryview) -> None:
        if kind is FrameKind.CLAIMS:
            self._member().calls.receive_claims(flags, body)
        else:
            self._calls.receive(kind, flags, destination, body)

    async def _register(self, request: Register) -> Registered:
        peer = self._connection.peer
        if request.name != peer.name:
            raise UsageError(f"{peer.name!r} cannot register as {request.name!r}")
        registered = await self._core.register(RegistrationRequest(request.name, request.key, peer.role, request.incarnation))
        if self._node is None and self._connection.is_open:
            self._node = (request.name, registered.incarnation)
            self._core.on_connected(self._node)
            self._peer = self._core.peer_of(self._node)
            self._peer.calls.open(self._connection)
            self._core.questions.connect(Member(*self._node), self._calls, self._connection.address)
        return registered

    def _declare(self, request: Declare) -> Declared:
        self._member().calls.declare(request)
        return Declared()

    def _read_retained(self, request: RetainedRead) -> RetainedPage | Awaitable[RetainedPage]:
        return self._member().calls.read_retained(request)

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


def _wall_ms() -> int:
    return int(time.time() * 1000)
