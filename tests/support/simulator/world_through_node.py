"""A world whose clients are on a replicant: what they see must be what they see on one node."""

from __future__ import annotations

import pytest

from braidmq.broker.broker import Broker
from tests.support.simulator.cluster_world import ClusterWorld
from tests.support.simulator.peer import Peer
from tests.support.simulator.world import World


class WorldThroughNode(ClusterWorld):
    """A core without clients, and a node that has them all. A crash ends both, as it ends a core and its workers."""

    def _start(self) -> None:
        self.replicants = []
        super()._start()
        self.node = self.replicant("one")

    def open(self, version: int = 5, *, node: Broker | None = None) -> Peer:
        """A connection to the node on which nothing was sent yet."""
        return super().open(version, node=node or self.node.broker)


# Runs a test in a world of one node and through a node: ``kind`` is the class of the world.
each_kind = pytest.mark.parametrize("kind", [World, WorldThroughNode], ids=["one", "through"])
