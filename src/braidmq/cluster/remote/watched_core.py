"""Which core tells a node the routes of all other nodes.

Every core could; each costs the same to watch. A node has an order of its own in which it prefers the cores, by a hash of both
names. So the nodes are spread evenly over the cores that are there, and over the rest when one is gone; no core has to count
them.

A core that has come back is not watched again by all of its nodes at once: each waits for some minutes, a time of its own, and
then goes on there from where its tables are. Only in the first moment after its start does a node change over at once, before it
has loaded much from a core that merely answered first.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Final, Protocol

Later = Callable[[float, Callable[[], None]], "WatchTimer"]

RETURN_S: Final = (60.0, 300.0)  # the shortest and the longest wait until a core that has come back is watched again
_FIRST_MOMENT_S: Final = 1.0


class WatchTimer(Protocol):
    """What calls back later."""

    def cancel(self) -> None:
        """Do not call back."""


class RouteWatch(Protocol):
    """The replication log of one connection with a core; `cluster.rlog.exchange.RlogLink`."""

    def watch(self) -> None:
        """Ask the core for the routes, from where this node's tables are."""

    def unwatch(self) -> None:
        """Take no more of them from it."""


class WatchableCore(Protocol):
    """A core; `cluster.remote.home_link.HomeLink`."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def is_following(self) -> bool:
        """Whether the node has all routes that the core has, by watching it."""


class WatchedCore:
    """The choice of one node."""

    def __init__(
        self,
        node: str,
        later: Later,
        now: Callable[[], float],
        wait_s: Callable[[], float] = lambda: random.uniform(*RETURN_S),
    ) -> None:
        """``later``: calls back after a time of the clock ``now``."""
        self.core: WatchableCore | None = None
        self._node = node
        self._later = later
        self._now = now
        self._wait_s = wait_s
        self._links: dict[str, tuple[WatchableCore, RouteWatch]] = {}  # of the cores that are connected
        self._began_at = 0.0
        self._timer: WatchTimer | None = None

    def connected(self, core: WatchableCore, link: RouteWatch) -> None:
        """A core can be watched."""
        self._links[core.name] = (core, link)
        if self.core is None:
            self._began_at = self._now()
            self._watch(core.name)
        elif self._best() == core.name:
            if not self.core.is_following and self._now() - self._began_at < _FIRST_MOMENT_S:
                self._change_over()
            else:
                self._return_later()

    def lost(self, core: WatchableCore) -> None:
        """A core is away."""
        self._links.pop(core.name, None)
        if self.core is core:
            self.core = None
            if self._links:
                self._watch(self._best())

    def close(self) -> None:
        """The node stops."""
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self, name: str) -> None:
        self.core, link = self._links[name]
        link.watch()

    def _return_later(self) -> None:
        if self._timer is None:
            self._timer = self._later(self._wait_s(), self._return)

    def _return(self) -> None:
        self._timer = None
        if self.core is None or self._best() == self.core.name:
            return
        if self.core.is_following:
            self._change_over()
        else:
            self._return_later()  # what it is loading would have to be loaded again

    def _change_over(self) -> None:
        assert self.core is not None
        _, link = self._links[self.core.name]
        link.unwatch()
        self._watch(self._best())

    def _best(self) -> str:
        return preferred(self._node, self._links)


def preferred(node: str, cores: Iterable[str]) -> str:
    """The one of these cores that a node watches if all of them are there."""
    return min(cores, key=lambda core: blake2b(f"{node}\0{core}".encode(), digest_size=8).digest())
