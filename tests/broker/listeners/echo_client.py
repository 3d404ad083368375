"""A WebSocket connection to an ``EchoHouse``, on the event loop that the listener runs on.

It speaks no MQTT. ``Wire`` cannot take its place: it blocks, and these tests share one loop with the listener under test.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from braidmq.base.config.settings import ListenerSettings
from tests.support.clients.transports import CLOSE, WebSocketFrame, upgrade_request, websocket_frame
from tests.support.echo_listeners import LOOPS, EchoHouse

LOCAL = ListenerSettings(bind="127.0.0.1:0")

both_loops = pytest.mark.parametrize("loop_name", LOOPS)


class EchoClient:
    """Sends the frames it is told to send."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, opcode: int, payload: bytes = b"", **options: Any) -> None:
        self.writer.write(websocket_frame(opcode, payload, **options))

    async def receive(self) -> WebSocketFrame:
        first, second = await self.reader.readexactly(2)
        assert not second & 0x80, "a server does not mask"
        size = second
        if size == 126:
            (size,) = struct.unpack(">H", await self.reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", await self.reader.readexactly(8))
        return WebSocketFrame(first & 0x0F, await self.reader.readexactly(size), bool(first & 0x80))

    async def assert_closed_with(self, code: int) -> None:
        """The server says why, waits for our close frame, and then the socket ends."""
        frame = await self.receive()
        assert (frame.opcode, frame.payload[:2]) == (CLOSE, struct.pack(">H", code))
        self.send(CLOSE, frame.payload[:2])
        assert await self.reader.read() == b""


@contextlib.asynccontextmanager
async def client_of(house: EchoHouse, listener: str = "ws:default", **options: Any) -> AsyncIterator[EchoClient]:
    reader, writer = await asyncio.open_connection(*house.address(listener), **options)
    writer.write(upgrade_request())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    try:
        yield EchoClient(reader, writer)
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
