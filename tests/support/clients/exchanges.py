"""Single exchanges of bytes below MQTT: PROXY headers, TLS handshakes, arbitrary bytes."""

from __future__ import annotations

import socket
import ssl
import struct

from tests.support.clients.transports import DEADLINE_S
from tests.support.clients.wire import Wire

PROXY_V2 = b"\r\n\r\n\x00\r\nQUIT\n"


def tls_exchange(address: tuple[str, int], context: ssl.SSLContext, sent: bytes, server_name: str = "localhost") -> bytes:
    """Shake hands, send, and give the first bytes of the answer; what the client sees of a refusal is raised."""
    with (
        socket.create_connection(address, timeout=DEADLINE_S) as plain,
        context.wrap_socket(plain, server_hostname=server_name) as secure,
    ):
        secure.sendall(sent)
        # With TLS 1.3 the server judges the client's certificate after the client believes to be connected.
        return secure.recv(4096)


def plain_exchange(address: tuple[str, int], *sent: bytes) -> bytes:
    """All that the broker answers until it closes."""
    with Wire(*address) as wire:
        try:
            for part in sent:
                wire.send(part)
        except (ConnectionResetError, BrokenPipeError):
            return b""
        return wire.read_to_end()


def proxy_v2(source: str = "192.0.2.7", port: int = 4242, *, fields: bytes = b"", length: int | None = None) -> bytes:
    """A PROXY header of version 2 for a TCP/IPv4 client; ``length`` is what it claims, if that is not the truth."""
    body = socket.inet_aton(source) + socket.inet_aton("192.0.2.1") + struct.pack(">HH", port, 1883) + fields
    return PROXY_V2 + struct.pack(">BBH", 0x21, 0x11, len(body) if length is None else length) + body
