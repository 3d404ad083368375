"""Two nodes for tests of their connections, and a peer that does what it likes with its socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from braidmq.base.backoff import Backoff
from braidmq.base.config.addresses import Address
from braidmq.net.acceptor import Acceptor
from braidmq.net.connection import PeerConnection
from braidmq.net.dialer import Dialer
from braidmq.net.frames import Frame, FrameBuffer, FrameKind
from braidmq.net.handshake import Handshake, Side, hello
from braidmq.net.proto_v1 import Hello
from tests.net.frames_in import feed

SECRET = b"a secret that all nodes share"
CORE = hello("braid", "core1", "core", 100, "calls", 4)
EDGE = hello("braid", "edge1", "replicant", 7, "messages", 4)


def welcome(peer: Hello) -> None:
    """Accept every node."""
    return None


def run(work: Coroutine[Any, Any, None], *, is_uvloop: bool = True) -> None:
    """Run a test to its end on a loop of its own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if is_uvloop else None) as runner:
        runner.run(asyncio.wait_for(work, 30))


async def until(is_true: Callable[[], bool]) -> None:
    """Wait for something that no event tells."""
    for _ in range(10_000):
        if is_true():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not come about")


class Owner:
    """Owns a connection and records what it is told; the bodies are copied."""

    def __init__(self, connection: PeerConnection) -> None:
        self.connection = connection
        self.frames: list[Frame] = []
        self.lost: list[str] = []
        self.rooms = 0
        self.on_each: Callable[[Frame], None] = lambda frame: None
        self._changed = asyncio.Event()
        connection.on_frame = self._on_frame
        connection.on_lost = self._on_lost
        connection.on_room = self._on_room

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Wait until it is so, looking after each callback."""
        while not is_true():
            self._changed.clear()
            await self._changed.wait()

    async def has_frames(self, count: int) -> list[Frame]:
        """Wait for this many frames in all."""
        await self.until(lambda: len(self.frames) >= count)
        return self.frames

    async def has_lost(self) -> str:
        """Wait for the end; its reason."""
        await self.until(lambda: bool(self.lost))
        return self.lost[0]

    def _on_frame(self, kind: FrameKind, flags: int, destination: int, body: memoryview) -> None:
        frame = Frame(kind, flags, destination, bytes(body))
        self.frames.append(frame)
        self._changed.set()
        self.on_each(frame)

    def _on_lost(self, reason: str) -> None:
        self.lost.append(reason)
        self._changed.set()

    def _on_room(self) -> None:
        self.rooms += 1
        self._changed.set()


class Core:
    """An accepting node; ``owners`` has the connections that were accepted."""

    def __init__(self, acceptor: Acceptor, owners: asyncio.Queue[Owner]) -> None:
        self.acceptor = acceptor
        self.owners = owners

    async def refused(self, kind: str, count: int = 1) -> None:
        """Wait until this many connections were refused for this reason."""
        await until(lambda: self.acceptor.refusals[kind] >= count)


@contextlib.asynccontextmanager
async def core_at(path: Path | None = None, *, core: Hello = CORE, secret: bytes = SECRET, **options: Any) -> AsyncIterator[Core]:
    """Run an accepting node; without a path it listens on a port of the loopback address."""
    owners: asyncio.Queue[Owner] = asyncio.Queue()
    place = {"bind": "127.0.0.1:0"} if path is None else {"path": path}
    settings: dict[str, Any] = {"check": welcome, **place, **options}
    acceptor = Acceptor(core, secret, on_peer=lambda connection: owners.put_nowait(Owner(connection)), **settings)
    await acceptor.start()
    try:
        yield Core(acceptor, owners)
    finally:
        await acceptor.close()


class Edge:
    """A connecting node; ``owners`` has its connections, ``downs`` why they ended."""

    def __init__(self, address: Path | Address, edge: Hello, secret: bytes, options: dict[str, Any]) -> None:
        self.owners: asyncio.Queue[Owner] = asyncio.Queue()
        self.downs: list[str] = []
        settings: dict[str, Any] = {"check": welcome, "backoff": Backoff(0.01, 0.02), **options}
        self.dialer = Dialer(
            address,
            lambda: edge,
            secret,
            on_up=lambda connection: self.owners.put_nowait(Owner(connection)),
            on_down=self.downs.append,
            **settings,
        )

    async def failed(self, count: int = 1) -> str:
        """Wait until this many attempts have failed; the last reason."""
        await until(lambda: self.dialer.failures >= count)
        return self.dialer.last_failure


@contextlib.asynccontextmanager
async def edge_to(address: Path | Address, *, edge: Hello = EDGE, secret: bytes = SECRET, **options: Any) -> AsyncIterator[Edge]:
    """Run a connecting node."""
    node = Edge(address, edge, secret, options)
    node.dialer.start()
    try:
        yield node
    finally:
        await node.dialer.close()


@contextlib.asynccontextmanager
async def two_nodes(path: Path, **options: Any) -> AsyncIterator[tuple[Owner, Owner]]:
    """Two nodes that have agreed, over a Unix socket: the connecting one and the accepting one."""
    async with core_at(path, **options) as core, edge_to(path) as edge:
        yield await edge.owners.get(), await core.owners.get()


class RawPeer:
    """A peer that talks over its socket by hand."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._buffer = FrameBuffer()
        self._frames: list[Frame] = []

    @classmethod
    async def dial(cls, path: Path) -> RawPeer:
        """Connect, and say nothing."""
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connected, str(path))
        return cls(connected)

    @classmethod
    async def join(cls, path: Path) -> RawPeer:
        """Connect, and shake hands as a node does."""
        peer = await cls.dial(path)
        handshake = Handshake(Side.CONNECT, EDGE, SECRET, welcome)
        await peer.send(handshake.begin())
        while handshake.peer is None:
            await peer.send(handshake.receive(await peer.frame()))
        return peer

    async def send(self, data: bytes) -> None:
        """Write all of it."""
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def frame(self) -> Frame:
        """Read the next frame; EOFError at the end of the stream."""
        while not self._frames:
            data = await asyncio.get_running_loop().sock_recv(self.socket, 65536)
            if not data:
                raise EOFError
            self._frames += feed(self._buffer, data)
        return self._frames.pop(0)

    async def end(self) -> bytes:
        """Read to the end of the stream; what came."""
        found = b""
        with contextlib.suppress(ConnectionError):
            while data := await asyncio.get_running_loop().sock_recv(self.socket, 65536):
                found += data
        return found

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()
