"""What a node has in front of the claims, unless its mode is "linear": the registry, the bag, and what it asks cores for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from braidmq.base.config.cluster_settings import ClusterSettings, RegistrySettings
from braidmq.broker.session.ports import Registry
from braidmq.cluster.eventual.bag import UNKNOWN, Bag, ChannelVersion
from braidmq.cluster.eventual.node_side import EventualNode
from braidmq.cluster.eventual.registry import BothRegistry, EventualRegistry
from braidmq.cluster.membership.member import Member
from braidmq.cluster.membership.registry_modes import EVENTUAL
from braidmq.cluster.rlog.tables import Tables


class GrantedChannels(Protocol):
    """The channels of the node; `remote.registry.NodeRegistry`."""

    def of_client(self, client_id: str) -> int:
        """The channel that was granted a client id last; 0 if there is none."""
        ...


class EventualFront:
    """Made once; ``registry`` is what the broker uses."""

    def __init__(
        self,
        member: Member,
        cores: Sequence[str],
        loop: asyncio.AbstractEventLoop,
        cluster: ClusterSettings,
        settings: RegistrySettings,
        *,
        registry: Registry,
        channels: GrantedChannels,
        tables: Tables,
        home_of: Callable[[str], str],
        close: Callable[[str], None],
        ask: Callable[[], None],
    ) -> None:
        """``registry`` asks homes. ``home_of``: the core that has a client id. ``close`` closes the connection of a client id.

        ``ask`` asks for a round of the replication log, and for what was said to be sent, at the end of this turn.
        """
        self._channels = channels
        self._close = close
        self.node = EventualNode(
            cores,
            loop,
            settings,
            home_of=home_of,
            close=self._end,
            lock_wait_s=cluster.home_wait,
            end_wait_s=settings.wait,
        )
        self.bag = Bag(tables, member.name, member.incarnation, ask)
        self.bag.announce(settings.mode)
        front = EventualRegistry if settings.mode == EVENTUAL else BothRegistry
        self.registry: Registry = front(registry, self.node, self.bag, self._channel_of)

    def _channel_of(self, client_id: str) -> tuple[int, ChannelVersion]:
        return self._channels.of_client(client_id), UNKNOWN

    def _end(self, client_id: str, channel: int) -> None:
        """Another node takes the client id, and has found this channel in the bag."""
        if self._channels.of_client(client_id) == channel:
            self._close(client_id)
