"""The two endpoints of a node's API: the HTTP listener on ``api.bind`` and the control socket ``<data_dir>/ctl.sock``.

Who may do what:

- The Unix socket has mode 0600, so only the user that runs the node can open it; every path is allowed.
- On TCP every client may read ``/metrics``, ``/status`` and ``/ready``; nodes register (``registration.py``).
- On TCP the control paths exist only if the listener is on a loopback address, and only for requests with the token from
  ``<data_dir>/ctl.token`` (mode 0600). On a loopback address nothing is served to a web page that reached it under a name of its
  own (``hosts.py``).
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import socket
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from braidmq.api.answers import Handler, bounded, errors_in_words, refusal
from braidmq.api.control import Control
from braidmq.api.hosts import known_hosts
from braidmq.api.operations import Operations
from braidmq.api.public import public_routes
from braidmq.base.config.addresses import Address, is_loopback, parse_address
from braidmq.base.errors import ConfigError
from braidmq.base.file_descriptors import Room
from braidmq.base.listening.door import Door, attach
from braidmq.base.listening.sockets import bound_address, open_sockets
from braidmq.base.listening.unix_socket import UnixSocket
from braidmq.control.contract import SOCKET_NAME, TOKEN_NAME

_BODY_BYTES_MAX: Final = 256 * 1024
_IDLE_S: Final = 15.0
_SHUTDOWN_S: Final = 1.0  # a trace in progress must not delay a stop


class ApiServer:
    """Serves ``Operations``; ``start`` opens both endpoints, ``stop`` closes them."""

    def __init__(
        self,
        operations: Operations,
        *,
        bind: str,
        data_dir: Path,
        hosts: tuple[str, ...] = (),
        room: Room | None = None,
        control_room: Room | None = None,
        registration: Sequence[web.RouteDef] = (),
    ) -> None:
        """The rooms bound the connections: one those of the HTTP listener, the other those of the control socket.

        ``registration``: from ``registration_routes``, on a core.
        """
        self._registration = registration
        self._room = room or Room()
        self._control_room = control_room or Room()
        self._doors: list[Door] = []
        self._operations = operations
        self._bind = bind
        self._hosts = hosts
        self._data_dir = data_dir
        self._runners: list[web.AppRunner] = []
        self._control_socket: UnixSocket | None = None
        self.address: Address | None = None  # of the HTTP listener, once it is open

    @property
    def socket_path(self) -> Path:
        """The path where ``braidmq ctl`` finds this node."""
        return self._data_dir / SOCKET_NAME

    async def start(self) -> None:
        """Open the control socket and, unless ``api.bind`` is empty, the HTTP listener. Raises ConfigError or UsageError."""
        try:
            await self._open_unix()
            if self._bind:
                await self._open_tcp()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close both, and remove the socket if it still belongs to this node."""
        while self._doors:
            self._doors.pop().close()
        while self._runners:
            await self._runners.pop().cleanup()
        if self._control_socket is not None:
            self._control_socket.remove()
        self._control_socket = None

    async def _open_unix(self) -> None:
        app = _application()
        app.add_routes(public_routes(self._operations))
        app.add_routes(Control(self._operations).routes())
        self._control_socket = UnixSocket(self.socket_path)
        self._serve("the control socket", await self._runner(app), self._control_socket.listening, self._control_room)

    async def _open_tcp(self) -> None:
        try:
            address = parse_address(self._bind)
        except ValueError as error:
            raise ConfigError("api.bind", str(error)) from None
        is_local = is_loopback(address.host)
        app = _application(known_hosts(self._hosts, is_local=is_local))
        app.add_routes(public_routes(self._operations))
        app.add_routes(self._registration)
        if is_local:
            control = web.Application(middlewares=[_token_required(read_or_make_token(self._data_dir / TOKEN_NAME))])
            for route in Control(self._operations).routes():
                control.router.add_route(route.method, route.path.removeprefix("/ctl"), route.handler)
            app.add_subapp("/ctl", control)
        runner = await self._runner(app)
        opened = await open_sockets(self._bind, "api.bind")
        for listening in opened:
            self._serve("api.bind", runner, listening, self._room)
        self.address = Address(*bound_address(opened[0]))

    def _serve(self, key: str, runner: web.AppRunner, listening: socket.socket, room: Room) -> None:
        server = runner.server
        assert server is not None  # the runner is set up

        def take(accepted: socket.socket, peer: object) -> None:
            protocol = _CountedConnection(server(), room)
            attach(accepted, lambda: protocol, lambda error: protocol.give_back())

        door = Door(key, listening, room.take, take)
        door.open()
        self._doors.append(door)

    async def _runner(self, app: web.Application) -> web.AppRunner:
        # handler_cancellation: a trace ends when its reader goes, not when the next line cannot be sent.
        runner = web.AppRunner(
            app, access_log=None, keepalive_timeout=_IDLE_S, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S
        )
        self._runners.append(runner)
        await runner.setup()
        return runner


class _CountedConnection(asyncio.Protocol):
    """The protocol of one connection, which releases its slot at the end."""

    def __init__(self, inner: web.RequestHandler, room: Room) -> None:
        self.give_back = room.give_back
        self._inner = inner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.give_back()
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> None:
        self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


def _application(*first: Middleware) -> web.Application:
    return web.Application(middlewares=[*first, errors_in_words, bounded()], client_max_size=_BODY_BYTES_MAX)


def _token_required(token: str) -> Middleware:
    expected = f"Bearer {token}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        shown = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(shown, expected):
            return refusal(401, "UNAUTHORIZED", f"this path needs the token from {TOKEN_NAME} in the node's data directory")
        return await handler(request)

    return check


def read_or_make_token(path: Path) -> str:
    """The token in the file; a new one if there is none yet, or if other users could have read it."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077 == 0 and (token := path.read_text().strip()):
            return token
        path.unlink()
    except FileNotFoundError:
        pass
    token = secrets.token_urlsafe(32)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token + "\n")
    return token
