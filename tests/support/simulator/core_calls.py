"""Calls between cores of one process, without sockets: one end of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from braidmq.base.errors import Unavailable, UsageError
from braidmq.net.calls import CallError, Calls
from braidmq.net.proto_v1 import AskNode, NodeAnswer

Handler = Callable[[AskNode], Awaitable[NodeAnswer]]


class SimCalls:
    """Fills `net.calls.Calls`; an end can lose what is asked there, or the answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_open = True
        self.is_stopped = False  # what is asked here does not arrive
        self._thawed = asyncio.Event()
        self._thawed.set()
        self.calls: list[AskNode] = []  # that were made here
        self._loop = loop
        self._other: SimCalls | None = None
        self._handlers: dict[type, Handler] = {}
        self._waiting: set[asyncio.Future[NodeAnswer]] = set()

    @classmethod
    def pair(cls, loop: asyncio.AbstractEventLoop) -> tuple[SimCalls, SimCalls]:
        """The two ends of a connection."""
        one, two = cls(loop), cls(loop)
        one._other, two._other = two, one
        return one, two

    @property
    def as_calls(self) -> Calls:
        return cast(Calls, self)

    @property
    def connection(self) -> SimCalls:
        """What tells whether it is open."""
        return self

    def serve(self, handlers: dict[type, Any]) -> None:
        self._handlers = handlers

    def freeze(self) -> None:
        """What is asked here from now on is done, and not answered."""
        self._thawed.clear()

    def thaw(self) -> None:
        """The answers arrive."""
        self._thawed.set()

    def cut(self) -> None:
        """The connection is gone, with everything on its way."""
        for end in (self, self._other):
            assert end is not None
            end.is_open = False
            end.thaw()
            for answer in list(end._waiting):
                if not answer.done():
                    answer.set_exception(Unavailable("the connection is gone", 1.0))

    async def call(self, request: AskNode, timeout_s: float) -> NodeAnswer:
        """Ask the other end."""
        if not self.is_open:
            raise Unavailable("the connection is closed", 1.0)
        self.calls.append(request)
        answer: asyncio.Future[NodeAnswer] = self._loop.create_future()
        self._waiting.add(answer)
        timer = self._loop.call_later(timeout_s, self._give_up, answer)
        self._loop.create_task(self._carry(request, answer))
        try:
            return await answer
        finally:
            timer.cancel()
            self._waiting.discard(answer)

    def _give_up(self, answer: asyncio.Future[NodeAnswer]) -> None:
        if not answer.done():
            answer.set_exception(Unavailable("it is late", 1.0))

    async def _carry(self, request: AskNode, answer: asyncio.Future[NodeAnswer]) -> None:
        assert self._other is not None
        await asyncio.sleep(0)
        if not self.is_open or self.is_stopped:
            return
        result: NodeAnswer | Exception
        try:
            result = await self._other._handlers[AskNode](request)
        except Unavailable as problem:
            result = CallError(problem.detail, problem.retry_after_s)
        except UsageError as problem:
            result = CallError(problem.detail, 0.0)
        await self._thawed.wait()
        if answer.done() or not self.is_open:
            return
        if isinstance(result, Exception):
            answer.set_exception(result)
        else:
            answer.set_result(result)
