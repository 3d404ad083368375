"""Publishers on nodes that are held because what they publish fills a queue elsewhere (decision 5)."""

from __future__ import annotations

from collections.abc import Mapping

from braidmq.cluster.home.node_peer import NodePeer
from braidmq.cluster.membership.member import Member
from braidmq.cluster.registry.home_claims import HomeClaims
from braidmq.lane.peers.peer import PeerFlow


class PublisherHolds:
    """Tells the nodes of publishers to hold them, or to let them go on."""

    def __init__(self, claims: HomeClaims[Member], peers: Mapping[Member, NodePeer]) -> None:
        self._claims = claims
        self._peers = peers

    def say(self, client_id: str, is_held: bool) -> None:
        """The node of this client is to hold it for a while, or no longer."""
        owner = self._claims.owner(client_id)
        peer = None if owner is None else self._peers.get(owner.node)
        if peer is not None:
            peer.hold_publisher(client_id, is_held)

    def end_of(self, flow: PeerFlow) -> None:
        """A node is too slow: no publisher waits for its subscribers either."""
        for peer in self._peers.values():
            if peer.flow is flow:
                peer.end_holds()
