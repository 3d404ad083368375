"""How busy the node is. Its history service takes smaller steps while the node is busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

# The share of one processor. A node that only answers history requests stays far below it.
_HIGH: Final = 0.1
# Shorter intervals say little.
_SPAN_S: Final = 0.05


class NodeLoad:
    """The CPU share of the node's process between two calls."""

    def __init__(self, used_s: Callable[[], float] = time.process_time, now: Callable[[], float] = time.monotonic) -> None:
        self._used_s = used_s
        self._now = now
        self._used_before_s = used_s()
        self._asked_at = now()
        self._is_high = False

    def is_high(self) -> bool:
        """Whether CPU use was high since the last call. After a long pause it is averaged over the pause."""
        span_s = self._now() - self._asked_at
        if span_s >= _SPAN_S:
            used_s = self._used_s()
            self._is_high = used_s - self._used_before_s > _HIGH * span_s
            self._used_before_s = used_s
            self._asked_at += span_s
        return self._is_high
