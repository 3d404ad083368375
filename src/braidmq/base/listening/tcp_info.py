"""What the kernel knows of a TCP connection: when its peer last spoke, and whether the peer has closed it.

A connection may wait in the kernel for as long as the event loop is stuck. So the time at which it is accepted says little: the
client may have given up long ago, and have connected elsewhere (R4).
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from time import monotonic
from typing import Any, Final, Protocol

# The start of Linux' ``struct tcp_info``, which only grows at its end: eight bytes, the first of which is the state, then numbers
# of four bytes each. ``tcpi_last_ack_recv`` is in milliseconds.
_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None)
_READ: Final = struct.Struct("=B55xI")
_ESTABLISHED: Final = 1
# How finely the kernel counts time here: in its ticks, of which it has at least 100 a second.
TICK_S: Final = 0.01


class TcpSocket(Protocol):
    """A socket, or what a transport shows of one."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        """The value of an option."""
        ...


def spoke_at(connected: TcpSocket) -> float | None:
    """When the peer was last heard, as a time of the monotonic clock, to a tick; None if the system cannot say."""
    found = _read(connected)
    return None if found is None else monotonic() - found[1] / 1000


def is_established(connected: TcpSocket) -> bool:
    """False if the peer has closed its side or reset the connection, even if bytes from before that are unread."""
    found = _read(connected)
    return found is None or found[0] == _ESTABLISHED


def unread(fd: int, size: int) -> bytes:
    """The first bytes that wait to be read, which stay there; none if there are none, or the connection is reset."""
    try:
        with socket.socket(fileno=os.dup(fd)) as connected:
            return connected.recv(size, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:
        return b""


def _read(connected: TcpSocket) -> tuple[int, int] | None:
    if _TCP_INFO is None:
        return None
    try:
        state, silent_ms = _READ.unpack(connected.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _READ.size))
    except (OSError, struct.error):
        return None  # no TCP socket, or the system's answer is shorter
    return state, silent_ms


class PollTimes:
    """When the loop polled its sockets, for systems that cannot say when a peer spoke: not before the poll before this one."""

    _EVERY_S: Final = 0.01

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.before = self._latest = monotonic()
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Follow the loop's turns. ``before``: a moment of an earlier turn, whichever callback of this one asks."""
        self.before, self._latest = self._latest, monotonic()
        self._timer = self._loop.call_later(self._EVERY_S, self.start)

    def stop(self) -> None:
        """Follow no longer."""
        if self._timer is not None:
            self._timer.cancel()


def needs_poll_times(listening: Any) -> bool:
    """Whether the system cannot say when a peer of this listening socket's connections spoke."""
    return spoke_at(listening) is None
