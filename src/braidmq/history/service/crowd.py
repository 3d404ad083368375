"""Keeps the history service from running out of file descriptors when strangers open connections.

gRPC accepts every connection, keeps silent ones for minutes, and has no setting for a maximum. When descriptors run out, it
accepts no connections, and tables of the log cannot be opened. So the process checks its own sockets: beyond a limit it closes
connections that have never sent a byte, newest first, and then the newest of the others.
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
# Descriptors for other uses: the files of the log, which are all kept open, and those of Python and gRPC.
_FILES_SPARE: Final = 64
_RECEIVED_OFFSET: Final = 128  # of tcpi_bytes_received in the kernel's struct tcp_info
_RECEIVED: Final = struct.Struct("=Q")


class Crowd:
    """The connections to a port of this process; ``refused`` counts those that were closed."""

    def __init__(self, port: int, files_max: int) -> None:
        """`files_max` is the number of descriptors in use above which connections are closed."""
        self.refused = 0
        self._port = port
        self._files_max = files_max
        self._spare = os.open(os.devnull, os.O_RDONLY)

    @classmethod
    def within_limit(cls, port: int) -> Crowd:
        """A Crowd whose limit leaves part of this process's descriptors free."""
        files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return cls(port, files_max - max(_FILES_SPARE, files_max // 4))

    def watch(self, over: threading.Event) -> None:
        """Check periodically until `over` is set; runs in a thread."""
        while not over.wait(_LOOK_EVERY_S):
            with suppress(OSError):  # another thread took the descriptor that this needs; the next check has it
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
        """The descriptors of this process. Listing them needs a descriptor, which is reserved for it."""
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
                connection.getpeername()  # raises for a listening socket
                told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_OFFSET + _RECEIVED.size)
                return int(_RECEIVED.unpack_from(told, _RECEIVED_OFFSET)[0])
        except (OSError, struct.error):
            return None


def _hang_up(number: int) -> bool:
    """Shut down a connection; gRPC notices and closes it."""
    try:
        with _borrowed(number) as connection:
            connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    return True


@contextmanager
def _borrowed(number: int) -> Iterator[socket.socket]:
    """Use a descriptor of gRPC as a socket, without duplicating it."""
    connection = socket.socket(fileno=number)
    try:
        yield connection
    finally:
        connection.detach()
