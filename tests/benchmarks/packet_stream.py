"""Reads MQTT packets from a socket, for tests of the load generators."""

from __future__ import annotations

import socket
from collections.abc import Iterator


def packets(stream: socket.socket) -> Iterator[tuple[int, bytes, bytes]]:
    """First byte, body and whole of each packet; lengths stay below 128 in these tests."""
    data = b""
    while chunk := stream.recv(65536):
        data += chunk
        while len(data) >= 2 and len(data) >= 2 + data[1]:
            whole, data = data[: 2 + data[1]], data[2 + data[1] :]
            yield whole[0], whole[2:], whole
