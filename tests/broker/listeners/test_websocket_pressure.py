"""WebSocket connections under pressure, behind TLS, and when a connection fails."""

from __future__ import annotations

import asyncio
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import websockets
from picows.picows import WSProtocol  # type: ignore[attr-defined]  # picows has no types for it

from braidmq.base.config.settings import ListenerSettings
from braidmq.broker.listeners import websocket as module
from tests.broker.listeners.echo_client import LOCAL, both_loops, client_of
from tests.support.certificates import Authority
from tests.support.clients.transports import BINARY, CLOSE, PING, upgrade_request, websocket_frame
from tests.support.echo_listeners import open_house, run


@both_loops
def test_a_connection_that_is_not_read_is_told_to_pause_and_later_to_resume(loop_name: str) -> None:
    async def scenario() -> None:
        async with open_house(ws=LOCAL) as house, client_of(house, limit=1024) as client:
            connection = house.connections[0]
            connection.transport.set_write_buffer_limits(high=65536, low=16384)
            written = 0
            while not connection.writing_paused:
                connection.transport.write(bytes(60_000))
                written += 60_000
                await asyncio.sleep(0)
            assert connection.transport.get_write_buffer_size() > 65536

            received = 0
            while received < written:
                received += len((await client.receive()).payload)
            await house.until(lambda: connection.writing_resumed == 1)

    run(loop_name, scenario())


@both_loops
def test_pings_of_a_client_that_reads_nothing_do_not_pile_up_answers(loop_name: str) -> None:
    async def scenario() -> None:
        async with open_house(ws=LOCAL) as house, client_of(house, limit=1024) as client:
            connection = house.connections[0]
            connection.transport.set_write_buffer_limits(high=65536, low=16384)
            while not connection.writing_paused:
                connection.transport.write(bytes(60_000))
                await asyncio.sleep(0)
            waiting = connection.transport.get_write_buffer_size()

            house.echoes = False
            for _ in range(2000):
                client.send(PING, bytes(125))
            client.send(BINARY, b"end")
            await house.until(lambda: bytes(connection.received) == b"end")

            assert connection.transport.get_write_buffer_size() <= waiting

    run(loop_name, scenario())


@both_loops
def test_a_paused_connection_stops_reading_and_resumes_where_it_stopped(loop_name: str) -> None:
    async def scenario() -> None:
        async with open_house(ws=LOCAL) as house, client_of(house) as client:
            house.echoes = False
            connection = house.connections[0]
            client.send(BINARY, b"a")
            await house.until(lambda: bytes(connection.received) == b"a")

            connection.transport.pause_reading()
            client.send(BINARY, b"b")
            await asyncio.sleep(0.05)
            assert bytes(connection.received) == b"a"

            connection.transport.resume_reading()
            await house.until(lambda: bytes(connection.received) == b"ab")

    run(loop_name, scenario())


def test_a_fast_sender_does_not_blow_up_the_read_buffer() -> None:
    async def scenario() -> None:
        async with open_house(ws=LOCAL) as house, client_of(house) as client:
            house.echoes = False
            connection = house.connections[0]
            protocol: Any = connection.transport._ws.underlying_transport.get_protocol()
            frames = websocket_frame(BINARY, bytes(1000)) * 5000
            connection.transport.write(b"answered")
            # While reading is paused the kernel's buffer fills, so that one read could take megabytes.
            connection.transport.pause_reading()
            client.writer.write(frames)
            await asyncio.sleep(0.05)
            connection.transport.resume_reading()
            await house.until(lambda: len(connection.received) == 5_000_000)

            assert len(WSProtocol.get_buffer(protocol, -1)) <= 4 * module.READ_BYTES_MAX

    run("uvloop", scenario())


@both_loops
def test_secure_websocket_with_a_library_client(loop_name: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.server()

    async def scenario() -> None:
        settings = ListenerSettings(bind="127.0.0.1:0", cert_file=server.cert_file, key_file=server.key_file, path="/ws")
        async with open_house(wss=settings) as house:
            host, port = house.address("wss:default")
            async with websockets.connect(
                f"wss://localhost:{port}/ws",
                host=host,
                ssl=authority.client_context(),
                subprotocols=["mqtt"],  # type: ignore[list-item]
            ) as client:
                assert client.subprotocol == "mqtt"
                for payload in (b"a", os.urandom(200_000)):
                    await client.send(payload)
                    assert await client.recv() == payload
                await (await client.ping())
                origin = house.connections[0].origin
                assert (origin.kind, origin.secure) == ("wss", True)
            assert client.close_code == 1000
            await house.until(lambda: house.live("wss:default") == 0)

    run(loop_name, scenario())


@both_loops
def test_plain_bytes_on_a_secure_listener_are_refused_before_http(loop_name: str, tmp_path: Path) -> None:
    server = Authority(tmp_path).server()

    async def scenario() -> None:
        settings = ListenerSettings(bind="127.0.0.1:0", cert_file=server.cert_file, key_file=server.key_file)
        async with open_house(wss=settings) as house:
            _, writer = await asyncio.open_connection(*house.address("wss:default"))
            writer.write(upgrade_request())
            await house.until(lambda: house.refusals["tls_not_tls"] == 1 and house.live("wss:default") == 0)
            writer.close()

    run(loop_name, scenario())


@both_loops
def test_a_connection_that_raises_is_closed_and_releases_its_slot(
    loop_name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with open_house(ws=LOCAL) as house, client_of(house) as client:
            monkeypatch.setattr(house.connections[0], "feed", lambda data: 1 // 0)
            client.send(BINARY, b"x")

            frame = await client.receive()
            assert (frame.opcode, frame.payload[:2]) == (CLOSE, struct.pack(">H", 1011))
            await house.until(lambda: house.connections[0].is_lost and house.live("ws:default") == 0)

    run(loop_name, scenario())
    assert "ZeroDivisionError" in caplog.text
