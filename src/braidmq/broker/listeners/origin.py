"""The origin of a connection, and its listener.

A connection is made for a ``ListenerInfo`` and owes it two calls: ``describe_peer`` once in ``connection_made`` (or later, before
``connection_lost``) and ``release`` exactly once in ``connection_lost``, which frees its place under ``connections_max``.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Literal, Protocol

import msgspec

from braidmq.base.config.settings import ListenerSettings
from braidmq.base.file_descriptors import Room
from braidmq.base.listening.tcp_info import PollTimes, TcpSocket, spoke_at
from braidmq.broker.listeners.certificate_name import certificate_name
from braidmq.broker.listeners.proxy_protocol import ProxyHeader

ListenerKind = Literal["tcp", "tls", "ws", "wss"]
TLS_KINDS: tuple[ListenerKind, ...] = ("tls", "wss")
WEBSOCKET_KINDS: tuple[ListenerKind, ...] = ("ws", "wss")


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The peer of a connection; with a proxy, the client behind it.

    ``spoke_at``: when the peer, or the proxy, was last heard before the connection was accepted, by the monotonic clock.
    """

    listener: str  # "tcp:default"
    kind: ListenerKind
    peer_host: str
    peer_port: int
    certificate_name: str | None  # verified, and only if the listener takes user names from certificates
    anonymous_allowed: bool
    secure: bool
    spoke_at: float = 0.0


class ListenerInfo:
    """A listener as its connections see it; ``live`` counts its connections, including those in a handshake."""

    __slots__ = ("_room", "id", "is_on_loopback", "kind", "live", "polls", "secure", "settings")

    def __init__(
        self, kind: ListenerKind, name: str, settings: ListenerSettings, *, is_on_loopback: bool, room: Room | None = None
    ) -> None:
        """`room` has the places that all listeners share."""
        self.id = f"{kind}:{name}"
        self.kind: ListenerKind = kind
        self.settings = settings
        self.secure = kind in TLS_KINDS
        self.is_on_loopback = is_on_loopback
        self.live = 0
        self.polls: PollTimes | None = None  # where the system cannot say when a peer spoke
        self._room = room or Room()

    @property
    def is_local(self) -> bool:
        """Whether all clients are on this machine."""
        # Behind a proxy on this machine the clients come from anywhere, so loopback alone proves nothing there.
        return self.is_on_loopback and not self.settings.proxy_protocol

    @property
    def anonymous_allowed(self) -> bool:
        """Whether clients may connect here without credentials."""
        if self.settings.allow_anonymous is not None:
            return self.settings.allow_anonymous
        return self.is_local

    def describe(self, transport: asyncio.BaseTransport) -> Origin:
        """The origin of a connection without a proxy."""
        host, port = peer_address(transport)
        return Origin(
            self.id,
            self.kind,
            host,
            port,
            self._certificate_name(transport),
            self.anonymous_allowed,
            self.secure,
            self._spoke_at(transport),
        )

    def spoke_at(self, connected: TcpSocket) -> float:
        """When the peer of this socket was last heard, by the monotonic clock (R4)."""
        found = spoke_at(connected)
        if found is not None:
            return found
        return monotonic() if self.polls is None else self.polls.before

    def take(self) -> bool:
        """Take a place for a new connection if the node has one."""
        if not self._room.take():
            return False
        self.live += 1
        return True

    def release(self) -> None:
        """Release the connection's slot."""
        self.live -= 1
        self._room.give_back()

    def _spoke_at(self, transport: asyncio.BaseTransport) -> float:
        connected = transport.get_extra_info("socket")
        return monotonic() if connected is None else self.spoke_at(connected)

    def _certificate_name(self, transport: asyncio.BaseTransport) -> str | None:
        form = self.settings.user_from_certificate
        if not form or not self.secure:
            return None
        return certificate_name(transport.get_extra_info("ssl_object"), form)


class Arrival(ListenerInfo):
    """The listener of a connection that must pass a PROXY header or a TLS handshake first.

    ``is_met`` turns true when the connection asks who its peer is. ``release`` may come twice.
    """

    __slots__ = ("_accepted_spoke_at", "_listener", "header", "is_met")

    def __init__(self, listener: ListenerInfo, header: ProxyHeader | None = None, *, spoke_at: float = 0.0) -> None:
        """``spoke_at``: when the peer was last heard, as the connection was accepted."""
        self.id = listener.id
        self.kind = listener.kind
        self.settings = listener.settings
        self.secure = listener.secure
        self.is_on_loopback = listener.is_on_loopback
        self.live = 1
        self.header = header
        self.is_met = False
        self.polls = listener.polls
        self._listener = listener
        self._accepted_spoke_at = spoke_at

    def describe(self, transport: asyncio.BaseTransport) -> Origin:
        """The origin of this connection, as the proxy told it if there is one."""
        self.is_met = True
        origin = super().describe(transport)
        header = self.header
        if header is None:
            return origin
        host, port = header.source if header.source is not None else (origin.peer_host, origin.peer_port)
        name = origin.certificate_name
        if name is None and self.settings.user_from_certificate == "cn":
            name = header.certificate_name
        return msgspec.structs.replace(
            origin,
            peer_host=host,
            peer_port=port,
            certificate_name=name,
            secure=origin.secure or header.secure,
        )

    def _spoke_at(self, transport: asyncio.BaseTransport) -> float:
        return self._accepted_spoke_at  # the handshake, which may have had to wait, makes no connection newer

    def release(self) -> None:
        """Release the slot, once."""
        if self.live:
            self.live = 0
            self._listener.release()


class FedConnection(Protocol):
    """What listeners need of a connection beyond ``asyncio.BufferedProtocol``: bytes that arrive in messages."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def get_buffer(self, sizehint: int) -> bytearray | memoryview: ...
    def buffer_updated(self, nbytes: int) -> None: ...
    def eof_received(self) -> bool | None: ...

    def feed(self, data: bytes) -> None:
        """Take bytes of the MQTT stream; called in order, also when reading was paused in the same turn of the loop."""
        ...


class MakeConnection(Protocol):
    """Makes the protocol object of one new connection; it must not reach out before ``connection_made``."""

    def __call__(self, listener: ListenerInfo, /) -> FedConnection: ...


def describe_peer(transport: asyncio.BaseTransport, listener: ListenerInfo) -> Origin:
    """The origin of the connection on this transport, for ``connection_made``."""
    return listener.describe(transport)


def peer_address(transport: asyncio.BaseTransport) -> tuple[str, int]:
    """Host and port of the socket's other end; ``("", 0)`` if it is already gone."""
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple) or len(peer) < 2:
        return "", 0
    host: str = peer[0]
    # A dual-stack socket reports IPv4 peers as ::ffff:a.b.c.d; bans and rules know them as a.b.c.d.
    if host.startswith("::ffff:") and "." in host:
        host = host[7:]
    return host.partition("%")[0], peer[1]
