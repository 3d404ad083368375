"""Empties a node: it accepts no client any more, and sends those that it has to other nodes, a few at a time.

MQTT 5 clients get DISCONNECT 0x9C, with a server reference if one is configured; others are disconnected. The home keeps their
wills back for a while (C30).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final

from braidmq.broker.broker import Broker
from braidmq.broker.connection.connection import Connection
from braidmq.mqtt.reasons import Reason

log = logging.getLogger("braidmq.operations")

_TICK_S: Final = 0.1
_SLICE: Final = 500  # connections that are closed in one turn of the loop


class Drain:
    """One drain of a node, from its start on. Starting it again only changes rate and deadline."""

    def __init__(self, broker: Broker, stop_accepting: Callable[[], None]) -> None:
        self.moved = 0
        self._broker = broker
        self._stop_accepting = stop_accepting
        self._rate = 0
        self._deadline = 0.0  # 0: none
        self._task: asyncio.Task[None] | None = None
        self._ready: Iterator[Connection] = iter(())

    @property
    def is_begun(self) -> bool:
        """Whether the node accepts no clients because of it."""
        return self._task is not None

    @property
    def is_done(self) -> bool:
        """Whether all clients are gone."""
        return self._task is not None and self._task.done()

    @property
    def left(self) -> int:
        """Clients that are connected."""
        return self._broker.statistics.live

    def start(self, rate: int, deadline_s: float | None) -> None:
        """Send ``rate`` clients away per second, and the rest after ``deadline_s``."""
        loop = self._broker.loop
        self._rate = rate
        self._deadline = 0.0 if deadline_s is None else loop.time() + deadline_s
        if self._task is None:
            log.info("draining this node: %d clients, %d per second", self.left, rate)
            self._stop_accepting()
            self._task = loop.create_task(self._run())
            self._task.add_done_callback(self._on_done)

    async def wait_done(self) -> None:
        """Wait until all clients are gone."""
        if self._task is not None:
            await asyncio.shield(self._task)

    def stop(self) -> None:
        """The node stops."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        loop = self._broker.loop
        due = 0.0  # clients that may be sent away by now
        while True:
            due += self._rate * _TICK_S
            if self._deadline and loop.time() >= self._deadline:
                due = len(self._broker.connections) + 1.0  # one more than there are, to find that none is left
            while due >= 1:
                count = min(int(due), _SLICE)
                if not self._send_away(count):
                    return
                due -= count
                await asyncio.sleep(0)
            await asyncio.sleep(_TICK_S)

    def _send_away(self, count: int) -> bool:
        """Close some connections; False if there is none left."""
        reference = self._broker.live.now.cluster.server_reference or None
        for _ in range(count):
            connection = self._next()
            if connection is None:
                self._broker.lane.flush()
                return False
            self.moved += connection.is_open
            connection.close(Reason.USE_ANOTHER_SERVER, "this node is drained", discard_will=True, server_reference=reference)
        self._broker.lane.flush()
        return True

    def _next(self) -> Connection | None:
        """A connection that is not closed; all of them are looked at once more before the end."""
        for is_fresh in (False, True):
            if is_fresh:
                self._ready = iter(list(self._broker.connections))
            for connection in self._ready:
                if not connection.is_closed:
                    return connection
        return None

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            task.get_loop().call_exception_handler({"message": "draining failed", "exception": error, "task": task})
        else:
            log.info("this node is drained: %d clients were sent away", self.moved)
