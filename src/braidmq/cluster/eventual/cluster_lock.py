"""A node's side of the cluster lock: which cores must have given out a lock before the node has it.

    local    the node itself: the lock keeps its own clients apart, and no others
    leader   one core, the first in the order of names that the node reaches
    quorum   more than half of all cores
    all      every core that the node reaches

Cores are asked one after the other, in an order that every node computes alike from the client id. A request never goes back in
that order, so requests wait for each other in one direction only, and there is no deadlock. A core that is away is left out.
Nodes may disagree about which cores are away; with ``leader`` and ``all`` two of them may then have the same lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple
from zlib import crc32

SELF: Final = ""  # stands for the node itself among those that give out locks


class LockScope(Enum):
    """Who has to give out a lock; the values of `registry.lock`."""

    LOCAL = "local"
    LEADER = "leader"
    QUORUM = "quorum"
    ALL = "all"


class AskLock(NamedTuple):
    """Ask a core for a lock."""

    core: str
    number: int
    key: str


class EndLock(NamedTuple):
    """Tell a core that the node no longer wants a lock, whether it has it or not."""

    core: str
    number: int


class Settled(NamedTuple):
    """A request has its lock, or will not get it: then nothing is left of it."""

    number: int
    is_held: bool


LockStep = AskLock | EndLock | Settled


class _OpenLock:
    """A request that holds its lock, or is on its way to it."""

    __slots__ = ("key", "needed", "rest", "asked", "held")

    def __init__(self, key: str, needed: int, rest: list[str]) -> None:
        self.key = key
        self.needed = needed
        self.rest = rest  # the cores that were not asked yet, the next one last
        self.asked: str | None = None
        self.held: list[str] = []


class ClusterLock:
    """All locks of a node. Each call returns what is to be done, in that order."""

    def __init__(self, cores: Sequence[str], scope: LockScope) -> None:
        self._scope = scope
        self._cores = sorted(cores)
        self._up: set[str] = {SELF}
        self._requests: dict[int, _OpenLock] = {}
        self._last = 0

    def __len__(self) -> int:
        """Requests that are settled or under way, and not over."""
        return len(self._requests)

    def acquire(self, key: str) -> tuple[int, list[LockStep]]:
        """Ask for a lock; the request's number."""
        self._last += 1
        order = self._order(key)
        needed = len(order) // 2 + 1 if self._scope is LockScope.QUORUM else 1
        request = self._requests[self._last] = _OpenLock(key, needed, order[::-1])
        return self._last, self._go_on(self._last, request)

    def _order(self, key: str) -> list[str]:
        if self._scope is LockScope.LOCAL:
            return [SELF]
        if self._scope is LockScope.LEADER:
            return list(self._cores)
        first = crc32(key.encode()) % len(self._cores)  # so that the cores share the work
        return self._cores[first:] + self._cores[:first]

    def _go_on(self, number: int, request: _OpenLock) -> list[LockStep]:
        has_enough = len(request.held) >= request.needed
        if has_enough and self._scope is not LockScope.ALL:
            return [Settled(number, is_held=True)]
        while request.rest:
            core = request.rest.pop()
            if core in self._up:
                request.asked = core
                return [AskLock(core, number, request.key)]
        if has_enough:
            return [Settled(number, is_held=True)]
        return [*self.release(number), Settled(number, is_held=False)]

    def answered(self, core: str, number: int, is_granted: bool) -> list[LockStep]:
        """A core has given out a lock, or has no room for the request."""
        request = self._requests.get(number)
        if request is None or request.asked != core:
            return []  # it was given up; the core is told
        request.asked = None
        if not is_granted:
            return [*self.release(number), Settled(number, is_held=False)]
        request.held.append(core)
        return self._go_on(number, request)

    def release(self, number: int) -> list[LockStep]:
        """A lock is no longer wanted, whether the node has it or waits for it."""
        request = self._requests.pop(number, None)
        if request is None:
            return []
        cores = request.held if request.asked is None else [*request.held, request.asked]
        return [EndLock(core, number) for core in cores if core in self._up]

    # Cores

    def up(self, core: str) -> list[int]:
        """A core is connected: tell it that these requests are left, since it may have missed the end of others."""
        self._up.add(core)
        return [number for number, request in self._requests.items() if core in request.held]

    def down(self, core: str) -> list[LockStep]:
        """A core is away. Locks that it has given out count further; where it was asked, it is left out."""
        self._up.discard(core)
        steps: list[LockStep] = []
        for number, request in list(self._requests.items()):
            if request.asked == core:
                request.asked = None
                steps += self._go_on(number, request)
        return steps
