"""Many connections: connects them at the requested rate, keeps them alive, and closes them."""

from __future__ import annotations

import asyncio
import contextlib
import math
import resource
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from braidmq.cli.bench.connection import BenchConnection
from braidmq.cli.bench.plan import BenchPlan
from braidmq.cli.bench.tally import Tally
from braidmq.cli.errors import CommandFailed
from braidmq.client import transport
from braidmq.client.errors import ClientError

CONNECTING_MAX: Final = 100  # a SYN beyond a listener's backlog, often 128, is delayed by a second
TICK_S: Final = 0.005
_GOODBYE_S: Final = 1.0

AnyConnection = TypeVar("AnyConnection", bound=BenchConnection)


class Fleet:
    """All connections of one run; ``first_failure`` is the error to report if none connects."""

    def __init__(self, plan: BenchPlan, tally: Tally, stop: asyncio.Event) -> None:
        self.wanted = 0
        self.first_failure: ClientError | None = None
        self._plan = plan
        self._tally = tally
        self._stop = stop
        self._up: list[BenchConnection] = []

    async def bring_up(
        self, connections: Sequence[AnyConnection], then: Callable[[AnyConnection, int], Awaitable[None]] | None = None
    ) -> None:
        """Connect them at the requested rate, and call ``then`` for each one that is logged in.

        Returns when each is up or has failed, or when the run is stopped. Raises CommandFailed if none is up.
        """
        _raise_file_limit(len(connections) + self.wanted)
        self.wanted += len(connections)
        room = asyncio.Semaphore(CONNECTING_MAX)
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def one(connection: AnyConnection, number: int) -> None:
            try:
                endpoint = self._plan.endpoint_for(number)
                await transport.connect(endpoint, lambda: connection)
                await connection.log_in()
                self._up.append(connection)
                if then is not None:
                    await then(connection, number)
            except ClientError as failure:
                self.first_failure = self.first_failure or failure
                self._tally.failures[str(failure)] += 1
                connection.leave()
            finally:
                room.release()

        tasks: list[asyncio.Task[None]] = []
        try:
            for index, connection in enumerate(connections):
                await room.acquire()
                if self._stop.is_set() or self._is_hopeless():
                    room.release()
                    break
                tasks.append(loop.create_task(one(connection, self._plan.first_number + index)))
                delay_s = began + (index + 1) * self._plan.connect_gap_s - loop.time()
                if delay_s > 0:
                    await self._sleep(delay_s)
            await self._all_done(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not self._up and self.first_failure is not None:
            raise self.first_failure

    def _is_hopeless(self) -> bool:
        return not self._up and sum(self._tally.failures.values()) >= CONNECTING_MAX

    async def stay_alive(self) -> None:
        """Ping every connection twice in its keep-alive time; runs until cancelled."""
        if not self._plan.keep_alive:
            return
        while True:
            await asyncio.sleep(self._plan.keep_alive / 2)
            for index, connection in enumerate(list(self._up)):
                connection.ping()
                if index % 1000 == 999:
                    await asyncio.sleep(0)

    async def let_go(self) -> None:
        """Disconnect all of them."""
        for connection in self._up:
            connection.leave()
        await until(lambda: not any(connection.is_open for connection in self._up), _GOODBYE_S)

    async def _sleep(self, delay_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._stop.wait()

    async def _all_done(self, tasks: list[asyncio.Task[None]]) -> None:
        stopped: asyncio.Future[Any] = asyncio.ensure_future(self._stop.wait())
        everything: asyncio.Future[Any] = asyncio.gather(*tasks)
        try:
            await asyncio.wait([stopped, everything], return_when=asyncio.FIRST_COMPLETED)
            if everything.done():
                everything.result()
        finally:
            stopped.cancel()
            everything.cancel()


async def until(condition: Callable[[], bool], timeout_s: float = math.inf) -> None:
    """Return when the condition holds or the time is up. Polls, because an event would cost time for each message."""
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(TICK_S)


def _raise_file_limit(connections: int) -> None:
    """Raise the limit of open files; raises CommandFailed if the system does not allow enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + 128
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else min(needed, hard), hard))
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise CommandFailed(f"this system allows {hard} open files, but {needed} are needed (see ulimit -Hn)")
