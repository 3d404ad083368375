"""The listeners of a node: bound sockets, and what happens to a connection between ``accept`` and its first byte of MQTT.

    tcp, ws     the loop accepts and gives the socket straight to the connection: nothing stands between
    tls, wss    we accept; a task per new connection shakes hands and then gives the socket on
    any kind    with ``proxy_protocol`` we accept; the task first reads the PROXY header, before the TLS handshake if there is one

Refused without a word: a connection above ``connections_max``, or more than ``admit`` lets in. A peer that is slow to say who it
is (header, handshake, HTTP request) has ``limits.connect_timeout`` for each of them. ``on_refused`` is told the listener's id and
the reason for each connection that gets no further; see ``docs/listeners.md`` for the reasons.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
from collections.abc import Callable
from typing import cast

from braidmq.base.errors import ProtocolViolation
from braidmq.base.settings import ListenerSettings
from braidmq.broker.listeners.origin import TLS_KINDS, Arrival, ListenerInfo, ListenerKind, MakeConnection
from braidmq.broker.listeners.proxy_protocol import ProxyHeader, header_bytes_needed, parse_header
from braidmq.broker.listeners.sockets import (
    LISTEN_BACKLOG,
    bound_address,
    open_sockets,
    parse_networks,
    reach_this_machine_only,
)
from braidmq.broker.listeners.tls import TlsContexts, handshake_failure

logger = logging.getLogger("braidmq.listeners")

# One turn of the loop accepts at most so many, so that a storm of connections does not starve the clients that are there.
ACCEPTS_PER_TURN = 64
# Out of file descriptors or memory: how long to leave new connections in the kernel's queue.
ACCEPT_PAUSE_S = 1.0
# How long a closed TLS connection waits for the peer's close_notify.
TLS_SHUTDOWN_S = 3.0
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Admit = Callable[[], bool]
OnRefused = Callable[[str, str], None]


class _Refusal(asyncio.Protocol):
    """Drops its connection; it has no state, so one serves all."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()


_REFUSAL = _Refusal()


