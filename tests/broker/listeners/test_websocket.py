"""MQTT over WebSocket on real sockets: the upgrade, frames of every shape, back-pressure and closing.

The client here builds its frames by hand, so that it can send wrong ones; one test uses the ``websockets`` library.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct

import pytest

from braidmq.base.config.settings import LimitSettings, MqttSettings
from braidmq.base.units import Bytes, Seconds
from braidmq.broker.listeners import websocket as module
from braidmq.broker.listeners.websocket import choose_subprotocol
from tests.broker.listeners.echo_client import LOCAL, answer_to, both_loops, client_of
from tests.support.clients.transports import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    WebSocketFrame,
    upgrade_request,
    websocket_frame,
)
from tests.support.echo_listeners import open_house, run


@both_loops
def test_the_upgrade_agrees_on_mqtt_and_the_peer_is_known(loop_name: str) -> None:
    async def scenario() -> None:
        async with open_house(ws=LOCAL) as house:
            reader, writer = await asyncio.open_connection(*house.address("ws:default"))
            writer.write(upgrade_request(X_Forwarded_For="203.0.113.9"))
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()

            assert head.startswith("http/1.1 101 ")
            assert "\r\nsec-websocket-protocol: mqtt\r\n" in head
            # RFC 6455, section 1.3, has this answer to this key.
            assert "\r\nsec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=\r\n" in head
            origin = house.connections[0].origin
            assert (origin.peer_host, origin.peer_port) == writer.get_extra_info("sockname")
            assert (origin.kind, origin.secure, origin.anonymous_allowed) == ("ws", False, True)
            writer.close()
            await house.until(lambda: house.live("ws:default") == 0)
            assert house.connections[0].is_lost

    run(loop_name, scenario())


def test_mqtt_is_the_subprotocol_at_any_place_in_the_offer() -> None:
    assert choose_subprotocol(["mqtt"]) == "mqtt"
    assert choose_subprotocol(["chat, mqttv3.1 ,mqtt"]) == "mqtt"
    assert choose_subprotocol(["chat, mqttv3.1"]) == "mqttv3.1"
    assert choose_subprotocol(["chat", "mqtt"]) == "mqtt"
    assert choose_subprotocol(["MQTT5", "xmqtt"]) is None
    assert choose_subprotocol([]) is None


@both_loops
def test_a_browser_that_lists_keep_alive_beside_upgrade_gets_in(loop_name: str) -> None:
    async def scenario() -> None:
        async with open_house(ws=LOCAL) as house:
            reader, writer = await asyncio.open_connection(*house.address("ws:default"))
            writer.write(upgrade_request("/mqtt?token=1", Connection="keep-alive, Upgrade", Origin="http://localhost:3000"))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            writer.close()

    run(loop_name, scenario())


@both_loops
@pytest.mark.parametrize(
    ("sent", "status", "reason"),
    [
        (upgrade_request(Sec_WebSocket_Protocol=""), 400, "ws_subprotocol"),
        (upgrade_request(Sec_WebSocket_Protocol="chat"), 400, "ws_subprotocol"),
        (upgrade_request("/"), 404, "ws_path"),
        (upgrade_request("/mqtt/"), 404, "ws_path"),
        (upgrade_request(Upgrade=""), 400, "ws_handshake"),
        (upgrade_request(Sec_WebSocket_Key="short"), 400, "ws_handshake"),
        (upgrade_request(Sec_WebSocket_Version="12"), 400, "ws_handshake"),
        (b"POST /mqtt HTTP/1.1\r\nHost: x\r\n\r\n", 400, "ws_handshake"),
        (b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04abcd\r\n\r\n", 400, "ws_handshake"),
    ],
    ids=["no subprotocol", "other subprotocol", "root", "longer path", "no upgrade", "bad key", "version", "post", "mqtt"],
)
def test_a_wrong_request_gets_an_http_error_and_no_connection(loop_name: str, sent: bytes, status: int, reason: str) -> None:
    async def scenario() -> None:
        async with open_house(ws=LOCAL) as house:
            answer = await answer_to(house, sent)

            assert answer.startswith(f"HTTP/1.1 {status} ".encode())
            await house.until(lambda: house.refusals[reason] == 1 and house.live("ws:default") == 0)
            assert house.refusals.total() == 1
            assert not house.connections

    run(loop_name, scenario())


@both_loops
def test_a_request_that_never_ends_is_bounded_in_time_and_size(loop_name: str) -> None:
    async def scenario() -> None:
        async with open_house(ws=LOCAL, limits=LimitSettings(connect_timeout=Seconds(0.2))) as house:
            assert await answer_to(house, b"GET /mqtt HTTP/1.1\r\nHost: ") == b""
            await house.until(lambda: house.refusals["ws_handshake"] == 1 and house.live("ws:default") == 0)

        async with open_house(ws=LOCAL, limits=LimitSettings(connect_timeout=Seconds(60))) as house:
            with contextlib.suppress(ConnectionResetError):
                assert await answer_to(house, b"GET /mqtt HTTP/1.1\r\nX: " + b"x" * 100_000) == b""
            await house.until(lambda: house.refusals["ws_handshake"] == 1 and house.live("ws:default") == 0)

    run(loop_name, scenario())


@both_loops
@pytest.mark.parametrize("size", [0, 1, 125, 126, 8192, 8193, 65535, 65536, 300_000])
def test_a_frame_of_any_size_comes_back_as_one_binary_frame(loop_name: str, size: int) -> None:
    payload = os.urandom(size)

    async def scenario() -> None:
        async with open_house(ws=LOCAL) as house, client_of(house) as client:
            client.send(BINARY, b"connect")
            assert (await client.receive()).payload == b"connect"

            client.send(BINARY, payload)

            assert await client.receive() == WebSocketFrame(BINARY, payload, True)

    run(loop_name, scenario())


@both_loops
def test_fragments_and_frames_in_one_segment_are_fed_in_order(loop_name: str) -> None:
    async def scenario() -> None:
        async with open_house(ws=LOCAL) as house, client_of(house) as client:
            house.echoes = False
            client.writer.write(
                websocket_frame(BINARY, b"ab", is_final=False)
                + websocket_frame(PING, b"between")
                + websocket_frame(CONTINUATION, b"cd", is_final=False)
                + websocket_frame(CONTINUATION, b"ef")
                + websocket_frame(BINARY, b"gh")
            )
            assert await client.receive() == WebSocketFrame(PONG, b"between", True)
            await house.until(lambda: bytes(house.connections[0].received) == b"abcdefgh")

    run(loop_name, scenario())


@both_loops
def test_a_frame_that_arrives_in_single_bytes_is_read(loop_name: str) -> None:
    async def scenario() -> None:
        async with open_house(ws=LOCAL) as house, client_of(house) as client:
            client.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in websocket_frame(BINARY, b"slowly"):
                client.writer.write(bytes([byte]))
                await client.writer.drain()
                await asyncio.sleep(0)
            assert (await client.receive()).payload == b"slowly"

    run(loop_name, scenario())


@both_loops
@pytest.mark.parametrize(
    ("sent", "code", "reason"),
    [
        (websocket_frame(TEXT, b"hello"), 1003, "ws_text"),
        (websocket_frame(CONTINUATION, b"x"), 1002, "ws_framing"),
        (websocket_frame(BINARY, b"x", is_final=False) + websocket_frame(BINARY, b"y"), 1002, "ws_framing"),
        (websocket_frame(BINARY, b"x", reserved=4), 1002, "ws_framing"),
    ],
    ids=["text", "stray continuation", "message within a message", "reserved bit"],
)
def test_a_wrong_frame_closes_with_its_code(loop_name: str, sent: bytes, code: int, reason: str) -> None:
    async def scenario() -> None:
        async with open_house(ws=LOCAL) as house, client_of(house) as client:
            house.echoes = False
            client.writer.write(sent + websocket_frame(BINARY, b"ignored"))

            await client.assert_closed_with(code)
            assert b"ignored" not in house.connections[0].received
            await house.until(lambda: house.connections[0].is_lost and house.live("ws:default") == 0)
            assert house.refusals == {reason: 1}

    run(loop_name, scenario())


@both_loops
@pytest.mark.parametrize(
    "sent",
    [
        bytes([0x82, 0x02]) + b"ab",
        websocket_frame(3, b"x"),
        websocket_frame(PING, b"x", is_final=False),
        websocket_frame(PING, bytes(126)),
    ],
    ids=["not masked", "unknown opcode", "fragmented ping", "long ping"],
)
def test_broken_framing_closes_as_a_protocol_error(loop_name: str, sent: bytes) -> None:
    async def scenario() -> None:
        async with open_house(ws=LOCAL) as house, client_of(house) as client:
            client.writer.write(sent)

            frame = await client.receive()
            assert (frame.opcode, frame.payload[:2]) == (CLOSE, struct.pack(">H", 1002))
            await house.until(lambda: house.connections[0].is_lost and house.live("ws:default") == 0)

    run(loop_name, scenario())


@both_loops
def test_a_frame_above_the_largest_packet_is_refused_by_its_header_alone(loop_name: str) -> None:
    async def scenario() -> None:
        async with open_house(ws=LOCAL, mqtt=MqttSettings(packet_bytes_max=Bytes(100_000))) as house, client_of(house) as client:
            client.send(BINARY, b"x")
            await client.receive()

            client.send(BINARY, b"x", length=2**40)

            frame = await client.receive()
            assert (frame.opcode, frame.payload[:2]) == (CLOSE, struct.pack(">H", 1009))
            await house.until(lambda: house.connections[0].is_lost)

    run(loop_name, scenario())


@both_loops
def test_before_the_first_answer_little_may_arrive(loop_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_WAIT_S", 0.1)

    async def scenario() -> None:
        async with open_house(ws=LOCAL, limits=LimitSettings(preauth_packet_bytes=Bytes(4096))) as house:
            house.echoes = False
            async with client_of(house) as client:
                # A first small frame does not lift the bound; only an answer does.
                client.send(BINARY, b"x")
                client.send(BINARY, bytes(70_000), length=500_000)
                frame = await client.receive()
                assert (frame.opcode, frame.payload[:2]) == (CLOSE, struct.pack(">H", 1009))
                await house.until(lambda: house.refusals["ws_size"] == 1 and house.live("ws:default") == 0)

            house.echoes = True
            async with client_of(house) as client:
                client.send(BINARY, b"x")
                await client.receive()
                client.send(BINARY, bytes(200_000))
                assert len((await client.receive()).payload) == 200_000

    run(loop_name, scenario())


@both_loops
def test_a_lying_length_waits_and_costs_only_what_arrived(loop_name: str) -> None:
    async def scenario() -> None:
        async with open_house(ws=LOCAL) as house, client_of(house) as client:
            client.send(BINARY, b"first")
            await client.receive()
            client.send(BINARY, b"only this", length=1_000_000)
            client.send(PING, b"inside the frame")
            await asyncio.sleep(0.05)

            assert bytes(house.connections[0].received) == b"first"
            # Whoever owns the connection ends it when its time is over.
            house.connections[0].transport.abort()
            with contextlib.suppress(ConnectionResetError):
                assert await client.reader.read() == b""
            await house.until(lambda: house.live("ws:default") == 0)

    run(loop_name, scenario())


@both_loops
def test_the_close_handshake_of_the_client_is_answered(loop_name: str) -> None:
    async def scenario() -> None:
        for payload in (b"", struct.pack(">H", 1000) + b"bye", struct.pack(">H", 4001)):
            async with open_house(ws=LOCAL) as house, client_of(house) as client:
                client.send(CLOSE, payload)

                frame = await client.receive()
                assert (frame.opcode, frame.payload[:2]) == (CLOSE, struct.pack(">H", 1000))
                assert await client.reader.read() == b""
                await house.until(lambda house=house: house.connections[0].is_lost)  # type: ignore[misc]

    run(loop_name, scenario())


@both_loops
@pytest.mark.parametrize("last", [(CLOSE, b""), (TEXT, b"x")], ids=["close", "text"])
def test_data_before_the_end_in_the_same_read_is_still_fed(loop_name: str, last: tuple[int, bytes]) -> None:
    async def scenario() -> None:
        async with open_house(ws=LOCAL) as house, client_of(house) as client:
            house.echoes = False
            client.writer.write(websocket_frame(BINARY, b"a") + websocket_frame(BINARY, b"b") + websocket_frame(*last))

            assert (await client.receive()).opcode == CLOSE
            assert bytes(house.connections[0].received) == b"ab"

    run(loop_name, scenario())


@both_loops
def test_closing_sends_what_was_written_before_and_waits_for_the_answer(loop_name: str) -> None:
    async def scenario() -> None:
        async with open_house(ws=LOCAL) as house, client_of(house) as client:
            transport = house.connections[0].transport
            transport.write(b"goodbye")
            transport.close()
            transport.write(b"too late")

            assert transport.is_closing()
            assert (await client.receive()).payload == b"goodbye"
            await client.assert_closed_with(1000)
            await house.until(lambda: house.connections[0].is_lost)

    run(loop_name, scenario())


@both_loops
def test_a_connection_that_had_paused_reading_still_hears_the_answer_to_its_close(loop_name: str) -> None:
    async def scenario() -> None:
        async with open_house(ws=LOCAL) as house, client_of(house) as client:
            transport = house.connections[0].transport
            transport.pause_reading()
            await asyncio.sleep(0)
            transport.close()

            async with asyncio.timeout(module.CLOSE_WAIT_S / 2):
                await client.assert_closed_with(1000)

    run(loop_name, scenario())


@both_loops
def test_a_peer_that_never_answers_the_close_is_dropped(loop_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_WAIT_S", 0.1)

    async def scenario() -> None:
        async with open_house(ws=LOCAL) as house, client_of(house) as client:
            house.connections[0].transport.close()
            assert (await client.receive()).opcode == CLOSE

            await house.until(lambda: house.connections[0].is_lost and house.live("ws:default") == 0)

    run(loop_name, scenario())
