"""Where other nodes connect to this one: a Unix socket for nodes of this machine, an address for all others.

Strangers are bounded: no more than ``strangers_max`` connections may be in their handshake, and each has a few seconds for it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from braidmq.base.config.addresses import Address
from braidmq.base.listening.door import Door
from braidmq.base.listening.sockets import bound_address, open_sockets
from braidmq.base.listening.unix_socket import UnixSocket
from braidmq.net.connection import HANDSHAKE_S, WRITE_BYTES_MAX, PeerConnection
from braidmq.net.duplex import in_words
from braidmq.net.handshake import Handshake, Side
from braidmq.net.proto_v1 import Hello
from braidmq.net.streams import PlainStream, Stream, TlsStream

logger = logging.getLogger("braidmq.net")

STRANGERS_MAX: Final = 64


class Acceptor:
    """Accepts other nodes; ``on_peer`` gets each connection that both sides have agreed on, and sets its callbacks at once.

    ``refusals`` counts the others by reason; ``connections`` are those that ``on_peer`` got and that have not ended.
    """

    def __init__(
        self,
        hello: Hello,
        secret: bytes,
        *,
        on_peer: Callable[[PeerConnection], None],
        check: Callable[[Hello], str | None],
        path: Path | None = None,
        bind: str = "",
        key: str = "cluster.rpc_bind",
        tls: ssl.SSLContext | None = None,
        strangers_max: int = STRANGERS_MAX,
        handshake_s: float = HANDSHAKE_S,
        write_bytes_max: int = WRITE_BYTES_MAX,
    ) -> None:
        """``check``: why a node that knows the secret is not welcome; None: it is. ``key``: that of ``bind``, for errors."""
        self.refusals: Counter[str] = Counter()
        self.connections: set[PeerConnection] = set()
        self.addresses: list[Address] = []  # once started; with the real port if the system chose it
        self._hello = hello
        self._secret = secret
        self._on_peer = on_peer
        self._check = check
        self._path = path
        self._bind = bind
        self._key = key
        self._tls = tls
        self._strangers_max = strangers_max
        self._handshake_s = handshake_s
        self._write_bytes_max = write_bytes_max
        self._strangers: set[PeerConnection] = set()
        self._doors: list[Door] = []
        self._unix: UnixSocket | None = None
        self._all_gone = asyncio.Event()

    async def start(self) -> None:
        """Listen. Raises ConfigError if an address is not available, UsageError if another process listens at the path."""
        try:
            if self._path is not None:
                self._unix = UnixSocket(self._path)
                self._open(Door(str(self._path), self._unix.listening, self._has_room, self._take_unix))
            if self._bind:
                for listening in await open_sockets(self._bind, self._key):
                    self.addresses.append(Address(*bound_address(listening)))
                    self._open(Door(self._key, listening, self._has_room, self._take_tcp))
        except BaseException:
            self._stop_listening()
            raise

    async def close(self, reason: str = "the node stops") -> None:
        """Accept no more, end all connections in order, and return when they have ended, after a few seconds at most."""
        self._stop_listening()
        for connection in [*self._strangers, *self.connections]:
            connection.close(reason)
        while self._strangers or self.connections:
            self._all_gone.clear()
            await self._all_gone.wait()

    def opened(self, connection: PeerConnection) -> None:
        """Pass a peer on."""
        self._strangers.discard(connection)
        self.connections.add(connection)
        self._on_peer(connection)

    def failed(self, connection: PeerConnection, kind: str, detail: str) -> None:
        """Count a stranger that was not accepted."""
        self._strangers.discard(connection)
        self._refuse(connection.name, kind, detail)
        self._all_gone.set()

    def ended(self, connection: PeerConnection, reason: str) -> None:
        """Forget a connection; one that broke the protocol after all is counted, and has been logged."""
        if connection.has_misbehaved:
            self.refusals["protocol"] += 1
        self.connections.discard(connection)
        self._all_gone.set()

    def _open(self, door: Door) -> None:
        self._doors.append(door)
        door.open()

    def _stop_listening(self) -> None:
        while self._doors:
            self._doors.pop().close()
        if self._unix is not None:
            self._unix.remove()
            self._unix = None

    def _has_room(self) -> bool:
        if len(self._strangers) < self._strangers_max:
            return True
        self._refuse("a stranger", "crowded", f"{self._strangers_max} others are in their handshake")
        return False

    def _take_unix(self, accepted: socket.socket, peer: Any) -> None:
        self._take(accepted, "Unix socket", None)

    def _take_tcp(self, accepted: socket.socket, peer: Any) -> None:
        self._take(accepted, str(Address(*peer[:2])), self._tls)

    def _take(self, accepted: socket.socket, name: str, tls: ssl.SSLContext | None) -> None:
        stream: Stream
        try:
            stream = PlainStream(accepted) if tls is None else TlsStream(accepted, tls, None)
        except OSError as error:
            accepted.close()
            self._refuse(name, "closed", in_words(error))
            return
        handshake = Handshake(Side.ACCEPT, self._hello, self._secret, self._check)
        self._strangers.add(
            PeerConnection(
                stream, handshake, self, name=name, handshake_s=self._handshake_s, write_bytes_max=self._write_bytes_max
            )
        )

    def _refuse(self, name: str, kind: str, detail: str) -> None:
        self.refusals[kind] += 1
        logger.warning("connection of %s refused (%s): %s", name, kind, detail)
