"""Which cores have a node's routes, and when a SUBACK waits for them no longer.

A route is *known* when every core that is connected has it, and every one that was lost within the last second. A core that is
away for longer records what it is not sure about, and its feed begins only when it has the routes that the node has then (C11,
C23): so nothing waits for it. A core that is connected and silent is waited for as long, from the writing of the route on, if
another core has the route (C13).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from braidmq.cluster.remote.log_ports import Later
from braidmq.cluster.routes import OwnRoutes

SILENT_S: Final = 1.0


class _Core:
    """How much one core has."""

    __slots__ = ("acknowledged", "counts", "lives")

    def __init__(self, counts: bool) -> None:
        self.acknowledged = 0
        self.counts = counts  # routes wait for it
        self.lives = 0  # connections so far


class KnownRoutes:
    """Says to ``routes`` what its callers may rely on."""

    def __init__(self, names: Sequence[str], later: Later) -> None:
        self.routes: OwnRoutes | None = None
        self._later = later
        self._is_only = len(names) == 1
        self._cores = {name: _Core(self._is_only) for name in names}

    def serve(self, routes: OwnRoutes) -> None:
        """The routes of this node."""
        self.routes = routes
        if not self._is_only:
            routes.on_wait = self._on_wait

    def connected(self, name: str) -> None:
        """A core is connected: from now on its acknowledgements count."""
        core = self._cores[name]
        core.lives += 1
        core.counts = True

    def lost(self, name: str) -> None:
        """A core is away."""
        if not self._is_only:
            self._later(SILENT_S, lambda life=self._cores[name].lives: self._leave_out(name, life))  # type: ignore[misc]

    def _leave_out(self, name: str, life: int) -> None:
        core = self._cores[name]
        if core.lives == life:
            core.counts = False
            self._judge()

    def forget(self, name: str) -> None:
        """The core has restarted, and has to be told everything again."""
        self._cores[name].acknowledged = 0
        if self._is_only and self.routes is not None:
            self.routes.forget_known()

    def note(self, name: str, sequence: int) -> None:
        """The core has the routes up to this one."""
        core = self._cores[name]
        core.acknowledged = max(core.acknowledged, sequence)
        self._judge()

    def _judge(self) -> None:
        counted = [core.acknowledged for core in self._cores.values() if core.counts]
        if counted and self.routes is not None:
            self.routes.note_known(min(counted))

    def _on_wait(self, sequence: int) -> None:
        """A SUBACK waits for the cores to know the routes up to this one."""
        self._later(SILENT_S, lambda: self._give_up(sequence))

    def _give_up(self, sequence: int) -> None:
        if self.routes is not None and max(core.acknowledged for core in self._cores.values()) >= sequence:
            self.routes.release(sequence)
