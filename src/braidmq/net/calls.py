"""Questions and answers over a connection between nodes: each call has a number and a deadline.

Requests and answers are msgspec Structs of the unions that both sides were given. Anything else ends the connection, since both
sides have agreed on a version.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from braidmq.base.deadline_clock import after_reading
from braidmq.base.errors import BraidError, Unavailable
from braidmq.net.connection import PeerConnection
from braidmq.net.frames import BODY_BYTES_MAX, BadFrame, FrameKind
from braidmq.net.proto_v1 import CallFailed

logger = logging.getLogger("braidmq.net")

CALLS_MAX: Final = 1000
SERVED_MAX: Final = 100
_RETRY_AFTER_S: Final = 1.0

Handler = Callable[[Any], msgspec.Struct | Awaitable[msgspec.Struct]]

_encode: Final = msgspec.msgpack.encode


class CallError(BraidError):
    """The peer could not do what it was asked; ``retry_after_s`` is 0 if another try makes no sense."""

    def __init__(self, reason: str, retry_after_s: float) -> None:
        super().__init__(reason, retry_after_s)
        self.reason = reason
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.reason


class Calls:
    """Calls in both directions over one connection. Its owner passes frames to ``receive`` and the end to ``lost``."""

    def __init__(
        self,
        connection: PeerConnection,
        *,
        requests: Any,
        answers: Any,
        calls_max: int = CALLS_MAX,
        served_max: int = SERVED_MAX,
    ) -> None:
        """``requests``, ``answers``: unions of Structs. The bounds are for calls under way, made and served."""
        self.late_answers = 0  # after the deadline
        self.connection = connection
        self._requests = msgspec.msgpack.Decoder(requests)
        self._answers = msgspec.msgpack.Decoder(answers | CallFailed)
        self._calls_max = calls_max
        self._served_max = served_max
        self._handlers: Mapping[type, Handler] = {}
        self._last = 0
        self._waiting: dict[int, asyncio.Future[msgspec.Struct]] = {}
        self._serving: set[asyncio.Future[msgspec.Struct]] = set()
        self._lost = ""  # why

    @property
    def waiting(self) -> int:
        """Calls made and not answered."""
        return len(self._waiting)

    @property
    def serving(self) -> int:
        """Calls of the peer under way."""
        return len(self._serving)

    def serve(self, handlers: Mapping[type, Handler]) -> None:
        """Answer requests of these types. A handler may raise Unavailable to have the peer try again."""
        self._handlers = handlers

    async def call(self, request: msgspec.Struct, timeout_s: float) -> msgspec.Struct:
        """Ask the peer; its answer. Raises Unavailable if it is late or lost, and CallError if it could not do it."""
        if self._lost or not self.connection.is_open:
            raise Unavailable(self._lost or "the connection is closed", _RETRY_AFTER_S)
        if len(self._waiting) >= self._calls_max:
            raise Unavailable(f"{self._calls_max} calls to {self.connection.name} are under way", _RETRY_AFTER_S)
        self._last += 1
        number = self._last
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[msgspec.Struct] = loop.create_future()
        self._waiting[number] = answered
        timer = loop.call_later(timeout_s, after_reading, loop, lambda: self._on_late(number))
        try:
            self.connection.send(FrameKind.CALL, number, _encode(request))
            answer = await answered
        finally:
            timer.cancel()
            self._waiting.pop(number, None)
        if isinstance(answer, CallFailed):
            raise CallError(answer.reason, answer.retry_after_s)
        return answer

    def receive(self, kind: FrameKind, flags: int, destination: int, body: memoryview) -> None:
        """Take a frame of kind CALL or ANSWER; raises BadFrame for any other, and for what it does not understand."""
        try:
            if kind is FrameKind.CALL:
                self._serve(destination, self._requests.decode(body))
            elif kind is FrameKind.ANSWER:
                self._take_answer(destination, self._answers.decode(body))
            else:
                raise BadFrame(f"a frame of kind {kind.name} on a connection for calls")
        except msgspec.MsgspecError as error:
            raise BadFrame(f"an invalid {kind.name.lower()}: {error}") from None

    def lost(self, reason: str) -> None:
        """The connection has ended: fail what waits, and stop what is served."""
        self._lost = f"the connection to {self.connection.name} was lost: {reason}"
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(Unavailable(self._lost, _RETRY_AFTER_S))
        for task in list(self._serving):
            task.cancel()

    def _on_late(self, number: int) -> None:
        answered = self._waiting.get(number)
        if answered is not None and not answered.done():
            answered.set_exception(Unavailable(f"{self.connection.name} did not answer in time", _RETRY_AFTER_S))

    def _take_answer(self, number: int, answer: msgspec.Struct) -> None:
        if not 0 < number <= self._last:
            raise BadFrame(f"an answer to call {number}, which was not made")
        answered = self._waiting.get(number)
        if answered is None or answered.done():
            self.late_answers += 1
        else:
            answered.set_result(answer)

    def _serve(self, number: int, request: msgspec.Struct) -> None:
        handler = self._handlers.get(type(request))
        if handler is None:
            self._answer(number, CallFailed(f"this node does not answer {type(request).__name__}", 0.0))
            return
        if len(self._serving) >= self._served_max:
            self._answer(number, CallFailed(f"{self._served_max} calls are under way", _RETRY_AFTER_S))
            return
        try:
            answer = handler(request)
        except Exception as error:
            self._answer(number, self._failure(request, error))
            return
        if not inspect.isawaitable(answer):
            self._answer(number, answer)
            return
        task = asyncio.ensure_future(answer)
        self._serving.add(task)
        task.add_done_callback(partial(self._on_served, number, request))

    def _on_served(self, number: int, request: msgspec.Struct, task: asyncio.Future[msgspec.Struct]) -> None:
        self._serving.discard(task)
        if task.cancelled():
            self._answer(number, CallFailed("the node stops", _RETRY_AFTER_S))
            return
        error = task.exception()
        if isinstance(error, Exception):
            self._answer(number, self._failure(request, error))
        elif error is None:
            self._answer(number, task.result())

    def _failure(self, request: msgspec.Struct, error: Exception) -> CallFailed:
        name = type(request).__name__
        if isinstance(error, Unavailable):
            logger.info("%s: %s cannot be answered now: %s", self.connection.name, name, error)
            return CallFailed(error.detail, error.retry_after_s)
        if isinstance(error, BraidError):
            logger.warning("%s: %s was refused: %s", self.connection.name, name, error)
            return CallFailed(str(error), 0.0)
        logger.error("%s: %s failed", self.connection.name, name, exc_info=error)
        return CallFailed(f"{name} failed: {type(error).__name__}; see the log of that node", 0.0)

    def _answer(self, number: int, answer: msgspec.Struct) -> None:
        body = _encode(answer)
        if len(body) > BODY_BYTES_MAX:
            logger.error("%s: an answer of %d bytes is too large for a frame", self.connection.name, len(body))
            body = _encode(CallFailed("the answer is too large for a frame", 0.0))
        self.connection.send(FrameKind.ANSWER, number, body)
