"""A TCP proxy that cuts connections after a number of bytes, as a bad network does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Self


class CuttingProxy:
    """Passes connections on to a port. Each budget is the bytes from the client after which a connection is cut; then none is."""

    def __init__(self, port: int, budgets: Iterator[int]) -> None:
        self.connections = 0
        self._target = port
        self._budgets = budgets
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def port(self) -> int:
        """Where clients connect to."""
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                server = socket.create_connection(("127.0.0.1", self._target))
                budget = next(self._budgets, None)
                threading.Thread(target=_pass, args=(client, server, budget), daemon=True).start()
                threading.Thread(target=_pass, args=(server, client, None), daemon=True).start()


def _pass(source: socket.socket, target: socket.socket, budget: int | None) -> None:
    with suppress(OSError):
        while data := source.recv(4096):
            if budget is not None:
                budget -= len(data)
                if budget < 0:
                    break
            target.sendall(data)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
