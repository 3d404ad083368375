"""Addresses to listen on, as they stand in the configuration."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple


class Address(NamedTuple):
    """Host and port; an empty host means every address of the machine, port 0 one that the system picks."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read ``127.0.0.1:1883``, ``[::1]:1883``, ``localhost:1883`` or ``:1883``; raises ValueError that says what is wrong."""
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
        raise ValueError(f"an IPv6 address stands in brackets: [{host}]:{port}")
    elif host and host.replace(".", "").isdecimal():
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise ValueError(f"{host!r} is not an IPv4 address") from None
    return Address(host, int(port))


def is_loopback(host: str) -> bool:
    """True if only this machine can reach the host; a name other than ``localhost`` is taken for reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def clash(one: Address, other: Address) -> bool:
    """True if no two sockets can listen on both; two that the system picks never clash."""
    if one.port != other.port or one.port == 0:
        return False
    if one.host == other.host or "" in (one.host, other.host):
        return True
    # 0.0.0.0 takes every IPv4 address, :: every IPv6 address.
    return any(_family(one.host) == _family(other.host) and _is_any(host) for host in (one.host, other.host))


def _family(host: str) -> int:
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return 4


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
