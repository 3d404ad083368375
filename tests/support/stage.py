"""A broker for hostile tests: clients are opened on it, and at the end it must be as good as new."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from braidmq.broker.broker import Broker as Inside
from braidmq.testing import Broker
from tests.support.clients.wire import DEADLINE_S, Wire, Wires

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_POLL_S = 0.005
T = TypeVar("T")


def wait_until(is_so: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> None:
    """Return as soon as the condition holds; fail with ``what`` if it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(_POLL_S)


def resident_bytes() -> int:
    """Memory of this process that is in use, after a collection; what the allocator keeps for later is given back first."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


class ErrorLog(logging.Handler):
    """Keeps what the broker or its loop logged as an error, uncaught exceptions included."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def take(self) -> str:
        """What was logged so far; a test that expects it takes it, and it is no fault any more."""
        lines, self.lines = "\n".join(self.lines), []
        return lines

    @contextmanager
    def listening(self) -> Iterator[ErrorLog]:
        """Listen to every logger through which an error could come."""
        loggers = [logging.getLogger(name) for name in ("braidmq", "asyncio")]
        for logger in loggers:
            logger.addHandler(self)
        try:
            yield self
        finally:
            for logger in loggers:
                logger.removeHandler(self)


class Stage:
    """One running broker and the clients of one test."""

    def __init__(self, broker: Broker, errors: ErrorLog) -> None:
        self.broker = broker
        self.errors = errors
        self.wires = Wires(broker.host, broker.port)

    @property
    def inside(self) -> Inside:
        """The broker's state; look at it through ``look``, since it belongs to another thread."""
        assert self.broker.node is not None
        return self.broker.node.broker

    def look(self, work: Callable[[Inside], T]) -> T:
        """What ``work`` finds, looked up on the broker's own loop."""
        return self.broker.call(work, self.inside)

    def open(self, version: int | None = None) -> Wire:
        """A connection on which nothing was sent yet."""
        return self.wires.open(version)

    def connect(self, client_id: str | None = None, *, version: int | None = None, **fields: Any) -> Wire:
        """A connected client; arguments as for ``Wire.connect``."""
        return self.wires(client_id, version=version, **fields)

    def refusals(self) -> dict[str, int]:
        """Connections that ended before MQTT began, by reason."""
        return dict(self.look(lambda inside: inside.statistics.listener_refusals))

    def drops(self, reason: str) -> int:
        """How many messages were dropped for this reason so far."""
        return int(self.look(lambda inside: inside.statistics.drops[reason]))

    def wait_empty(self) -> None:
        """Wait until no connection is left, nor a place of a listener taken."""
        wait_until(lambda: not self.look(lambda inside: inside.connections), "every connection is gone")
        wait_until(lambda: self.places() == 0, "every listener's place is given back")

    def places(self) -> int:
        """Places that connections, or those who still shake hands, have at the listeners."""
        node = self.broker.node
        assert node is not None
        return sum(self.broker.call(lambda: [listener.live for listener in node.listeners.listeners.values()]))

    def close(self) -> None:
        """Close the clients; the broker must still serve, have released them, and have logged no error."""
        self.wires.close()
        self.wait_empty()
        waiting = self.look(lambda inside: (len(inside.state.dirty), inside.statistics.live, inside.statistics.authenticating))
        assert waiting == (0, 0, 0), f"left behind (dirty channels, live clients, open authentications): {waiting}"
        assert self.errors.lines == []
