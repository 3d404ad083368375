"""Runs long work in small pieces, in a bounded part of each turn of the event loop, taking turns between owners.

Used for reading the log and retained messages for clients, SUBSCRIBE packets with thousands of filters, the end of
sessions that have them, and deferred messages of shared groups. Messages and CONNECTs of all other clients are processed between
two turns, so each piece of work must be short: half a millisecond at most.

A message takes three or four turns from its publisher to its subscribers. While clients publish, long work therefore gets no more
time than the rest of the loop had since it last ran.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic

from braidmq.broker.turn import Phase, Turn

TURN_S = 0.001
BUSY_TURN_S = 0.00025  # at least, while clients publish
_BUSY_S = 0.02  # for which clients count as publishing after a message


class Turns:
    """Work of many owners: one piece for each owner, then the next one for each."""

    def __init__(self, turn: Turn, count_received: Callable[[], int], now: Callable[[], float] = monotonic) -> None:
        """``count_received``: the number of messages received from clients so far."""
        self._turn = turn
        self._count_received = count_received
        self._now = now
        self._received = 0
        self._busy_until = 0.0
        self._ended_at = 0.0
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

    def _share_s(self, now: float) -> float:
        """How long to work in this turn."""
        received = self._count_received()
        if received != self._received:
            self._received = received
            self._busy_until = now + _BUSY_S
        if now >= self._busy_until:
            return TURN_S
        return min(max(now - self._ended_at, BUSY_TURN_S), TURN_S)

    def _run(self) -> None:
        now = self._now()
        deadline = now + self._share_s(now)
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
        self._ended_at = self._now()
