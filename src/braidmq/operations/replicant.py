"""What an operator sees and does on a replicant: like on a core, except for everything that needs the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

from braidmq.base.config.sources import is_shared
from braidmq.base.errors import ConfigError, UsageError
from braidmq.control.cluster import RATE_MAX, DrainRequest, DrainStatus
from braidmq.control.contract import (
    BanInfo,
    BanKind,
    ConfValue,
    Page,
    PageRequest,
    RetainedInfo,
    SessionDetail,
    SessionInfo,
    Status,
)
from braidmq.control.registry import RegistryEntry, RegistryReport, SweepReport
from braidmq.operations.drain import Drain
from braidmq.operations.node import FROM, NodeOperations, RunningNode
from braidmq.storage.log import DurableLog

_OF_CORES: Final = "history."  # a replicant has no log


_CORE_S: Final = 15.0  # a core asks the others


class RunningReplicant(RunningNode, Protocol):
    """The replicant, as its operations see it. Its ``log`` raises UsageError."""

    @property
    def drain(self) -> Drain:
        """Empties the node."""
        ...

    def leave(self) -> None:
        """End the node, in order."""
        ...

    async def ask_core(self, operation: str, arguments: bytes, timeout_s: float) -> bytes:
        """Ask one of the cores something. Raises UsageError and Unavailable."""
        ...

    @property
    def mode_trouble(self) -> str:
        """Why the mode of its registry is not the one that is set; empty if it is."""
        ...

    @property
    def cluster_trouble(self) -> str:
        """Why it cannot work on its core's data now; empty if it can."""
        ...


class ReplicantOperations(NodeOperations):
    """Operations on history and retained messages raise UsageError: the core has them."""

    def __init__(self, node: RunningReplicant) -> None:
        super().__init__(node)
        self._replicant = node

    def status(self) -> Status:
        """The current state of the node; without its core it is not ready."""
        found = super().status()
        drain = self._replicant.drain
        trouble = self._replicant.cluster_trouble
        if not trouble and drain.is_begun:
            trouble = "drained; restart it to accept clients" if drain.is_done else f"drained, {drain.left} clients are left"
        return msgspec.structs.replace(found, not_ready=trouble) if trouble else found

    async def sessions(self, page: PageRequest) -> Page[SessionInfo]:
        """Sessions of this node's clients; the core knows how far they are behind the log."""
        found = await self.node_sessions(page)
        return Page([each.info for each in found.items], found.cursor)

    async def session(self, client_id: str) -> SessionDetail | None:
        """One of them, or None."""
        found = await self.node_session(client_id)
        return None if found is None else found.detail

    async def registry_show(self, client_id: str) -> RegistryEntry | None:
        """What the home of a client id knows of it; a core is asked. Raises Unavailable."""
        answer = await self._replicant.ask_core("registry_show", msgspec.json.encode(client_id), _CORE_S)
        return msgspec.json.decode(answer, type=RegistryEntry | None)

    async def registry_stats(self) -> RegistryReport:
        """The registries of all cores. Raises Unavailable."""
        return msgspec.json.decode(await self._replicant.ask_core("registry_stats", b"", _CORE_S), type=RegistryReport)

    async def registry_sweep(self) -> SweepReport:
        """Compare the registries of all cores with the lists of their nodes now. Raises Unavailable."""
        return msgspec.json.decode(await self._replicant.ask_core("registry_sweep", b"", _CORE_S), type=SweepReport)

    async def retained(self, page: PageRequest) -> Page[RetainedInfo]:
        """Raises UsageError: the core has the retained messages of all nodes."""
        raise UsageError("this node is a replicant and keeps no retained messages", "ask its core")

    async def retained_remove(self, topic: str) -> bool:
        """Raises UsageError: the core has the retained messages of all nodes."""
        raise UsageError("this node is a replicant and keeps no retained messages", "ask its core")

    async def drain(self, request: DrainRequest) -> DrainStatus:
        """Send this node's clients elsewhere. Raises UsageError."""
        if request.node not in ("", self._replicant.settings.node.name):
            raise UsageError(f"this node is not {request.node!r}", "use `ctl node drain` on the core to drain another node")
        if not 1 <= request.rate <= RATE_MAX or (request.deadline_s is not None and request.deadline_s < 0):
            raise UsageError(f"the rate must be from 1 to {RATE_MAX}, and the deadline not negative")
        self._replicant.drain.start(request.rate, request.deadline_s)
        return await self.drain_status("")

    async def drain_status(self, node: str) -> DrainStatus:
        """How far the drain is. Raises UsageError if there was none."""
        drain, name = self._replicant.drain, self._replicant.settings.node.name
        if not drain.is_begun:
            raise UsageError(f"{name} is not being drained")
        return DrainStatus(node=name, is_done=drain.is_done, moved=drain.moved, left=drain.left)

    def leave_cluster(self) -> None:
        """End this node, which its core then takes out of the cluster. Raises UsageError unless it is drained."""
        if not self._replicant.drain.is_done:
            raise UsageError("this node has clients", "drain it first")
        self._replicant.leave()

    async def ban_add(self, ban: BanInfo) -> list[str]:
        """Raises UsageError: the core has the bans of all nodes."""
        raise UsageError("bans are set on the core, for all nodes", "use `braidmq ctl bans add` there")

    async def ban_remove(self, kind: BanKind, value: str) -> bool:
        """Raises UsageError unless the ban is one that failed logins on this node may have caused."""
        if FROM not in value:
            raise UsageError("bans are lifted on the core, for all nodes", "use `braidmq ctl bans rm` there")
        return await super().ban_remove(kind, value)

    async def use_settings(self, settings: Mapping[str, object]) -> None:
        """Use the settings of the cluster. Raises ConfigError if they do not fit this node's file; then nothing has changed. It
        also does if this node cannot change its mode of the registry now; all other settings are used then.

        A worker has them from its core, as a part of its whole configuration.
        """
        if not self._is_worker:
            used = {key: value for key, value in settings.items() if not key.startswith(_OF_CORES)}
            await self._configuration.use_shared(used)
        if self._replicant.mode_trouble:
            raise ConfigError("registry.mode", self._replicant.mode_trouble)

    async def conf_set(self, key: str, text: str) -> ConfValue:
        """Set a value of this node at run time; raises UsageError for one of the whole cluster, and on a worker."""
        self._check_own(key)
        return await super().conf_set(key, text)

    async def conf_unset(self, key: str) -> ConfValue:
        """Remove a value of this node that was set at run time; raises UsageError like `conf_set`."""
        self._check_own(key)
        return await super().conf_unset(key)

    def _check_own(self, key: str) -> None:
        if self._is_worker:
            raise UsageError("a worker has the configuration of its core", "change it on the core")
        if is_shared(key):
            raise UsageError(f"{key} holds for the whole cluster", "set it on a core, for all nodes")

    @property
    def _is_worker(self) -> bool:
        return not self._replicant.config.sources  # its configuration came from the core as a whole

    def _message_log(self) -> DurableLog | None:
        return None
