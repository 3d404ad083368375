"""Admits large messages one after the other, with a pause after each.

All clients share the log, and a megabyte keeps it and the event loop busy for milliseconds. A client sends its next large message
only when its turn comes, so that at most one of them lengthens the wait of other clients for the disk.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

# Per byte: all clients together send large messages at 100 MB/s at most. A log that also flushes and compacts sustains less.
_PAUSE_S = 1e-8


class LargeMessages:
    """Clients that wait to send another large message, in the order in which their last ones were committed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[Callable[[], None], float]] = deque()

    def add(self, go_on: Callable[[], None], size: int) -> None:
        """A message of this size was committed or refused: call back when its client may send the next one."""
        self._waiting.append((go_on, size * _PAUSE_S))
        if len(self._waiting) == 1:
            self._pause()

    def _pause(self) -> None:
        self._loop.call_later(self._waiting[0][1], self._release)

    def _release(self) -> None:
        go_on, _ = self._waiting.popleft()
        if self._waiting:
            self._pause()
        go_on()
