"""What nodes do around the claim while the linear registry does not decide alone.

``registry.mode = "eventual"``, the old way:

    lock the client id -> look into the bag -> ask the nodes of other channels to end them -> claim -> enter the bag -> unlock

The claim is the same as with the linear registry, since the home has the session. The lock and the bag are in front of it, with
the weaknesses that they have: a lock that was not released blocks its client id for half a minute, and the bag may name channels
that have ended, whose nodes are asked in vain.

``"both"``: the claim, as with the linear registry; then the bag is written. While a node with "eventual" is there, the channels
that the bag still names are ended if they are older than the one that was granted: the home did not know them (R5, R21).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from braidmq.access.contract import Refused
from braidmq.broker.session.ports import Claim, Grant, GrantEnding, Registry
from braidmq.cluster.eventual.bag import Bag, ChannelVersion
from braidmq.cluster.eventual.node_side import EventualNode
from braidmq.cluster.membership.registry_modes import EVENTUAL
from braidmq.mqtt.reasons import Reason

_LOCKED: Final = Refused(Reason.SERVER_BUSY, "this client id is locked by another connection")

GrantedChannel = Callable[[str], tuple[int, ChannelVersion]]  # that which was granted a client id last, and its version


class BothRegistry:
    """Implements the broker's ``Registry`` in front of the one that asks homes."""

    def __init__(self, registry: Registry, node: EventualNode, bag: Bag, channel_of: GrantedChannel) -> None:
        self._registry = registry
        self._node = node
        self._bag = bag
        self._channel_of = channel_of
        self._channels: dict[tuple[str, int], int] = {}  # those in the bag, by client id and guard

    def claim(self, claim: Claim) -> Awaitable[Grant | Refused]:
        """Ask for a client id."""
        return self._claim(claim)

    async def _claim(self, claim: Claim) -> Grant | Refused:
        grant = await self._ask_home(claim)
        if isinstance(grant, Grant) and self._bag.has_other(EVENTUAL):
            version = self._channel_of(claim.client_id)[1]
            older = [each for each in self._bag.others(claim.client_id) if each.version < version]
            if older:
                self._node.ask_ends(claim.client_id, older)  # the client does not wait for it: the channels are fenced
        return grant

    async def _ask_home(self, claim: Claim) -> Grant | Refused:
        """The claim; what is granted is in the bag."""
        found = self._registry.claim(claim)
        grant = found if isinstance(found, Grant | Refused) else await found
        if isinstance(grant, Grant):
            channel, version = self._channel_of(claim.client_id)
            self._channels[claim.client_id, grant.guard] = channel
            self._bag.add(claim.client_id, channel, version)
        return grant

    def commit(self, grant: Grant) -> bool:
        """Whether the grant still counts."""
        return self._registry.commit(grant)

    def end(self, grant: Grant, *, keeps_session: bool, ending: GrantEnding) -> None:
        """The connection gives the client id up."""
        self._registry.end(grant, keeps_session=keeps_session, ending=ending)
        channel = self._channels.pop((grant.client_id, grant.guard), None)
        if channel is not None:
            self._bag.remove(grant.client_id, channel)


class EventualRegistry(BothRegistry):
    """The same, with a lock and the bag in front of the claim."""

    async def _claim(self, claim: Claim) -> Grant | Refused:
        lock = await self._node.lock(claim.client_id)
        if lock is None:
            return _LOCKED
        try:
            others = self._bag.others(claim.client_id)
            if others:
                await self._node.end_others(claim.client_id, others)
            return await self._ask_home(claim)
        finally:
            self._node.unlock(lock)
