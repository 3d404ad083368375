"""What an operator sees and does on a running node: implements the ``Operations`` of the API with the broker.

Operations on the log and on the configuration are in modules of their own beside this one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from time import monotonic, time
from typing import Final, Protocol, cast

from braidmq import __version__
from braidmq.access.bans import Ban
from braidmq.access.local import LocalAccess
from braidmq.base import logs
from braidmq.base.config.addresses import Address
from braidmq.base.errors import ProtocolViolation, UsageError
from braidmq.base.file_descriptors import Room
from braidmq.broker.broker import Broker
from braidmq.broker.listeners.listener_set import ListenerSet
from braidmq.cluster.administration.figures import ClusterFigures
from braidmq.cluster.workers.workers import Workers
from braidmq.control.cluster import ClusterMetrics, ClusterStatus, DrainRequest, DrainStatus, JoinPlan, ShardLeader
from braidmq.control.contract import (
    BanInfo,
    BanKind,
    ClientDetail,
    ClientInfo,
    ConfValue,
    ListenerStatus,
    LogLevel,
    Page,
    PageRequest,
    RetainedInfo,
    SessionDetail,
    SessionInfo,
    Status,
    SubscriptionInfo,
    TopicInfo,
    TraceKind,
)
from braidmq.control.registry import RegistryEntry, RegistryReport, SweepReport
from braidmq.history.node_side.supervisor import HistoryService
from braidmq.metrics import Figures
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.topics import check_filter
from braidmq.operations.configuration import ConfiguredNode, NodeConfiguration
from braidmq.operations.descriptions import BETWEEN, client_info, join_names, subscription_info, wall
from braidmq.operations.history import NodeHistory, RecordingNode
from braidmq.operations.pages import page_of
from braidmq.operations.sessions import (
    BacklogRequest,
    CoreBacklog,
    NodeSession,
    NodeSessionDetail,
    list_sessions,
    measure_backlogs,
    node_session,
    node_sessions,
    search_backlog,
    show_session,
)
from braidmq.storage.engine.health import HealthState
from braidmq.storage.log import DurableLog

_DETAIL_SUBSCRIPTIONS = 100
FROM = " from "  # joins a user or client and the address of a ban that names both

_NO_REGISTRY: Final = "this node is in no cluster, so it has no registry"


class RunningNode(RecordingNode, ConfiguredNode, Protocol):
    """The node, as its operations see it."""

    @property
    def broker(self) -> Broker: ...
    @property
    def listeners(self) -> ListenerSet: ...
    @property
    def access(self) -> LocalAccess: ...
    @property
    def history(self) -> HistoryService | None: ...
    @property
    def client_room(self) -> Room: ...
    @property
    def api_room(self) -> Room: ...
    @property
    def control_room(self) -> Room: ...
    @property
    def workers(self) -> Workers | None: ...
    def cluster_figures(self) -> ClusterFigures:
        """What the metrics say about the cluster, now."""
        ...


class NodeOperations:
    """Everything runs on the node's event loop; only files are read and written in threads."""

    def __init__(self, node: RunningNode) -> None:
        broker = node.broker
        self._node = node
        self._sessions = broker.sessions
        self._subscriptions = broker.subscriptions
        self._lifecycle = broker.lifecycle
        self._retained = broker.retained
        self._pipeline = broker.pipeline
        self._lane = broker.lane
        self._tracer = broker.tracer
        self._statistics = broker.statistics
        self._started_at = broker.started_at
        self._configuration = NodeConfiguration(node)
        self.history = NodeHistory(node)

    def status(self) -> Status:
        """The current state of the node."""
        listeners = self._listeners()
        figures = self._node.cluster_figures()
        missing = [f"{each.kind}:{each.name}" for each in listeners if not each.running and self._is_enabled(each)]
        return Status(
            node=self._node.settings.node.name,
            version=__version__,
            uptime_s=round(monotonic() - self._started_at, 3),
            listeners=listeners,
            connections=self._statistics.live,
            sessions=len(self._sessions),
            subscriptions=self._subscriptions.count() - figures.held_routes,
            retained=len(self._retained),
            not_ready=f"listeners not ready: {', '.join(missing)}" if missing else self._log_trouble(),
            clock=figures.clock,
        )

    def _log_trouble(self) -> str:
        health = self._node.log_health
        return f"the log accepts no messages: {health.reason}" if health.state is HealthState.STOPPED else ""

    def metrics(self) -> dict[str, float]:
        """Every counter and gauge by its stem."""
        node = self._node
        return Figures(
            node.broker,
            node.access,
            node.listeners,
            self._message_log(),
            node.log_health,
            node.history,
            node.client_room,
            node.api_room,
            node.control_room,
            node.workers,
            node.cluster_figures(),
        ).collect()

    async def overview(self) -> Status:
        """The current state of the node and of its workers and replicants."""
        return self.status()

    async def all_metrics(self) -> ClusterMetrics:
        """The metrics of the node, and of its workers and replicants."""
        return ClusterMetrics(self.metrics())

    async def cluster(self) -> ClusterStatus:
        """The members of the cluster. Raises UsageError unless this node is the core of one."""
        raise UsageError("this node is not the core of a cluster", "set cluster.rpc_bind, or start it with --workers")

    async def forget(self, name: str) -> None:
        """Declare a node dead that does not answer. Raises UsageError."""
        await self.cluster()

    async def shards(self) -> list[ShardLeader]:
        """The shards of the log with their leaders. Raises UsageError."""
        await self.cluster()
        return []

    async def plan_joining(self, name: str, role: str) -> JoinPlan:
        """What a new node has to be configured with. Raises UsageError."""
        await self.cluster()
        raise AssertionError("a node without others has no cluster")

    async def leave(self, request: DrainRequest) -> DrainStatus:
        """Begin to let a replicant leave. Raises UsageError."""
        await self.cluster()
        return await self.drain(request)

    async def finish_leaving(self, name: str) -> None:
        """End a replicant that is drained. Raises UsageError."""
        await self.cluster()

    def _message_log(self) -> DurableLog | None:
        return self._node.log

    # Clients

    async def drain(self, request: DrainRequest) -> DrainStatus:
        """Send the clients of a worker or replicant elsewhere. Raises UsageError."""
        raise UsageError("this node is not a worker or replicant", "name one of the nodes that `ctl cluster status` lists")

    async def drain_status(self, node: str) -> DrainStatus:
        """How far a drain is. Raises UsageError."""
        return await self.drain(DrainRequest(node=node))

    async def clients(self, page: PageRequest) -> Page[ClientInfo]:
        """Sessions in the order of their client ids."""
        sessions = self._sessions
        names, cursor = await page_of([session.client_id for session in sessions], page)
        found = (sessions.get(name) for name in names)
        return Page([client_info(session) for session in found if session is not None], cursor)

    async def client(self, client_id: str) -> ClientDetail | None:
        """One client, or None if there is no such session."""
        session = self._sessions.get(client_id)
        if session is None:
            return None
        connection = session.connection
        written = sorted(session.subscriptions)[:_DETAIL_SUBSCRIPTIONS]
        return ClientDetail(
            client=client_info(session),
            subscriptions=[subscription_info(client_id, each, session.subscriptions[each]) for each in written],
            will_topic=session.will.topic if session.will is not None else None,
            messages_received=connection.messages_received if connection is not None else 0,
            messages_sent=connection.messages_sent if connection is not None else 0,
            messages_dropped=session.flow.dropped,
            bytes_received=connection.bytes_received if connection is not None else 0,
            bytes_sent=connection.bytes_sent if connection is not None else 0,
        )

    async def kick(self, client_id: str) -> bool:
        """Close the client's connection (0x98) and end its session; False if there is none."""
        session = self._sessions.get(client_id)
        if session is None:
            return False
        if session.connection is not None:
            self._statistics.kicked += 1
            session.expiry_s = 0  # wherever it waits, it ends with its connection
            session.connection.close(Reason.ADMINISTRATIVE_ACTION, "closed by the operator")
        if self._sessions.get(client_id) is session:  # it did not end with its connection
            self._lifecycle.end(session)
        self._lane.flush()
        return True

    async def registry_show(self, client_id: str) -> RegistryEntry | None:
        """Raises UsageError: a node that is alone has no registry."""
        raise UsageError(_NO_REGISTRY, "use `braidmq ctl clients show`")

    async def registry_stats(self) -> RegistryReport:
        """Raises UsageError, like ``registry_show``."""
        raise UsageError(_NO_REGISTRY, "use `braidmq ctl clients list`")

    async def registry_sweep(self) -> SweepReport:
        """Raises UsageError, like ``registry_show``."""
        raise UsageError(_NO_REGISTRY, "there is nothing to compare")

    async def sessions(self, page: PageRequest) -> Page[SessionInfo]:
        """Sessions in the order of their client ids, with their backlogs."""
        return await list_sessions(self._sessions, self._node.log, page)

    async def session(self, client_id: str) -> SessionDetail | None:
        """One session, or None if there is none."""
        return await show_session(self._sessions, self._node.log, client_id)

    async def node_sessions(self, page: PageRequest) -> Page[NodeSession]:
        """Sessions in the order of their client ids; how far they are behind is known where the log is."""
        return await node_sessions(self._sessions, page)

    async def node_session(self, client_id: str) -> NodeSessionDetail | None:
        """One of them, or None if there is none."""
        return node_session(self._sessions, client_id)

    async def backlogs(self, readers: list[list[int]]) -> list[CoreBacklog]:
        """How far readers at these positions are behind the log."""
        return await measure_backlogs(readers, self._node.log)

    async def backlog(self, reader: BacklogRequest) -> CoreBacklog:
        """How far one is behind, and its oldest waiting message."""
        return await search_backlog(reader, self._node.log)

    async def subscriptions(self, page: PageRequest, client_id: str | None = None) -> Page[SubscriptionInfo]:
        """Subscriptions by client id, then filter, of all clients or of one."""
        sessions = self._sessions
        chosen = list(sessions) if client_id is None else [session for session in (sessions.get(client_id),) if session]
        names = (join_names(session.client_id, written) for session in chosen for written in list(session.subscriptions))
        keys, cursor = await page_of(names, page)
        found: list[SubscriptionInfo] = []
        for key in keys:
            owner, _, written = key.partition(BETWEEN)
            session = sessions.get(owner)
            subscription = session.subscriptions.get(written) if session is not None else None
            if subscription is not None:
                found.append(subscription_info(owner, written, subscription))
        return Page(found, cursor)

    async def topics(self, page: PageRequest) -> Page[TopicInfo]:
        """Topic filters that have subscribers; those of shared subscriptions without their group."""
        chosen = list(self._sessions)
        names = (each.topic_filter.decode() for session in chosen for each in list(session.subscriptions.values()))
        counts, cursor = await page_of(names, page)
        return Page([TopicInfo(topic_filter=name, subscribers=count) for name, count in counts.items()], cursor)

    # Retained messages

    async def retained(self, page: PageRequest) -> Page[RetainedInfo]:
        """Retained messages in the order of their topics."""
        store = self._retained
        names, cursor = await page_of((topic.decode() for topic in list(store.topics())), page)
        found: list[RetainedInfo] = []
        for name in names:
            held = store.get(name.encode())
            if held is not None:
                message = held.message
                expires_at = wall(message.expires_at) if message.expires_at else None
                found.append(
                    RetainedInfo(
                        topic=name,
                        qos=message.qos,
                        payload_bytes=held.payload_bytes,
                        stored_at=held.stored_at,
                        expires_at=expires_at,
                    )
                )
        return Page(found, cursor)

    async def retained_remove(self, topic: str) -> bool:
        """Remove the retained message of a topic; False if there is none."""
        return self._pipeline.forget_retained(topic.encode())

    # Listeners

    async def listeners(self) -> list[ListenerStatus]:
        """Every listener of the node."""
        return self._listeners()

    def _listeners(self) -> list[ListenerStatus]:
        tables = self._node.settings.listeners
        bound = self._node.listeners.addresses()
        infos = self._node.listeners.listeners
        found: list[ListenerStatus] = []
        for kind in ("tcp", "tls", "ws", "wss"):
            for name, settings in getattr(tables, kind).items():
                listener = f"{kind}:{name}"
                running = listener in bound
                found.append(
                    ListenerStatus(
                        kind=kind,
                        name=name,
                        bind=str(Address(*bound[listener])) if running else settings.bind,
                        running=running,
                        connections=infos[listener].live if listener in infos else 0,
                        connections_max=settings.connections_max,
                    )
                )
        return found

    def _is_enabled(self, listener: ListenerStatus) -> bool:
        return bool(getattr(self._node.settings.listeners, listener.kind)[listener.name].enabled)

    # Bans

    async def bans(self, page: PageRequest) -> Page[BanInfo]:
        """Active bans, by kind and value. One that names a user or client *and* an address appears as ``NAME from ADDRESS``."""
        shown = {join_names(ban.kind, ban.value): ban for ban in map(_api_ban, self._node.access.bans.list())}
        names, cursor = await page_of(shown, page)
        return Page([shown[name] for name in names], cursor)

    async def ban_add(self, ban: BanInfo) -> list[str]:
        """Add a ban and close the connections it applies to; replaces a ban of the same kind and value.

        Returns the names of nodes that did not confirm it yet.
        """
        duration_s = None if ban.until is None else ban.until - time()
        await self._node.access.ban(**_names(ban.kind, ban.value), duration_s=duration_s, reason=ban.reason)
        self._lane.flush()
        return []

    async def ban_remove(self, kind: BanKind, value: str) -> bool:
        """Lift a ban, with its value as ``bans`` shows it; False if there is none."""
        access = self._node.access
        name, separator, address = value.rpartition(FROM)
        try:
            if await access.unban(**_names(kind, value)):
                return True
            return bool(separator) and kind != "address" and await access.unban(**_names(kind, name), address=address)
        except UsageError:  # an invalid address was never banned
            return False

    # Configuration

    async def conf_show(self, prefix: str = "") -> list[ConfValue]:
        """The current configuration, or the part of it under a table or key."""
        return self._configuration.show(prefix)

    async def conf_set(self, key: str, text: str) -> ConfValue:
        """Set a value at run time and store it; raises ConfigError, and then nothing has changed."""
        return await self._configuration.set(key, text)

    async def conf_unset(self, key: str) -> ConfValue:
        """Remove a value set by ``conf_set``; returns the resulting value."""
        return await self._configuration.unset(key)

    # Watching

    def trace(self, kind: TraceKind, value: str) -> AsyncIterator[str]:
        """Lines about one client id, or about topics that match a filter, until the iterator is closed."""
        if kind == "topic":
            try:
                check_filter(value)
            except ProtocolViolation as violation:
                raise UsageError(f"{value!r} is not a topic filter", violation.detail) from None
        return self._tracer.follow(kind, value)

    async def log_level(self, level: LogLevel | None = None) -> LogLevel:
        """Set the level of the log until the next start, if one is given; returns the current level."""
        if level is not None:
            logs.set_level(level)
        return cast(LogLevel, logs.level())


def _api_ban(ban: Ban) -> BanInfo:
    kind: BanKind
    if ban.client_id is not None:
        kind, value = "client", ban.client_id
    elif ban.user_name is not None:
        kind, value = "user", ban.user_name
    else:
        kind, value = "address", ban.address or ""
    if kind != "address" and ban.address is not None:
        value = f"{value}{FROM}{ban.address}"
    return BanInfo(kind=kind, value=value, reason=ban.reason, until=ban.until)


def _names(kind: BanKind, value: str) -> dict[str, str]:
    return {{"client": "client_id", "user": "user_name", "address": "address"}[kind]: value}
