"""A replicant: a node without a database, whose broker works on its core's."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

import msgspec

from braidmq.access.local import LocalAccess
from braidmq.api.server import ApiServer
from braidmq.base.config.addresses import Address
from braidmq.base.config.settings import Settings
from braidmq.base.config.sources import Config, describe_changes
from braidmq.base.errors import UsageError
from braidmq.base.listening.sockets import PortSharing
from braidmq.broker.bounds.loop_watch import LoopWatch
from braidmq.broker.broker import Broker
from braidmq.broker.listeners.listener_set import ListenerSet
from braidmq.broker.messages import hooks
from braidmq.cluster.administration.figures import ClusterFigures, ReplicantFigures
from braidmq.cluster.administration.shared_bans import ReceivedBans
from braidmq.cluster.administration.shared_settings import ReceivedSettings
from braidmq.cluster.remote.replicant_side import ReplicantSide
from braidmq.cluster.workers.workers import Workers
from braidmq.history.node_side.supervisor import HistoryService
from braidmq.node.process import make_data_dir, report_death, warn_if_slow
from braidmq.node.serving import ServingNode
from braidmq.operations import Drain, NodeAnswers, ReplicantOperations
from braidmq.storage.engine.health import HEALTHY, Health
from braidmq.storage.log import DurableLog

log = logging.getLogger("braidmq.node")

_SETTINGS_S: Final = 5.0


class Replicant(ServingNode):
    """One replicant. ``start`` returns when it has joined its core; ``stop`` when everything is closed."""

    def __init__(self, config: Config, side: ReplicantSide, sharing: PortSharing = PortSharing.NONE) -> None:
        """``sharing``: ``JOIN`` for a worker, which listens on its core's ports."""
        super().__init__(config)
        self._side = side
        self._sharing = sharing
        self._drain: Drain | None = None
        self._answers: NodeAnswers | None = None
        self._left = asyncio.Event()
        self.mode_trouble = ""  # why the mode of the registry is not the one that is set

    @property
    def cluster_address(self) -> Address | None:
        """Where other nodes reach this one: nowhere."""
        return None

    @property
    def history_bind(self) -> str:
        """The address of the history service: none."""
        return ""

    async def start(self) -> None:
        """Start everything, or raise ``ConfigError`` and leave nothing behind."""
        await asyncio.to_thread(make_data_dir, Path(self.settings.node.data_dir))
        warn_if_slow()
        for note in self.config.notes:
            log.info("%s", note)
        self._rooms.furnish()
        try:
            await self._side.start()
            await self._serve(self.settings)
        except BaseException:
            await self.stop()
            raise

    async def _serve(self, settings: Settings) -> None:
        self._access = access = await asyncio.to_thread(LocalAccess, settings)
        loaded = hooks.load(settings.hooks.load, settings.limits.connect_timeout)
        link = self._side.link
        ports = msgspec.structs.replace(link.ports, claim_gate=self._side.time.refusal)
        self._broker = broker = Broker(settings, access, loaded, link.storage, ports=ports)
        self._watch = LoopWatch(broker.timers)
        self._watch.start()
        access.on_change = broker.enforce_access
        self._watcher = asyncio.get_running_loop().create_task(access.watch())
        self._watcher.add_done_callback(report_death)
        self._listeners = ListenerSet(
            settings,
            broker.make_connection,
            admit=broker.admit,
            on_refused=broker.statistics.on_refused,
            room=self._rooms.clients,
            sharing=self._sharing,
        )
        # The API comes first: its socket in the run directory keeps a second node out.
        self._drain = Drain(broker, self._listeners.stop_accepting)
        operations = ReplicantOperations(self)
        bans, shared = ReceivedBans(access.bans, broker.enforce_access), ReceivedSettings(operations.use_settings)
        self._answers = NodeAnswers(operations, bans.take, shared.take)
        self._side.answer = self._answers.answer
        self._api = ApiServer(
            operations,
            bind=settings.api.bind,
            data_dir=Path(settings.node.data_dir),
            hosts=settings.api.hosts,
            room=self.api_room,
            control_room=self.control_room,
        )
        await self._api.start()
        await self._side.serve(broker)
        if self.config.sources and not await shared.wait(_SETTINGS_S):  # a worker has them from its core already
            log.warning("no core has said within %g s which settings the cluster has; those of the last start hold", _SETTINGS_S)
        await self._listeners.start()
        broker.sys_topics.start()
        for name, (host, port) in self.addresses.items():
            log.info("%s listens on %s", name, Address(host, port))

    async def wait_ended(self) -> str:
        """Wait until the core no longer takes this node for a member: it must be stopped. The reason; nothing if it has left."""
        refused, left = asyncio.ensure_future(self._side.wait_ended()), asyncio.ensure_future(self._left.wait())
        try:
            await asyncio.wait({refused, left}, return_when=asyncio.FIRST_COMPLETED)
            return "" if self._left.is_set() else refused.result()
        finally:
            refused.cancel()
            left.cancel()

    def leave(self) -> None:
        """End, in order: its operator has taken it out of the cluster."""
        log.info("this node leaves its cluster")
        asyncio.get_running_loop().call_soon(self._left.set)  # behind the answer to the core

    async def stop(self) -> None:
        """Stop accepting, disconnect the clients, leave the core."""
        if self._watch is not None:
            self._watch.stop()
        if self._answers is not None:
            self._answers.traces.close()
        if self._drain is not None:
            self._drain.stop()
        if self._listeners is not None:
            self._listeners.stop_accepting()
        if self._broker is not None:
            self._broker.sys_topics.stop()
            await self._broker.stop()
        if self._api is not None:
            await self._api.stop()
        await self._side.stop()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._access is not None:
            await self._access.close()

    async def reload(self, config: Config) -> list[str]:
        """Apply a changed configuration and changed files; clients still allowed stay. Returns the keys that need a restart."""
        changes = describe_changes(self.settings, config.settings)
        self.config = config
        self.settings = config.settings
        if self._access is not None:
            await self._access.reload(config.settings)
        if self._listeners is not None:
            await self._listeners.reconfigure(config.settings)
        if self._broker is not None:
            self._broker.reconfigure(config.settings)
            self._broker.sys_topics.reconfigure()
            self.mode_trouble = await self._side.use_mode(config.settings.registry.mode)
            if self.mode_trouble:
                log.warning("registry.mode: %s", self.mode_trouble)
        return changes.restart

    # For its operations

    @property
    def log(self) -> DurableLog:
        """Raises UsageError: a replicant has none."""
        raise UsageError("this node is a replicant and has no log", "ask its core")

    @property
    def log_health(self) -> Health:
        """That of a log that is not there."""
        return HEALTHY

    @property
    def history(self) -> HistoryService | None:
        """The history service: none."""
        return None

    def cluster_figures(self) -> ClusterFigures:
        """What the metrics say about the cluster, now."""
        return ReplicantFigures(self._side.link, self._side.time)

    @property
    def answers(self) -> NodeAnswers:
        """What the core asks for its operator, once it serves."""
        assert self._answers is not None, "the node does not serve clients"
        return self._answers

    @property
    def drain(self) -> Drain:
        """Empties the node, once it serves."""
        assert self._drain is not None, "the node does not serve clients"
        return self._drain

    async def ask_core(self, operation: str, arguments: bytes, timeout_s: float) -> bytes:
        """Ask one of the cores something for this node's operator. Raises UsageError and Unavailable."""
        return await self._side.ask_core(operation, arguments, timeout_s)

    @property
    def cluster_trouble(self) -> str:
        """Why it cannot work on its core's data now; empty if it can."""
        return self._side.state

    @property
    def workers(self) -> Workers | None:
        """The workers: none."""
        return None
