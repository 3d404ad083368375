"""All listeners of a node, started and stopped together."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from typing import cast

import msgspec

from braidmq.base.config.settings import ListenerSettings, Settings
from braidmq.base.file_descriptors import Room
from braidmq.base.listening.sockets import PortSharing
from braidmq.broker.listeners.origin import TLS_KINDS, WEBSOCKET_KINDS, ListenerInfo, ListenerKind, MakeConnection
from braidmq.broker.listeners.server import ListenerServer
from braidmq.broker.listeners.tls import build_context
from braidmq.broker.listeners.web_origins import WebOrigins
from braidmq.broker.listeners.websocket import WebSocketProtocol, WebSocketSettings

# Certificates are replaced every few weeks; looking every few seconds costs a handful of stat calls in a thread.
CERTIFICATE_POLL_S = 5.0
# What a listener keeps until the node starts again.
_FIXED_KEYS = ("bind", "enabled", "path", "proxy_protocol", "proxy_peers")
# A WebSocket frame may hold several packets, and a client may send more behind its CONNECT: room beside the largest packet.
_FRAME_ROOM_BYTES = 64 * 1024


class ListenerSet:
    """Every enabled listener of the configuration.

    ``admit`` is asked once for each new connection and may refuse it (connection rate). ``on_refused`` is told the listener's
    id and a reason for each connection that ends before MQTT begins. Lives on the event loop that called ``start``.
    """

    def __init__(
        self,
        settings: Settings,
        make_connection: MakeConnection,
        *,
        admit: Callable[[], bool] = lambda: True,
        on_refused: Callable[[str, str], None] = lambda listener, reason: None,
        certificate_poll_s: float = CERTIFICATE_POLL_S,
        room: Room | None = None,
        sharing: PortSharing = PortSharing.NONE,
        accepts: bool = True,
    ) -> None:
        """`room` limits the connections of all listeners together; None means no limit.

        Not `accepts`: the listeners only hold their ports for the processes that share them.
        """
        room = room or Room()
        self._certificate_poll_s = certificate_poll_s
        self._watcher: asyncio.Task[None] | None = None
        self._servers: dict[str, ListenerServer] = {}
        self._make_connection = make_connection
        self._on_refused = on_refused
        for kind, name, listener in _enabled(settings):
            self._servers[f"{kind}:{name}"] = ListenerServer(
                kind,
                name,
                listener,
                self._protocol_maker(settings, kind, listener),
                connect_timeout_s=settings.limits.connect_timeout,
                handshakes_max=settings.limits.handshakes_max,
                admit=admit,
                on_refused=on_refused,
                room=room,
                sharing=sharing,
                accepts=accepts,
            )

    @property
    def listeners(self) -> dict[str, ListenerInfo]:
        """The started listeners by id, with the number of their connections."""
        return {name: server.info for name, server in self._servers.items() if server.info is not None}

    def addresses(self) -> dict[str, tuple[str, int]]:
        """Where each listener is bound, by id; of a listener on several addresses the first."""
        return {name: server.addresses[0] for name, server in self._servers.items() if server.addresses}

    def certificate_expiry(self) -> float | None:
        """When the first of the server certificates expires, in seconds since 1970; None without TLS."""
        ends = (server.tls.expires_at for server in self._servers.values() if server.tls is not None)
        return min((end for end in ends if end is not None), default=None)

    async def start(self) -> None:
        """Start every listener or none: ``ConfigError`` names the first that fails."""
        try:
            for server in self._servers.values():
                await server.start()
        except BaseException:
            self.stop_accepting()
            raise
        if any(server.tls is not None for server in self._servers.values()):
            self._watcher = asyncio.get_running_loop().create_task(self._watch_certificates())
            self._watcher.add_done_callback(_report_death)

    def stop_accepting(self) -> None:
        """Close the listening sockets and drop connections within a TLS handshake; their owner closes the others."""
        if self._watcher is not None:
            self._watcher.cancel()
        for server in self._servers.values():
            server.stop()

    async def reconfigure(self, settings: Settings) -> None:
        """Apply changed settings and reread all certificates, CAs and CRLs, for new connections.

        Listeners that were not there at the start, and addresses, wait for a restart. A listener whose TLS files are
        invalid keeps its settings.
        """
        for kind, name, listener in _enabled(settings):
            server = self._servers.get(f"{kind}:{name}")
            if server is not None:
                fixed = {key: getattr(server.settings, key) for key in _FIXED_KEYS}
                changed = msgspec.structs.replace(listener, **fixed)
                make_protocol = self._protocol_maker(settings, kind, changed)
                await server.reconfigure(changed, make_protocol, settings.limits)

    def _protocol_maker(self, settings: Settings, kind: ListenerKind, listener: ListenerSettings) -> MakeConnection:
        if kind not in WEBSOCKET_KINDS:
            return self._make_connection
        shared = WebSocketSettings(
            path=listener.path,
            origins=WebOrigins(listener.origins),
            handshake_timeout_s=settings.limits.connect_timeout,
            frame_bytes_max=settings.mqtt.packet_bytes_max + _FRAME_ROOM_BYTES,
            unanswered_bytes_max=settings.limits.preauth_packet_bytes + _FRAME_ROOM_BYTES,
            make_connection=self._make_connection,
            on_refused=self._on_refused,
        )
        return cast(MakeConnection, functools.partial(WebSocketProtocol, shared))

    async def _watch_certificates(self) -> None:
        while True:
            await asyncio.sleep(self._certificate_poll_s)
            for server in self._servers.values():
                if server.tls is not None:
                    await asyncio.to_thread(server.tls.refresh)


def check_certificates(settings: Settings) -> None:
    """Load what every enabled TLS listener needs, as ``start`` would; raises ``ConfigError``. Blocks on files."""
    for kind, name, listener in _enabled(settings):
        if kind in TLS_KINDS:
            build_context(f"listeners.{kind}.{name}", listener)


def _enabled(settings: Settings) -> Iterator[tuple[ListenerKind, str, ListenerSettings]]:
    tables = settings.listeners
    kinds: tuple[tuple[ListenerKind, dict[str, ListenerSettings]], ...] = (
        ("tcp", tables.tcp),
        ("tls", tables.tls),
        ("ws", tables.ws),
        ("wss", tables.wss),
    )
    for kind, named in kinds:
        for name, listener in named.items():
            if listener.enabled:
                yield kind, name, listener


def _report_death(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "the certificate watcher died", "exception": error, "task": task})
