"""What the other cores know of this core's durable routes; and for how long a SUBACK has to wait for them (C13, C23).

A core that was silent is passed over. What counts is this core's own silence towards it: once the last answer to a probe of that
core is `SILENT_S` old, it is in doubt (`home.confidence`) and records whatever it gets, so a client need not wait for it. Answers
that are given later name the route itself, and confirm nothing before the route has arrived. So each wait has an end that is
known when it begins, and a core that is away for longer delays no client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from braidmq.cluster.home.confidence import SILENT_S
from braidmq.net.proto_v1 import Position


class _KnownWait(NamedTuple):
    needs: Mapping[str, Position]
    cores: dict[str, float]  # those that do not have it yet, and until when each is waited for
    on_done: Callable[[], None]


class KnownElsewhere:
    """How far the other cores have this core's origins."""

    def __init__(self, cores: Iterable[str], now: float) -> None:
        """An earlier process of this core may have answered just before it ended."""
        self._answered = dict.fromkeys(cores, now)  # when a probe of each core was answered last
        self._has: dict[str, dict[str, Position]] = {name: {} for name in self._answered}
        self._waits: deque[_KnownWait] = deque()

    def note_answer(self, core: str, now: float) -> None:
        """A probe of a core is answered now."""
        self._answered[core] = now

    def note_applied(self, core: str, origin: str, position: Position) -> None:
        """A core has this much of an origin."""
        self._has[core][origin] = position

    def wait(self, needs: Mapping[str, Position], now: float, on_done: Callable[[], None]) -> None:
        """Call back, perhaps at once, when each core has these origins so far, or has not heard of this one for long enough."""
        ends = {core: answered + SILENT_S for core, answered in self._answered.items()}
        cores = {core: end for core, end in ends.items() if end > now and not self._reaches(core, needs)}
        if cores:
            self._waits.append(_KnownWait(needs, cores, on_done))
        else:
            on_done()

    def _reaches(self, core: str, needs: Mapping[str, Position]) -> bool:
        has = self._has[core]
        return all((found := has.get(origin)) is not None and found >= position for origin, position in needs.items())

    def run(self, now: float) -> None:
        """Call back those whose waits are over."""
        waits, self._waits = self._waits, deque()
        for wait in waits:
            for core in [core for core, end in wait.cores.items() if end <= now or self._reaches(core, wait.needs)]:
                del wait.cores[core]
            if wait.cores:
                self._waits.append(wait)
            else:
                wait.on_done()

    @property
    def next_due(self) -> float | None:
        """When ``run`` is to be called at the latest."""
        return min((max(wait.cores.values()) for wait in self._waits), default=None)
