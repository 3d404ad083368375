"""Connections whose bytes below MQTT are in the test's hands: WebSocket frames, PROXY headers, TLS handshakes."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import time

from braidmq.mqtt.codec import encode
from braidmq.mqtt.packets import MQTT5, Packet
from tests.support.clients.wire import DEADLINE_S, Wire

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10

PROXY_V2 = b"\r\n\r\n\x00\r\nQUIT\n"


def websocket_frame(opcode: int, payload: bytes = b"", *, is_final: bool = True, length: int | None = None) -> bytes:
    """A masked frame as a client sends it; ``length`` is what the header claims, if that is not the truth."""
    size = len(payload) if length is None else length
    first = opcode | (0x80 if is_final else 0)
    if size < 126:
        header = struct.pack(">BB", first, 0x80 | size)
    elif size < 65536:
        header = struct.pack(">BBH", first, 0xFE, size)
    else:
        header = struct.pack(">BBQ", first, 0xFF, size)
    mask = os.urandom(4)
    return header + mask + bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))


def upgrade_request(path: str = "/mqtt", subprotocol: str | None = "mqtt") -> bytes:
    """The HTTP request that opens a WebSocket."""
    lines = [
        f"GET {path} HTTP/1.1",
        "Host: localhost",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        *([] if subprotocol is None else [f"Sec-WebSocket-Protocol: {subprotocol}"]),
    ]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()


class WebSocketWire(Wire):
    """MQTT over a WebSocket whose frames the test may build itself. ``status`` is the answer to the upgrade."""

    def __init__(self, host: str, port: int, version: int = MQTT5, *, request: bytes | None = None) -> None:
        super().__init__(host, port, version)
        self.close_code: int | None = None
        self._socket.sendall(upgrade_request() if request is None else request)
        head = self._read_until(b"\r\n\r\n")
        self.status = int(head.split(b" ", 2)[1])

    def send(self, *parts: Packet | bytes) -> None:
        """Send packets and raw bytes as one binary frame."""
        self.send_frame(BINARY, b"".join(part if isinstance(part, bytes) else encode(part, self.version) for part in parts))

    def send_frame(self, opcode: int, payload: bytes = b"", *, is_final: bool = True, length: int | None = None) -> None:
        """Send one frame."""
        self._socket.sendall(websocket_frame(opcode, payload, is_final=is_final, length=length))

    def expect_close_code(self, *codes: int) -> None:
        """The broker sends a close frame with one of these codes, and no MQTT before it."""
        deadline = time.monotonic() + DEADLINE_S
        while self.close_code is None and self._fill(deadline):
            pass
        assert not self._buffer, f"wanted a close frame, got {bytes(self._buffer)!r}"
        assert self.close_code in codes, f"closed with {self.close_code}, not with {codes}"

    def _read_until(self, end: bytes) -> bytes:
        head = b""
        while not head.endswith(end):
            data = self._socket.recv(1)
            assert data, f"closed within {head!r}"
            head += data
        return head

    def _fill(self, deadline: float) -> bool:
        """Take one frame; only what binary frames hold is MQTT."""
        try:
            first, second = self._read_exactly(2, deadline)
            assert not second & 0x80, "a server does not mask"
            size = second
            if size == 126:
                (size,) = struct.unpack(">H", self._read_exactly(2, deadline))
            elif size == 127:
                (size,) = struct.unpack(">Q", self._read_exactly(8, deadline))
            payload = self._read_exactly(size, deadline)
        except EOFError:
            return False
        opcode = first & 0x0F
        if opcode == CLOSE:
            self.close_code = struct.unpack(">H", payload[:2])[0]
            self.send_frame(CLOSE, payload[:2])
        elif opcode in (BINARY, CONTINUATION):
            self._buffer += payload
        return True

    def _read_exactly(self, size: int, deadline: float) -> bytes:
        data = b""
        while len(data) < size:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                more = self._socket.recv(size - len(data))
            except ConnectionResetError:
                more = b""
            if not more:
                raise EOFError
            data += more
        return data


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
    with socket.create_connection(address, timeout=DEADLINE_S) as plain:
        answer = b""
        try:
            for part in sent:
                plain.sendall(part)
            while data := plain.recv(4096):
                answer += data
        except (ConnectionResetError, BrokenPipeError):
            pass
        return answer


def proxy_v2(source: str = "192.0.2.7", port: int = 4242, *, fields: bytes = b"", length: int | None = None) -> bytes:
    """A PROXY header of version 2 for a TCP/IPv4 client; ``length`` is what it claims, if that is not the truth."""
    body = socket.inet_aton(source) + socket.inet_aton("192.0.2.1") + struct.pack(">HH", port, 1883) + fields
    return PROXY_V2 + struct.pack(">BBH", 0x21, 0x11, len(body) if length is None else length) + body
