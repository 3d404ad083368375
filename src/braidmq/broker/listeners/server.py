"""The listeners of a node: bound sockets, and what happens to a connection between ``accept`` and its first byte of MQTT.

    tcp, ws     the accepted socket goes straight to the connection: nothing stands between
    tls, wss    a task per new connection shakes hands and then gives the socket on
    any kind    with ``proxy_protocol`` the task first reads the PROXY header, before the TLS handshake if there is one

Refused without a word as it is accepted: a connection above ``connections_max``, more than ``admit`` lets in, or one for which
the node has no file descriptor to spare. A peer that is slow to say who it is (header, handshake, HTTP request) has
``limits.connect_timeout`` for each of them. ``on_refused`` is told the listener's id and the reason for each connection that gets
no further; see ``docs/listeners.md`` for the reasons.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from braidmq.base.config.settings import LimitSettings, ListenerSettings
from braidmq.base.deadline_clock import finish_fairly
from braidmq.base.errors import ProtocolViolation
from braidmq.base.file_descriptors import Room
from braidmq.base.listening.door import Door, attach
from braidmq.base.listening.sockets import (
    PortSharing,
    bound_address,
    open_sockets,
    parse_networks,
    reach_this_machine_only,
)
from braidmq.base.listening.tcp_info import PollTimes, needs_poll_times
from braidmq.broker.listeners.handshakes import Handshakes
from braidmq.broker.listeners.origin import (
    TLS_KINDS,
    WEBSOCKET_KINDS,
    Arrival,
    ListenerInfo,
    ListenerKind,
    MakeConnection,
)
from braidmq.broker.listeners.proxy_protocol import ProxyHeader, header_bytes_needed, parse_header
from braidmq.broker.listeners.tls import TlsContexts, handshake_failure

logger = logging.getLogger("braidmq.listeners")

# How long a closed TLS connection waits for the peer's close_notify.
TLS_SHUTDOWN_S = 3.0
# The loop's own limit for a handshake would count time in which the process did not run; ours does not.
_NEVER_S = 86_400.0

Admit = Callable[[], bool]
OnRefused = Callable[[str, str], None]


class _GaveWay(Exception):
    """A handshake that was the oldest of too many."""


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
        handshakes_max: int,
        admit: Admit,
        on_refused: OnRefused,
        room: Room | None = None,
        sharing: PortSharing = PortSharing.NONE,
        accepts: bool = True,
    ) -> None:
        """`room` has the places that all listeners of the node share. Not `accepts`: it only holds its port for others."""
        self.key = f"listeners.{kind}.{name}"
        self.settings = settings
        self._kind: ListenerKind = kind
        self._name = name
        self._make_protocol = make_protocol
        self._connect_timeout_s = connect_timeout_s
        self._handshakes = Handshakes(handshakes_max)
        self._admit = admit
        self._on_refused = on_refused
        self._room = room or Room()
        self._proxies = parse_networks(settings.proxy_peers, f"{self.key}.proxy_peers")
        self.tls = TlsContexts(self.key, settings) if kind in TLS_KINDS else None
        self.info: ListenerInfo | None = None  # once started
        self._sharing = sharing
        self._accepts = accepts
        self._sockets: list[socket.socket] = []
        self._doors: list[Door] = []
        self._polls: PollTimes | None = None
        self._arriving: dict[asyncio.Task[None], Arrival] = {}

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where it listens, with the real port if the system chose it."""
        return [bound_address(each) for each in self._sockets]

    async def start(self) -> None:
        """Bind and accept; raises ``ConfigError`` if the address is not available."""
        self._sockets = sockets = await open_sockets(self.settings.bind, f"{self.key}.bind", self._sharing, listens=self._accepts)
        is_on_loopback = reach_this_machine_only(sockets)
        self.info = ListenerInfo(self._kind, self._name, self.settings, is_on_loopback=is_on_loopback, room=self._room)
        if not self._accepts:
            return
        if needs_poll_times(sockets[0]):
            self.info.polls = self._polls = PollTimes(asyncio.get_running_loop())
            self._polls.start()
        take = self._take_directly if self.tls is None and not self.settings.proxy_protocol else self._take
        self._doors = [Door(self.key, listening, self._has_room, take) for listening in sockets]
        for door in self._doors:
            door.open()

    async def reconfigure(self, settings: ListenerSettings, make_protocol: MakeConnection, limits: LimitSettings) -> None:
        """Apply settings that need no new socket; if their TLS files cannot be used, apply none of them."""
        if self.tls is not None and not await asyncio.to_thread(self.tls.reload, settings):
            return
        self.settings = settings
        self._make_protocol = make_protocol
        self._connect_timeout_s = limits.connect_timeout
        self._handshakes.under_way_max = limits.handshakes_max
        if self.info is not None:
            self.info.settings = settings

    def stop(self) -> None:
        """Accept no more and drop connections in their header or handshake; their owner closes the others."""
        for door in self._doors:
            door.close()
        if self._polls is not None:
            self._polls.stop()
        for each in self._sockets:
            each.close()
        for task, arrival in self._arriving.items():
            # A connection that has just been made may be in here until its task runs once more.
            if not arrival.is_met:
                task.cancel()
        self._doors = []
        self._sockets = []

    def _has_room(self) -> bool:
        """Reserve a slot for a connection, or count the reason for refusing it."""
        listener = self.info
        assert listener is not None
        if listener.live >= self.settings.connections_max:
            self._on_refused(listener.id, "connections_max")
        elif not self._admit():
            self._on_refused(listener.id, "connection_rate")
        elif not listener.take():
            self._on_refused(listener.id, "open_files")
        else:
            return True
        return False

    def _take_directly(self, accepted: socket.socket, peer: Any) -> None:
        make = self._make_directly
        if self._kind in WEBSOCKET_KINDS:  # MQTT begins after the upgrade: note now when the peer spoke
            assert self.info is not None
            make = partial(self._protocol_for, Arrival(self.info, spoke_at=self.info.spoke_at(accepted)))
        attach(accepted, make, partial(self._let_go, peer[0]))

    def _make_directly(self) -> asyncio.BaseProtocol:
        assert self.info is not None
        return cast(asyncio.BaseProtocol, self._make_protocol(self.info))

    def _let_go(self, peer_host: str, error: OSError) -> None:
        """The protocol was never told of this connection."""
        assert self.info is not None
        self.info.release()
        self._refuse(peer_host, "closed", str(error))

    def _take(self, accepted: socket.socket, peer: Any) -> None:
        assert self.info is not None
        arrival = Arrival(self.info, spoke_at=self.info.spoke_at(accepted))
        task = asyncio.get_running_loop().create_task(self._receive(accepted, peer[0], arrival))
        self._arriving[task] = arrival
        task.add_done_callback(self._arriving.pop)

    async def _receive(self, accepted: socket.socket, peer_host: str, arrival: Arrival) -> None:
        """Handle a new connection until its protocol takes over. Owns ``accepted`` and the place that it has."""
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
        try:
            return await finish_fairly(_read_header(accepted), self._connect_timeout_s)
        except ProtocolViolation as error:
            self._refuse(peer_host, "proxy_header", error.detail)
        except TimeoutError:
            self._refuse(peer_host, "proxy_header", "no PROXY header in time")
        except OSError as error:
            self._refuse(peer_host, "proxy_header", str(error))
        return None

    async def _hand_over(self, accepted: socket.socket, peer_host: str, arrival: Arrival) -> bool:
        """Give the socket to its protocol, after the TLS handshake if there is one; False if that failed."""

        try:
            if self.tls is None:
                loop = asyncio.get_running_loop()
                await loop.connect_accepted_socket(lambda: self._protocol_for(arrival), accepted)
                return True
            transport = await finish_fairly(self._shake_hands(self.tls, accepted, arrival), self._connect_timeout_s)
        except _GaveWay:
            self._refuse(peer_host, "tls_crowded", "too many handshakes, this was the oldest (see limits.handshakes_max)")
            return False
        except TimeoutError:
            self._refuse(peer_host, "tls_timeout", "the handshake took too long")
            return False
        except OSError as error:
            self._refuse(peer_host, f"tls_{handshake_failure(error)}" if self.tls else "closed", str(error))
            return False
        if transport.get_extra_info("ssl_object") is None:
            # Lost before the handshake was over, but without an error: the protocol was never told of this connection.
            self._refuse(peer_host, "tls_closed", "closed during the handshake")
            return False
        return True

    def _protocol_for(self, arrival: Arrival) -> asyncio.BaseProtocol:
        return cast(asyncio.BaseProtocol, self._make_protocol(arrival))

    async def _shake_hands(self, tls: TlsContexts, accepted: socket.socket, arrival: Arrival) -> asyncio.Transport:
        await self._handshakes.wait_for_turn(accepted)
        task = asyncio.current_task()
        assert task is not None
        has_to_go = False

        def give_way() -> None:
            nonlocal has_to_go
            has_to_go = not arrival.is_met  # else it is just over
            if has_to_go:
                task.cancel()

        with self._handshakes.begun(give_way):
            try:
                transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: self._protocol_for(arrival),
                    accepted,
                    ssl=tls.current,
                    ssl_handshake_timeout=_NEVER_S,
                    ssl_shutdown_timeout=TLS_SHUTDOWN_S,
                )
            except asyncio.CancelledError:
                if has_to_go:
                    raise _GaveWay from None
                raise
        return transport

    def _refuse(self, peer: str, reason: str, detail: str) -> None:
        assert self.info is not None
        self._on_refused(self.info.id, reason)
        logger.info("%s: connection of %s refused (%s): %s", self.info.id, peer, reason, detail)


async def _read_header(accepted: socket.socket) -> ProxyHeader:
    loop = asyncio.get_running_loop()
    head = b""
    while needed := header_bytes_needed(head):
        data = await loop.sock_recv(accepted, needed)
        if not data:
            raise ConnectionError("closed during the PROXY header")
        head += data
    return parse_header(head)
