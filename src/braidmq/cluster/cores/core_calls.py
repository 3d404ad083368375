"""What cores ask each other in calls: operations by name, answered by the part of the core that serves each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from braidmq.base.errors import Unavailable, UsageError
from braidmq.cluster.administration.questions import Silence
from braidmq.net.calls import CallError, Calls
from braidmq.net.proto_v1 import AskNode, NodeAnswer

log = logging.getLogger("braidmq.cluster")

_AGAIN_S: Final = 1.0

Operation = Callable[[bytes], Awaitable[bytes]]  # may raise Unavailable, and UsageError if another try makes no sense


class CoreCalls:
    """The calls of one core to all others. `home.Home` says when they are up."""

    def __init__(self, cores: Mapping[str, Sequence[int]]) -> None:
        """``cores``: the other ones, with the shards that they lead."""
        self.cores = dict(cores)
        self._calls: dict[str, Calls] = {}
        self._operations: dict[str, Operation] = {}

    def serve(self, name: str, operation: Operation) -> None:
        """Answer an operation of other cores from now on."""
        self._operations[name] = operation

    def up(self, core: str, calls: Calls) -> None:
        """A core is connected, perhaps again."""
        self._calls[core] = calls
        calls.serve({AskNode: self._answer})

    def down(self, core: str) -> None:
        """The connections to a core are gone."""
        self._calls.pop(core, None)

    async def ask(self, core: str, operation: str, arguments: bytes, timeout_s: float) -> bytes:
        """The answer of a core. Raises Unavailable, which names the core and its shards, and UsageError if it refuses."""
        calls = self._calls.get(core)
        if calls is None:
            raise Unavailable(f"{self._named(core)} is away", _AGAIN_S)
        try:
            answer = await calls.call(AskNode(operation, arguments), timeout_s)
        except Unavailable:
            is_late = calls.connection.is_open
            reason = f"did not answer within {timeout_s:g} s" if is_late else "went away before it answered"
            raise Unavailable(f"{self._named(core)} {reason}", _AGAIN_S) from None
        except CallError as problem:
            if problem.retry_after_s:
                raise Unavailable(f"{self._named(core)}: {problem}", problem.retry_after_s) from None
            raise UsageError(f"core {core}: {problem}") from None
        assert isinstance(answer, NodeAnswer)  # the only kind that `Calls` decodes here
        return answer.value

    async def ask_all(self, operation: str, arguments: bytes, timeout_s: float) -> dict[str, bytes | Silence]:
        """The answers of all other cores by name, or why there is none."""
        answers = await asyncio.gather(*(self._try(core, operation, arguments, timeout_s) for core in self.cores))
        return dict(zip(self.cores, answers, strict=True))

    async def _try(self, core: str, operation: str, arguments: bytes, timeout_s: float) -> bytes | Silence:
        try:
            return await self.ask(core, operation, arguments, timeout_s)
        except (Unavailable, UsageError) as problem:
            return Silence(problem.detail)

    @property
    def connected(self) -> list[str]:
        """The cores that can be asked."""
        return list(self._calls)

    def _named(self, core: str) -> str:
        shards = ", ".join(map(str, self.cores.get(core, ())))
        return f"core {core}, which leads shard {shards},"

    async def _answer(self, request: AskNode) -> NodeAnswer:
        operation = self._operations.get(request.operation)
        if operation is None:
            raise Unavailable(f"this core cannot answer {request.operation!r} yet", _AGAIN_S)
        return NodeAnswer(await operation(request.arguments))
