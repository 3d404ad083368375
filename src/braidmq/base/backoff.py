"""How long to wait before a retry."""

from __future__ import annotations

import random


class Backoff:
    """Exponential backoff: each pause is twice as long as the one before, up to a maximum.

    With `spread` a pause is between half and all of that, so that clients that lost a server at the same moment do not all
    reconnect at the same moment.
    """

    def __init__(self, first_s: float, max_s: float, *, spread: bool = False) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._spread = spread
        self._next_s = first_s

    def next(self) -> float:
        """The next pause, in seconds."""
        pause_s = self._next_s
        self._next_s = min(2 * pause_s, self._max_s)
        return pause_s * random.uniform(0.5, 1.0) if self._spread else pause_s

    def reset(self) -> None:
        """Start again with the first pause, after a success."""
        self._next_s = self._first_s
