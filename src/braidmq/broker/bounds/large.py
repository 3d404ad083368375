"""Admits large messages one after the other, with a pause after each.

All clients share the log, and a megabyte keeps it and the event loop busy for milliseconds. A client sends its next large message
only when its turn comes, so that at most one of them lengthens the wait of other clients for the disk.

The pause is longer while smaller messages are published too. What is written to the log is written again by flushes and
compactions, and a disk that is busy with these takes up to half a second for an fsync, for which every recorded message waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

# Per byte, for all clients together: 100 MB/s at most. A log that also flushes and compacts sustains less.
_PAUSE_S: Final = 1e-8
# The same while other messages are published: 20 MB/s.
_SHARED_PAUSE_S: Final = 5e-8


class LargeMessages:
    """Clients that wait to send another large message, in the order in which their last ones were committed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, received: Callable[[], int]) -> None:
        """``received``: how many messages all clients have published so far."""
        self._loop = loop
        self._received = received
        self._begun = 0  # large messages that have waited for the disk, or do
        self._others = 0  # all other messages, when the last large one ended
        self._waiting: deque[tuple[Callable[[], None], float]] = deque()

    def begin(self) -> None:
        """A large message was received, and waits for the disk."""
        self._begun += 1

    def end(self, go_on: Callable[[], None], size: int) -> None:
        """A message of this size was committed or refused: call back when its client may send the next one."""
        others = self._received() - self._begun
        pause_s = _PAUSE_S if others == self._others else _SHARED_PAUSE_S
        self._others = others
        self._waiting.append((go_on, size * pause_s))
        if len(self._waiting) == 1:
            self._pause()

    def _pause(self) -> None:
        self._loop.call_later(self._waiting[0][1], self._release)

    def _release(self) -> None:
        go_on, _ = self._waiting.popleft()
        if self._waiting:
            self._pause()
        go_on()
