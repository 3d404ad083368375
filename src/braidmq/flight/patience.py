"""Which server is asked next, and for how long: one server after the other, with pauses that grow between rounds."""

from __future__ import annotations

import random
from collections.abc import Callable
from time import monotonic, sleep
from typing import Final

from braidmq.base.errors import Unavailable

_PAUSE_FIRST_S: Final = 0.1
_PAUSE_MAX_S: Final = 5.0


class Patience:
    """The attempts at one thing. `location` is the server to ask; `failed` moves on to the next, or gives up."""

    def __init__(self, locations: list[str], first: str, retry_s: float, pause: Callable[[float], None] = sleep) -> None:
        self._locations = locations
        self._retry_s = retry_s
        self._pause = pause
        self._at = locations.index(first)
        self.progressed()

    @property
    def location(self) -> str:
        """The server to ask now."""
        return self._locations[self._at]

    def progressed(self) -> None:
        """Something was received: the time for attempts begins anew."""
        self._until = monotonic() + self._retry_s
        self._pause_s = _PAUSE_FIRST_S
        self._left_in_round = len(self._locations)

    def failed(self, problem: Unavailable) -> None:
        """Choose the next server, after a pause if all of them failed; raises Unavailable when there is no time left for it."""
        self._at = (self._at + 1) % len(self._locations)
        self._left_in_round -= 1
        if self._left_in_round:
            return
        # Many tasks lose one server at the same moment; they should not all come back at the same moment.
        pause_s = self._pause_s * random.uniform(0.5, 1.0)
        if monotonic() + pause_s > self._until:
            raise Unavailable(f"no history service at {', '.join(self._locations)} could answer: {problem.detail}")
        self._pause(pause_s)
        self._left_in_round = len(self._locations)
        self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)
