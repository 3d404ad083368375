"""Accepting connections one by one: each is admitted or closed before the next one is accepted.

A process without a file descriptor left cannot write its log. The loop's own servers give a refused connection back only a turn
later, asyncio's after a whole backlog of them; and uvloop's accept one in a turn, so that each client of a storm pays for a turn.
So every door of a node accepts here.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Final

logger = logging.getLogger("braidmq.listeners")

# Connections accepted in one turn of the loop: a storm of them must not starve the connected clients.
ACCEPTS_PER_TURN: Final = 16
# And the time for them: each accept releases the interpreter lock, and waits for it while another thread decodes a large packet.
_ACCEPTING_S: Final = 0.001
# Turns in a row that find a connection before the door looks for more than one: looking in vain costs a tenth of accepting.
_STORM_TURNS: Final = 8
# Out of file descriptors or memory: how long to leave new connections in the kernel's queue.
ACCEPT_PAUSE_S: Final = 1.0
_OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Door:
    """A listening socket; ``admit`` is asked about each connection, and ``take`` gets those that are admitted.

    ``take(accepted, peer)`` owns the socket, which does not block. Lives on the loop that called ``open``.
    """

    def __init__(
        self, key: str, listening: socket.socket, admit: Callable[[], bool], take: Callable[[socket.socket, Any], None]
    ) -> None:
        """`key` names the door in the log."""
        self.listening = listening
        self._key = key
        self._admit = admit
        self._take = take
        self._timer: asyncio.TimerHandle | None = None
        self._busy_turns = 0  # in a row

    def open(self) -> None:
        """Accept from now on."""
        self._timer = None
        asyncio.get_running_loop().add_reader(self.listening, self._accept)

    def close(self) -> None:
        """Accept no more, and close the listening socket."""
        if self._timer is not None:
            self._timer.cancel()
        asyncio.get_running_loop().remove_reader(self.listening)
        self.listening.close()

    def _accept(self) -> None:
        self._busy_turns += 1
        deadline = monotonic() + _ACCEPTING_S
        for _ in range(ACCEPTS_PER_TURN if self._busy_turns > _STORM_TURNS else 1):
            try:
                accepted, peer = self.listening.accept()
            except (BlockingIOError, InterruptedError):
                self._busy_turns = 0
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._pause(error)
                return
            if self._admit():
                accepted.setblocking(False)
                self._take(accepted, peer)
            else:
                accepted.close()
            if monotonic() >= deadline:
                return

    def _pause(self, error: OSError) -> None:
        if error.errno not in _OUT_OF_RESOURCES:
            raise error
        logger.error("%s: cannot accept connections: %s", self._key, error.strerror)
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.listening)
        self._timer = loop.call_later(ACCEPT_PAUSE_S, self.open)


def attach(
    accepted: socket.socket, make_protocol: Callable[[], asyncio.BaseProtocol], on_failed: Callable[[OSError], None]
) -> None:
    """Give an accepted socket to its protocol, which owns it from ``connection_made`` on; reports a client that is gone already.

    A task would do the same two turns of the loop later, and at a third of the cost of a connection: this takes the first step of
    the coroutine here, which makes the transport, and the last one when ``connection_made`` was called.
    """
    _Attaching(asyncio.get_running_loop().connect_accepted_socket(make_protocol, accepted), accepted, on_failed)()


class _Attaching:
    """A connection between its two steps. An object, because a function that refers to itself is garbage for the collector."""

    __slots__ = ("_accepted", "_on_failed", "_work")

    def __init__(self, work: Coroutine[Any, Any, object], accepted: socket.socket, on_failed: Callable[[OSError], None]) -> None:
        self._work = work
        self._accepted = accepted
        self._on_failed = on_failed

    def __call__(self, _: object = None) -> None:
        try:
            waiter = self._work.send(None)
        except StopIteration:
            return
        except OSError as error:
            self._accepted.close()
            self._on_failed(error)
            return
        waiter._asyncio_future_blocking = False  # what awaits it is not a task
        waiter.add_done_callback(self)
