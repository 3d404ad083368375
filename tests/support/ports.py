"""TCP ports for programs that choose none themselves, and addresses that nothing listens on.

A port that the system has given away and taken back may be given to another at once: every test that binds to port 0 gets one,
and every connection. So these ports are outside of the range from which the system gives.
"""

from __future__ import annotations

import itertools
import os
import socket

_PORTS = range(16_384, 32_768)  # Linux gives from 32,768 on, others from 49,152 on, unless configured otherwise

_reservations: list[socket.socket] = []  # a UDP socket with the number of each port tells other processes that it is taken


def free_port() -> int:
    """A port of the loopback address that no other test gets as long as this process runs, whether something listens or not."""
    start = os.getpid() * 101 % len(_PORTS)  # processes that begin together try different ports
    for port in itertools.chain(_PORTS[start:], _PORTS[:start]):
        reservation = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            reservation.bind(("127.0.0.1", port))
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            reservation.close()
            continue
        _reservations.append(reservation)
        return port
    raise AssertionError("no port is free")


def closed_address() -> str:
    """An address that refuses connections."""
    return f"127.0.0.1:{free_port()}"
