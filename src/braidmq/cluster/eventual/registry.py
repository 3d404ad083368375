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

from collections.abc import Awaitable
from typing import Final, Protocol

from braidmq.access.contract import Refused
from braidmq.broker.session.ports import Claim, Grant, GrantEnding, Registry
from braidmq.cluster.eventual.bag import UNKNOWN, Bag
from braidmq.cluster.eventual.node_side import EventualNode
from braidmq.cluster.membership.registry_modes import EVENTUAL
from braidmq.cluster.registry.times import ConnectionTimes
from braidmq.cluster.registry.versions import Version
from braidmq.mqtt.reasons import Reason

_LOCKED: Final = Refused(Reason.SERVER_BUSY, "this client id is locked by another connection")


class GrantedChannels(Protocol):
    """The channels of the node; `remote.registry.NodeRegistry`."""

    times: ConnectionTimes

    def of_client(self, client_id: str) -> int:
        """The channel that was granted a client id last; 0 if there is none."""
        ...

    def granted(self) -> list[str]:
        """The client ids that this node has."""
        ...

    def guard_of(self, client_id: str) -> int:
        """The guard of the channel that was granted a client id last; 0 if there is none."""
        ...

    def version_of(self, client_id: str) -> Version | None:
        """Its version."""
        ...


class BagRegistry:
    """Implements the broker's ``Registry`` in front of the one that asks homes."""

    def __init__(self, registry: Registry, node: EventualNode, bag: Bag, channels: GrantedChannels) -> None:
        self.takes_locks = False
        self._registry = registry
        self._node = node
        self._bag = bag
        self._granted = channels
        self._channels: dict[tuple[str, int], int] = {}  # those in the bag, by client id and guard

    def claim(self, claim: Claim) -> Awaitable[Grant | Refused]:
        """Ask for a client id."""
        return self._claim_locked(claim) if self.takes_locks else self._claim(claim)

    async def _claim_locked(self, claim: Claim) -> Grant | Refused:
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

    async def _claim(self, claim: Claim) -> Grant | Refused:
        grant = await self._ask_home(claim)
        if isinstance(grant, Grant) and self._bag.has_other(EVENTUAL):
            version = self._version_of(claim.client_id)
            older = [each for each in self._bag.others(claim.client_id) if each.version < version]
            if older:
                self._node.ask_ends(claim.client_id, older)  # the client does not wait for it: the channels are fenced
        return grant

    async def _ask_home(self, claim: Claim) -> Grant | Refused:
        """The claim; what is granted is in the bag."""
        found = self._registry.claim(claim)
        grant = found if isinstance(found, Grant | Refused) else await found
        if isinstance(grant, Grant):
            self._enter(grant.client_id, grant.guard)
        return grant

    def _enter(self, client_id: str, guard: int) -> None:
        channel = self._channels[client_id, guard] = self._granted.of_client(client_id)
        self._bag.add(client_id, channel, self._version_of(client_id))

    def _version_of(self, client_id: str) -> Version:
        return self._granted.version_of(client_id) or UNKNOWN

    def note_granted(self, client_id: str) -> None:
        """Write a channel into the bag that was granted before there was one."""
        guard = self._granted.guard_of(client_id)
        if guard and (client_id, guard) not in self._channels:
            self._enter(client_id, guard)

    def commit(self, grant: Grant) -> bool:
        """Whether the grant still counts."""
        return self._registry.commit(grant)

    def end(self, grant: Grant, *, keeps_session: bool, ending: GrantEnding) -> None:
        """The connection gives the client id up."""
        self._registry.end(grant, keeps_session=keeps_session, ending=ending)
        channel = self._channels.pop((grant.client_id, grant.guard), None)
        if channel is not None:
            self._bag.remove(grant.client_id, channel)
