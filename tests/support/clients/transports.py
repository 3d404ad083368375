"""What carries the bytes of a ``Wire``: a TCP socket, or a WebSocket whose frames the test may build itself."""

from __future__ import annotations

import os
import socket
import struct
import time
from typing import NamedTuple

# Far above any healthy answer on loopback, also on a machine with more work than processors; far below pytest's limit for a test.
DEADLINE_S = 15.0

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


class WebSocketFrame(NamedTuple):
    """A frame from the server."""

    opcode: int
    payload: bytes
    is_final: bool


def websocket_frame(
    opcode: int, payload: bytes = b"", *, is_final: bool = True, reserved: int = 0, length: int | None = None
) -> bytes:
    """A masked frame as a client sends it; ``length`` is what the header claims, if that is not the truth."""
    size = len(payload) if length is None else length
    first = opcode | (0x80 if is_final else 0) | reserved << 4
    if size < 126:
        header = struct.pack(">BB", first, 0x80 | size)
    elif size < 65536:
        header = struct.pack(">BBH", first, 0xFE, size)
    else:
        header = struct.pack(">BBQ", first, 0xFF, size)
    mask = os.urandom(4)
    return header + mask + bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))


def upgrade_request(path: str = "/mqtt", **headers: str) -> bytes:
    """The HTTP request that opens a WebSocket; a header given as "" is left out, underscores stand for hyphens."""
    fields = {
        "Host": "localhost",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Protocol": "mqtt",
    } | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{name}: {value}\r\n" for name, value in fields.items() if value]
    return f"GET {path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode()


class TcpTransport:
    """A socket with a deadline on every wait."""

    def __init__(self, host: str, port: int, source: str | None = None) -> None:
        self._socket = socket.create_connection((host, port), DEADLINE_S, None if source is None else (source, 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        """For ``select`` and event loops."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket at once."""
        self._socket.close()

    def finish_sending(self) -> None:
        """Send FIN and keep on reading."""
        self._socket.shutdown(socket.SHUT_WR)

    def send(self, data: bytes) -> None:
        """Send bytes of MQTT."""
        self._socket.sendall(data)

    def receive(self, deadline: float) -> bytes | None:
        """Some bytes of MQTT, perhaps none; None at the end of the stream. Raises ``TimeoutError``."""
        return self._receive_raw(65536, deadline) or None

    def has_arrived(self) -> bool:
        """Whether there is a byte to be read."""
        self._socket.settimeout(0)
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False

    def _receive_raw(self, size: int, deadline: float) -> bytes:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("nothing came before the deadline")
        self._socket.settimeout(left)
        try:
            return self._socket.recv(size)
        except (ConnectionResetError, BrokenPipeError):
            return b""


class WebSocketTransport(TcpTransport):
    """MQTT in binary frames. ``status`` is the answer to the upgrade, ``close_code`` that of the server's close frame."""

    def __init__(self, host: str, port: int, *, request: bytes | None = None) -> None:
        super().__init__(host, port)
        self.close_code: int | None = None
        self._socket.sendall(upgrade_request() if request is None else request)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self._read_exactly(1, time.monotonic() + DEADLINE_S)
        self.status = int(head.split(b" ", 2)[1])

    def send(self, data: bytes) -> None:
        """Send bytes of MQTT as one binary frame."""
        self.send_frame(BINARY, data)

    def send_frame(self, opcode: int, payload: bytes = b"", *, is_final: bool = True, length: int | None = None) -> None:
        """Send one frame."""
        self._socket.sendall(websocket_frame(opcode, payload, is_final=is_final, length=length))

    def receive(self, deadline: float) -> bytes | None:
        """The payload of the next frame; empty unless it is a data frame."""
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
            return None
        opcode = first & 0x0F
        if opcode == CLOSE:
            self.close_code = struct.unpack(">H", payload[:2])[0]
            self.send_frame(CLOSE, payload[:2])
        return payload if opcode in (BINARY, CONTINUATION) else b""

    def _read_exactly(self, size: int, deadline: float) -> bytes:
        data = b""
        while len(data) < size:
            more = self._receive_raw(size - len(data), deadline)
            if not more:
                raise EOFError(f"closed within {data!r}")
            data += more
        return data
