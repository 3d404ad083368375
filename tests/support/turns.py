"""How much a broker delivers in one turn of its loop, counted and not timed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from braidmq.broker.broker import Broker as Inside
from tests.support.stage import Stage


class TurnCount:
    """Looks at a number once in each turn of the loop; ``most`` is by how much it has risen at most in between."""

    def __init__(self, inside: Inside, number: Callable[[Inside], int]) -> None:
        self.most = 0
        self.turns = 0
        self.is_over = False
        self._inside = inside
        self._number = number
        self._last = number(inside)
        self._look()

    def _look(self) -> None:
        now = self._number(self._inside)
        self.most = max(self.most, now - self._last)
        self.turns += 1
        self._last = now
        if not self.is_over:
            asyncio.get_running_loop().call_soon(self._look)


@contextmanager
def count_turns(stage: Stage, number: Callable[[Inside], int]) -> Iterator[TurnCount]:
    """Count in every turn from now on; the loop does not sleep meanwhile."""
    count: TurnCount = stage.look(lambda inside: TurnCount(inside, number))
    try:
        yield count
    finally:
        stage.look(lambda inside: setattr(count, "is_over", True))
