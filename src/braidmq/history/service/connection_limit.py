"""Keeps the history service from running out of file descriptors when strangers open connections.

gRPC accepts every connection, keeps silent ones for minutes, and has no setting for a maximum. When descriptors run out, it
accepts no connections, and tables of the log cannot be opened. So the process checks its own sockets: beyond a limit it closes
connections without an accepted call first, the longest silent one first. A stranger that has sent one byte is no better than one
that has sent none, and a newcomer is about to identify itself. Connections of accepted callers follow, in the same order.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

log = logging.getLogger("braidmq.history")

_LOOK_EVERY_S: Final = 0.2
# Descriptors for other uses: the files of the log, which are all kept open, and those of Python and gRPC.
_FILES_SPARE: Final = 64
_SILENT_OFFSET: Final = 52  # of tcpi_last_data_recv in the kernel's struct tcp_info: milliseconds, since the start if none came
_SILENT: Final = struct.Struct("=I")


class ConnectionLimit:
    """Limits the connections to a port of this process; ``refused`` counts those that were closed."""

    def __init__(self, port: int, files_max: int, all_max: int, is_known: Callable[[str, int], bool]) -> None:
        """Connections are closed beyond `files_max` descriptors without the tables of the log, or `all_max` with them.

        `is_known` says whether a call from this host and port was let in.
        """
        self.refused = 0
        self._port = port
        self._files_max = files_max
        self._all_max = all_max
        self._is_known = is_known
        self._spare = os.open(os.devnull, os.O_RDONLY)

    @classmethod
    def within_limit(cls, port: int, is_known: Callable[[str, int], bool]) -> ConnectionLimit:
        """A ConnectionLimit whose limit leaves part of this process's descriptors free."""
        files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return cls(port, files_max - max(_FILES_SPARE, files_max // 4), files_max - _FILES_SPARE, is_known)

    def watch(self, over: threading.Event) -> None:
        """Check periodically until `over` is set; runs in a thread."""
        while not over.wait(_LOOK_EVERY_S):
            with suppress(OSError):  # another thread took the descriptor that this needs; the next check has it
                self.look()

    def look(self) -> int:
        """Close surplus connections; returns their number."""
        files = self._files()
        if len(files) <= self._files_max:
            return 0
        names = {number: _name(number) for number in files}
        tables = sum(name.endswith(".sst") for name in names.values())
        excess = max(len(files) - tables - self._files_max, len(files) - self._all_max)
        if excess <= 0:
            return 0
        sockets = sorted(number for number, name in names.items() if name.startswith("socket:"))
        ranked = [(rank, number) for number in sockets if (rank := self._rank(number)) is not None]
        closed = sum(_hang_up(number) for _, number in sorted(ranked)[:excess])
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

    def _rank(self, number: int) -> tuple[bool, int] | None:
        """Connections to our port with the lowest rank are closed first; None for any other socket."""
        try:
            with _borrowed(number) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getsockname()[1] != self._port:
                    return None
                host, port = connection.getpeername()[:2]  # a listening socket has none
                told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SILENT_OFFSET + _SILENT.size)
                return self._is_known(host.removeprefix("::ffff:"), port), -int(_SILENT.unpack_from(told, _SILENT_OFFSET)[0])
        except (OSError, struct.error):
            return None


def _name(number: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return ""


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
