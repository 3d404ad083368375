"""How busy the node is. Its history service takes smaller steps while the node is busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

# Of one processor. A node that is only asked for history stays far below.
_HIGH: Final = 0.1
# What was used in less time than this says little.
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
        """Whether it used much since the last question; after a long pause that is the mean, and the next answer is better."""
        span_s = self._now() - self._asked_at
        if span_s >= _SPAN_S:
            used_s = self._used_s()
            self._is_high = used_s - self._used_before_s > _HIGH * span_s
            self._used_before_s = used_s
            self._asked_at += span_s
        return self._is_high
