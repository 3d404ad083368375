"""Listening sockets: from the address in the configuration to a bound socket, or to an error that says what to do."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
from enum import Enum
from typing import Any

from braidmq.base.config.addresses import Address, is_loopback, parse_address
from braidmq.base.errors import ConfigError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# A fleet that reconnects at once must find room in the kernel's queue; the kernel cuts it to net.core.somaxconn.
LISTEN_BACKLOG = 8192


class PortSharing(Enum):
    """Which other processes may listen on the same port. With SO_REUSEPORT the kernel spreads connections over them.

    A process that joined a foreign listener's port would get some of its clients. So the first process of a node proves that no
    other one listens before it shares the port; the kernel lets only processes of the same user join.
    """

    NONE = "none"
    FIRST = "first"
    JOIN = "join"


def parse_bind(bind: str, key: str) -> Address:
    """Read the address of a listener; ``ConfigError`` names the key."""
    try:
        return parse_address(bind)
    except ValueError as error:
        hint = 'write "127.0.0.1:1883", "[::1]:1883", or ":1883" for every address'
        raise ConfigError(key, f"{bind!r} {error}", hint) from None


def parse_networks(networks: tuple[str, ...], key: str) -> tuple[Network, ...]:
    """Read addresses and networks such as ``10.0.0.0/8`` or ``::1``."""
    try:
        return tuple(ipaddress.ip_network(text, strict=False) for text in networks)
    except ValueError as error:
        raise ConfigError(key, str(error), 'write addresses or networks such as "10.0.0.7" or "10.0.0.0/8"') from None


def reach_this_machine_only(sockets: list[socket.socket]) -> bool:
    """Whether all these sockets are bound to loopback addresses."""
    return all(is_loopback(listening.getsockname()[0]) for listening in sockets)


def bound_address(listening: socket.socket) -> tuple[str, int]:
    """Where the socket really listens, also if port 0 was asked for."""
    host, port = listening.getsockname()[:2]
    return host, port


async def open_sockets(
    bind: str, key: str, sharing: PortSharing = PortSharing.NONE, *, listens: bool = True
) -> list[socket.socket]:
    """Open a socket for each address that ``bind`` names; all of them or, with ``ConfigError``, none.

    Without ``listens`` the sockets only hold their ports: connections go to the processes that share them.
    """
    host, port = parse_bind(bind, key)
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(key, f"cannot resolve {host!r}: {error.strerror or error}", "give an address of this machine") from None
    opened: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
            # Port 0: the second family takes the port that the system chose for the first.
            wanted_port = opened[0].getsockname()[1] if opened else port
            try:
                opened.append(_open_shared(family, (address[0], wanted_port, *address[2:]), sharing, listens))
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT and not host:
                    continue  # "every address" of a machine with one family is the addresses of that family
                raise _bind_error(key, Address(str(address[0]), wanted_port), error) from None
        if not opened:
            raise ConfigError(key, f"this machine has no address for {bind!r}")
    except ConfigError:
        for listening in opened:
            listening.close()
        raise
    return opened


def _open_shared(family: int, address: tuple[Any, ...], sharing: PortSharing, listens: bool) -> socket.socket:
    if sharing is not PortSharing.FIRST:
        return _open_socket(family, address, shares=sharing is PortSharing.JOIN, listens=listens)
    # This fails if any process listens there, shared or not. The port stays bound until the shared socket has it, too.
    with _open_socket(family, address, shares=False, listens=False) as proof:
        return _open_socket(family, proof.getsockname(), shares=True, listens=listens)


def _open_socket(family: int, address: tuple[Any, ...], *, shares: bool, listens: bool) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        if shares:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit these two, so no connection pays a system call for them.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        # SO_REUSEADDR lets two sockets bind one address; only ``listen`` reveals that another process uses it.
        if listens:
            listening.listen(LISTEN_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _bind_error(key: str, address: Address, error: OSError) -> ConfigError:
    match error.errno:
        case errno.EADDRINUSE:
            hint = "is another broker running? stop it, or set another port (0 lets the system choose one)"
            return ConfigError(key, f"address {address} is in use", hint)
        case errno.EACCES:
            hint = "ports below 1024 need CAP_NET_BIND_SERVICE; choose a higher one"
            return ConfigError(key, f"no permission to bind {address}", hint)
        case errno.EADDRNOTAVAIL:
            return ConfigError(key, f"{address.host} is not an address of this machine", "`ip address` lists the addresses")
        case _:
            return ConfigError(key, f"cannot bind {address}: {os.strerror(error.errno or 0)}")
