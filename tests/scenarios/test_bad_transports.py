"""Errors below MQTT: WebSocket frames, PROXY headers, TLS handshakes."""

from __future__ import annotations

import ssl
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import NameOID

from braidmq.mqtt.packets import MQTT5, MQTT311, Connack, Pingreq, Pingresp, Publish
from tests.support.certificates import Authority, Pair
from tests.support.clients import raw
from tests.support.clients.exchanges import plain_exchange, proxy_v2, tls_exchange
from tests.support.clients.transports import BINARY, CONTINUATION, PING, TEXT, upgrade_request
from tests.support.clients.wire import Wire, unique
from tests.support.present import present
from tests.support.stage import Stage, wait_until

CONNECT = raw.connect(MQTT311, client_id=b"")
ACCEPTED = b"\x20\x02\x00\x00"
LOCAL = {"bind": "127.0.0.1:0"}


@pytest.fixture
def open_websocket(stage: Stage) -> Iterator[Callable[..., Wire]]:
    """Opens WebSockets on the broker with default settings."""
    opened: list[Wire] = []

    def open_websocket(**options: Any) -> Wire:
        opened.append(Wire.over_websocket(stage.broker.host, stage.broker.ports["ws:default"], **options))
        return opened[-1]

    yield open_websocket
    for wire in opened:
        wire.close()


@pytest.mark.row(36)
def test_a_text_frame_closes_the_websocket_with_1003(open_websocket: Callable[..., Wire]) -> None:
    wire = open_websocket()

    wire.websocket.send_frame(TEXT, CONNECT)

    wire.expect_close_code(1003)


@pytest.mark.row(36)
def test_a_text_frame_in_the_middle_of_mqtt_closes_the_websocket_too(open_websocket: Callable[..., Wire]) -> None:
    wire = open_websocket().connect()

    wire.websocket.send_frame(TEXT, b"hello")

    wire.expect_close_code(1003)


@pytest.mark.row(36)
@pytest.mark.parametrize("subprotocol", [None, "chat", "mqtt5"])
def test_an_upgrade_without_the_mqtt_subprotocol_is_a_bad_request(
    open_websocket: Callable[..., Wire], subprotocol: str | None
) -> None:
    wire = open_websocket(request=upgrade_request(Sec_WebSocket_Protocol=subprotocol or ""))

    assert wire.websocket.status == 400


@pytest.mark.row(36)
def test_a_packet_split_over_many_frames_is_reassembled(open_websocket: Callable[..., Wire]) -> None:
    topic = unique("t/")
    wire = open_websocket().connect()
    wire.subscribe(topic)
    frame = raw.publish(MQTT5, topic, b"whole")

    for byte in frame[:-2]:
        wire.websocket.send_frame(BINARY, bytes([byte]))
    wire.websocket.send_frame(BINARY, frame[-2:-1], is_final=False)
    wire.websocket.send_frame(PING, b"between")
    wire.websocket.send_frame(CONTINUATION, frame[-1:])

    assert wire.receive(Publish).payload == b"whole"


@pytest.mark.row(36)
def test_many_packets_in_one_frame_are_all_parsed(open_websocket: Callable[..., Wire]) -> None:
    wire = open_websocket().connect()

    wire.send(*[Pingreq()] * 100, b"\xc0")
    for _ in range(100):
        wire.receive(Pingresp)
    wire.send(b"\x00")

    wire.receive(Pingresp)


@pytest.mark.row(36)
def test_an_incomplete_frame_is_closed_at_the_deadline(start: Callable[..., Stage]) -> None:
    stage = start(limits={"connect_timeout": "500ms"})
    lying_frame = Wire.over_websocket(stage.broker.host, stage.broker.ports["ws:default"])
    lying_packet = Wire.over_websocket(stage.broker.host, stage.broker.ports["ws:default"])

    lying_frame.websocket.send_frame(BINARY, CONNECT, length=len(CONNECT) + 100)
    lying_packet.websocket.send_frame(BINARY, b"\x10\x7f" + CONNECT[2:])

    for wire in (lying_frame, lying_packet):
        wire.expect_close_code(1000)
        wire.close()


@pytest.mark.row(36, "N4")
@pytest.mark.parametrize("length", [2**24, 2**40, 2**63 - 1])
def test_an_oversized_frame_is_rejected_by_its_header_alone(open_websocket: Callable[..., Wire], length: int) -> None:
    wire = open_websocket()

    wire.websocket.send_frame(BINARY, b"\x10", length=length)

    wire.expect_close_code(1009, 1002)


