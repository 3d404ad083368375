"""What a replicant has of its cluster: a connection to its core, which has made it a member, and the ports for its broker."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from braidmq.base.backoff import Backoff
from braidmq.base.config.addresses import Address, parse_address
from braidmq.base.config.settings import Settings
from braidmq.base.errors import Unavailable, UsageError
from braidmq.broker.broker import Broker
from braidmq.cluster.core_side import CALLS, MESSAGES, WRITE_BYTES_MAX
from braidmq.cluster.member import Member
from braidmq.cluster.node_key import read_or_make_key
from braidmq.cluster.remote.core_link import OUTLET_BYTES_MAX, CoreLink
from braidmq.net import tls
from braidmq.net.calls import CallError, Calls
from braidmq.net.connection import PeerConnection
from braidmq.net.dialer import FIRST_PAUSE_S, PAUSE_S_MAX, Dialer
from braidmq.net.frames import FrameKind
from braidmq.net.handshake import hello
from braidmq.net.proto_v1 import (
    AskNode,
    Declared,
    Hello,
    NodeAnswer,
    Register,
    Registered,
    RetainedPage,
    RetainedRead,
)

log = logging.getLogger("braidmq.cluster")

_CALL_S: Final = 10.0

Answer = Callable[[str, bytes], Awaitable[bytes]]  # an operation and its arguments, both as the core says them


class CoreAddress(Struct, frozen=True):
    """Where the core accepts nodes: on a Unix socket for its workers, else at TCP addresses. ``secret``: the cluster's."""

    secret: bytes
    socket_path: str = ""
    addresses: tuple[str, ...] = ()

    @property
    def role(self) -> str:
        """The role of a node that connects there."""
        return "worker" if self.socket_path else "replicant"


