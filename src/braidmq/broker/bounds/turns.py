"""Runs long work in small pieces, in a bounded part of each turn of the event loop, taking turns between owners.

Used for reading the log and retained messages for clients, SUBSCRIBE packets with thousands of filters, the end of
sessions that have them, and deferred messages of shared groups. Messages and CONNECTs of all other clients are processed between
two turns, so each piece of work must be short: half a millisecond at most.

Such work often replaces objects: of a client that ends ten thousand subscriptions, and of one that makes as many. The garbage
collector counts objects made minus objects freed, so it does not run for tens of thousands of new ones, and then it takes ten
milliseconds or more. Therefore it is also run for the new objects after some time of work.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic

from braidmq.broker.turn import Phase, Turn

TURN_S = 0.0005
COLLECT_AFTER_S = 0.005  # of work, in which some thousands of objects may be made


class Turns:
    """Work of many owners: one piece for each owner, then the next one for each."""

    def __init__(self, turn: Turn, now: Callable[[], float] = monotonic) -> None:
        self._turn = turn
        self._now = now
        self._waiting: dict[object, deque[Callable[[], None]]] = {}
        self._count = 0
        self._uncollected_s = 0.0  # work since the garbage collector was run
        # Whether clients wait for something that this turn cannot bring: the work then ends after its first piece.
        self.is_urged: Callable[[], bool] = lambda: False
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
        began = now = self._now()
        deadline = began + TURN_S
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
            now = self._now()
            if now >= deadline or self.is_urged():
                break
        self._uncollected_s += now - began
        if self._uncollected_s >= COLLECT_AFTER_S:
            self._uncollected_s = 0.0
            if gc.isenabled():
                gc.collect(1)
