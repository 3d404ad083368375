"""Whose client has room for what waits elsewhere: retained messages, the log. They take turns, a little at a time.

However many sessions come back at once, reading for them takes a bounded part of each turn of the loop, so that the others'
messages and CONNECTs are dealt with in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from braidmq.broker.connection import Connection

_TURN_S = 0.002


class Feeding:
    """Connections that can be fed, in the order in which they asked."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Connection] = deque()
        self._is_due = False

    def add(self, connection: Connection) -> None:
        """Feed it when its turn comes; the caller sees to it that it is here once."""
        self._waiting.append(connection)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        deadline = monotonic() + _TURN_S
        self._is_due = False
        # Who asks again meanwhile comes in the next turn of the loop.
        for _ in range(len(self._waiting)):
            self._waiting.popleft().give_waiting()
            if monotonic() >= deadline:
                break
        if self._waiting and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run)
