"""The locks that one core gives out, each for a client id: to one request at a time, to the others in the order of their arrival.

A lock ends when its node unlocks it, when that node is declared dead, or when it has been held for ``hold_s``: a holder that is
stuck blocks its client id for that long. Nothing else is promised. In particular a holder is not told that its lock is over.

Requests are numbered by their node, and no number is used twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable
from typing import Final, Generic, NamedTuple, TypeVar

Node = TypeVar("Node", bound=Hashable)

LOCKS_MAX: Final = 100_000


class LockVerdict(NamedTuple, Generic[Node]):
    """Tell a node that it has the lock that it asked for, or that there is no room for its request."""

    node: Node
    number: int
    is_granted: bool


class _LockRequest(NamedTuple, Generic[Node]):
    node: Node
    number: int


class _HeldLock(Generic[Node]):
    """A lock that is held, and the requests that wait for it."""

    __slots__ = ("holder", "due", "waiting")

    def __init__(self, holder: _LockRequest[Node], due: float) -> None:
        self.holder = holder
        self.due = due
        self.waiting: OrderedDict[_LockRequest[Node], None] = OrderedDict()


class LockTable(Generic[Node]):
    """One core's locks. Each call returns the answers that follow from it, in order."""

    def __init__(self, hold_s: float, locks_max: int = LOCKS_MAX) -> None:
        """``locks_max`` bounds all requests, those that hold a lock and those that wait."""
        self._hold_s = hold_s
        self._locks_max = locks_max
        # In the order in which they will be over. A dict would be slow to find the first one after many were removed.
        self._locks: OrderedDict[str, _HeldLock[Node]] = OrderedDict()
        self._requests: dict[Node, dict[int, str]] = {}  # the keys that each node has locked or waits for, by number
        self._count = 0
        self.refused = 0  # because the table was full
        self.overdue = 0  # locks that were held for too long

    def __len__(self) -> int:
        """Requests that hold a lock or wait for one."""
        return self._count

    def lock(self, node: Node, number: int, key: str, now: float) -> list[LockVerdict[Node]]:
        """A node asks for a lock."""
        if self._count >= self._locks_max:
            self.refused += 1
            return [LockVerdict(node, number, is_granted=False)]
        numbers = self._requests.setdefault(node, {})
        if number in numbers:
            return []
        numbers[number] = key
        self._count += 1
        request = _LockRequest(node, number)
        held = self._locks.get(key)
        if held is None:
            return [self._give(key, _HeldLock(request, 0.0), now)]
        held.waiting[request] = None
        return []

    def _give(self, key: str, lock: _HeldLock[Node], now: float) -> LockVerdict[Node]:
        lock.due = now + self._hold_s
        self._locks[key] = lock
        return LockVerdict(lock.holder.node, lock.holder.number, is_granted=True)

    def unlock(self, node: Node, number: int, now: float) -> list[LockVerdict[Node]]:
        """A node no longer wants a lock, whether it has it or waits for it."""
        key = self._requests.get(node, {}).pop(number, None)
        if key is None:
            return []
        self._count -= 1
        if not self._requests[node]:
            del self._requests[node]
        lock = self._locks[key]
        if lock.holder == (node, number):
            return self._pass_on(key, lock, now)
        del lock.waiting[_LockRequest(node, number)]
        return []

    def _pass_on(self, key: str, lock: _HeldLock[Node], now: float) -> list[LockVerdict[Node]]:
        """The lock is free: the next request in line gets it."""
        del self._locks[key]
        if not lock.waiting:
            return []
        lock.holder, _ = lock.waiting.popitem(last=False)
        return [self._give(key, lock, now)]

    def keep(self, node: Node, numbers: Collection[int], now: float) -> list[LockVerdict[Node]]:
        """A node has connected again, and names the requests that it still has; the others are over."""
        gone = [number for number in self._requests.get(node, {}) if number not in numbers]
        return [answer for number in gone for answer in self.unlock(node, number, now)]

    def dead(self, node: Node, now: float) -> list[LockVerdict[Node]]:
        """A node is dead."""
        return [answer for answer in self.keep(node, (), now) if answer.node != node]

    def expire(self, now: float) -> list[LockVerdict[Node]]:
        """End the locks that were held for too long."""
        answers: list[LockVerdict[Node]] = []
        while (due := self.next_due) is not None and due <= now:
            lock = next(iter(self._locks.values()))
            self.overdue += 1
            answers += self.unlock(lock.holder.node, lock.holder.number, now)
        return answers

    @property
    def next_due(self) -> float | None:
        """When ``expire`` is to be called."""
        return next(iter(self._locks.values())).due if self._locks else None
