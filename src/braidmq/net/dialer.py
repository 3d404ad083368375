"""Keeps one connection to another node, and connects again, with growing pauses, whenever it is lost."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from braidmq.base.backoff import Backoff
from braidmq.base.config.addresses import Address
from braidmq.base.deadline_clock import finish_fairly
from braidmq.net.connection import HANDSHAKE_S, WRITE_BYTES_MAX, PeerConnection
from braidmq.net.duplex import in_words
from braidmq.net.handshake import Handshake, Side
from braidmq.net.proto_v1 import Hello
from braidmq.net.streams import PlainStream, Stream, TlsStream

logger = logging.getLogger("braidmq.net")

T = TypeVar("T")

CONNECT_S: Final = 5.0
FIRST_PAUSE_S: Final = 0.1
PAUSE_S_MAX: Final = 30.0
# A connection that lasted this long was a success: the next pause is the first one again.
STABLE_S: Final = 5.0
_REASONS_MAX: Final = 32


class Dialer:
    """One connection to ``address``, a Unix path or host and port; ``connection`` is None while there is none.

    ``on_up(connection)`` sets the connection's callbacks at once. ``on_down(reason)`` follows each ``on_up``, after the
    connection's own ``on_lost``. Attempts that fail are counted (``failures``) and logged once for each reason.
    """

    def __init__(
        self,
        address: Path | Address,
        hello: Callable[[], Hello],
        secret: bytes,
        *,
        on_up: Callable[[PeerConnection], None],
        on_down: Callable[[str], None],
        check: Callable[[Hello], str | None],
        tls: ssl.SSLContext | None = None,
        connect_s: float = CONNECT_S,
        handshake_s: float = HANDSHAKE_S,
        write_bytes_max: int = WRITE_BYTES_MAX,
        backoff: Backoff | None = None,
    ) -> None:
        """``hello`` is asked at each attempt. ``check``: why the peer is not the one that was meant; None: it is."""
        self.connection: PeerConnection | None = None
        self.failures = 0
        self.last_failure = ""
        self._address = address
        self._hello = hello
        self._secret = secret
        self._on_up = on_up
        self._on_down = on_down
        self._check = check
        self._tls = tls
        self._connect_s = connect_s
        self._handshake_s = handshake_s
        self._write_bytes_max = write_bytes_max
        self._backoff = Backoff(FIRST_PAUSE_S, PAUSE_S_MAX, spread=True) if backoff is None else backoff
        self._attempt: PeerConnection | None = None  # in its handshake, or open
        self._logged: set[str] = set()  # reasons
        self._ended = asyncio.Event()  # the attempt has
        self._retry = asyncio.Event()
        self._opened_at = 0.0
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect from now on."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"connect to {self._address}")
        self._task.add_done_callback(self._on_stopped)

    def retry_now(self) -> None:
        """End the pause before the next attempt; the pauses after it are short again."""
        self._backoff.reset()
        self._retry.set()

    async def close(self, reason: str = "the node stops") -> None:
        """Connect no more; return when the connection has ended in order, after a few seconds at most."""
        self._is_closed = True
        if self._attempt is not None:
            self._attempt.close(reason)
        elif self._task is not None:
            self._task.cancel()
        if self._task is not None:
            await asyncio.wait({self._task})

    def opened(self, connection: PeerConnection) -> None:
        """The peer is there."""
        self._logged.clear()
        self.last_failure = ""
        self.connection = connection
        self._opened_at = asyncio.get_running_loop().time()
        self._on_up(connection)

    def failed(self, connection: PeerConnection, kind: str, detail: str) -> None:
        """The peer is not the one, or does not want us."""
        self._fail(f"refused by the peer: {detail}" if kind == "refused" else detail)
        self._attempt = None
        self._ended.set()

    def ended(self, connection: PeerConnection, reason: str) -> None:
        """The connection is lost."""
        self.connection = self._attempt = None
        self._ended.set()
        if asyncio.get_running_loop().time() - self._opened_at >= STABLE_S:
            self._backoff.reset()
        self._on_down(reason)

    async def _run(self) -> None:
        while not self._is_closed:
            await self._try()
            self._retry.clear()
            if not self._is_closed:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._backoff.next()):
                        await self._retry.wait()

    async def _try(self) -> None:
        """Connect, and return when the connection has ended."""
        try:
            stream = await self._connect()
        except OSError as error:
            self._fail(in_words(error))
            return
        self._ended.clear()
        handshake = Handshake(Side.CONNECT, self._hello(), self._secret, self._check)
        self._attempt = PeerConnection(
            stream,
            handshake,
            self,
            name=str(self._address),
            handshake_s=self._handshake_s,
            write_bytes_max=self._write_bytes_max,
        )
        await self._ended.wait()

    async def _connect(self) -> Stream:
        """A connected socket; raises OSError."""
        if isinstance(self._address, Path):
            return PlainStream(await _connected(socket.AF_UNIX, str(self._address), self._connect_s))
        host, port = self._address
        looking_up = asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        found = await _in_time(looking_up, self._connect_s, f"looking up {host} took too long")
        failure: OSError = ConnectionError(f"{host} has no address")
        for family, _, _, _, address in found:
            try:
                connected = await _connected(family, address, self._connect_s / len(found))
            except OSError as error:
                failure = error
                continue
            return self._stream_of(connected, host)
        raise failure

    def _stream_of(self, connected: socket.socket, host: str) -> Stream:
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return PlainStream(connected) if self._tls is None else TlsStream(connected, self._tls, host)
        except BaseException:
            connected.close()
            raise

    def _on_stopped(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("the node no longer connects to %s", self._address, exc_info=error)

    def _fail(self, reason: str) -> None:
        self.failures += 1
        self.last_failure = reason
        if reason not in self._logged and not self._is_closed:
            if len(self._logged) >= _REASONS_MAX:
                self._logged.clear()
            self._logged.add(reason)
            logger.warning("cannot connect to %s: %s; trying again", self._address, reason)


async def _connected(family: int, address: Any, seconds: float) -> socket.socket:
    connecting = socket.socket(family, socket.SOCK_STREAM)
    try:
        connecting.setblocking(False)
        working = asyncio.get_running_loop().sock_connect(connecting, address)
        await _in_time(working, seconds, "it did not answer in time")
    except BaseException:
        connecting.close()
        raise
    return connecting


async def _in_time(work: Coroutine[Any, Any, T], seconds: float, failure: str) -> T:
    try:
        return await finish_fairly(work, seconds)
    except TimeoutError:
        raise TimeoutError(failure) from None
