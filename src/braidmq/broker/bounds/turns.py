"""Runs long work in small pieces, in a bounded part of each turn of the event loop, taking turns between owners.

Used for reading the log and retained messages for clients, SUBSCRIBE packets with thousands of filters, the end of
sessions that have them, and deferred messages of shared groups. Messages and CONNECTs of all other clients are processed between
two turns, so each piece of work must be short: half a millisecond at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic

from braidmq.broker.turn import Phase, Turn

TURN_S = 0.001


class Turns:
    """Work of many owners: one piece for each owner, then the next one for each."""

    def __init__(self, turn: Turn, now: Callable[[], float] = monotonic) -> None:
        self._turn = turn
        self._now = now
        self._waiting: dict[object, deque[Callable[[], None]]] = {}
        self._count = 0
        turn.at_end(Phase.WORK, self._run)

    def __len__(self) -> int:
        return self._count

    def add(self, owner: object, work: Callable[[], None]) -> None:
        """Schedule work for the owner's turn, after its earlier work."""
        self._waiting.setdefault(owner, deque()).append(work)
        self._count += 1
        self._turn.ask(Phase.WORK)

    def repeat(self, owner: object, step: Callable[[], bool]) -> None:
        """Do a step whenever the owner has a turn, until it returns True."""
        self.add(owner, partial(self._step, owner, step))

    def _step(self, owner: object, step: Callable[[], bool]) -> None:
        if not step():
            self.repeat(owner, step)

    def _run(self) -> None:
        deadline = self._now() + TURN_S
        # Work that is added meanwhile runs in the next turn of the loop.
        for _ in range(self._count):
            owner, works = next(iter(self._waiting.items()))
            work = works.popleft()
            self._count -= 1
            del self._waiting[owner]
            if works:
                self._waiting[owner] = works  # behind the other owners
            try:
                work()
            finally:
                if self._count:
                    self._turn.ask(Phase.WORK)
            if self._now() >= deadline:
                break
