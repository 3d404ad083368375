"""A table of locks on the event loop: it answers when a lock is free, and ends locks that were held for too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Generic, TypeVar

from braidmq.cluster.eventual.lock_table import LockTable, LockVerdict

Node = TypeVar("Node", bound=Hashable)


class LockServer(Generic[Node]):
    """Serves the requests of nodes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, answer: Callable[[LockVerdict[Node]], None], hold_s: float) -> None:
        """``answer`` tells a node, within the call that leads to it."""
        self.table: LockTable[Node] = LockTable(hold_s)
        self._loop = loop
        self._answer = answer
        self._timer: asyncio.TimerHandle | None = None

    def lock(self, node: Node, number: int, key: str) -> None:
        """A node asks for a lock."""
        self._carry_out(self.table.lock(node, number, key, self._loop.time()))

    def unlock(self, node: Node, number: int) -> None:
        """A node no longer wants a lock."""
        self._carry_out(self.table.unlock(node, number, self._loop.time()))

    def keep(self, node: Node, numbers: Collection[int]) -> None:
        """A node has connected again, and has only these requests left."""
        self._carry_out(self.table.keep(node, numbers, self._loop.time()))

    def dead(self, node: Node) -> None:
        """A node is dead."""
        self._carry_out(self.table.dead(node, self._loop.time()))

    def _carry_out(self, answers: Iterable[LockVerdict[Node]]) -> None:
        for answer in answers:
            self._answer(answer)
        due = self.table.next_due
        if self._timer is None and due is not None:
            self._timer = self._loop.call_later(max(0.0, due - self._loop.time()), self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._carry_out(self.table.expire(self._loop.time()))

    def close(self) -> None:
        """The node stops."""
        if self._timer is not None:
            self._timer.cancel()
