"""The PROXY protocol, versions 1 and 2, sans-I/O: what a load balancer says about the client behind it.

``header_bytes_needed`` tells how many bytes may be read next without reading past the header, so that whatever follows (MQTT, a
TLS hello, an HTTP request) stays in the socket for the next reader. The caller repeats it until it returns 0, and then calls
``parse_header``. Anything that is not a header, or not one within the bounds, raises ``ProtocolViolation``; the only right
answer is to close. The first bytes decide: a client that speaks something else is refused at once, not after a deadline.

    version 1   PROXY TCP4 192.0.2.1 198.51.100.7 56324 1883\\r\\n        at most 107 bytes
    version 2   12-byte signature, version and command, family, length    16 bytes
                addresses, then type-length-value fields                   ``length`` bytes, at most ``V2_BODY_BYTES_MAX``
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

import msgspec

from braidmq.base.errors import ProtocolViolation

V1_BYTES_MAX = 107
# Addresses of AF_UNIX take 216 bytes; the rest is room for the fields that proxies send in practice (TLS version, cipher, names).
V2_BODY_BYTES_MAX = 1024

_V1_PREFIX = b"PROXY "
_V1_SHORTEST = len(b"PROXY UNKNOWN\r\n")
_V1_SPACES = 5  # in a line of TCP4 or TCP6
_V1_PORT = re.compile(r"0|[1-9][0-9]{0,4}")

_V2_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
_V2_PREFIX_BYTES = 16
_LOCAL, _PROXY = 0x20, 0x21
_UNSPECIFIED, _TCP4, _TCP6, _UNIX_STREAM = 0x00, 0x11, 0x21, 0x31
_ADDRESS_BYTES = {_TCP4: 12, _TCP6: 36, _UNIX_STREAM: 216}

_TLV_SSL, _TLV_SSL_CN = 0x20, 0x22
_CLIENT_SSL, _CLIENT_CERTIFICATE = 0x01, 0x02 | 0x04

_MALFORMED = 0x81


class ProxyHeader(msgspec.Struct, frozen=True):
    """What the proxy said; ``source`` is None where the socket's own peer is the client (health checks, unknown families)."""

    source: tuple[str, int] | None = None
    secure: bool = False  # the client spoke TLS with the proxy
    certificate_name: str | None = None  # common name of a client certificate that the proxy verified


def header_bytes_needed(head: bytes) -> int:
    """How many bytes may be read next without passing the header's end; 0 when ``head`` is a whole header."""
    if head[:1] == _V2_SIGNATURE[:1]:
        return _v2_bytes_needed(head)
    if not head.startswith(_V1_PREFIX[: len(head)]):
        raise _refusal("no PROXY header")
    return _v1_bytes_needed(head)


def parse_header(head: bytes) -> ProxyHeader:
    """Read a whole header, for which ``header_bytes_needed`` answered 0."""
    return _parse_v2(head) if head.startswith(_V2_SIGNATURE) else _parse_v1(head)


def _v1_bytes_needed(head: bytes) -> int:
    if b"\n" in head:
        if head.find(b"\r\n") != len(head) - 2 or head.count(b"\n") != 1:
            raise _refusal("line end inside the PROXY line")
        return 0
    if len(head) < _V1_SHORTEST:
        return _V1_SHORTEST - len(head)
    if head.endswith(b"\r"):
        needed = 1
    elif head.startswith(b"PROXY TCP"):
        # Each field still to come has a space and a character at least; then come CR and LF.
        needed = 2 * max(0, _V1_SPACES - head.count(b" ")) + (1 if head.endswith(b" ") else 0) + 2
    else:
        needed = 2
    if len(head) + needed > V1_BYTES_MAX:
        raise _refusal("PROXY line too long")
    return needed


