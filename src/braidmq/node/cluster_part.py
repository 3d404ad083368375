"""What the operations of a core see of its cluster. `Node` makes these parts, and ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from braidmq.base.config.addresses import Address
from braidmq.base.config.sources import Config
from braidmq.base.errors import Unavailable
from braidmq.cluster.administration.cluster_administration import ClusterAdministration
from braidmq.cluster.administration.figures import ClusterFigures, CoreFigures
from braidmq.cluster.administration.questions import NodeQuestions
from braidmq.cluster.administration.several_status import describe_cores
from braidmq.cluster.administration.shared_bans import SharedBans
from braidmq.cluster.administration.shared_settings import SettingsForNodes
from braidmq.cluster.cores.core_calls import CoreCalls
from braidmq.cluster.cores.core_side import CoreSide
from braidmq.cluster.cores.several_cores import SeveralCores
from braidmq.cluster.home.home import Home
from braidmq.cluster.home.node_peer import PeerView
from braidmq.control.cluster import CoreInfo
from braidmq.node.serving import ServingNode


class ClusterPart(ServingNode):
    """The parts of a core that exist only if other nodes may join it."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._several: SeveralCores | None = None
        self._core_side: CoreSide | None = None
        self._home: Home | None = None
        self._administration: ClusterAdministration | None = None
        self._shared_bans: SharedBans | None = None
        self._shared_settings: SettingsForNodes | None = None

    @property
    def cluster_address(self) -> Address | None:
        """Where replicants reach this core."""
        return self._core_side.address if self._core_side is not None else None

    def cluster_figures(self) -> ClusterFigures:
        """What the metrics say about the cluster, now."""
        if self._core_side is None or self._home is None or self._broker is None or not self._home.is_serving:
            return ClusterFigures()
        return CoreFigures(self._core_side, self._home)

    @property
    def questions(self) -> NodeQuestions:
        """Asks the other nodes."""
        return self._cluster()[0].questions

    @property
    def core_calls(self) -> CoreCalls:
        """Asks the other cores."""
        return self._cluster()[1].core_calls

    @property
    def led_shards(self) -> Collection[int]:
        """The shards that this core leads."""
        return self._cluster()[1].led.terms

    @property
    def incarnation(self) -> int:
        """The core's own."""
        return self._cluster()[0].incarnation

    @property
    def core_list(self) -> list[CoreInfo]:
        """All cores, if there are several."""
        return [] if self._several is None or self._core_side is None else describe_cores(self._several, self._core_side)

    def core_of(self, client_id: str) -> str | None:
        """The other core that is the home of a client id; None: this one is."""
        return self._cluster()[1].core_of(client_id)

    def node_of(self, client_id: str) -> str | None:
        """The node that has the session of a client id."""
        return self._cluster()[1].sessions.node_of(client_id)

    async def wait_left(self, client_id: str) -> None:
        """Wait until no node has the session of a client id."""
        left = asyncio.Event()
        self._cluster()[1].sessions.after_leaving(client_id, left.set)
        await left.wait()

    def peer_view(self, name: str) -> PeerView | None:
        """A node's connections, as the core sees them."""
        peer = self._cluster()[1].find(name)
        return None if peer is None else peer.view()

    async def wait_bans_known(self, timeout_s: float) -> list[str]:
        """Wait until all nodes have the operators' bans; the names of those that did not confirm in time."""
        return [] if self._shared_bans is None else await self._shared_bans.copies.wait_known(timeout_s)

    async def wait_settings_known(self, timeout_s: float) -> list[str]:
        """Wait until all nodes have the cluster's settings; the names of those that did not confirm in time."""
        return [] if self._shared_settings is None else await self._shared_settings.copies.wait_known(timeout_s)

    @property
    def setting_troubles(self) -> Mapping[str, str]:
        """Why nodes do not use the cluster's settings, by name."""
        found = {} if self._shared_settings is None else dict(self._shared_settings.troubles)
        if self._administration is not None and self._administration.trouble:
            found[self.settings.node.name] = self._administration.trouble
        return found

    @property
    def administration(self) -> ClusterAdministration:
        """The settings and bans of the cluster. Raises Unavailable while the core starts."""
        if self._administration is None:
            raise Unavailable("this core is starting", 1.0)
        return self._administration

    async def declare_dead(self, name: str) -> None:
        """End a node's connections and its membership."""
        await self._cluster()[0].declare_dead(name, "the operator has declared it dead")

    def _cluster(self) -> tuple[CoreSide, Home]:
        assert self._core_side is not None, "other nodes cannot join this one"
        assert self._home is not None
        return self._core_side, self._home