@pytest.mark.row(36)
@pytest.mark.parametrize("opcode", [CONTINUATION, 3, 11], ids=["lone continuation", "reserved data", "reserved control"])
def test_a_frame_out_of_order_closes_the_websocket(open_websocket: Callable[..., Wire], opcode: int) -> None:
    wire = open_websocket()

    wire.websocket.send_frame(opcode, CONNECT)

    assert wire.read_to_end() == b""


@pytest.mark.row(36)
def test_an_endless_http_request_is_closed(start: Callable[..., Stage]) -> None:
    stage = start(limits={"connect_timeout": "500ms"})
    address = (stage.broker.host, stage.broker.ports["ws:default"])

    silent = plain_exchange(address, b"GET /mqtt HTTP/1.1\r\nHost: ")
    endless = plain_exchange(address, b"GET /mqtt HTTP/1.1\r\n", *[b"X-More: " + b"x" * 1000 + b"\r\n"] * 1000)

    assert b" 101 " not in silent + endless


PROXIED = {"proxy_protocol": True, "proxy_peers": ["127.0.0.1/32"], "allow_anonymous": True}


def proxied(**keys: Any) -> dict[str, Any]:
    """Tables for a TCP listener behind a proxy."""
    return {"listeners": {"tcp": {"default": LOCAL | PROXIED | keys}}, "limits": {"connect_timeout": "500ms"}}


@pytest.mark.row(37)
@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"PROXY TCP4 192.0.2.7 192.0.2.1 4242",
        b"PROXY TCP4 300.0.2.7 192.0.2.1 4242 1883\r\n",
        b"PROXY TCP4 192.0.2.7 192.0.2.1 4242 " + b"0" * 200 + b"1883\r\n",
        b"PROXY " + b"x" * 5000 + b"\r\n",
        proxy_v2(length=0xFFFF),
        proxy_v2(fields=b"\x20\xff\xff\x00"),
        proxy_v2(length=4),
        proxy_v2()[:14],
    ],
    ids=["none", "cut v1", "bad address", "long port", "overlong v1", "overlong v2", "field past end", "short v2", "cut v2"],
)
def test_a_connection_without_a_valid_proxy_header_is_closed_without_an_answer(
    start: Callable[..., Stage], header: bytes
) -> None:
    stage = start(**proxied())

    answer = plain_exchange((stage.broker.host, stage.broker.port), header + CONNECT)

    assert answer == b""
    assert stage.refusals() == {"proxy_header": 1}


@pytest.mark.row(37)
def test_a_proxy_header_from_an_unlisted_peer_is_not_trusted(start: Callable[..., Stage]) -> None:
    stage = start(**proxied(proxy_peers=["203.0.113.0/24"]))

    answer = plain_exchange((stage.broker.host, stage.broker.port), proxy_v2() + CONNECT)

    assert answer == b""
    assert stage.refusals() == {"proxy_peer": 1}


@pytest.mark.row(37)
def test_a_proxy_header_on_a_plain_listener_is_not_valid_mqtt(stage: Stage) -> None:
    for header in (proxy_v2(), b"PROXY TCP4 192.0.2.7 192.0.2.1 4242 1883\r\n"):
        assert plain_exchange((stage.broker.host, stage.broker.port), header + CONNECT) == b""


@pytest.mark.row(37)
@pytest.mark.parametrize("header", [proxy_v2(), b"PROXY TCP4 192.0.2.7 192.0.2.1 4242 1883\r\n"], ids=["v2", "v1"])
def test_a_client_behind_a_listed_proxy_is_identified_by_its_own_address(start: Callable[..., Stage], header: bytes) -> None:
    stage = start(**proxied())
    wire = stage.open(MQTT311)

    wire.send(header, raw.connect(MQTT311, client_id="behind"))

    assert wire.receive(Connack).reason == 0
    origin = stage.look(lambda inside: present(present(present(inside.sessions.get("behind")).connection).origin))
    assert (origin.peer_host, origin.peer_port) == ("192.0.2.7", 4242)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """The CA that the TLS listeners and good clients trust."""
    return Authority(tmp_path)


def secured(server: Pair, **keys: Any) -> dict[str, Any]:
    """Tables for a TLS listener beside a plain one."""
    files = {"cert_file": server.cert_file, "key_file": server.key_file}
    listeners = {"tcp": {"default": LOCAL}, "tls": {"default": LOCAL | files | keys}}
    return {"listeners": listeners, "limits": {"connect_timeout": "1s"}}


