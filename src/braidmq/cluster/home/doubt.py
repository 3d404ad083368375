"""Probes nodes and other cores, and lets QoS 1 and 2 be recorded while this home cannot be sure who wants a message (C23).

Records that history did not ask for are `session only`. A one-core cluster has no doubt, and no object of this class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from braidmq.cluster.cores.core_peers import CorePeers, Later
from braidmq.cluster.home.confidence import PROBE_S, Confidence
from braidmq.lane.routing.routes import RouteTable


class ProbedNode(Protocol):
    """A node."""

    @property
    def member(self) -> object:
        """As whom the confidence knows it."""

    def probe(self, number: int) -> None:
        """Ask how far its routes have come; nothing happens without a connection."""


class Doubt:
    """What follows from the home's confidence."""

    def __init__(
        self,
        confidence: Confidence[object],
        routes: RouteTable,
        nodes: Callable[[], Iterable[ProbedNode]],
        cores: CorePeers,
        clock: Callable[[], float],
        loop: Later,
        on_sure: Callable[[], None],
    ) -> None:
        """``clock``: seconds that go on while the machine is suspended. ``on_sure``: the home is sure now; called often."""
        self.is_in_doubt = True
        self.doubts = 0  # it began to be in doubt
        self._confidence = confidence
        self._routes = routes
        self._nodes = nodes
        self._cores = cores
        self._clock = clock
        self._loop = loop
        self._on_sure = on_sure
        self._is_closed = False
        self._record_all(True)

    def start(self) -> None:
        """Probe from now on."""
        self._tick()

    def close(self) -> None:
        """The core stops."""
        self._is_closed = True

    def check(self) -> None:
        """To be called before anything with QoS 1 or 2 is decided on: a timer may be late, and a pause may just have ended."""
        if not self.is_in_doubt and not self._confidence.is_sure(self._clock()):
            self.is_in_doubt = True
            self.doubts += 1
            self._record_all(True)

    def _tick(self) -> None:
        if self._is_closed:
            return
        now = self._clock()
        self.check()
        # It ends with a tick only: what flaps does not have the routes built anew all the time.
        if self.is_in_doubt and self._confidence.is_sure(now):
            self.is_in_doubt = False
            self._record_all(False)
        if not self.is_in_doubt:
            self._on_sure()
        for core in self._cores.connected:
            self.probe(core.name, core.probe)
        for node in self._nodes():
            self.probe(node.member, node.probe)
        self._loop.call_later(PROBE_S, self._tick)

    def probe(self, subject: object, send: Callable[[int], None]) -> None:
        """Probe a subject, now."""
        number = self._confidence.probe(subject, self._clock())
        if number is not None:
            send(number)

    def _record_all(self, is_on: bool) -> None:
        self._routes.keep_all = is_on
        self._routes.refresh()
