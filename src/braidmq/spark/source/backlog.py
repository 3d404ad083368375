"""The backlog of a stream, cached to limit the load on the service.

A count may cost the service as much as a small read, and Spark asks for offsets a hundred times a second while idle. So answers
are cached for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from braidmq.flight import wire

# How long a count is cached.
_FRESH_S: Final = 1.0

Positions = Mapping[int, int]


class BacklogMeter:
    """Counts the rows between two positions, for one query. `ask` calls the service, and may raise BraidError."""

    def __init__(self, ask: Callable[[Positions, Positions], wire.Backlog], clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._start: Positions = {}
        self._backlog = wire.Backlog(0, False)
        self._asked_at: float | None = None

    def rows_after(self, start: Positions, end: Positions) -> int:
        """Rows between the two; may be cached if the start is the same."""
        if _is_empty(start, end):
            return 0
        if not self._is_fresh or start != self._start:
            self._count(start, end)
        return self._backlog.rows

    def behind(self, start: Positions, end: Positions) -> dict[str, Any]:
        """The same for a progress report; may be cached even if the start has changed, and is an estimate then."""
        if _is_empty(start, end):
            return {"rows": 0, "isEstimate": False}
        if not self._is_fresh:
            self._count(start, end)
        return {"rows": self._backlog.rows, "isEstimate": self._backlog.is_estimate or start != self._start}

    @property
    def _is_fresh(self) -> bool:
        return self._asked_at is not None and self._clock() - self._asked_at < _FRESH_S

    def _count(self, start: Positions, end: Positions) -> None:
        self._backlog = self._ask(start, end)
        self._start = dict(start)
        self._asked_at = self._clock()


def _is_empty(start: Positions, end: Positions) -> bool:
    return all(position <= max(start.get(shard, 0), 1) for shard, position in end.items())
