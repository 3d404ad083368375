"""Claims under a lock: what a node with ``registry.mode`` "eventual" does before it asks a client id's home.

    lock the client id -> look into the bag -> ask the nodes of other channels to end them -> claim -> enter the bag -> unlock

The claim that follows is the same as with the linear registry, since the home has the session. The lock and the bag are in front
of it, with the weaknesses that they have: a lock that was not released blocks its client id for half a minute, and the bag may
name channels that have ended, whose nodes are asked in vain.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from braidmq.access.contract import Refused
from braidmq.broker.session.ports import Claim, Grant, GrantEnding, Registry
from braidmq.cluster.eventual.bag import Bag
from braidmq.cluster.eventual.node_side import EventualNode
from braidmq.mqtt.reasons import Reason

_LOCKED: Final = Refused(Reason.SERVER_BUSY, "this client id is locked by another connection")


class EventualRegistry:
    """Implements the broker's ``Registry`` in front of the one that asks homes."""

    def __init__(self, registry: Registry, node: EventualNode, bag: Bag, channel_of: Callable[[str], int]) -> None:
        """``channel_of``: the channel that was granted a client id last."""
        self._registry = registry
        self._node = node
        self._bag = bag
        self._channel_of = channel_of
        self._channels: dict[tuple[str, int], int] = {}  # those in the bag, by client id and guard

    def claim(self, claim: Claim) -> Awaitable[Grant | Refused]:
        """Ask for a client id."""
        return self._claim(claim)

    async def _claim(self, claim: Claim) -> Grant | Refused:
        client_id = claim.client_id
        lock = await self._node.lock(client_id)
        if lock is None:
            return _LOCKED
        try:
            others = self._bag.others(client_id)
            if others:
                await self._node.end_others(client_id, others)
            found = self._registry.claim(claim)
            grant = found if isinstance(found, Grant | Refused) else await found
            if isinstance(grant, Grant):
                channel = self._channels[client_id, grant.guard] = self._channel_of(client_id)
                self._bag.add(client_id, channel)
            return grant
        finally:
            self._node.unlock(lock)

    def commit(self, grant: Grant) -> bool:
        """Whether the grant still counts."""
        return self._registry.commit(grant)

    def end(self, grant: Grant, *, keeps_session: bool, ending: GrantEnding) -> None:
        """The connection gives the client id up."""
        self._registry.end(grant, keeps_session=keeps_session, ending=ending)
        channel = self._channels.pop((grant.client_id, grant.guard), None)
        if channel is not None:
            self._bag.remove(grant.client_id, channel)
