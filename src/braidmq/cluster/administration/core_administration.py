"""Everything that operators set for the whole cluster, on one of its cores: followed, used here, and brought to the nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from braidmq.access.local import LocalAccess
from braidmq.base.config import sources
from braidmq.base.config.settings import NodeSettings
from braidmq.cluster.administration.cluster_administration import ClusterAdministration
from braidmq.cluster.administration.node_copies import Copies, CopyOf
from braidmq.cluster.administration.shared_bans import SharedBans
from braidmq.cluster.administration.shared_settings import SettingsForNodes
from braidmq.cluster.cores.core_side import CoreSide
from braidmq.cluster.membership.administration_rows import AdministrationTables
from braidmq.cluster.membership.registry_modes import MODE_NAME


class CoreAdministration:
    """`open` makes it, before nodes are accepted; then `start`, then `stop`."""

    def __init__(
        self,
        node: NodeSettings,
        side: CoreSide,
        access: LocalAccess,
        use_settings: Callable[[Mapping[str, object]], Awaitable[None]],
    ) -> None:
        """Use `open`."""
        self.cluster = cluster = ClusterAdministration(side.store, side.view, access, use_settings)
        self._name = node.name
        self._mode = side.mode
        self._bans = SharedBans(access.bans, side.questions, self._source)
        self._settings = SettingsForNodes(side.questions, self._source, lambda: cluster.settings)
        self._copies = Copies(side.questions, [self._bans.copies, self._settings.copies])
        cluster.load()
        side.on_administered = cluster.take
        cluster.on_settings = self._settings.copies.note
        access.cluster, access.on_ban = cluster, self._bans.note

    @classmethod
    async def open(
        cls,
        node: NodeSettings,
        side: CoreSide,
        access: LocalAccess,
        use_settings: Callable[[Mapping[str, object]], Awaitable[None]],
    ) -> CoreAdministration:
        """Use the bans of the cluster from now on, and its settings from `start` on. Raises ConfigError and Unavailable."""
        if side.several is None:
            # Whatever was answered to an operator is in the files of the only core.
            overrides = await asyncio.to_thread(sources.read_overrides, node.data_dir)
            kept = {name: sources.shared_override(name, value) for name, value in overrides.items() if sources.is_shared(name)}
            await AdministrationTables(side.store).adopt(kept, [ban for ban in access.bans.list() if not ban.automatic])
        await side.follow()
        return cls(node, side, access, use_settings)

    def start(self) -> None:
        """Use changes from now on."""
        self.cluster.start()

    def stop(self) -> None:
        """The core stops."""
        self.cluster.stop()
        self._copies.close()

    async def wait_bans_known(self, timeout_s: float) -> list[str]:
        """Wait until all nodes have the operators' bans; the names of those that did not confirm in time."""
        return await self._bans.copies.wait_known(timeout_s)

    async def wait_settings_known(self, timeout_s: float) -> list[str]:
        """Wait until all nodes have the cluster's settings; the names of those that did not confirm in time."""
        return await self._settings.copies.wait_known(timeout_s)

    @property
    def troubles(self) -> dict[str, str]:
        """Why this core and nodes do not use the cluster's settings, by name."""
        trouble = self.cluster.trouble or (f"{MODE_NAME}: {self._mode.trouble}" if self._mode.trouble else "")
        return ({self._name: trouble} if trouble else {}) | self._settings.troubles

    def _source(self) -> CopyOf:
        return CopyOf(self._name, self.cluster.number)
