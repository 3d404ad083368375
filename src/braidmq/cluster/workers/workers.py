"""A core's workers: starts their processes, restarts those that end, and ends them with the core.

A worker is `braidmq worker` with a socket as its standard input. Everything it needs comes over the socket, and its end tells the
worker to stop. The kernel kills workers whose core was killed (`base/parent.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from braidmq.base.backoff import Backoff
from braidmq.base.errors import BraidError, ConfigError, Unavailable
from braidmq.cluster.workers import worker_messages
from braidmq.cluster.workers.worker_messages import FromWorker, WorkerFailed, WorkerReady, WorkerReload, WorkerSetup

log = logging.getLogger("braidmq.workers")

COMMAND: Final = (sys.executable, "-m", "braidmq", "worker")
WORKERS_MAX: Final = 256
_FIRST_PAUSE_S: Final = 0.5
_PAUSE_MAX_S: Final = 30.0
# After a run of this length, restarts begin again with the first pause.
_STABLE_S: Final = 60.0
_START_S: Final = 60.0
# Longer than a node waits for its clients to take their DISCONNECT.
_STOP_S: Final = 10.0
_MESSAGE_S: Final = 10.0


def automatic_count() -> int:
    """The number of workers that `auto` stands for: one for each processor but the core's, at least one."""
    return max(1, len(os.sched_getaffinity(0)) - 1)


class Workers:
    """The workers of one core; call `start`, then `stop`. `make_config(number)` is the configuration of a worker, now."""

    def __init__(
        self,
        count: int,
        make_config: Callable[[int], bytes],
        core_socket: str,
        secret: bytes,
        on_ended: Callable[[int], None] | None = None,
    ) -> None:
        """``make_config``: returns what `encode_config` made. ``on_ended`` is told that the process of a worker has ended."""
        self.restarts = 0
        self.on_ended = on_ended
        self._make_config = make_config
        self._core_socket = core_socket
        self._secret = secret
        self._workers = [_Worker(self, number) for number in range(1, count + 1)]
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def running(self) -> int:
        """The number of workers that have started and not ended."""
        return sum(worker.is_ready for worker in self._workers)

    @property
    def process_ids(self) -> dict[int, int]:
        """The processes that exist now, by the number of the worker."""
        return {worker.number: worker.process.pid for worker in self._workers if worker.process is not None}

    async def start(self) -> None:
        """Start all workers and wait until they are ready. Raises the ConfigError of a worker, or Unavailable."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(worker.keep_running(), name=f"worker {worker.number}") for worker in self._workers]
        try:
            async with asyncio.timeout(_START_S):
                await asyncio.gather(*(worker.first_start for worker in self._workers))
        except TimeoutError:
            late = ", ".join(f"{each.number} ({each.trouble})" for each in self._workers if not each.is_ready)
            raise Unavailable(f"these workers did not start within {_START_S:g} s: {late}") from None

    async def reload(self) -> None:
        """Give every worker the configuration as it is now."""
        for worker in self._workers:
            worker.send(WorkerReload(self._make_config(worker.number)))

    async def stop(self) -> None:
        """Tell the workers to stop, let them disconnect their clients, and kill those that take too long."""
        for worker in self._workers:
            worker.is_stopping = True
            worker.end(signal.SIGTERM)
        running = [worker.ended.wait() for worker in self._workers if worker.process is not None]
        try:
            async with asyncio.timeout(_STOP_S):
                await asyncio.gather(*running)
        except TimeoutError:
            for worker in self._workers:
                if worker.process is not None:
                    log.warning("worker %d did not stop within %g s and is killed", worker.number, _STOP_S)
                    worker.end(signal.SIGKILL)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def setup(self, number: int) -> WorkerSetup:
        """What a worker is told first."""
        return WorkerSetup(os.getpid(), self._make_config(number), self._core_socket, self._secret)


class _Worker:
    """One worker: its process, and the next one when that has ended."""

    def __init__(self, owner: Workers, number: int) -> None:
        self.number = number
        self.first_start: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.process: asyncio.subprocess.Process | None = None
        self.ended = asyncio.Event()
        self.is_ready = False
        self.is_stopping = False
        self.trouble = "not ready yet"
        self._owner = owner
        self._writer: asyncio.StreamWriter | None = None

    async def keep_running(self) -> None:
        """Run one process after the other until the core stops."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(_FIRST_PAUSE_S, _PAUSE_MAX_S)
        while True:
            began = loop.time()
            try:
                self.trouble = await self._run()
            except Exception as problem:  # a bug of ours: log it, and start the worker again
                log.exception("the supervisor of worker %d failed", self.number)
                self.trouble = str(problem)
            if self.is_stopping:
                return
            if loop.time() - began > _STABLE_S:
                backoff.reset()
            pause_s = backoff.next()
            log.error("worker %d is down: %s; restarting it in %g s", self.number, self.trouble, pause_s)
            await asyncio.sleep(pause_s)
            self._owner.restarts += 1

    def send(self, message: WorkerReload) -> None:
        """Send a message to the process, if there is one."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(worker_messages.frame(message))

    def end(self, number: signal.Signals) -> None:
        """Send a signal to the process, if there is one."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    async def _run(self) -> str:
        """Run one process until it ends; returns the reason."""
        ours, theirs = socket.socketpair()
        try:
            # A session of its own: Ctrl-C is for the core, which then stops its workers.
            process = await asyncio.create_subprocess_exec(*COMMAND, stdin=theirs.fileno(), start_new_session=True)
        except OSError as problem:
            ours.close()
            return f"it cannot be started ({problem})"
        finally:
            theirs.close()
        self.process = process
        self.ended.clear()
        log.info("worker %d is process %d", self.number, process.pid)
        reason = ""
        try:
            reader, self._writer = await asyncio.open_unix_connection(sock=ours)
            self._writer.write(worker_messages.frame(self._owner.setup(self.number)))
            while (message := await _receive(reader)) is not None:
                match message:
                    case WorkerReady():
                        self.is_ready = True
                        if not self.first_start.done():
                            self.first_start.set_result(None)
                    case WorkerFailed(key, detail, hint):
                        problem_found = ConfigError(key, detail, hint)
                        reason = str(problem_found)
                        if not self.first_start.done():
                            self.is_stopping = True
                            self.first_start.set_exception(problem_found)
        except (BraidError, OSError) as problem:
            reason = str(problem)
        finally:
            self.is_ready = False
            if self._writer is not None:
                self._writer.close()
                self._writer = None
            status = await _ended(process)
            self.process = None
            self.ended.set()
            if self._owner.on_ended is not None:
                self._owner.on_ended(self.number)
        return reason or (f"it was ended by signal {-status}" if status < 0 else f"it ended with status {status}")


async def _receive(reader: asyncio.StreamReader) -> FromWorker | None:
    """The next message; None when the worker has closed its socket."""
    try:
        head = await reader.readexactly(worker_messages.LENGTH_BYTES)
        return worker_messages.from_worker(await reader.readexactly(worker_messages.length_of(head)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def _ended(process: asyncio.subprocess.Process) -> int:
    """The exit status of a process whose socket was closed, which tells it to stop; kills it if it does not."""
    try:
        async with asyncio.timeout(_MESSAGE_S):
            return await process.wait()
    except TimeoutError:
        process.kill()
        return await process.wait()
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
