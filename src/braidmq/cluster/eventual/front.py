"""The registry as the broker of a node has it: the one that asks homes, and in front of it what ``registry.mode`` wants.

A running node changes from "linear" to "both", and from "both" to "eventual"; any other change needs a new start (R21).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from braidmq.access.contract import Refused
from braidmq.base.config.cluster_settings import RegistrySettings
from braidmq.broker.session.ports import Claim, Grant, GrantEnding, Registry
from braidmq.cluster.eventual.bag import Bag
from braidmq.cluster.eventual.node_side import EventualNode
from braidmq.cluster.eventual.registry import BagRegistry, GrantedChannels
from braidmq.cluster.membership.member import Member
from braidmq.cluster.membership.registry_modes import EVENTUAL, LINEAR
from braidmq.cluster.rlog.tables import Tables

_SLICE: Final = 500  # channels that are written into the bag in one turn of the loop


class RegistryFront:
    """Implements the broker's ``Registry``."""

    def __init__(
        self,
        member: Member,
        cores: Sequence[str],
        loop: asyncio.AbstractEventLoop,
        settings: RegistrySettings,
        *,
        registry: Registry,
        channels: GrantedChannels,
        tables: Tables,
        home_of: Callable[[str], str],
        close: Callable[[str], None],
        ask: Callable[[], None],
        waits_s: tuple[float, float],
    ) -> None:
        """``registry`` asks homes. ``home_of``: the core that has a client id. ``close`` closes the connection of a client id.

        ``ask`` asks for a round of the replication log, and for what was said to be sent, at the end of this turn.
        ``waits_s``: how long a CONNECT waits for its lock, and then for the ends of other channels.
        """
        self.mode = LINEAR
        self.node: EventualNode | None = None  # with the following two, unless the mode is linear
        self.bag: Bag | None = None
        self._in_front: BagRegistry | None = None
        self._now = registry
        self._member = member
        self._cores = cores
        self._loop = loop
        self._settings = settings
        self._registry = registry
        self._channels = channels
        self._tables = tables
        self._home_of = home_of
        self._close = close
        self._ask = ask
        self._waits_s = waits_s
        if settings.mode != LINEAR:
            self._begin()
            self.use(settings.mode)

    # The broker's port

    def claim(self, claim: Claim) -> Grant | Refused | Awaitable[Grant | Refused]:
        """Ask for a client id."""
        return self._now.claim(claim)

    def commit(self, grant: Grant) -> bool:
        """Whether the grant still counts."""
        return self._now.commit(grant)

    def end(self, grant: Grant, *, keeps_session: bool, ending: GrantEnding) -> None:
        """The connection gives the client id up."""
        self._now.end(grant, keeps_session=keeps_session, ending=ending)

    # Modes

    def _begin(self) -> None:
        lock_wait_s, end_wait_s = self._waits_s
        self.node = EventualNode(
            self._cores,
            self._loop,
            self._settings,
            home_of=self._home_of,
            close=self._end,
            lock_wait_s=lock_wait_s,
            end_wait_s=end_wait_s,
        )
        self.bag = Bag(self._tables, self._member.name, self._member.incarnation, self._ask)
        self._now = self._in_front = BagRegistry(self._registry, self.node, self.bag, self._channels)

    def use(self, mode: str) -> None:
        """This is the mode now, "both" or "eventual"; the members' tables have it already. All nodes are told."""
        assert self._in_front is not None, "there is a bag"
        assert self.bag is not None
        self.mode = mode
        self._in_front.takes_locks = mode == EVENTUAL
        self._channels.times.is_dated = mode != EVENTUAL  # the old way knows no versions: who has the lock last wins
        self.bag.announce(mode)

    async def fill_bag(self) -> None:
        """Begin to write the bag; returns when the channels that the node has already are there, too."""
        if self._in_front is None:
            self._begin()
        assert self._in_front is not None
        granted = self._channels.granted()
        for start in range(0, len(granted), _SLICE):
            for client_id in granted[start : start + _SLICE]:
                self._in_front.note_granted(client_id)
            await asyncio.sleep(0)

    def _end(self, client_id: str, channel: int) -> None:
        """Another node takes the client id, and has found this channel in the bag."""
        if self._channels.of_client(client_id) == channel:
            self._close(client_id)

    def close(self) -> None:
        """The node stops."""
        if self.node is not None:
            self.node.close()
