"""Addresses to listen on and origins of web pages, as the configuration writes them."""

from __future__ import annotations

import ipaddress
import re
from typing import Final, NamedTuple

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
# Browsers send names of other alphabets in their ASCII form, and never a user, a path or port 0.
_ORIGIN: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]{0,31})://"
    r"(?:\[(?P<ipv6>[0-9a-f:.]{2,45})\]|(?P<name>[a-z0-9._-]{1,253}))"
    r"(?::(?P<port>[1-9][0-9]{0,4}))?"
)


class Address(NamedTuple):
    """Host and port; an empty host means every address of the machine, port 0 a port that the system picks."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse ``127.0.0.1:1883``, ``[::1]:1883``, ``localhost:1883`` or ``:1883``; raises ValueError with the reason."""
    host, colon, port = text.strip().rpartition(":")
    if not colon:
        raise ValueError("has no port; write host:port, such as 127.0.0.1:1883")
    if not (port.isascii() and port.isdecimal() and int(port) <= 65535):
        raise ValueError(f"{port!r} is not a port between 0 and 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(f"{host!r} is not an IPv6 address") from None
    elif any(letter.isspace() or letter in "/[]@" for letter in host):
        raise ValueError(f"{host!r} is not a host")
    elif ":" in host:
        raise ValueError(f"write an IPv6 address in brackets: [{host}]:{port}")
    elif host and host.replace(".", "").isdecimal():
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise ValueError(f"{host!r} is not an IPv4 address") from None
    return Address(host, int(port))


class WebOrigin(NamedTuple):
    """A web origin (RFC 6454); without a port if none was given and the scheme has no default."""

    scheme: str
    host: str
    port: int | None


def parse_origin(text: str) -> WebOrigin | None:
    """Parse ``https://app.example`` or ``http://[::1]:3000``; None for anything else, such as ``null`` or a whole URL."""
    parts = _ORIGIN.fullmatch(text.lower()) if text.isascii() else None
    if parts is None:
        return None
    scheme, host, port = parts["scheme"], parts["name"], parts["port"]
    if host is None:
        try:
            host = str(ipaddress.IPv6Address(parts["ipv6"]))
        except ValueError:
            return None
    if port is None:
        return WebOrigin(scheme, host, _DEFAULT_PORTS.get(scheme))
    return WebOrigin(scheme, host, int(port)) if int(port) <= 65535 else None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host; a name other than ``localhost`` counts as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def clash(one: Address, other: Address) -> bool:
    """Whether two sockets cannot listen on both; ports that the system picks never clash."""
    if one.port != other.port or one.port == 0:
        return False
    if one.host == other.host or "" in (one.host, other.host):
        return True
    # 0.0.0.0 means every IPv4 address, :: every IPv6 address.
    return any(_family(one.host) == _family(other.host) and is_any_host(host) for host in (one.host, other.host))


def _family(host: str) -> int:
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return 4


def is_any_host(host: str) -> bool:
    """Whether a listener on the host listens on every address of the machine."""
    if not host:
        return True
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
