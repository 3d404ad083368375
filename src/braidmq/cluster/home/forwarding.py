"""Messages of QoS 1 and 2 that are not recorded: a publisher is answered when the nodes that want its message have it.

A node that does not confirm within a second, or whose outlet is full, is *lagging*: publishers wait for it no longer, until it
has confirmed everything (C1, C33). So one sick node does not hold up the others' publishers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from braidmq.lane.peers.peer import PeerFlow

CONFIRM_S: Final = 1.0

Later = Callable[[float, Callable[[], None]], object]  # calls back after this many seconds


class ForwardTarget(Protocol):
    """A node that messages are forwarded to."""

    @property
    def flow(self) -> PeerFlow:
        """Its flow, with the numbers that were forwarded and confirmed."""


class _Wait:
    """One caller, and how many nodes have still to confirm."""

    __slots__ = ("left", "on_done")

    def __init__(self, left: int, on_done: Callable[[], None]) -> None:
        self.left = left
        self.on_done = on_done


class Forwarding:
    """Which forwarded messages the nodes have confirmed.

    Numbers only rise, so the waits for a node are in their order, and those for a number that it confirms come first.
    """

    def __init__(
        self,
        targets: Callable[[], Iterable[ForwardTarget]],
        later: Later,
        now: Callable[[], float],
        on_lagging: Callable[[PeerFlow], None],
    ) -> None:
        """``now``: the clock of ``later``. ``on_lagging``: a node was too slow."""
        self.lagged = 0  # how often a node was too slow
        self._targets = targets
        self._on_lagging = on_lagging
        self._later = later
        self._now = now
        self._waits: dict[PeerFlow, deque[tuple[int, _Wait]]] = {}  # by node: the number that each waits for
        self._deadlines: deque[tuple[float, PeerFlow, int]] = deque()  # when a node lags if it has not confirmed this number
        self._is_watched = False

    def when_confirmed(self, on_done: Callable[[], None]) -> None:
        """Call back when every node has what was forwarded to it so far, is gone, or lags."""
        flows = [flow for target in self._targets() if (flow := target.flow).confirmed < flow.forwarded and not flow.is_lagging]
        if not flows:
            on_done()
            return
        wait = _Wait(len(flows), on_done)
        for flow in flows:
            number = flow.forwarded
            waits = self._waits.get(flow)
            if waits is None:
                waits = self._waits[flow] = deque()
            if not waits or waits[-1][0] != number:  # else they have one deadline
                self._deadlines.append((self._now() + CONFIRM_S, flow, number))
            waits.append((number, wait))
        self._watch()

    def note_confirmed(self, flow: PeerFlow, number: int) -> None:
        """A node has delivered everything up to this number."""
        flow.confirmed = max(flow.confirmed, number)
        if flow.confirmed >= flow.forwarded:
            flow.is_lagging = False
        self._end_waits(flow, number)

    def note_gone(self, flow: PeerFlow) -> None:
        """A node's connection has ended: what it did not confirm may be lost for it."""
        waits = self._waits.get(flow)
        if waits:
            self._end_waits(flow, waits[-1][0])

    def _end_waits(self, flow: PeerFlow, number: int) -> None:
        """Nothing waits any longer for the node to confirm what is up to this number."""
        waits = self._waits.get(flow)
        while waits and waits[0][0] <= number:
            wait = waits.popleft()[1]
            wait.left -= 1
            if not wait.left:
                wait.on_done()
        if waits is not None and not waits:
            self._waits.pop(flow, None)

    def _watch(self) -> None:
        if self._deadlines and not self._is_watched:
            self._is_watched = True
            self._later(max(0.0, self._deadlines[0][0] - self._now()), self._give_up)

    def _give_up(self) -> None:
        """Time has passed: nodes that have not confirmed what was due are lagging."""
        self._is_watched = False
        now = self._now()
        while self._deadlines and self._deadlines[0][0] <= now:
            _, flow, number = self._deadlines.popleft()
            waits = self._waits.get(flow)
            if waits and waits[0][0] <= number:
                flow.is_lagging = True
                self.lagged += 1
                self._on_lagging(flow)
                self._end_waits(flow, number)
        self._watch()
