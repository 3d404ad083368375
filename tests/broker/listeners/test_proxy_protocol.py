"""PROXY protocol 1 and 2: the parser byte by byte, and listeners behind a load balancer on real sockets."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.config.settings import LimitSettings, ListenerSettings
from braidmq.base.errors import ProtocolViolation
from braidmq.base.units import Seconds
from braidmq.broker.listeners.origin import Arrival, ListenerInfo
from braidmq.broker.listeners.proxy_protocol import (
    V2_BODY_BYTES_MAX,
    ProxyHeader,
    header_bytes_needed,
    parse_header,
)
from tests.support.certificates import Authority
from tests.support.echo_listeners import LOOPS, open_house, run

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
LOCAL, PROXY = 0x20, 0x21
TCP4, UDP4, TCP6, UNIX = 0x11, 0x12, 0x21, 0x31


def v2(command: int = PROXY, family: int = TCP4, body: bytes = b"", length: int | None = None) -> bytes:
    return SIGNATURE + struct.pack(">BBH", command, family, len(body) if length is None else length) + body


def v2_tcp4(source: str, port: int, fields: bytes = b"") -> bytes:
    addresses = ipaddress.IPv4Address(source).packed + ipaddress.IPv4Address("198.51.100.7").packed
    return v2(body=addresses + struct.pack(">HH", port, 1883) + fields)


def field(kind: int, value: bytes) -> bytes:
    return struct.pack(">BH", kind, len(value)) + value


def read_header(stream: bytes) -> tuple[ProxyHeader, bytes]:
    """Read as a listener does, always as much as allowed; gives the header and what was left in the stream."""
    head = b""
    while needed := header_bytes_needed(head):
        assert len(head) < len(stream), "waits for more than there is"
        head += stream[len(head) : len(head) + needed]
    return parse_header(head), stream[len(head) :]


CASES = {
    "v1 tcp4": (b"PROXY TCP4 192.0.2.1 198.51.100.7 56324 1883\r\n", ProxyHeader(("192.0.2.1", 56324))),
    "v1 shortest tcp4": (b"PROXY TCP4 1.1.1.1 2.2.2.2 0 1\r\n", ProxyHeader(("1.1.1.1", 0))),
    "v1 tcp6": (b"PROXY TCP6 2001:db8::1 ::1 65535 1883\r\n", ProxyHeader(("2001:db8::1", 65535))),
    "v1 shortest tcp6": (b"PROXY TCP6 :: :: 1 2\r\n", ProxyHeader(("::", 1))),
    "v1 longest tcp6": (
        b"PROXY TCP6 ffff:f00f:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n",
        ProxyHeader(("ffff:f00f:ffff:ffff:ffff:ffff:ffff:ffff", 65535)),
    ),
    "v1 mapped address": (b"PROXY TCP6 ::ffff:192.0.2.9 ::1 1 2\r\n", ProxyHeader(("192.0.2.9", 1))),
    "v1 unknown": (b"PROXY UNKNOWN\r\n", ProxyHeader()),
    "v1 unknown with words": (b"PROXY UNKNOWN ffff::1 anything at all\r\n", ProxyHeader()),
    "v2 tcp4": (v2_tcp4("192.0.2.1", 56324), ProxyHeader(("192.0.2.1", 56324))),
    "v2 tcp6": (
        v2(family=TCP6, body=ipaddress.IPv6Address("2001:db8::7").packed + bytes(16) + struct.pack(">HH", 7, 8)),
        ProxyHeader(("2001:db8::7", 7)),
    ),
    "v2 unix": (v2(family=UNIX, body=bytes(216)), ProxyHeader()),
    "v2 local": (v2(command=LOCAL, family=0), ProxyHeader()),
    "v2 local with addresses": (v2(command=LOCAL, body=bytes(12)), ProxyHeader()),
    "v2 unspecified": (v2(family=0, body=b"whatever"), ProxyHeader()),
    "v2 other fields": (
        v2_tcp4("192.0.2.1", 5, field(0x01, b"mqtt") + field(0x04, bytes(9)) + field(0xEA, b"")),
        ProxyHeader(("192.0.2.1", 5)),
    ),
    "v2 tls without certificate": (
        v2_tcp4("192.0.2.1", 5, field(0x20, b"\x01" + bytes(4) + field(0x21, b"TLSv1.3"))),
        ProxyHeader(("192.0.2.1", 5), secure=True),
    ),
    "v2 verified certificate": (
        v2_tcp4("192.0.2.1", 5, field(0x20, b"\x07" + bytes(4) + field(0x21, b"TLSv1.3") + field(0x22, "pümp".encode()))),
        ProxyHeader(("192.0.2.1", 5), secure=True, certificate_name="pümp"),
    ),
    "v2 certificate that failed verification": (
        v2_tcp4("192.0.2.1", 5, field(0x20, b"\x07\x00\x00\x00\x0a" + field(0x22, b"pump"))),
        ProxyHeader(("192.0.2.1", 5), secure=True),
    ),
    "v2 name without certificate": (
        v2_tcp4("192.0.2.1", 5, field(0x20, b"\x01" + bytes(4) + field(0x22, b"pump"))),
        ProxyHeader(("192.0.2.1", 5), secure=True),
    ),
    "v2 longest": (
        v2_tcp4("192.0.2.1", 5, field(0x04, bytes(V2_BODY_BYTES_MAX - 12 - 3))),
        ProxyHeader(("192.0.2.1", 5)),
    ),
}

REFUSED = {
    "an MQTT CONNECT": b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04abcd",
    "an HTTP request": b"GET / HTTP/1.1\r\n\r\n",
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(20),
    "lower case": b"proxy TCP4 1.1.1.1 2.2.2.2 1 2\r\n",
    "v1 unknown family": b"PROXY UDP4 1.1.1.1 2.2.2.2 1 2\r\n",
    "v1 without addresses": b"PROXY TCP4\r\n    ",
    "v1 missing port": b"PROXY TCP4 1.1.1.1 2.2.2.2 12345\r\n",
    "v1 one field too many": b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2 3\r\n",
    "v1 two spaces": b"PROXY TCP4  1.1.1.1 2.2.2.2 1 2\r\n",
    "v1 port too large": b"PROXY TCP4 1.1.1.1 2.2.2.2 65536 2\r\n",
    "v1 port with sign": b"PROXY TCP4 1.1.1.1 2.2.2.2 +1 2\r\n",
    "v1 port with zeros": b"PROXY TCP4 1.1.1.1 2.2.2.2 0001 2\r\n",
    "v1 port in another script": "PROXY TCP4 1.1.1.1 2.2.2.2 \u0661 2\r\n".encode(),
    "v1 address of the other family": b"PROXY TCP4 ::1 ::1 1 2\r\n",
    "v1 address with zone": b"PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n",
    "v1 no address": b"PROXY TCP4 localhost 2.2.2.2 1 2\r\n",
    "v1 line feed alone": b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\n",
    "v1 carriage return inside": b"PROXY UNKNOWN x\rx\r\n",
    "v1 too long": b"PROXY UNKNOWN " + b"x" * 92 + b"\r\n",
    "v1 endless": b"PROXY UNKNOWN" + b" x" * 100,
    "v1 endless tcp": b"PROXY TCP4 " + b"1" * 200,
    "v2 broken signature": b"\r\n\r\n\x00\r\nQUIX\n" + bytes(4),
    "v2 version 1": v2(command=0x11, body=bytes(12)),
    "v2 version 3": v2(command=0x31, body=bytes(12)),
    "v2 unknown command": v2(command=0x22, body=bytes(12)),
    "v2 datagram": v2(family=UDP4, body=bytes(12)),
    "v2 unknown family": v2(family=0x41, body=bytes(12)),
    "v2 addresses cut": v2(body=bytes(11)),
    "v2 tcp6 with tcp4 addresses": v2(family=TCP6, body=bytes(12)),
    "v2 too long": v2(body=bytes(V2_BODY_BYTES_MAX + 1)),
    "v2 claims 64 KB": v2(length=0xFFFF),
    "v2 field past the end": v2_tcp4("192.0.2.1", 5, b"\x01\x00\x05abcd"),
    "v2 field head cut": v2_tcp4("192.0.2.1", 5, b"\x01\x00"),
    "v2 tls field cut": v2_tcp4("192.0.2.1", 5, field(0x20, b"\x01\x00")),
    "v2 inner field past the end": v2_tcp4("192.0.2.1", 5, field(0x20, b"\x07" + bytes(4) + b"\x22\x00\x09pump")),
    "v2 name not utf-8": v2_tcp4("192.0.2.1", 5, field(0x20, b"\x07" + bytes(4) + field(0x22, b"\xff"))),
    "v2 name with nul": v2_tcp4("192.0.2.1", 5, field(0x20, b"\x07" + bytes(4) + field(0x22, b"pump\x00admin"))),
}


@pytest.mark.parametrize(("stream", "expected"), CASES.values(), ids=CASES.keys())
def test_a_good_header_is_read_to_its_last_byte_and_not_further(stream: bytes, expected: ProxyHeader) -> None:
    header, rest = read_header(stream + b"\x10\x0c\x00\x04MQTT")

    assert header == expected
    assert rest == b"\x10\x0c\x00\x04MQTT"


@pytest.mark.parametrize("stream", REFUSED.values(), ids=REFUSED.keys())
def test_anything_else_is_refused_from_the_bytes_there_are(stream: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        read_header(stream)


@pytest.mark.parametrize("stream", [case[0] for case in CASES.values()], ids=CASES.keys())
def test_a_header_that_arrives_byte_by_byte_is_never_complete_too_early(stream: bytes) -> None:
    for end in range(len(stream)):
        needed = header_bytes_needed(stream[:end])
        assert 1 <= needed <= len(stream) - end

    assert header_bytes_needed(stream) == 0


@given(st.one_of(st.binary(max_size=300), st.binary(max_size=300).map(lambda tail: SIGNATURE + b"\x21" + tail)))
def test_random_bytes_are_read_within_the_bounds_or_refused(stream: bytes) -> None:
    head = b""
    try:
        while needed := header_bytes_needed(head):
            assert len(head) + needed <= 16 + V2_BODY_BYTES_MAX
            if len(head) + needed > len(stream):
                return
            head += stream[len(head) : len(head) + needed]
        parse_header(head)
    except ProtocolViolation:
        pass


def behind_proxy(**keys: object) -> ListenerSettings:
    return ListenerSettings(bind="127.0.0.1:0", proxy_protocol=True, proxy_peers=("127.0.0.0/8",), **keys)  # type: ignore[arg-type]


@pytest.mark.parametrize("loop_name", LOOPS)
@pytest.mark.parametrize("name", ["v1 tcp4", "v1 longest tcp6", "v2 tcp4", "v2 other fields"])
def test_the_client_behind_the_proxy_is_the_origin(loop_name: str, name: str) -> None:
    stream, expected = CASES[name]

    async def scenario() -> None:
        async with open_house(tcp=behind_proxy()) as house:
            reader, writer = await asyncio.open_connection(*house.address("tcp:default"))
            writer.write(stream + b"hello")
            assert await reader.readexactly(5) == b"hello"

            origin = house.connections[0].origin
            assert (origin.peer_host, origin.peer_port) == expected.source
            assert origin.listener == "tcp:default"
            writer.close()
            await house.until(lambda: house.live("tcp:default") == 0)

    run(loop_name, scenario())


@pytest.mark.parametrize("loop_name", LOOPS)
def test_a_health_check_keeps_the_address_of_the_proxy(loop_name: str) -> None:
    async def scenario() -> None:
        async with open_house(tcp=behind_proxy()) as house:
            reader, writer = await asyncio.open_connection(*house.address("tcp:default"))
            writer.write(v2(command=LOCAL, family=0) + b"x")
            await reader.readexactly(1)

            origin = house.connections[0].origin
            assert (origin.peer_host, origin.peer_port) == writer.get_extra_info("sockname")
            writer.close()

    run(loop_name, scenario())


@pytest.mark.parametrize("loop_name", LOOPS)
def test_a_header_in_single_bytes_loses_nothing_that_follows(loop_name: str) -> None:
    async def scenario() -> None:
        async with open_house(tcp=behind_proxy()) as house:
            reader, writer = await asyncio.open_connection(*house.address("tcp:default"))
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in CASES["v1 tcp4"][0] + b"hello":
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
            assert await reader.readexactly(5) == b"hello"
            writer.close()

    run(loop_name, scenario())


@pytest.mark.parametrize("loop_name", LOOPS)
@pytest.mark.parametrize("name", ["an MQTT CONNECT", "v1 endless", "v2 claims 64 KB"])
def test_a_connection_without_a_good_header_is_closed_at_once(loop_name: str, name: str) -> None:
    async def scenario() -> None:
        async with open_house(tcp=behind_proxy(), limits=LimitSettings(connect_timeout=Seconds(60))) as house:
            reader, writer = await asyncio.open_connection(*house.address("tcp:default"))
            writer.write(REFUSED[name])
            await house.until(lambda: house.live("tcp:default") == 0 and house.refusals["proxy_header"] == 1)

            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await reader.readexactly(1)
            assert not house.connections
            writer.close()

    run(loop_name, scenario())


@pytest.mark.parametrize("loop_name", LOOPS)
def test_a_peer_that_is_not_listed_is_closed_though_its_header_is_good(loop_name: str) -> None:
    async def scenario() -> None:
        stranger = ListenerSettings(bind="127.0.0.1:0", proxy_protocol=True, proxy_peers=("192.0.2.0/24", "::1"))
        async with open_house(tcp=stranger) as house:
            _, writer = await asyncio.open_connection(*house.address("tcp:default"))
            writer.write(CASES["v1 tcp4"][0])
            await house.until(lambda: house.refusals["proxy_peer"] == 1 and house.live("tcp:default") == 0)

            assert not house.connections
            writer.close()

    run(loop_name, scenario())


@pytest.mark.parametrize("loop_name", LOOPS)
@pytest.mark.parametrize("said", [b"", b"PROXY TCP4 "], ids=["silent", "half"])
def test_a_peer_that_does_not_finish_its_header_is_closed_at_the_deadline(loop_name: str, said: bytes) -> None:
    async def scenario() -> None:
        async with open_house(tcp=behind_proxy(), limits=LimitSettings(connect_timeout=Seconds(0.1))) as house:
            reader, writer = await asyncio.open_connection(*house.address("tcp:default"))
            writer.write(said)

            assert await reader.read() == b""
            await house.until(lambda: house.refusals["proxy_header"] == 1 and house.live("tcp:default") == 0)
            writer.close()

    run(loop_name, scenario())


@pytest.mark.parametrize("loop_name", LOOPS)
def test_a_peer_that_leaves_within_its_header_releases_its_slot(loop_name: str) -> None:
    async def scenario() -> None:
        async with open_house(tcp=behind_proxy()) as house:
            _, writer = await asyncio.open_connection(*house.address("tcp:default"))
            writer.write(b"PROXY TCP")
            await house.until(lambda: house.live("tcp:default") == 1 or house.refusals.total() == 1)
            writer.close()
            await house.until(lambda: house.refusals["proxy_header"] == 1 and house.live("tcp:default") == 0)

    run(loop_name, scenario())


@pytest.mark.parametrize("loop_name", LOOPS)
def test_the_header_comes_before_the_tls_handshake(loop_name: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.server()

    async def scenario() -> None:
        settings = behind_proxy(cert_file=server.cert_file, key_file=server.key_file)
        async with open_house(tls=settings) as house:
            loop = asyncio.get_running_loop()
            raw = socket.socket()
            raw.setblocking(False)
            await loop.sock_connect(raw, house.address("tls:default"))
            await loop.sock_sendall(raw, CASES["v2 tcp4"][0])
            reader, writer = await asyncio.open_connection(sock=raw, ssl=authority.client_context(), server_hostname="localhost")
            writer.write(b"secret")

            assert await reader.readexactly(6) == b"secret"
            origin = house.connections[0].origin
            assert (origin.peer_host, origin.peer_port, origin.secure) == ("192.0.2.1", 56324, True)
            writer.close()
            await house.until(lambda: house.live("tls:default") == 0)

    run(loop_name, scenario())


@pytest.mark.parametrize("loop_name", LOOPS)
def test_the_header_comes_before_the_websocket_request(loop_name: str) -> None:
    async def scenario() -> None:
        async with open_house(ws=behind_proxy()) as house:
            reader, writer = await asyncio.open_connection(*house.address("ws:default"))
            writer.write(
                CASES["v1 tcp4"][0] + b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"X-Forwarded-For: 203.0.113.66\r\nSec-WebSocket-Protocol: mqtt\r\nSec-WebSocket-Version: 13\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")

            assert house.connections[0].origin.peer_host == "192.0.2.1"
            writer.close()
            await house.until(lambda: house.live("ws:default") == 0)

    run(loop_name, scenario())


@pytest.mark.parametrize("loop_name", LOOPS)
def test_connections_waiting_for_their_header_are_dropped_when_the_listener_stops(loop_name: str) -> None:
    async def scenario() -> None:
        async with open_house(tcp=behind_proxy()) as house:
            reader, writer = await asyncio.open_connection(*house.address("tcp:default"))
            info = house.listeners.listeners["tcp:default"]
            await house.until(lambda: info.live == 1)

            house.listeners.stop_accepting()

            assert await reader.read() == b""
            assert info.live == 0
            writer.close()

    run(loop_name, scenario())


def test_anonymous_access_behind_a_loopback_proxy_must_be_explicit() -> None:
    asked = ListenerSettings(bind="127.0.0.1:0", proxy_protocol=True, proxy_peers=("127.0.0.1",))
    said = ListenerSettings(bind="127.0.0.1:0", proxy_protocol=True, proxy_peers=("127.0.0.1",), allow_anonymous=True)

    assert not ListenerInfo("tcp", "a", asked, is_on_loopback=True).anonymous_allowed
    assert ListenerInfo("tcp", "a", said, is_on_loopback=True).anonymous_allowed
    assert ListenerInfo("tcp", "a", ListenerSettings(bind="127.0.0.1:0"), is_on_loopback=True).anonymous_allowed
    assert not ListenerInfo("tcp", "a", ListenerSettings(bind="0.0.0.0:0"), is_on_loopback=False).anonymous_allowed


@pytest.mark.parametrize(("form", "expected"), [("cn", "pump7"), ("", None), ("dn", None)])
def test_the_proxys_certificate_name_counts_only_where_the_listener_asks_for_common_names(
    form: str, expected: str | None
) -> None:
    settings = ListenerSettings(bind="x:1", proxy_protocol=True, proxy_peers=("::1",), user_from_certificate=form)  # type: ignore[arg-type]
    header = ProxyHeader(("192.0.2.1", 5), secure=True, certificate_name="pump7")

    class NoTransport(asyncio.BaseTransport):
        pass

    origin = Arrival(ListenerInfo("tcp", "a", settings, is_on_loopback=False), header).describe(NoTransport())

    assert origin.certificate_name == expected
    assert origin.secure
