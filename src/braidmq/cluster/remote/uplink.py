"""The way of unrecorded messages to other nodes: through the publisher's home, or through any core while that is away."""

from __future__ import annotations

from collections.abc import Sequence

from braidmq.lane.path.state import State
from braidmq.lane.peers.peer import PeerFlow, PeerOutlet, UplinkFlow, UplinkOutlet
from braidmq.lane.routing.subscription import Subscription


class Uplink:
    """Stands for all other nodes among a message's destinations."""

    def __init__(self, state: State, is_only: bool) -> None:
        """``is_only``: there is one core, to which everything goes."""
        self.flow: PeerFlow = PeerFlow("core", state, is_uplink=True) if is_only else UplinkFlow("core", state)
        self.destination = Subscription(self.flow, b"#", 0, retain_as_published=True)
        self._ways = None if is_only else UplinkOutlet(state)

    def lead(self, outlets: Sequence[PeerOutlet | None]) -> None:
        """Send what clients of each shard publish to its core, or to another one. ``outlets``: by shard; None: it is away."""
        connected = [outlet for outlet in outlets if outlet is not None]
        if not connected:
            self.flow.detach()
        elif self._ways is None:
            self.flow.attach(connected[0], 0)
        else:
            self._ways.lead([connected[0] if outlet is None else outlet for outlet in outlets])
            self.flow.attach(self._ways, 0)
