"""A minimal MQTT 3.1.1 client on a blocking socket, and a proxy that can be cut: they find out when a node knows a filter."""

from __future__ import annotations

import select
import socket
import threading
import time
from contextlib import suppress

CONNECT_TIMEOUT_S = 10.0
HOST = "127.0.0.1"


class Probe:
    """A client of one node. Only QoS 0, and payloads of a byte."""

    def __init__(self, port: int, client_id: str) -> None:
        self._socket = socket.create_connection((HOST, port), CONNECT_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._send(0x10, b"\0\4MQTT\4\2\0\0" + _text(client_id))
        self._rest = b""
        self._expect(0x20)

    def subscribe(self, topic_filter: str) -> None:
        """Subscribe, and wait for the SUBACK."""
        self._send(0x82, b"\0\1" + _text(topic_filter) + b"\0")
        self._expect(0x90)

    def publish(self, topic: str, mark: int) -> None:
        """Publish one byte."""
        self._send(0x30, _text(topic) + bytes((mark,)))

    def marks(self, timeout_s: float) -> list[int]:
        """The bytes that have arrived within this time."""
        if not select.select([self._socket], [], [], timeout_s)[0]:
            return []
        self._rest += self._socket.recv(65536)
        found = []
        while (packet := self._next()) is not None:
            if packet[0] >> 4 == 3:
                found.append(packet[-1])
        return found

    def close(self) -> None:
        """Leave without DISCONNECT."""
        self._socket.close()

    def _send(self, first: int, body: bytes) -> None:
        assert len(body) < 128, "a length of one byte"
        self._socket.sendall(bytes((first, len(body))) + body)

    def _next(self) -> bytes | None:
        size = 2 + self._rest[1] if len(self._rest) > 1 else 2
        if len(self._rest) < size:
            return None
        packet, self._rest = self._rest[:size], self._rest[size:]
        return packet

    def _expect(self, first: int) -> None:
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while time.monotonic() < deadline:
            packet = self._next()
            if packet is not None and packet[0] == first:
                if packet[-1] > 2:
                    raise RuntimeError(f"the broker refused with {packet[-1]}")
                return
            if packet is None:
                received = self._socket.recv(65536)
                if not received:
                    break
                self._rest += received
        raise RuntimeError("the broker did not answer")


def _text(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def until_heard(listener: Probe, speakers: list[Probe], topic: str, timeout_s: float, every_s: float = 0.002) -> float:
    """Publish from all speakers, again and again, until the listener has heard each of them; seconds. Raises RuntimeError."""
    began = time.monotonic()
    missing = set(range(len(speakers)))
    while missing:
        if time.monotonic() - began > timeout_s:
            raise RuntimeError(f"{len(missing)} nodes do not know the filter after {timeout_s:g} s")
        for mark in missing:
            speakers[mark].publish(topic, mark)
        missing.difference_update(listener.marks(every_s))
    return time.monotonic() - began


class Proxy:
    """Passes TCP connections on to a port, and counts what comes back. While it is cut there are none."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server((HOST, 0))
        self.port = int(self._listener.getsockname()[1])
        self._is_cut = False
        self._open: list[socket.socket] = []
        self.bytes_to_node = 0
        self.accepted_at = 0.0  # when the first connection since the last cut was accepted; 0: none
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections, and accept none."""
        self._is_cut = True
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def restore(self) -> None:
        """Accept connections again."""
        self.bytes_to_node = 0
        self.accepted_at = 0.0
        self._is_cut = False

    def close(self) -> None:
        """End."""
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._is_cut:
                    client.close()
                    continue
                self.accepted_at = self.accepted_at or time.monotonic()
                server = socket.create_connection((HOST, self._target))
                self._open += [client, server]
                threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, is_counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(262144):
                if is_counted:
                    self.bytes_to_node += len(data)
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
