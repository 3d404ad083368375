"""A network of simulated nodes: virtual time, ordered links with random delays, cuts and pauses, all from one seed.

A run is a function of its seed: there is no real clock, no thread and no task in it.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

Said = TypeVar("Said")


class Station(Protocol[Said]):
    """A simulated node."""

    def receive(self, link: Link[Said], message: Said) -> None:
        """A message has arrived on a link of this node."""

    def cut(self, link: Link[Said]) -> None:
        """The link is gone; what was on its way is lost."""


class Link(Generic[Said]):
    """One ordered connection between two nodes."""

    def __init__(self, network: Network[Said], ends: tuple[Station[Said], Station[Said]]) -> None:
        self._network = network
        self.ends = ends
        self.is_up = True
        self._busy_until = {id(end): 0.0 for end in ends}

    def other(self, end: Station[Said]) -> Station[Said]:
        """The node at the other end."""
        return self.ends[1] if end is self.ends[0] else self.ends[0]

    def send(self, sender: Station[Said], message: Said) -> None:
        """Deliver a message to the other end, after those that were sent before it."""
        if not self.is_up:
            return
        receiver = self.other(sender)
        at = max(self._busy_until[id(receiver)], self._network.now + self._network.delay())
        self._busy_until[id(receiver)] = at
        self._network.at(at, lambda: self._deliver(receiver, message))

    def _deliver(self, receiver: Station[Said], message: Said) -> None:
        if not self.is_up:
            return
        if self._network.is_paused(receiver):
            self._network.when_awake(receiver, lambda: self._deliver(receiver, message))
            return
        receiver.receive(self, message)

    def cut(self) -> None:
        """Lose what is on its way, and tell both ends after a while."""
        if self.is_up:
            self.is_up = False
            for end in self.ends:
                self._network.after(self._network.delay(), lambda end=end: end.cut(self))  # type: ignore[misc]


class Network(Generic[Said]):
    """Time, and what happens when."""

    def __init__(self, seed: int, delay_s: float = 0.01) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self._delay_s = delay_s
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._asleep: dict[int, list[Callable[[], None]]] = {}

    def delay(self) -> float:
        """How long the next message is on its way: usually about as long, sometimes far longer."""
        scale = 20 if self.random.random() < 0.02 else 1
        return self.random.expovariate(1 / (self._delay_s * scale))

    def at(self, time: float, act: Callable[[], None]) -> None:
        """Do this at a time."""
        heapq.heappush(self._events, (time, next(self._numbers), act))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Do this later."""
        self.at(self.now + seconds, act)

    def connect(self, one: Station[Said], other: Station[Said]) -> Link[Said]:
        """A new link."""
        return Link(self, (one, other))

    def is_paused(self, station: Station[Said]) -> bool:
        """Whether the node stands still."""
        return id(station) in self._asleep

    def pause(self, station: Station[Said], seconds: float) -> None:
        """Let the node stand still for a while; what arrives meanwhile waits, in order."""
        if not self.is_paused(station):
            self._asleep[id(station)] = []
            self.after(seconds, lambda: self._wake(station))

    def when_awake(self, station: Station[Said], act: Callable[[], None]) -> None:
        """Do this when the paused node goes on."""
        self._asleep[id(station)].append(act)

    def _wake(self, station: Station[Said]) -> None:
        for act in self._asleep.pop(id(station), []):
            act()

    def run(self, until: float | None = None, events_max: int = 1_000_000) -> None:
        """Let things happen until a time, or until nothing is left to happen."""
        for _ in range(events_max):
            if not self._events or (until is not None and self._events[0][0] > until):
                break
            self.now, _, act = heapq.heappop(self._events)
            act()
        else:
            raise AssertionError("the simulated nodes do not come to rest")
        if until is not None:
            self.now = max(self.now, until)
