"""A TCP proxy that cuts, stalls and delays connections, as a bad network does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from time import sleep
from typing import Self

_PART_BYTES = 65536


class CuttingProxy:
    """Passes connections on to a port. Each budget is the bytes from the client after which a connection is cut; then none is.

    A way that is *stalled* keeps what comes, as a network does that loses packets: neither side is told.
    """

    def __init__(self, port: int, budgets: Iterator[int] | None = None, host: str = "127.0.0.1") -> None:
        self.connections = 0
        self.delay_s = 0.0  # of everything, in both directions
        self._target = (host, port)
        self._budgets = iter(()) if budgets is None else budgets
        self._is_open = {True: threading.Event(), False: threading.Event()}  # by direction; True: to the server
        self._sockets: set[socket.socket] = set()
        self._is_cut = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self.go_on()

    @property
    def port(self) -> int:
        """Where clients connect to."""
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._close_all()
        self.go_on()

    def stall(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Pass nothing on in these directions."""
        for direction, is_stalled in ((True, to_server), (False, to_client)):
            if is_stalled:
                self._is_open[direction].clear()

    def cut(self) -> None:
        """End all connections, and take no more."""
        self._is_cut = True
        self._close_all()

    def go_on(self) -> None:
        """Pass everything on again, with what was kept."""
        self._is_cut = False
        for each in self._is_open.values():
            each.set()

    def _close_all(self) -> None:
        for each in list(self._sockets):
            _end(each)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                try:
                    if self._is_cut:
                        raise ConnectionError
                    server = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    continue
                self._sockets |= {client, server}
                budget = next(self._budgets, None)
                threading.Thread(target=self._pass, args=(client, server, True, budget), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, False, None), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, direction: bool, budget: int | None) -> None:
        with suppress(OSError):
            while data := source.recv(_PART_BYTES if budget is None else 4096):
                if budget is not None:
                    budget -= len(data)
                    if budget < 0:
                        break
                if self.delay_s:
                    sleep(self.delay_s)
                self._is_open[direction].wait()
                target.sendall(data)
        for each in (source, target):
            _end(each)
            each.close()
            self._sockets.discard(each)


def _end(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
