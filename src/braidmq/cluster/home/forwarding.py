"""Messages of QoS 1 and 2 that are not recorded: a publisher is answered when the nodes that want its message have it.

A node that does not confirm within a second, or whose outlet is full, is *lagging*: publishers wait for it no longer, until it
has confirmed everything (C1, C33). So one sick node does not hold up the others' publishers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from braidmq.lane.path.peer import PeerFlow

CONFIRM_S: Final = 1.0

Later = Callable[[float, Callable[[], None]], object]  # calls back after this many seconds


class ForwardTarget(Protocol):
    """A node that messages are forwarded to."""

    @property
    def flow(self) -> PeerFlow:
        """Its flow, with the numbers that were forwarded and confirmed."""


class _Wait:
    """One caller, and the numbers that nodes have still to confirm."""

    __slots__ = ("left", "on_done")

    def __init__(self, left: dict[PeerFlow, int], on_done: Callable[[], None]) -> None:
        self.left = left
        self.on_done = on_done


class Forwarding:
    """Which forwarded messages the nodes have confirmed."""

    def __init__(self, targets: Callable[[], Iterable[ForwardTarget]], later: Later) -> None:
        self.lagged = 0  # how often a node was too slow
        self._targets = targets
        self._later = later
        self._waits: dict[_Wait, None] = {}

    def when_confirmed(self, on_done: Callable[[], None]) -> None:
        """Call back when every node has what was forwarded to it so far, is gone, or lags."""
        flows = (target.flow for target in self._targets())
        left = {flow: flow.forwarded for flow in flows if flow.confirmed < flow.forwarded and not flow.is_lagging}
        if not left:
            on_done()
            return
        wait = _Wait(left, on_done)
        self._waits[wait] = None
        self._later(CONFIRM_S, lambda: self._give_up(wait))

    def note_confirmed(self, flow: PeerFlow, number: int) -> None:
        """A node has delivered everything up to this number."""
        flow.confirmed = max(flow.confirmed, number)
        if flow.confirmed >= flow.forwarded:
            flow.is_lagging = False
        for wait in [wait for wait in self._waits if wait.left.get(flow, number + 1) <= number]:
            self._end_part(wait, flow)

    def note_gone(self, flow: PeerFlow) -> None:
        """A node's connection has ended: what it did not confirm may be lost for it."""
        for wait in [wait for wait in self._waits if flow in wait.left]:
            self._end_part(wait, flow)

    def _end_part(self, wait: _Wait, flow: PeerFlow) -> None:
        del wait.left[flow]
        if not wait.left:
            del self._waits[wait]
            wait.on_done()

    def _give_up(self, wait: _Wait) -> None:
        if wait not in self._waits:
            return
        for flow in list(wait.left):
            flow.is_lagging = True
            self.lagged += 1
            self._end_part(wait, flow)
