"""Retry policy: one server after the other, with growing pauses between rounds, for a limited time.

A lost server is retried for as long as the caller says (`retry_s`). A server that answers, but has no stream free for this reader
(`Busy`), is alive: the open streams belong to the same reader, such as other tasks of a Spark job, and end when they have been
read. So that wait is longer, and the log says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from time import monotonic, sleep
from typing import Final

from braidmq.base.backoff import Backoff
from braidmq.base.errors import Unavailable
from braidmq.base.units import span
from braidmq.flight.errors import Busy

# The maximum duration of one attempt at a stream (`client`): by then, each open stream has ended once.
BUSY_S: Final = 900.0
_PAUSE_FIRST_S: Final = 0.1
_PAUSE_MAX_S: Final = 5.0
# When a wait for a stream is logged first, and how often after that. Many tasks may wait, most of them only for a moment.
_TELL_AFTER_S: Final = 5.0
_TELL_EVERY_S: Final = 60.0

log = logging.getLogger("braidmq.flight")


class Retry:
    """The attempts at one call or stream. `location` is the server to ask; `failed` moves on to the next, or gives up."""

    def __init__(
        self,
        locations: list[str],
        first: str,
        retry_s: float,
        pause: Callable[[float], None] = sleep,
        *,
        busy_s: float = BUSY_S,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._locations = locations
        self._retry_s = retry_s
        self._busy_s = max(busy_s, retry_s)
        self._pause = pause
        self._clock = clock
        self._at = locations.index(first)
        self._busy: Busy | None = None  # the answer of a server in this round
        self._backoff = Backoff(_PAUSE_FIRST_S, _PAUSE_MAX_S, spread=True)
        self.progressed()

    @property
    def location(self) -> str:
        """The server to ask now."""
        return self._locations[self._at]

    def progressed(self) -> None:
        """Data was received: restart the time limit for attempts."""
        self._until = self._clock() + self._retry_s
        self._busy_since: float | None = None
        self._busy_until = inf  # the end of all waiting, once a server was busy
        self._told_at: float | None = None
        self._begin_round()
        self._backoff.reset()

    def failed(self, problem: Unavailable) -> None:
        """Choose the next server, after a pause if all of them failed; raises Unavailable when the time is up."""
        self._at = (self._at + 1) % len(self._locations)
        self._left_in_round -= 1
        if isinstance(problem, Busy):
            self._busy = problem
        if self._left_in_round:
            return
        pause_s = self._backoff.next()
        if self._busy is not None:
            self._wait_for_stream(self._busy, pause_s)
        elif self._clock() + pause_s > min(self._until, self._busy_until):
            raise Unavailable(f"no history service at {', '.join(self._locations)} is available: {problem.detail}")
        self._pause(pause_s)
        self._begin_round()

    def _begin_round(self) -> None:
        self._left_in_round = len(self._locations)
        self._busy = None

    def _wait_for_stream(self, problem: Busy, pause_s: float) -> None:
        """Note that a server is alive but has no stream free; raises Unavailable when that has lasted too long."""
        now = self._clock()
        if self._busy_since is None:
            self._busy_since = now
            self._busy_until = now + self._busy_s
        self._until = now + self._retry_s  # it answered, so it is not lost
        waited_s = now - self._busy_since
        where = ", ".join(self._locations)
        if now + pause_s > self._busy_until:
            raise Unavailable(f"waited {span(waited_s)} for a free stream at {where}: {problem.detail}")
        if waited_s >= _TELL_AFTER_S and (self._told_at is None or now - self._told_at >= _TELL_EVERY_S):
            self._told_at = now
            left = span(self._busy_s - waited_s)
            log.warning(
                "waiting for a free stream at %s for %s, and for %s more: %s", where, span(waited_s), left, problem.detail
            )