def expect_failed_handshake(stage: Stage, context: ssl.SSLContext, reason: str, server_name: str = "localhost") -> None:
    """The client gets nowhere, the failure is counted by its kind, and nothing is left of it."""
    address = (stage.broker.host, stage.broker.ports["tls:default"])
    try:
        answer = tls_exchange(address, context, CONNECT, server_name)
    except OSError:
        answer = b""

    assert answer == b""
    wait_until(lambda: stage.refusals() == {reason: 1}, f"the refusal is counted as {reason}")
    stage.wait_empty()


@pytest.mark.row(38)
def test_a_valid_client_certificate_is_accepted(start: Callable[..., Stage], authority: Authority) -> None:
    stage = start(**secured(authority.server(), ca_file=authority.cert_file, verify="required"))
    good = authority.client_context(authority.client((NameOID.COMMON_NAME, "device")))

    answer = tls_exchange((stage.broker.host, stage.broker.ports["tls:default"]), good, CONNECT)

    assert answer == ACCEPTED


@pytest.mark.row(38)
def test_an_expired_client_certificate_fails(start: Callable[..., Stage], authority: Authority) -> None:
    stage = start(**secured(authority.server(), ca_file=authority.cert_file, verify="required"))
    expired = authority.client((NameOID.COMMON_NAME, "device"), expired=True)

    expect_failed_handshake(stage, authority.client_context(expired), "tls_certificate")


@pytest.mark.row(38)
def test_a_client_certificate_of_an_unknown_authority_fails(
    start: Callable[..., Stage], authority: Authority, tmp_path: Path
) -> None:
    stage = start(**secured(authority.server(), ca_file=authority.cert_file, verify="required"))
    stranger = Authority(tmp_path, "Another CA").client((NameOID.COMMON_NAME, "device"))

    expect_failed_handshake(stage, authority.client_context(stranger), "tls_certificate")


@pytest.mark.row(38)
def test_a_missing_client_certificate_fails_where_one_is_required(start: Callable[..., Stage], authority: Authority) -> None:
    stage = start(**secured(authority.server(), ca_file=authority.cert_file, verify="required"))

    expect_failed_handshake(stage, authority.client_context(), "tls_certificate")


@pytest.mark.row(38)
def test_an_unknown_server_name_fails(start: Callable[..., Stage], authority: Authority) -> None:
    server, named = authority.server(), authority.server("mqtt.example", file_stem="named")
    sni = {"mqtt.example": {"cert_file": named.cert_file, "key_file": named.key_file}}
    stage = start(**secured(server, sni=sni))
    context = authority.client_context()
    context.check_hostname = False

    expect_failed_handshake(stage, context, "tls_server_name", server_name="elsewhere.example")


@pytest.mark.row(38)
def test_tls_1_0_fails(start: Callable[..., Stage], authority: Authority) -> None:
    stage = start(**secured(authority.server()))
    context = authority.client_context()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1
    context.set_ciphers("ALL:@SECLEVEL=0")  # OpenSSL does not even offer TLS 1.0 above it

    expect_failed_handshake(stage, context, "tls_version")


@pytest.mark.row(38)
@pytest.mark.parametrize("sent", [CONNECT, b"GET / HTTP/1.1\r\n\r\n", bytes(100)], ids=["mqtt", "http", "zeros"])
def test_plain_bytes_on_a_tls_listener_fail(start: Callable[..., Stage], authority: Authority, sent: bytes) -> None:
    stage = start(**secured(authority.server()))

    answer = plain_exchange((stage.broker.host, stage.broker.ports["tls:default"]), sent)

    assert ACCEPTED not in answer
    wait_until(lambda: sum(stage.refusals().values()) == 1, "the refusal is counted")
    assert set(stage.refusals()) <= {"tls_not_tls", "tls_other"}


@pytest.mark.row(38)
def test_a_stalled_handshake_is_closed(start: Callable[..., Stage], authority: Authority) -> None:
    stage = start(**secured(authority.server()))

    answer = plain_exchange((stage.broker.host, stage.broker.ports["tls:default"]), b"\x16\x03\x01\x02\x00\x01")

    assert ACCEPTED not in answer
    wait_until(lambda: stage.refusals() == {"tls_timeout": 1}, "the refusal is counted")
