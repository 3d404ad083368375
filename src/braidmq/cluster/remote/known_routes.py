"""Which cores have a node's routes, and how long a SUBACK waits for them.

A route is *known* when every core that is connected has it. A core that is away has nothing to say about that: its feed begins
only when it has the routes that the node has then (C11).

A SUBACK waits no longer than a core may be sure that it has all of this node's routes. It is sure only because the node has
answered one of its probes, and for less than a second from then on; an answer that the node gives after a route was written names
that route, and does no harm. So 1 s after the last answer before the route, a core that does not have the route is in doubt and
records (C13, C23). A core that has been away or silent for longer is not waited for at all. But one core has to have the route.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from braidmq.cluster.remote.log.log_ports import Later
from braidmq.cluster.routes import OwnRoutes

SURE_S: Final = 1.0


class _Core:
    """What one core has."""

    __slots__ = ("acknowledged", "answered_at", "is_connected")

    def __init__(self) -> None:
        self.acknowledged = 0
        self.answered_at = float("-inf")  # when it was last told how far the routes had come
        self.is_connected = False


class KnownRoutes:
    """Says to this node's ``routes`` what their callers may rely on."""

    def __init__(self, names: Sequence[str], later: Later, now: Callable[[], float], on_known: Callable[[], None]) -> None:
        """``on_known``: more routes may be known than before."""
        self._on_known = on_known
        self._routes: OwnRoutes | None = None
        self._later = later
        self._now = now
        self._is_only = len(names) == 1  # then everything waits for it, however long it is away
        self._cores = {name: _Core() for name in names}

    def serve(self, routes: OwnRoutes) -> None:
        """The routes of this node."""
        self._routes = routes
        if not self._is_only:
            routes.on_wait = self._on_wait

    def connected(self, name: str) -> None:
        """A core is connected: from now on its acknowledgements count."""
        self._cores[name].is_connected = True
        self.note_answer(name)

    def lost(self, name: str) -> None:
        """A core is away."""
        core = self._cores[name]
        core.is_connected = False
        if not self._is_only:
            self._later(max(0.0, core.answered_at + SURE_S - self._now()), self._judge)

    def note_answer(self, name: str) -> None:
        """The core is told how far the routes have come, and is sure that it has them all if it has those."""
        self._cores[name].answered_at = self._now()

    def forget(self, name: str) -> None:
        """The core has restarted, and has to be told everything again."""
        self._cores[name].acknowledged = 0
        if self._is_only and self._routes is not None:
            self._routes.forget_known()

    def note(self, name: str, sequence: int) -> None:
        """The core has the routes up to this one."""
        core = self._cores[name]
        core.acknowledged = max(core.acknowledged, sequence)
        self._judge()

    def _judge(self) -> None:
        now = self._now()
        counted = [
            core.acknowledged
            for core in self._cores.values()
            if self._is_only or core.is_connected or now < core.answered_at + SURE_S
        ]
        if counted and self._routes is not None:
            self._routes.note_known(min(counted))
            self._on_known()

    def _on_wait(self, sequence: int) -> None:
        """A SUBACK waits until the cores have the routes up to this one."""
        now = self._now()
        due = max(core.answered_at for core in self._cores.values() if core.acknowledged < sequence) + SURE_S
        self._later(max(0.0, due - now), lambda: self._give_up(sequence))

    def _give_up(self, sequence: int) -> None:
        """Every core that lacks the routes is in doubt about them."""
        if self._routes is None:
            return
        if any(core.acknowledged >= sequence for core in self._cores.values()):
            self._routes.release(sequence)
        else:
            self._later(SURE_S, lambda: self._give_up(sequence))