class ListenerServer:
    """One listener: its sockets and the connections that have not yet reached MQTT. ``make_protocol`` makes what comes after."""

    def __init__(
        self,
        kind: ListenerKind,
        name: str,
        settings: ListenerSettings,
        make_protocol: MakeConnection,
        *,
        connect_timeout_s: float,
        admit: Admit,
        on_refused: OnRefused,
    ) -> None:
        self.key = f"listeners.{kind}.{name}"
        self.settings = settings
        self._kind: ListenerKind = kind
        self._name = name
        self._make_protocol = make_protocol
        self._connect_timeout_s = connect_timeout_s
        self._admit = admit
        self._on_refused = on_refused
        self._proxies = parse_networks(settings.proxy_peers, f"{self.key}.proxy_peers")
        self.tls = TlsContexts(self.key, settings) if kind in TLS_KINDS else None
        self.info: ListenerInfo | None = None  # once started
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._arriving: dict[asyncio.Task[None], Arrival] = {}
        self._accept_timers: dict[socket.socket, asyncio.TimerHandle] = {}

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where it listens, with the real port if the system chose it."""
        return [bound_address(listening) for listening in self._sockets]

    async def start(self) -> None:
        """Bind and accept; raises ``ConfigError`` if the address cannot be had."""
        self._sockets = await open_sockets(self.settings.bind, f"{self.key}.bind")
        self.info = ListenerInfo(self._kind, self._name, self.settings, is_on_loopback=reach_this_machine_only(self._sockets))
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            if self.tls is None and not self.settings.proxy_protocol:
                server = await loop.create_server(self._accept_directly, sock=listening, backlog=LISTEN_BACKLOG)
                self._servers.append(server)
            else:
                self._accept_from(listening)

    async def reconfigure(self, settings: ListenerSettings, make_protocol: MakeConnection, connect_timeout_s: float) -> None:
        """Take over settings that differ in nothing that is bound; if their TLS files cannot be used, none of them."""
        if self.tls is not None and not await asyncio.to_thread(self.tls.reload, settings):
            return
        self.settings = settings
        self._make_protocol = make_protocol
        self._connect_timeout_s = connect_timeout_s
        if self.info is not None:
            self.info.settings = settings

    def stop(self) -> None:
        """Accept no more and drop those at their header or handshake; connections beyond that are their owner's to close."""
        loop = asyncio.get_running_loop()
        for server in self._servers:
            server.close()
        if not self._servers:
            for listening in self._sockets:
                loop.remove_reader(listening)
        for timer in self._accept_timers.values():
            timer.cancel()
        for listening in self._sockets:
            listening.close()
        for task, arrival in self._arriving.items():
            # A connection that has just been made may be in here until its task runs once more.
            if not arrival.is_met:
                task.cancel()
        self._servers, self._sockets, self._accept_timers = [], [], {}

    def _has_room(self, listener: ListenerInfo) -> bool:
        if listener.live >= self.settings.connections_max:
            self._on_refused(listener.id, "connections_max")
        elif not self._admit():
            self._on_refused(listener.id, "connection_rate")
        else:
            listener.live += 1
            return True
        return False

    def _accept_directly(self) -> asyncio.BaseProtocol:
        assert self.info is not None
        if not self._has_room(self.info):
            return _REFUSAL
        return cast(asyncio.BaseProtocol, self._make_protocol(self.info))

    def _accept_from(self, listening: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(listening, self._accept_ready, listening)

    def _accept_ready(self, listening: socket.socket) -> None:
        assert self.info is not None
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, peer = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._pause_accepting(listening, error)
                return
            accepted.setblocking(False)
            if not self._has_room(self.info):
                accepted.close()
                continue
            arrival = Arrival(self.info)
            task = asyncio.get_running_loop().create_task(self._receive(accepted, peer[0], arrival))
            self._arriving[task] = arrival
            task.add_done_callback(self._arriving.pop)

    def _pause_accepting(self, listening: socket.socket, error: OSError) -> None:
        if error.errno not in _OUT_OF_RESOURCES:
            raise error
        logger.error("%s: cannot accept connections now: %s", self.key, error.strerror)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        self._accept_timers[listening] = loop.call_later(ACCEPT_PAUSE_S, self._accept_from, listening)

    async def _receive(self, accepted: socket.socket, peer_host: str, arrival: Arrival) -> None:
        """Take a new connection up to where its protocol takes over. Owns ``accepted`` and the place that it has."""
        is_handed_over = False
        try:
            if self.settings.proxy_protocol:
                arrival.header = await self._read_proxy_header(accepted, peer_host)
                if arrival.header is None:
                    return
            is_handed_over = await self._hand_over(accepted, peer_host, arrival)
        finally:
            if not is_handed_over:
                accepted.close()
                arrival.release()

    async def _read_proxy_header(self, accepted: socket.socket, peer_host: str) -> ProxyHeader | None:
        """The header, or None if the connection is to be closed. Reads not one byte of what follows the header."""
        address = ipaddress.ip_address(peer_host.partition("%")[0])
        if not any(address in network for network in self._proxies):
            self._refuse(peer_host, "proxy_peer", "not in proxy_peers")
            return None
        loop = asyncio.get_running_loop()
        head = b""
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                while needed := header_bytes_needed(head):
                    data = await loop.sock_recv(accepted, needed)
                    if not data:
                        self._refuse(peer_host, "proxy_header", "closed within the PROXY header")
                        return None
                    head += data
            return parse_header(head)
        except ProtocolViolation as error:
            self._refuse(peer_host, "proxy_header", error.detail)
        except TimeoutError:
            self._refuse(peer_host, "proxy_header", "no PROXY header in time")
        except OSError as error:
            self._refuse(peer_host, "proxy_header", str(error))
        return None

    async def _hand_over(self, accepted: socket.socket, peer_host: str, arrival: Arrival) -> bool:
        """Give the socket to its protocol, after the TLS handshake if there is one; False if that failed."""
        loop = asyncio.get_running_loop()

        def make_protocol() -> asyncio.BaseProtocol:
            return cast(asyncio.BaseProtocol, self._make_protocol(arrival))

        try:
            if self.tls is None:
                await loop.connect_accepted_socket(make_protocol, accepted)
                return True
            transport, _ = await loop.connect_accepted_socket(
                make_protocol,
                accepted,
                ssl=self.tls.current,
                ssl_handshake_timeout=self._connect_timeout_s,
                ssl_shutdown_timeout=TLS_SHUTDOWN_S,
            )
        except OSError as error:
            self._refuse(peer_host, f"tls_{handshake_failure(error)}" if self.tls else "closed", str(error))
            return False
        if transport.get_extra_info("ssl_object") is None:
            # Lost before the handshake was over, but without an error: the protocol was never told of this connection.
            self._refuse(peer_host, "tls_closed", "closed within the handshake")
            return False
        return True

    def _refuse(self, peer: str, reason: str, detail: str) -> None:
        assert self.info is not None
        self._on_refused(self.info.id, reason)
        logger.info("%s: connection of %s refused (%s): %s", self.info.id, peer, reason, detail)
