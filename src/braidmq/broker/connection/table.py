"""All connections of the node, and the tasks that run for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator

from braidmq.broker.bounds.parts import Parts
from braidmq.broker.connection.connection import Connection
from braidmq.broker.connection.deadlines import Wheel
from braidmq.lane.path.channel_reader import HOLD_LOG
from braidmq.mqtt.reasons import Reason

log = logging.getLogger("braidmq.broker")


class ConnectionTable:
    """Connections from the first byte until the network connection is gone."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wheel: Wheel, parts: Parts) -> None:
        self._loop = loop
        self._wheel = wheel
        self._parts = parts
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_empty = asyncio.Event()

    def __len__(self) -> int:
        return len(self._connections)

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._connections)

    def add(self, connection: Connection) -> None:
        """A client has connected."""
        self._connections.add(connection)

    def remove(self, connection: Connection) -> None:
        """The network connection is gone."""
        self._connections.discard(connection)
        self._parts.forget(connection)
        self._wheel.forget(connection)
        if not self._connections:
            self._is_empty.set()

    def run(self, work: Coroutine[None, None, None], connection: Connection) -> None:
        """Run a coroutine for a connection; if it fails, that is logged and the connection is closed."""

        def on_done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("%s: a packet could not be handled", connection.client_id or connection.peer(), exc_info=error)
                connection.close(Reason.IMPLEMENTATION_SPECIFIC_ERROR, "")

        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(on_done)

    def cancel_tasks(self) -> None:
        """End everything that ``run`` has started."""
        for task in list(self._tasks):
            task.cancel()

    def resume_publishers(self) -> None:
        """The log has room again: let the clients that it has held back continue, after this callback."""
        for connection in self._connections:
            if connection.hold_bits & HOLD_LOG:
                connection.schedule_resume(HOLD_LOG)

    def take_trace(self) -> None:
        """The traced clients have changed."""
        for connection in self._connections:
            connection.take_trace()

    async def wait_empty(self, timeout_s: float) -> bool:
        """Wait until every connection is gone; False if that takes longer than this."""
        if not self._connections:
            return True
        self._is_empty.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._is_empty.wait()
        except TimeoutError:
            return False
        return True
