"""Opens connections for a client: TCP, TLS, Unix socket or WebSocket, each as an asyncio transport."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from braidmq.client.errors import EXIT_TLS, ClientError, connection_failure

CONNECT_TIMEOUT_S: Final = 10.0
_WEBSOCKET_FRAME_BYTES_MAX: Final = 512 * 1024 * 1024  # a frame may hold several of the largest MQTT packets

AnyProtocol = TypeVar("AnyProtocol", bound=asyncio.Protocol)


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a server and the transport to use."""

    host: str = "localhost"
    port: int = 1883
    unix_path: str = ""
    websocket_path: str = ""  # empty: plain MQTT
    tls: ssl.SSLContext | None = None
    bind_address: str = ""

    def __str__(self) -> str:
        if self.unix_path:
            return self.unix_path
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.websocket_path:
            return f"{'wss' if self.tls else 'ws'}://{host}:{self.port}{self.websocket_path}"
        return f"{host}:{self.port}"


async def connect(endpoint: Endpoint, factory: Callable[[], AnyProtocol]) -> AnyProtocol:
    """Open a connection to the endpoint and return its protocol; raises ClientError."""
    local = (endpoint.bind_address, 0) if endpoint.bind_address else None
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if endpoint.websocket_path:
                return await _connect_websocket(endpoint, factory, local)
            if endpoint.unix_path:
                return (await loop.create_unix_connection(factory, endpoint.unix_path))[1]
            _, protocol = await loop.create_connection(factory, endpoint.host, endpoint.port, ssl=endpoint.tls, local_addr=local)
            return protocol
    except (OSError, ValueError) as error:
        if endpoint.tls and isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError):
            raise ClientError(f"cannot connect to {endpoint}: the server ended the TLS handshake", EXIT_TLS) from None
        raise connection_failure(error, str(endpoint)) from None


async def _connect_websocket(
    endpoint: Endpoint, factory: Callable[[], AnyProtocol], local: tuple[str, int] | None
) -> AnyProtocol:
    # Most clients never need it, and importing it is slow.
    import picows

    from braidmq.client.websocket import WebSocketListener

    protocol = factory()
    listener = WebSocketListener(protocol)
    try:
        await picows.ws_connect(
            lambda: listener,
            str(endpoint),
            ssl_context=endpoint.tls,
            websocket_handshake_timeout=CONNECT_TIMEOUT_S,
            max_frame_size=_WEBSOCKET_FRAME_BYTES_MAX,
            max_redirects=0,
            extra_headers={"Sec-WebSocket-Protocol": "mqtt"},
            local_addr=local,
        )
    except picows.WSInvalidStatusError as error:
        answered = f" (it answered with status {int(error.response.status)})" if error.response else ""
        raise ClientError(f"cannot connect to {endpoint}: no WebSocket at this path{answered}") from None
    except picows.WSError as error:
        raise ClientError(f"cannot connect to {endpoint}: the WebSocket handshake failed: {error}") from None
    if not listener.is_open:  # ws_connect also returns if the server closed the connection without a response
        raise ClientError(f"cannot connect to {endpoint}: the server does not speak WebSocket")
    return protocol


def client_context(
    *,
    ca_file: str = "",
    ca_path: str = "",
    cert_file: str = "",
    key_file: str = "",
    check_host_name: bool = True,
    versions: str = "",
    ciphers: str = "",
    alpn: str = "",
) -> ssl.SSLContext:
    """A TLS context that trusts the given authorities, or those of the system by default; raises ClientError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = check_host_name
    at = ""
    try:
        if ca_file or ca_path:
            at = ca_file or ca_path
            context.load_verify_locations(ca_file or None, ca_path or None)
        else:
            context.load_default_certs()
        if cert_file:
            at = cert_file
            context.load_cert_chain(cert_file, key_file or None)
        if ciphers:
            at = "--ciphers"
            context.set_ciphers(ciphers)
    except (OSError, ValueError) as error:
        # ssl.SSLError is an OSError whose strerror says little more than "PEM lib".
        words = error.strerror if isinstance(error, FileNotFoundError | PermissionError) else "cannot be used for TLS"
        raise ClientError(f"{at}: {words}", EXIT_TLS) from None
    if versions:
        context.minimum_version = context.maximum_version = _TLS_VERSIONS[versions]
    if alpn:
        context.set_alpn_protocols([alpn])
    return context


_TLS_VERSIONS: Final[dict[str, Any]] = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}
