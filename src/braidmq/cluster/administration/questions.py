"""What a core asks its nodes for its operator: figures, clients, and what is to be done with them.

All nodes are asked at once and have the same deadline. A node that does not answer is named, with the reason, and never left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct

from braidmq.base.errors import BraidError, Unavailable, UsageError
from braidmq.cluster.membership.member import Member
from braidmq.net.calls import CallError, Calls
from braidmq.net.proto_v1 import AskNode, NodeAnswer

ANSWER_S: Final = 1.0


class KnownNode(Struct, frozen=True):
    """A member of the cluster beside the core. ``address``: where it connects from; empty while it is not connected."""

    name: str
    role: str
    incarnation: int
    is_connected: bool
    address: str = ""


class Silence(Struct, frozen=True):
    """Why a node has not answered."""

    reason: str


class _Line(Struct):
    role: str
    calls: Calls | None = None
    address: str = ""


class NodeQuestions:
    """Asks the nodes of one core. `core_side` says which there are, and gives it their connections for calls."""

    def __init__(self) -> None:
        self.answer: Callable[[str, bytes], Awaitable[bytes]] | None = None  # what nodes ask for their own operators
        self.silent = 0  # nodes that did not answer the last question to all
        self.on_connect: Callable[[str], None] | None = None  # told the name of a node that can be asked
        self.on_disconnect: Callable[[str], None] | None = None
        self._lines: dict[Member, _Line] = {}

    async def answer_node(self, operation: str, arguments: bytes) -> bytes:
        """The answer to an operator's question at a node, as JSON. Raises UsageError and Unavailable."""
        if self.answer is None:
            raise Unavailable("the core is starting", 1.0)
        return await self.answer(operation, arguments)

    def add(self, member: Member, role: str) -> None:
        """A node is a member; it may not be connected yet."""
        self._lines.setdefault(member, _Line(role))

    def remove(self, member: Member) -> None:
        """The node is dead."""
        line = self._lines.pop(member, None)
        if line is not None and line.calls is not None:
            self._note_gone(member.name)

    def _note_gone(self, name: str) -> None:
        if self.on_disconnect is not None:
            self.on_disconnect(name)

    def connect(self, member: Member, calls: Calls, address: str) -> None:
        """The node can be asked."""
        line = self._lines.get(member)
        if line is not None:
            line.calls, line.address = calls, address
            if self.on_connect is not None:
                self.on_connect(member.name)

    def disconnect(self, member: Member, calls: Calls) -> None:
        """That connection has ended."""
        line = self._lines.get(member)
        if line is not None and line.calls is calls:
            line.calls, line.address = None, ""
            self._note_gone(member.name)

    def nodes(self) -> list[KnownNode]:
        """All nodes that are alive, by name."""
        return [
            KnownNode(member.name, line.role, member.incarnation, line.calls is not None, line.address)
            for member, line in sorted(self._lines.items())
        ]

    def find(self, name: str) -> KnownNode:
        """One node. Raises UsageError for an unknown name."""
        for node in self.nodes():
            if node.name == name:
                return node
        raise UsageError(f"there is no node {name!r}", "`braidmq ctl cluster status` lists the nodes")

    async def ask(self, name: str, operation: str, arguments: bytes, timeout_s: float = ANSWER_S) -> bytes:
        """The answer of one node. Raises Unavailable if it does not come in time, UsageError if the node refuses."""
        node = self.find(name)
        calls = self._lines[Member(node.name, node.incarnation)].calls
        if calls is None:
            raise Unavailable(f"{name} is not connected", ANSWER_S)
        try:
            answer = await calls.call(AskNode(operation, arguments), timeout_s)
        except Unavailable:
            is_late = calls.connection.is_open
            reason = f"did not answer within {timeout_s:g} s" if is_late else "lost its connection before it answered"
            raise Unavailable(f"{name} {reason}", ANSWER_S) from None
        except CallError as problem:
            if problem.retry_after_s:
                raise Unavailable(f"{name}: {problem}", problem.retry_after_s) from None
            raise UsageError(f"{name}: {problem}") from None
        assert isinstance(answer, NodeAnswer)  # the only kind that `Calls` decodes here
        return answer.value

    async def ask_all(self, operation: str, arguments: bytes, timeout_s: float = ANSWER_S) -> dict[str, bytes | Silence]:
        """The answers of all nodes by name, or why there is none."""
        names = [node.name for node in self.nodes()]
        answers = await asyncio.gather(*(self._try(name, operation, arguments, timeout_s) for name in names))
        self.silent = sum(isinstance(answer, Silence) for answer in answers)
        return dict(zip(names, answers, strict=True))

    async def _try(self, name: str, operation: str, arguments: bytes, timeout_s: float) -> bytes | Silence:
        try:
            return await self.ask(name, operation, arguments, timeout_s)
        except BraidError as problem:
            return Silence(problem.detail if isinstance(problem, Unavailable | UsageError) else str(problem))
