"""Traces that a core follows on its nodes: it asks for lines again and again, and a trace that it forgets ends by itself."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from braidmq.base.errors import UsageError
from braidmq.control.contract import TraceKind

TRACES_MAX: Final = 64
WAIT_S: Final = 1.0  # how long a question waits for lines
IDLE_S: Final = 5.0  # a trace that is not read for so long ends
_LINES_MAX: Final = 1000  # in one answer; a line is at most some 64 KiB for its topic, and usually 100 bytes
_ANSWER_CHARS: Final = 256 * 1024


class TraceRequest(msgspec.Struct, frozen=True):
    """What to follow."""

    kind: TraceKind
    value: str


class _Trace:
    """Lines that wait for the core. What does not fit waits in the broker's tracer, which leaves lines out and says so."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self._waiting: deque[str] = deque()
        self._arrived = asyncio.Event()
        self._has_room = asyncio.Event()
        self.idle: asyncio.TimerHandle | None = None
        self._task = asyncio.get_running_loop().create_task(self._collect())

    async def _collect(self) -> None:
        async for line in self._lines:
            while len(self._waiting) >= _LINES_MAX:
                self._has_room.clear()
                await self._has_room.wait()
            self._waiting.append(line)
            self._arrived.set()

    async def take(self) -> list[str]:
        """The lines that have arrived; waits a moment for the first."""
        if not self._waiting:
            self._arrived.clear()
            try:
                async with asyncio.timeout(WAIT_S):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        taken: list[str] = []
        size = 0
        while self._waiting and size < _ANSWER_CHARS:
            taken.append(self._waiting.popleft())
            size += len(taken[-1])
        self._has_room.set()
        return taken

    def close(self) -> None:
        """End it."""
        if self.idle is not None:
            self.idle.cancel()
        self._task.cancel()


class NodeTraces:
    """The traces of one node that its core follows."""

    def __init__(self, follow: Callable[[TraceKind, str], AsyncIterator[str]]) -> None:
        self._follow = follow
        self._traces: dict[int, _Trace] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._traces)

    def open(self, request: TraceRequest) -> int:
        """Begin a trace; its number. Raises UsageError."""
        if len(self._traces) >= TRACES_MAX:
            raise UsageError(f"{TRACES_MAX} traces are already running")
        self._last += 1
        self._traces[self._last] = _Trace(self._follow(request.kind, request.value))
        self._watch(self._last)
        return self._last

    async def read(self, number: int) -> list[str]:
        """The lines since the last call; perhaps none. Raises UsageError if there is no such trace."""
        trace = self._traces.get(number)
        if trace is None:
            raise UsageError("this trace has ended")
        self._watch(number)
        return await trace.take()

    def close(self) -> None:
        """The node stops."""
        for number in list(self._traces):
            self._end(number)

    def _watch(self, number: int) -> None:
        trace = self._traces[number]
        if trace.idle is not None:
            trace.idle.cancel()
        trace.idle = asyncio.get_running_loop().call_later(WAIT_S + IDLE_S, self._end, number)

    def _end(self, number: int) -> None:
        self._traces.pop(number).close()