class ReplicantSide:
    """A replicant's side of the cluster; call `start`, then `serve` with a broker that has `link`'s ports, then `stop`.

    The two connections to the core come and go together. The one for messages is opened when the core has been told which
    clients this node has; if either of them is lost, both are made anew.
    """

    def __init__(self, settings: Settings, run_dir: Path, core: CoreAddress) -> None:
        self.registered: Registered | None = None
        self.answer: Answer | None = None  # what the core asks for its operator; set when the node serves
        self._settings = settings
        self._run_dir = run_dir
        self._core = core
        self._key = b""
        self._link: CoreLink | None = None
        self._calls: Calls | None = None
        self._messages: Dialer | None = None
        self._tls: ssl.SSLContext | None = None
        self._is_serving = False  # the broker is there
        self._ready = asyncio.Event()
        self._closing: set[asyncio.Task[None]] = set()
        self._dialer: Dialer | None = None
        self._registering: asyncio.Task[None] | None = None
        self._joined = asyncio.Event()
        self._ended = asyncio.Event()
        self._refusal = ""
        self._is_stopping = False

    @property
    def state(self) -> str:
        """What an operator is told of the connection to the core; empty if all is well."""
        if self._refusal:
            return f"the core refuses this node: {self._refusal}"
        if self._calls is None or self.registered is None:
            failure = self._dialer.last_failure if self._dialer is not None else ""
            return f"no connection to the core{f': {failure}' if failure else ''}"
        return ""

    @property
    def link(self) -> CoreLink:
        """The core behind the broker's ports, once started."""
        assert self._link is not None, "the replicant's side of the cluster is not started"
        return self._link

    async def start(self) -> None:
        """Connect, and return once the core has made this node a member, however long that takes.

        Raises ConfigError, and UsageError if the core refuses this node.
        """
        self._key = await asyncio.to_thread(read_or_make_key, self._run_dir)
        self._tls = await self._context()
        self._dialer = Dialer(
            self._address(),
            partial(self._hello, CALLS),
            self._core.secret,
            on_up=self._on_up,
            on_down=self._on_down,
            check=_check_core,
            tls=self._tls,
            backoff=dial_pauses(self._settings.cluster.lease),
        )
        self._dialer.start()
        joined, ended = (asyncio.ensure_future(event.wait()) for event in (self._joined, self._ended))
        try:
            await asyncio.wait({joined, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            joined.cancel()
            ended.cancel()
        if self._ended.is_set():
            raise UsageError(self._refusal)
        assert self.registered is not None
        member = Member(self._settings.node.name, self.registered.incarnation)
        loop = asyncio.get_running_loop()
        self._link = CoreLink(member, self.registered.shards, loop, self._settings.cluster.home_wait, self._ask_page)

    async def serve(self, broker: Broker) -> None:
        """The broker is made: return once its clients can be served."""
        self.link.serve(broker)
        self.link.on_ready = self._ready.set
        self._is_serving = True
        if self._calls is not None and self._registering is not None and self._registering.done():
            self._registering = asyncio.get_running_loop().create_task(self._join(self._calls))
        await self._ready.wait()

    async def stop(self) -> None:
        """Leave the core."""
        self._is_stopping = True
        if self._registering is not None:
            self._registering.cancel()
        for dialer in (self._messages, self._dialer):
            if dialer is not None:
                await dialer.close()
        self._messages = self._dialer = None
        if self._link is not None:
            self._link.close()

    async def wait_ended(self) -> str:
        """Wait until the core no longer takes this node for a member: it must stop, and start as a new one. The reason."""
        await self._ended.wait()
        return self._refusal

    def _address(self) -> Path | Address:
        if self._core.socket_path:
            return Path(self._core.socket_path)
        return parse_address(self._core.addresses[0])  # a cluster has one core so far

    async def _context(self) -> ssl.SSLContext | None:
        cluster = self._settings.cluster
        if self._core.socket_path or not cluster.cert_file:
            return None
        files = (cluster.cert_file, cluster.key_file, cluster.ca_file)
        return await asyncio.to_thread(tls.connecting_context, "cluster", *files)

    def _hello(self, purpose: str) -> Hello:
        node, registered = self._settings.node, self.registered
        incarnation, shards = (registered.incarnation, registered.shards) if registered is not None else (0, 0)
        return hello(node.cluster, node.name, self._core.role, incarnation, purpose, shards)

    def _on_up(self, connection: PeerConnection) -> None:
        self._calls = calls = Calls(connection, requests=AskNode, answers=Registered | Declared | RetainedPage)
        calls.serve({AskNode: self._answer})

        def receive(kind: FrameKind, flags: int, destination: int, body: memoryview) -> None:
            if kind is FrameKind.CLAIMS:
                self.link.receive_claims(flags, body)
            else:
                calls.receive(kind, flags, destination, body)

        connection.on_frame = receive
        connection.on_lost = calls.lost
        self._registering = asyncio.get_running_loop().create_task(self._register(calls, connection))

    def _on_down(self, reason: str) -> None:
        self._calls = None
        if self._registering is not None:
            self._registering.cancel()
        if self._link is not None:
            self._link.lose_calls()
        self._end_messages()
        if not self._is_stopping:
            log.warning("the connection to the core has ended: %s", reason)

    async def _register(self, calls: Calls, connection: PeerConnection) -> None:
        incarnation = self.registered.incarnation if self.registered is not None else 0
        try:
            answer = await calls.call(Register(self._settings.node.name, self._key, incarnation), _CALL_S)
        except Unavailable as problem:
            connection.abort(f"registration failed: {problem}")
            return
        except CallError as problem:
            if problem.retry_after_s:
                connection.abort(f"registration failed: {problem}")
                return
            self._refusal = str(problem)
            log.error("the core refuses this node: %s", problem)
            self._ended.set()
            return
        assert isinstance(answer, Registered)
        if self.registered is not None:
            what = (
                "the core is back" if answer.core_incarnation == self.registered.core_incarnation else "the core has a new start"
            )
            log.info("%s (incarnation %d)", what, answer.core_incarnation)
        else:
            log.info("member %d of %s (incarnation %d)", answer.registration_id, connection.peer.cluster, answer.incarnation)
        is_new = self.registered is not None and answer.core_incarnation != self.registered.core_incarnation
        self.registered = answer
        self._joined.set()
        if self._is_serving:
            if is_new:
                self.link.meet_new_core()
            await self._join(calls)

    async def _join(self, calls: Calls) -> None:
        """Tell the core which clients this node has, and open the connection for messages."""
        connection = calls.connection
        try:
            await calls.call(self.link.open_calls(connection), _CALL_S)
        except (Unavailable, CallError) as problem:
            connection.abort(f"the core did not take the declaration: {problem}")
            return
        self._messages = Dialer(
            self._address(),
            partial(self._hello, MESSAGES),
            self._core.secret,
            on_up=self._on_messages_up,
            on_down=self._on_messages_down,
            check=_check_core,
            tls=self._tls,
            write_bytes_max=WRITE_BYTES_MAX,
            backoff=dial_pauses(self._settings.cluster.lease),
        )
        self._messages.start()

    def _on_messages_up(self, connection: PeerConnection) -> None:
        connection.on_frame = self.link.receive
        connection.on_room = self.link.note_room
        connection.room_bytes = OUTLET_BYTES_MAX // 8
        connection.on_lost = lambda reason: self.link.lose_messages()
        self.link.open_messages(connection)

    def _on_messages_down(self, reason: str) -> None:
        """Make both connections anew: the core must hear of this node's clients before its messages."""
        if self._dialer is not None and self._dialer.connection is not None:
            self._dialer.connection.close(f"the connection for messages has ended: {reason}")

    def _end_messages(self) -> None:
        messages, self._messages = self._messages, None
        if messages is not None:
            task = asyncio.get_running_loop().create_task(messages.close("the connection for calls has ended"))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _answer(self, request: AskNode) -> NodeAnswer:
        if self.answer is None:
            raise Unavailable("the node is starting", 1.0)
        return NodeAnswer(await self.answer(request.operation, request.arguments))

    async def _ask_page(self, request: RetainedRead) -> RetainedPage:
        if self._calls is None:
            raise Unavailable("the core is not connected", 1.0)
        answer = await self._calls.call(request, _CALL_S)
        assert isinstance(answer, RetainedPage)
        return answer


def dial_pauses(lease_s: float) -> Backoff:
    """The pauses between attempts to reach the core. A core that restarts waits a lease for its nodes, then they are dead."""
    return Backoff(FIRST_PAUSE_S, min(PAUSE_S_MAX, lease_s / 4), spread=True)


def _check_core(peer: Hello) -> str | None:
    return None if peer.role == "core" else f"it is a {peer.role}, not a core"
