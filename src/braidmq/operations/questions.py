"""What a core asks for its operator: its nodes, the other cores, or all of them at once. Answers are read here.

Every node is connected to every core, so a core asks all nodes itself. Other cores are asked for what only they have: sessions
without a client at home there, retained messages, and their part of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from braidmq.base.errors import Unavailable
from braidmq.cluster.administration.questions import NodeQuestions, Silence
from braidmq.cluster.cores.core_calls import CoreCalls
from braidmq.operations.cluster_trace import Followed

CORE_PREFIX: Final = "ctl "  # of operations that cores answer each other
LIST_S: Final = 5.0  # a node with very many clients looks at all of them for a page
SWEEP_S: Final = 8.0  # a core waits for its nodes for five seconds
HOME_S: Final = 12.0  # a home asks the client's node, and waits for the session to leave it

Value = TypeVar("Value")


class ClusterQuestions:
    """Arguments and answers are JSON on their way."""

    def __init__(self, nodes: NodeQuestions, cores: CoreCalls) -> None:
        self._nodes = nodes
        self._cores = cores

    @property
    def away_cores(self) -> list[str]:
        """The other cores that cannot be asked now."""
        return [name for name in self._cores.cores if name not in self._cores.connected]

    def connected(self) -> list[Followed]:
        """The nodes and cores that can be asked now, each on its own."""

        def ask_core(name: str, operation: str, arguments: bytes, timeout_s: float) -> Awaitable[bytes]:
            return self._cores.ask(name, CORE_PREFIX + operation, arguments, timeout_s)

        nodes = [node.name for node in self._nodes.nodes() if node.is_connected]
        return [
            *(_Asked(name, partial(self._nodes.ask, name)) for name in nodes),
            *(_Asked(name, partial(ask_core, name)) for name in self._cores.connected),
        ]

    async def ask_nodes(
        self, operation: str, arguments: object, type_: type[Value], timeout_s: float = LIST_S
    ) -> dict[str, Value | Silence]:
        """The answers of all workers and replicants."""
        answers = await self._nodes.ask_all(operation, msgspec.json.encode(arguments), timeout_s)
        return {name: _read(answer, type_) for name, answer in answers.items()}

    async def ask_cores(
        self, operation: str, arguments: object, type_: type[Value], timeout_s: float = LIST_S
    ) -> dict[str, Value | Silence]:
        """The answers of all other cores."""
        answers = await self._cores.ask_all(CORE_PREFIX + operation, msgspec.json.encode(arguments), timeout_s)
        return {name: _read(answer, type_) for name, answer in answers.items()}

    async def ask_all(self, operation: str, arguments: object, type_: type[Value]) -> dict[str, Value | Silence]:
        """The answers of all nodes and other cores."""
        nodes, cores = await asyncio.gather(
            self.ask_nodes(operation, arguments, type_), self.ask_cores(operation, arguments, type_)
        )
        return nodes | cores

    async def ask_node(self, name: str, operation: str, arguments: object, type_: type[Value]) -> Value:
        """The answer of one node. Raises Unavailable and UsageError."""
        return _certain(name, await self._nodes.ask(name, operation, msgspec.json.encode(arguments), LIST_S), type_)

    async def ask_core(self, name: str, operation: str, arguments: object, type_: type[Value]) -> Value:
        """The answer of one other core. Raises Unavailable and UsageError."""
        return _certain(name, await self._cores.ask(name, CORE_PREFIX + operation, msgspec.json.encode(arguments), HOME_S), type_)


class _Asked(Struct, frozen=True):
    """One that is asked for the lines of a trace."""

    name: str
    call: Callable[[str, bytes, float], Awaitable[bytes]]

    async def ask(self, operation: str, arguments: bytes, timeout_s: float) -> bytes:
        return await self.call(operation, arguments, timeout_s)


def silences(answers: Mapping[str, object]) -> dict[str, str]:
    """Who did not answer, and why."""
    return {name: each.reason for name, each in answers.items() if isinstance(each, Silence)}


def _certain(name: str, answer: bytes, type_: type[Value]) -> Value:
    found = _read(answer, type_)
    if isinstance(found, Silence):
        raise Unavailable(f"{name}: {found.reason}")
    return found


def _read(answer: bytes | Silence, type_: type[Value]) -> Value | Silence:
    if isinstance(answer, Silence):
        return answer
    try:
        return msgspec.json.decode(answer, type=type_)
    except msgspec.MsgspecError as problem:
        return Silence(f"its answer cannot be read: {problem}")
