"""Clients that send without a pause, in threads of their own."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterable, Iterator
from types import TracebackType

from braidmq.mqtt.packets import MQTT311
from tests.support.clients import raw
from tests.support.clients.wire import DEADLINE_S, unique

_BLOCKED_S = 0.5  # a socket that takes nothing for so long is not being read


def open_socket(host: str, port: int, *, receive_buffer_bytes: int = 0) -> socket.socket:
    """A connected MQTT 3.1.1 client as a bare socket."""
    return open_crowd(host, port, 1, receive_buffer_bytes=receive_buffer_bytes)[0]


def open_crowd(host: str, port: int, count: int, *topic_filters: str, receive_buffer_bytes: int = 0) -> list[socket.socket]:
    """So many connected MQTT 3.1.1 clients as bare sockets, subscribed to these filters."""
    crowd = []
    for _ in range(count):
        connection = socket.socket()
        connection.settimeout(DEADLINE_S)
        if receive_buffer_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        connection.connect((host, port))
        subscribes = b"".join(raw.subscribe(MQTT311, (each, 0)) for each in topic_filters)
        connection.sendall(raw.connect(MQTT311, client_id=unique()) + subscribes)
        crowd.append(connection)
    for connection in crowd:
        expected = len(b"\x20\x02\x00\x00") + len(b"\x90\x03\x00\x01\x00") * len(topic_filters)
        while expected:
            data = connection.recv(expected)
            assert data, "closed before its answers came"
            expected -= len(data)
    return crowd


class Flood:
    """Sends what ``data`` yields as fast as the broker takes it, and throws the answers away, until the context is left."""

    def __init__(self, host: str, port: int, data: Iterable[bytes]) -> None:
        self.sent_bytes = 0
        self._data: Iterator[bytes] = iter(data)
        self._is_over = False
        self._socket = open_socket(host, port)
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._send, self._discard)]

    def __enter__(self) -> Flood:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._is_over = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._socket.close()

    def _send(self) -> None:
        with contextlib.suppress(OSError):
            for piece in self._data:
                if self._is_over:
                    return
                self._socket.sendall(piece)
                self.sent_bytes += len(piece)

    def _discard(self) -> None:
        with contextlib.suppress(OSError):
            while not self._is_over and self._socket.recv(1 << 20):
                pass


def send_until_blocked(connection: socket.socket, piece: bytes, bytes_max: int) -> int:
    """Send the piece over and over, reading nothing, until the broker does not take more; how many bytes it took."""
    connection.setblocking(False)
    sent = 0
    while sent < bytes_max:
        if not select.select([], [connection], [], _BLOCKED_S)[1]:
            return sent
        with contextlib.suppress(BlockingIOError):
            # From where the last one was cut, so that frames stay whole.
            sent += connection.send(memoryview(piece)[sent % len(piece) :])
    return sent


def count_bytes(connection: socket.socket, least: int) -> int:
    """Read until so many bytes have come and no more follow."""
    connection.settimeout(DEADLINE_S)
    count = 0
    while count < least:
        data = connection.recv(1 << 20)
        assert data, f"closed after {count} bytes of {least}"
        count += len(data)
    return count
