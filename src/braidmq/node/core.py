"""A core: the node that has the log. Alone it is a whole broker; with workers or replicants it also serves theirs."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from braidmq.access.local import LocalAccess
from braidmq.api.registration import EndpointRegistration, registration_routes
from braidmq.api.server import ApiServer
from braidmq.base.config import sources
from braidmq.base.config.addresses import Address
from braidmq.base.config.settings import Settings
from braidmq.base.config.sources import DEFAULT, Config, describe_changes, from_settings
from braidmq.base.config.transfer import encode_config
from braidmq.base.errors import ConfigError, Unavailable, UsageError
from braidmq.base.file_descriptors import FilePlan
from braidmq.base.listening.sockets import PortSharing
from braidmq.broker.bounds.loop_watch import LoopWatch
from braidmq.broker.broker import Broker
from braidmq.broker.listeners.listener_set import ListenerSet
from braidmq.broker.messages import hooks
from braidmq.broker.ports import Storage
from braidmq.broker.session.ports import NodePorts
from braidmq.cluster.administration.core_administration import CoreAdministration
from braidmq.cluster.administration.figures import ClusterFigures, CoreFigures
from braidmq.cluster.administration.questions import NodeQuestions
from braidmq.cluster.administration.several_status import addresses_of, describe_cores
from braidmq.cluster.cores.core_calls import CoreCalls
from braidmq.cluster.cores.core_side import CoreSide
from braidmq.cluster.cores.several_cores import SeveralCores
from braidmq.cluster.home.home import Home
from braidmq.cluster.home.node_peer import PeerView
from braidmq.cluster.home.sessions.held_time import HeldTime
from braidmq.cluster.membership.led_shards import LedShards
from braidmq.cluster.membership.member import Member
from braidmq.cluster.rlog.agent import AgentPace
from braidmq.cluster.workers.worker_settings import share_of, worker_name, worker_settings
from braidmq.cluster.workers.workers import Workers
from braidmq.control.cluster import CoreInfo
from braidmq.history.node_side.cluster_reads import ClusterReads, address_of_readers
from braidmq.history.node_side.supervisor import HistoryService
from braidmq.node.process import make_data_dir, report_death, warn_if_slow
from braidmq.node.serving import ServingNode
from braidmq.operations import CoreAnswers, CoreOperations, NodeOperations
from braidmq.operations.configuration import compose
from braidmq.operations.registry import HomeRegistryView, RegistryRelay
from braidmq.storage.engine.health import HEALTHY, Health
from braidmq.storage.engine.mark import mark_path
from braidmq.storage.engine.rocksdb import Tuning
from braidmq.storage.log import DurableLog, LogOptions
from braidmq.storage.reading.positions import parse_start
from braidmq.storage.rows.delayed import LogDelayed
from braidmq.storage.rows.groups import LogGroups
from braidmq.storage.rows.producers import LogProducers
from braidmq.storage.rows.retained import LogRetained
from braidmq.storage.rows.sessions import LogSessions
from braidmq.storage.upkeep.backup import remove_leftovers
from braidmq.storage.upkeep.watchdog import Watchdog

log = logging.getLogger("braidmq.node")


_SECRET_BYTES = 32


class WorkerPlan(msgspec.Struct, frozen=True):
    """How many workers a core starts, and whether it also accepts clients itself."""

    count: int
    core_listens: bool = True

    @property
    def processes(self) -> int:
        """The processes that serve clients."""
        return self.count + self.core_listens


class Node(ServingNode):
    """One core. ``start`` returns when it serves; ``stop`` when everything is closed."""

    def __init__(self, config: Config | Settings, workers: WorkerPlan | None = None) -> None:
        super().__init__(config if isinstance(config, Config) else from_settings(config))
        self._plan = workers or WorkerPlan(0)
        if self.settings.cluster.store == "etcd":
            # One of several cores serves no clients itself: its workers do, as nodes of the whole cluster.
            self._plan = WorkerPlan(max(self._plan.count, 1), core_listens=False)
        self._log: DurableLog | None = None
        self._care: Watchdog | None = None
        self._history: HistoryService | None = None
        self._several: SeveralCores | None = None
        self._core_side: CoreSide | None = None
        self._home: Home | None = None
        self._held_time: HeldTime | None = None
        self._operations: CoreOperations | None = None
        self._administration: CoreAdministration | None = None
        self._answers: CoreAnswers | None = None
        self._worker_secret = b""
        self._workers: Workers | None = None

    async def start(self) -> None:
        """Start everything, or raise ``ConfigError`` and leave nothing behind."""
        settings = self.settings
        data_dir = Path(settings.node.data_dir)
        await asyncio.to_thread(make_data_dir, data_dir)
        warn_if_slow()
        for note in self.config.notes:
            log.info("%s", note)
        files = self._rooms.furnish()
        try:
            await self._start(settings, data_dir, files)
        except BaseException:
            await self.stop()
            raise

    async def _start(self, settings: Settings, data_dir: Path, files: FilePlan) -> None:
        log_id = b""
        if settings.cluster.store == "etcd":
            self._several = several = await self._open_cluster(settings, data_dir)
            await self._take_settings(await several.read_settings())
            self.settings = settings = several.settings_for(self.settings)
            log_id = several.map.log_id
        self._access = access = await asyncio.to_thread(LocalAccess, settings)
        options = LogOptions(tuning=Tuning(open_files_max=files.tables))
        self._log = message_log = await asyncio.to_thread(
            DurableLog.open, data_dir, settings.history, options=options, log_id=log_id
        )
        await asyncio.to_thread(remove_leftovers, data_dir)
        message_log.start(asyncio.get_running_loop().call_soon_threadsafe)
        storage = Storage(
            message_log,
            LogSessions(message_log),
            LogRetained(message_log, None if self._several is None else self._several.map.led_by(settings.node.name)),
            LogDelayed(message_log),
            LogGroups(message_log, None if self._several is None else self._several.map.led_by(settings.node.name)),
            parse_start,
            LogProducers(message_log),
        )
        loaded = hooks.load(settings.hooks.load, settings.limits.connect_timeout)
        ports = await self._join_cluster(settings, data_dir, message_log)
        self._broker = broker = Broker(share_of(settings, self._plan.processes), access, loaded, storage, ports=ports)
        broker.restore(decides=self._home is None or self._home.is_ready)
        self._watch = LoopWatch(broker.timers)
        self._watch.start()
        found = message_log.stats()
        log.info("the log in %s has %d records and %d durable sessions", data_dir / "log", found.records, broker.sessions.durable)
        self._care = Watchdog(message_log, relearns=settings.history.relearn, on_slow=broker.turn_writer.note_slow)
        self._care.start()
        access.on_change = broker.enforce_access
        self._watcher = asyncio.get_running_loop().create_task(access.watch())
        self._watcher.add_done_callback(report_death)
        self._listeners = ListenerSet(
            settings,
            broker.make_connection,
            admit=broker.admit,
            on_refused=broker.statistics.on_refused,
            room=self.client_room,
            sharing=PortSharing.FIRST if self._plan.count else PortSharing.NONE,
            accepts=self._plan.core_listens,
        )
        # The API comes first: its socket in the data directory keeps a second node out.
        operations = NodeOperations(self) if self._core_side is None else self._answer_cores()
        self._api = ApiServer(
            operations,
            bind=settings.api.bind,
            data_dir=data_dir,
            hosts=settings.api.hosts,
            room=self.api_room,
            control_room=self.control_room,
            registration=registration_routes(self._register_endpoint, settings.cluster.secret),
        )
        await self._api.start()
        await self._listeners.start()
        self._start_history(settings, data_dir, message_log, access)
        await self._start_cluster(broker)
        broker.sys_topics.start()
        if self.cluster_address is not None:
            log.info("replicants reach this core on %s", self.cluster_address)
        for name, (host, port) in self.addresses.items():
            log.info("%s listens on %s", name, Address(host, port))

    async def _open_cluster(self, settings: Settings, data_dir: Path) -> SeveralCores:
        is_default = self.config.origins.get("history.shards", DEFAULT) == DEFAULT
        has_log = await asyncio.to_thread(mark_path(data_dir / "log").exists)
        return await SeveralCores.open(
            settings, data_dir, shards=None if is_default else settings.history.shards, has_log=has_log
        )

    async def _take_settings(self, shared: Mapping[str, object]) -> None:
        """Start with the settings that the cluster has now. Raises ConfigError if they do not fit this node's file."""
        data_dir = self.settings.node.data_dir
        overrides = compose(await asyncio.to_thread(sources.read_overrides, data_dir), shared)
        self.config = self.config.with_overrides(overrides)
        self.settings = self.config.settings
        await asyncio.to_thread(sources.write_overrides, data_dir, overrides)

    async def _join_cluster(self, settings: Settings, data_dir: Path, message_log: DurableLog) -> NodePorts:
        """Become a member of the cluster, if there is one; what the broker shares with the other members."""
        if not self._plan.count and not settings.cluster.rpc_bind:
            return NodePorts()
        self._worker_secret = secrets.token_bytes(_SECRET_BYTES) if self._plan.count else b""
        self._core_side = side = CoreSide(settings, data_dir, message_log, self._worker_secret, self._several)
        await side.start()
        cluster = settings.cluster
        pace = AgentPace(switchover_entries_max=cluster.switchover_entries_max)
        local = Member(settings.node.name, side.incarnation)
        led = None
        if self._several is not None:
            led = LedShards(local.name, self._several.map.leader_names, self._several.term_numbers)
        wait_s, deadline_s, clock, told = settings.registry.wait, cluster.home_wait, side.time.clock, (side.expected, side.ended)
        self._home = Home(local, wait_s, pace, message_log, *told, led, claim_deadline_s=deadline_s, version_clock=clock)
        return msgspec.structs.replace(self._home.ports, claim_gate=side.time.watch.refusal)

    def _answer_cores(self) -> CoreOperations:
        """The operations of a core; from now on it answers the other ones, for its own part."""
        operations = self._operations = CoreOperations(self)
        self._answers = CoreAnswers(NodeOperations(self), operations)
        self._answers.serve(self.core_calls)
        operations.serve_history()
        self.questions.answer = RegistryRelay(operations).answer
        return operations

    async def _start_cluster(self, broker: Broker) -> None:
        """Accept other nodes, and start this core's own workers."""
        if self._core_side is None or self._home is None:
            return
        self._home.serve(broker)
        self._home.remove_marks_except(self._core_side.expected_ids)
        assert self._access is not None
        assert self._operations is not None
        side, use_settings = self._core_side, self._operations.use_settings
        self._administration = await CoreAdministration.open(self.settings.node, side, self._access, use_settings)
        self._held_time = held = HeldTime(broker, self.settings.cluster.lease, broker.loop)
        self._core_side.when_alone, self._core_side.when_back = held.hold, held.resume
        self._core_side.time.start(self._home.core_calls)
        await self._core_side.accept(self._home, self._home)
        if self._plan.count:
            socket_path = str(self._core_side.socket_path)
            self._workers = Workers(
                self._plan.count, self._worker_config, socket_path, self._worker_secret, self._on_worker_ended
            )
            await self._workers.start()
            log.info("%d workers are ready", self._plan.count)
        self._administration.start()

    async def _register_endpoint(self, endpoint: str) -> EndpointRegistration:
        if self._core_side is None or self.cluster_address is None:
            raise UsageError("this node accepts no other nodes", "set cluster.rpc_bind")
        number = await self._core_side.members.register_endpoint(endpoint)
        return EndpointRegistration(number, addresses_of(self.core_list, str(self.cluster_address)))

    def _on_worker_ended(self, number: int) -> None:
        if self._core_side is not None:
            self._core_side.note_worker_ended(worker_name(self.settings.node.name, number))

    def _worker_config(self, number: int) -> bytes:
        run_dir = (Path(self.settings.node.data_dir) / "workers" / f"w{number}").absolute()
        settings = worker_settings(self.settings, number, run_dir, self.addresses, self._plan.processes)
        return encode_config(msgspec.structs.replace(self.config, settings=settings))

    def _start_history(self, settings: Settings, data_dir: Path, message_log: DurableLog, access: LocalAccess) -> None:
        if not settings.history.bind:
            return
        if not HistoryService.is_possible():
            if self.config.origins.get("history.bind", DEFAULT) != DEFAULT:
                raise ConfigError("history.bind", "the history service needs pyarrow", "pip install 'braidmq[history]'")
            log.info("the history service is disabled: it needs pyarrow (pip install 'braidmq[history]')")
            return
        self._history = HistoryService(settings, data_dir, message_log, access, self._cluster_reads(settings))
        self._history.start()

    def _cluster_reads(self, settings: Settings) -> ClusterReads | None:
        if self._several is None or self._home is None:
            return None
        leaders, address = self._several.map.leader_names, address_of_readers(settings)
        return ClusterReads(settings.node.name, leaders, self._home.core_calls, address)

    async def wait_ended(self) -> str:
        """Wait until this node must be stopped: only if the other cores have declared it dead. The reason."""
        if self._core_side is None:
            await asyncio.Event().wait()
            return ""
        return await asyncio.shield(self._core_side.declared_dead)

    async def stop(self) -> None:
        """Stop accepting, disconnect the clients, close everything."""
        if self._watch is not None:
            self._watch.stop()
        if self._listeners is not None:
            self._listeners.stop_accepting()
        if self._broker is not None:
            self._broker.sys_topics.stop()
        if self._workers is not None:
            await self._workers.stop()  # while this core can still take what their clients leave behind
        if self._answers is not None:
            self._answers.traces.close()
        if self._administration is not None:
            self._administration.stop()
        if self._held_time is not None:
            self._held_time.close()
        if self._core_side is not None:
            await self._core_side.stop()
        if self._history is not None:
            await self._history.stop()
        if self._broker is not None:
            await self._broker.stop()
        if self._home is not None:
            self._home.close()
        if self._api is not None:
            await self._api.stop()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._care is not None:
            self._care.stop()
        if self._log is not None:
            self._log.close()  # on this thread, which is the log's
            self._log = None
        if self._several is not None:
            await self._several.close()
            self._several = None
        if self._access is not None:
            await self._access.close()

    async def reload(self, config: Config) -> list[str]:
        """Apply a changed configuration and changed files; clients still allowed stay. Returns the keys that need a restart."""
        if self._several is not None:
            config = msgspec.structs.replace(config, settings=self._several.settings_for(config.settings))
        changes = describe_changes(self.settings, config.settings)
        self.config, self.settings = config, config.settings
        if self._access is not None:
            await self._access.reload(config.settings)
        if self._listeners is not None:
            await self._listeners.reconfigure(config.settings)
        if self._history is not None:
            await self._history.reload(config.settings.history)
        self.broker.reconfigure(share_of(config.settings, self._plan.processes))
        self.broker.sys_topics.reconfigure()
        if self._workers is not None:
            await self._workers.reload()
        if self._core_side is not None:
            await self._core_side.mode.use(config.settings.registry.mode)
        return changes.restart

    @property
    def cluster_address(self) -> Address | None:
        """Where replicants reach this core."""
        return self._core_side.address if self._core_side is not None else None

    # For its operations, if other nodes may join

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
    def cluster_version(self) -> int:
        """The version of rows and messages that all members understand."""
        return self._cluster()[0].view.version

    @property
    def core_list(self) -> list[CoreInfo]:
        """All cores, if there are several."""
        return [] if self._several is None or self._core_side is None else describe_cores(self._several, self._core_side)

    def core_of(self, name: str) -> str | None:
        """The other core that is the home of a client id or topic; None: this one is."""
        return self._cluster()[1].core_of(name)

    def node_of(self, client_id: str) -> str | None:
        """The node that has the session of a client id."""
        return self._cluster()[1].sessions.node_of(client_id)

    @property
    def registry(self) -> HomeRegistryView:
        """Which connections have the client ids that are at home here."""
        return HomeRegistryView(self._cluster()[1])

    def peer_view(self, name: str) -> PeerView | None:
        """A node's connections, as the core sees them."""
        peer = self._cluster()[1].find(name)
        return None if peer is None else peer.view()

    @property
    def administration(self) -> CoreAdministration:
        """The settings and bans of the cluster. Raises Unavailable while the core starts."""
        if self._administration is None:
            raise Unavailable("this core is starting", 1.0)
        return self._administration

    async def declare_dead(self, name: str, reason: str) -> None:
        """End a node's connections and its membership."""
        await self._cluster()[0].declare_dead(name, reason)

    def _cluster(self) -> tuple[CoreSide, Home]:
        assert self._core_side is not None, "other nodes cannot join this one"
        assert self._home is not None
        return self._core_side, self._home

    @property
    def history_bind(self) -> str:
        """The address of the history service, as configured; empty without a service."""
        return self.settings.history.bind if self._history is not None else ""

    @property
    def workers(self) -> Workers | None:
        """The workers, if there are any."""
        return self._workers

    @property
    def log(self) -> DurableLog:
        """The durable log, once started."""
        assert self._log is not None, "the node is not started"
        return self._log

    @property
    def history(self) -> HistoryService | None:
        """The history service, if there is one."""
        return self._history

    @property
    def log_health(self) -> Health:
        """The health of the log at its last check."""
        return self._care.health if self._care is not None else HEALTHY
