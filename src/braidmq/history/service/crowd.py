"""Keeps the history service from running out of file descriptors when strangers open connections.

gRPC accepts whatever comes, keeps a silent connection for minutes, and takes no bound. Without a descriptor it accepts nobody,
and the tables of the log cannot be opened. So the process looks at its own sockets: beyond a bound it closes connections that
have never sent a byte, the newest first, and then the newest of the others.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

log = logging.getLogger("braidmq.history")

_LOOK_EVERY_S: Final = 0.2
# Besides connections: files of the log, which are all held open, and what Python and gRPC have.
_FILES_SPARE: Final = 64
_RECEIVED_OFFSET: Final = 128  # of tcpi_bytes_received in the kernel's struct tcp_info
_RECEIVED: Final = struct.Struct("=Q")


class Crowd:
    """The connections to a port of this process; ``refused`` counts those that were closed."""

    def __init__(self, port: int, files_max: int) -> None:
        """`files_max` is how many descriptors the process may have in use before connections are closed."""
        self.refused = 0
        self._port = port
        self._files_max = files_max
        self._spare = os.open(os.devnull, os.O_RDONLY)

    @classmethod
    def within_limit(cls, port: int) -> Crowd:
        """One that leaves a part of the limit of this process unused."""
        files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return cls(port, files_max - max(_FILES_SPARE, files_max // 4))

    def watch(self, over: threading.Event) -> None:
        """Look again and again; for a thread."""
        while not over.wait(_LOOK_EVERY_S):
            with suppress(OSError):  # somebody else was faster to take the descriptor that it needs: the next look has it
                self.look()

    def look(self) -> int:
        """Close surplus connections; returns their number."""
        files = self._files()
        excess = len(files) - self._files_max
        if excess <= 0:
            return 0
        silent: list[int] = []
        others: list[int] = []
        for number in sorted(files, reverse=True):
            received = self._received(number)
            if received is not None:
                (others if received else silent).append(number)
        closed = sum(map(_hang_up, (silent + others)[:excess]))
        if closed and not self.refused:
            log.warning("too many connections to the history service: closing idle and new ones")
        self.refused += closed
        return closed

    def _files(self) -> list[int]:
        """The descriptors of this process. Looking takes one itself, which is kept for that."""
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        try:
            return [int(name) for name in os.listdir("/proc/self/fd")]
        finally:
            self._spare = os.open(os.devnull, os.O_RDONLY)

    def _received(self, number: int) -> int | None:
        """The bytes that a connection to our port has sent; None for any other socket."""
        try:
            if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                return None
            with _borrowed(number) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getsockname()[1] != self._port:
                    return None
                connection.getpeername()  # a listening socket has none
                told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_OFFSET + _RECEIVED.size)
                return int(_RECEIVED.unpack_from(told, _RECEIVED_OFFSET)[0])
        except (OSError, struct.error):
            return None


def _hang_up(number: int) -> bool:
    """End a connection; gRPC notices, and closes it."""
    try:
        with _borrowed(number) as connection:
            connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    return True


@contextmanager
def _borrowed(number: int) -> Iterator[socket.socket]:
    """A descriptor of gRPC's as a socket, without a descriptor of its own."""
    connection = socket.socket(fileno=number)
    try:
        yield connection
    finally:
        connection.detach()
