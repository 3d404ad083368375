"""A WebSocket client made of plain sockets, so that tests decide over every byte."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from braidmq.base.config.settings import ListenerSettings
from tests.support.echo_listeners import LOOPS, EchoHouse

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
LOCAL = ListenerSettings(bind="127.0.0.1:0")

both_loops = pytest.mark.parametrize("loop_name", LOOPS)


class Frame(NamedTuple):
    """A frame from the server."""

    opcode: int
    payload: bytes
    is_final: bool


def client_frame(opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: int = 0, length: int | None = None) -> bytes:
    """A masked frame as a client sends it; ``length`` is what the header claims, if that is not the truth."""
    size = len(payload) if length is None else length
    first = opcode | (0x80 if fin else 0) | rsv << 4
    if size < 126:
        header = struct.pack(">BB", first, 0x80 | size)
    elif size < 65536:
        header = struct.pack(">BBH", first, 0xFE, size)
    else:
        header = struct.pack(">BBQ", first, 0xFF, size)
    mask = os.urandom(4)
    masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
    return header + mask + masked


def request(path: str = "/mqtt", **headers: str) -> bytes:
    """An upgrade request; a header given as "" is left out, underscores stand for hyphens."""
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


class Client:
    """A WebSocket client that sends what it is told."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, opcode: int, payload: bytes = b"", **options: Any) -> None:
        self.writer.write(client_frame(opcode, payload, **options))

    async def receive(self) -> Frame:
        first, second = await self.reader.readexactly(2)
        assert not second & 0x80, "a server does not mask"
        size = second
        if size == 126:
            (size,) = struct.unpack(">H", await self.reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", await self.reader.readexactly(8))
        return Frame(first & 0x0F, await self.reader.readexactly(size), bool(first & 0x80))

    async def assert_closed_with(self, code: int) -> None:
        """The server says why, waits for our close frame, and then the socket ends."""
        frame = await self.receive()
        assert (frame.opcode, frame.payload[:2]) == (CLOSE, struct.pack(">H", code))
        self.send(CLOSE, frame.payload[:2])
        assert await self.reader.read() == b""


@contextlib.asynccontextmanager
async def client_of(house: EchoHouse, listener: str = "ws:default", **options: Any) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(*house.address(listener), **options)
    writer.write(request())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


async def answer_to(house: EchoHouse, sent: bytes) -> bytes:
    """All that the server answers until it closes."""
    reader, writer = await asyncio.open_connection(*house.address("ws:default"))
    writer.write(sent)
    try:
        return await reader.read()
    finally:
        writer.close()
