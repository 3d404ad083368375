"""Data before or instead of a CONNECT: other protocols, silence, invalid lengths."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable

import pytest

from braidmq.mqtt.packets import MQTT5, MQTT311
from tests.support.clients import raw
from tests.support.clients.wire import DEADLINE_S
from tests.support.stage import Stage, resident_bytes, wait_until

LONGEST = b"\xff\xff\xff\x7f"  # a remaining length of 256 MiB, the most that MQTT can say

both_versions = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])


def tls_hello() -> bytes:
    """The first flight of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


NOT_CONNECT = {
    "pingreq": b"\xc0\x00",
    "publish": raw.publish(MQTT311, "t", b"x"),
    "publish of 256 MiB": b"\x30" + LONGEST,
    "subscribe": raw.subscribe(MQTT5, ("#", 0)),
    "connack": b"\x20\x03\x00\x00\x00",
    "connect with flags": b"\x11\x00",
    "packet type 0": b"\x00\x00",
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": tls_hello(),
    "ssh": b"SSH-2.0-OpenSSH_9.2\r\n",
    "zeros": bytes(4096),
}


@pytest.mark.row(1, "N4")
@pytest.mark.parametrize("first_bytes", NOT_CONNECT.values(), ids=NOT_CONNECT)
def test_a_connection_that_does_not_start_with_connect_is_closed_without_an_answer(stage: Stage, first_bytes: bytes) -> None:
    wire = stage.open()

    wire.send(first_bytes)

    # Where the packet claims a body, none was sent: the broker did not wait for it, let alone make room for it.
    wire.expect_closed()


@pytest.mark.row(1)
def test_a_first_byte_other_than_connect_closes_the_connection_at_once(stage: Stage) -> None:
    wire = stage.open()

    wire.send(b"G")

    wire.expect_closed()


@pytest.mark.row(2)
def test_a_silent_connection_is_closed_at_the_connect_deadline(start: Callable[..., Stage]) -> None:
    stage = start(limits={"connect_timeout": "500ms"})

    wire = stage.open()

    wire.expect_closed()


@pytest.mark.row(2)
def test_a_connect_sent_byte_by_byte_does_not_extend_the_deadline(start: Callable[..., Stage]) -> None:
    stage = start(limits={"connect_timeout": "500ms"})
    wire = stage.open()
    connect = raw.connect(MQTT5, client_id="c" * 2000)
    began = time.monotonic()
    is_open = True

    # Byte by byte it would take 20 s; every one of them is a sign of life.
    for at in range(len(connect)):
        try:
            wire.send(connect[at : at + 1])
        except (BrokenPipeError, ConnectionResetError):
            is_open = False
            break
        time.sleep(0.01)

    assert not is_open
    assert time.monotonic() - began < 5


@pytest.mark.row(2)
def test_a_thousand_silent_connections_use_little_memory_and_are_closed(start: Callable[..., Stage]) -> None:
    stage = start(limits={"connect_timeout": "2s"})
    before = resident_bytes()
    address = (stage.broker.host, stage.broker.port)

    silent = [socket.create_connection(address, timeout=DEADLINE_S) for _ in range(1000)]
    wait_until(lambda: stage.look(lambda inside: len(inside.connections)) == 1000, "all are accepted")
    cost = resident_bytes() - before

    # Both ends are in this process; the receive buffer is shared by all connections.
    assert cost < 1000 * 16 * 1024
    for each in silent:
        assert each.recv(1) == b""
        each.close()
    stage.wait_empty()


@pytest.mark.row(3)
@pytest.mark.parametrize(
    "length", [b"\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff\x7f", b"\x80\x00"], ids=["5 bytes", "huge", "long zero"]
)
def test_a_connect_with_an_invalid_length_closes_the_connection(stage: Stage, length: bytes) -> None:
    wire = stage.open()

    wire.send(b"\x10" + length)

    wire.expect_closed()


@pytest.mark.row(3)
@both_versions
@pytest.mark.parametrize("first_byte", [0x30, 0x82, 0xC0], ids=["publish", "subscribe", "pingreq"])
@pytest.mark.parametrize("length", [b"\x80\x80\x80\x80\x01", b"\x80\x00", b"\x82\x80\x00"], ids=["5 bytes", "long 0", "long 2"])
def test_an_invalid_length_after_connect_is_malformed(stage: Stage, version: int, first_byte: int, length: bytes) -> None:
    wire = stage.connect(version=version)

    wire.send(bytes([first_byte]) + length)

    wire.expect_disconnect(0x81)


@pytest.mark.row(4, "N4")
@both_versions
def test_a_connect_of_256_mib_is_rejected_by_its_header_alone(stage: Stage, version: int) -> None:
    wire = stage.open(version)

    wire.send(b"\x10" + LONGEST + raw.text("MQTT") + bytes([version]))

    wire.expect_closed()


@pytest.mark.row(4, "N4")
@both_versions
def test_connect_has_a_lower_size_limit_than_later_packets(start: Callable[..., Stage], version: int) -> None:
    stage = start(limits={"preauth_packet_bytes": 512})
    above, below, friend = stage.open(version), stage.open(version), stage.connect(version=version)

    above.send(raw.connect(version, client_id="c" * 512))
    below.send(raw.connect(version, client_id="c" * 400))

    above.expect_closed()
    assert below.receive_frame().first_byte == 0x20
    friend.publish("t", bytes(100_000))


@pytest.mark.row(4, "N4")
def test_memory_does_not_grow_with_the_lengths_that_headers_claim(stage: Stage) -> None:
    stage.open().close()
    before = resident_bytes()

    for _ in range(50):
        wire = stage.open()
        wire.send(b"\x10" + LONGEST + bytes(64))
        wire.expect_closed()

    assert resident_bytes() - before < 16 * 1024 * 1024