def _parse_v1(head: bytes) -> ProxyHeader:
    try:
        line = head[:-2].decode("ascii")
    except UnicodeDecodeError:
        raise _refusal("PROXY line is not ASCII") from None
    if "\r" in line:
        raise _refusal("stray carriage return in the PROXY line")
    match line.split(" "):
        case ["PROXY", "UNKNOWN", *_]:
            return ProxyHeader()
        case ["PROXY", "TCP4" | "TCP6" as family, source, destination, source_port, destination_port]:
            version = 4 if family == "TCP4" else 6
            _v1_address(destination, version)
            _v1_port(destination_port)
            return ProxyHeader(source=(_v1_address(source, version), _v1_port(source_port)))
        case _:
            raise _refusal("PROXY line of unknown form")


def _v1_address(text: str, version: int) -> str:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise _refusal("bad address in the PROXY line") from None
    if address.version != version or "%" in text:
        raise _refusal("address of another family in the PROXY line")
    return _plain(address)


def _v1_port(text: str) -> int:
    if _V1_PORT.fullmatch(text) is None or int(text) > 0xFFFF:
        raise _refusal("bad port in the PROXY line")
    return int(text)


def _v2_bytes_needed(head: bytes) -> int:
    if head[:12] != _V2_SIGNATURE[: len(head)]:
        raise _refusal("no PROXY header")
    if len(head) < _V2_PREFIX_BYTES:
        return _V2_PREFIX_BYTES - len(head)
    body_bytes = int.from_bytes(head[14:16], "big")
    if head[12] not in (_LOCAL, _PROXY):
        raise _refusal("unknown version or command in the PROXY header")
    if body_bytes > V2_BODY_BYTES_MAX:
        raise _refusal("PROXY header too long")
    return _V2_PREFIX_BYTES + body_bytes - len(head)


def _parse_v2(head: bytes) -> ProxyHeader:
    command, family, body = head[12], head[13], head[16:]
    # LOCAL is the proxy's own connection, a health check; an unspecified family says nothing. Both end with the prefix for us.
    if command == _LOCAL or family == _UNSPECIFIED:
        return ProxyHeader()
    address_bytes = _ADDRESS_BYTES.get(family)
    if address_bytes is None:
        raise _refusal("unknown address family in the PROXY header")
    if len(body) < address_bytes:
        raise _refusal("PROXY header shorter than its addresses")
    secure, name = _client_tls(body[address_bytes:])
    source: tuple[str, int] | None = None
    if family == _TCP4:
        source = _plain(ipaddress.IPv4Address(body[0:4])), int.from_bytes(body[8:10], "big")
    elif family == _TCP6:
        source = _plain(ipaddress.IPv6Address(body[0:16])), int.from_bytes(body[32:34], "big")
    return ProxyHeader(source, secure, name)


def _client_tls(fields: bytes) -> tuple[bool, str | None]:
    """Whether the client spoke TLS with the proxy, and the common name of its verified certificate."""
    secure, name = False, None
    for kind, value in _fields(fields):
        if kind != _TLV_SSL:
            continue
        if len(value) < 5:
            raise _refusal("cut TLS field in the PROXY header")
        flags, verify_result = value[0], int.from_bytes(value[1:5], "big")
        secure = bool(flags & _CLIENT_SSL)
        has_verified_certificate = bool(flags & _CLIENT_CERTIFICATE) and verify_result == 0
        for inner_kind, inner_value in _fields(value[5:]):
            if inner_kind == _TLV_SSL_CN and has_verified_certificate:
                name = _text(inner_value)
    return secure, name


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(data):
        start = position + 3
        end = start + int.from_bytes(data[position + 1 : start], "big")
        if end > len(data):
            raise _refusal("field runs past the PROXY header")
        yield data[position], data[start:end]
        position = end


def _text(value: bytes) -> str:
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        raise _refusal("common name in the PROXY header is not UTF-8") from None
    if not text or not text.isprintable():
        raise _refusal("unusable common name in the PROXY header")
    return text


def _plain(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    # Bans and rules know an IPv4 client by its IPv4 address, also if the proxy heard it on a dual-stack socket.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _refusal(detail: str) -> ProtocolViolation:
    return ProtocolViolation(_MALFORMED, detail)
