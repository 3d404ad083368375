"""What an operator sees of the members of a cluster, and how nodes join, leave and are forgotten, on a core."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from braidmq.base.config.addresses import Address
from braidmq.base.config.single_values import check_name
from braidmq.base.errors import Unavailable, UsageError
from braidmq.cluster.administration.core_administration import CoreAdministration
from braidmq.cluster.administration.questions import ANSWER_S, KnownNode, NodeQuestions, Silence
from braidmq.cluster.administration.several_status import addresses_of
from braidmq.cluster.cores.core_calls import CoreCalls
from braidmq.cluster.home.node_peer import PeerView
from braidmq.cluster.protocol.roles import CORE, REPLICANT
from braidmq.control.cluster import ClusterStatus, CoreInfo, DrainRequest, DrainStatus, JoinPlan, MemberInfo, ShardLeader
from braidmq.control.contract import Status
from braidmq.operations.node import NodeOperations, RunningNode
from braidmq.operations.questions import ClusterQuestions
from braidmq.operations.registry import HomeRegistryView


class RunningCore(RunningNode, Protocol):
    """The core of a cluster, as its operations see it."""

    @property
    def questions(self) -> NodeQuestions: ...
    @property
    def cluster_address(self) -> Address | None: ...
    @property
    def core_calls(self) -> CoreCalls: ...
    @property
    def led_shards(self) -> Collection[int]: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def cluster_version(self) -> int: ...
    @property
    def core_list(self) -> list[CoreInfo]: ...
    def core_of(self, client_id: str) -> str | None:
        """The other core that is the home of a client id; None: this one is."""
        ...

    def node_of(self, client_id: str) -> str | None:
        """The node that has the session of a client id."""
        ...

    @property
    def registry(self) -> HomeRegistryView:
        """Which connections have the client ids that are at home here."""
        ...

    def peer_view(self, name: str) -> PeerView | None:
        """A node's connections, as the core sees them."""
        ...

    @property
    def administration(self) -> CoreAdministration:
        """The settings and bans of the cluster. Raises Unavailable while the core starts."""
        ...

    async def declare_dead(self, name: str, reason: str) -> None:
        """End a node's connections and its membership."""
        ...


class MemberOperations(NodeOperations):
    """Operations on the members of a cluster."""

    def __init__(self, node: RunningCore) -> None:
        super().__init__(node)
        self._core = node
        self._asking = ClusterQuestions(node.questions, node.core_calls)

    async def cluster(self) -> ClusterStatus:
        """The members of the cluster, the core first."""
        statuses = await self._asking.ask_nodes("status", None, Status, ANSWER_S)
        own = self.status()
        figures = self._core.cluster_figures()
        settings = self._core.settings
        core = MemberInfo(
            name=own.node,
            role="core",
            state="serving",
            incarnation=self._core.incarnation,
            address="" if self._core.cluster_address is None else str(self._core.cluster_address),
            clients=own.connections,
            routes=figures.routes_own,
            clock=own.clock,
            alarms=[*filter(None, (own.not_ready, figures.clock_trouble)), *self._setting_alarms(own.node)],
        )
        nodes = self._core.questions.nodes()
        members = [self._member(node, statuses.get(node.name, Silence("it has just joined"))) for node in nodes]
        return ClusterStatus(
            cluster=settings.node.cluster,
            members=[core, *members],
            cores=self._core.core_list,
            version=self._core.cluster_version,
        )

    def _member(self, node: KnownNode, found: Status | Silence) -> MemberInfo:
        view = self._core.peer_view(node.name)
        alarms: list[str] = []
        if isinstance(found, Silence):
            alarms.append(found.reason)
        elif found.not_ready:
            alarms.append(found.not_ready)
        alarms += self._setting_alarms(node.name)
        if view is not None and view.is_lagging:
            alarms.append("it is too slow for messages that are not recorded")
        if view is not None and view.is_behind:
            alarms.append(f"its feed is {view.feed_lag_us / 1e6:.1f} s behind the log")
        is_silent = isinstance(found, Silence)
        return MemberInfo(
            name=node.name,
            role=node.role,
            state="away" if not node.is_connected else "silent" if is_silent else "serving",
            incarnation=node.incarnation,
            address=node.address,
            clients=None if isinstance(found, Silence) else found.connections,
            routes=0 if view is None else view.routes,
            feed="" if view is None else "behind" if view.is_behind else "following" if view.is_feeding else "",
            feed_lag_s=0.0 if view is None else view.feed_lag_us / 1e6,
            rlog="" if view is None else view.rlog_state,
            rlog_lag=0 if view is None else view.rlog_lag,
            rlog_position=0 if view is None else view.rlog_sequence,
            clock=None if isinstance(found, Silence) else found.clock,
            alarms=alarms,
        )

    def _setting_alarms(self, name: str) -> list[str]:
        trouble = self._core.administration.troubles.get(name)
        return [f"it does not use the settings of the cluster: {trouble}"] if trouble else []

    async def forget(self, name: str) -> None:
        """Declare a replicant dead that does not answer. Raises UsageError if it does."""
        node = self._core.questions.find(name)
        if node.role != REPLICANT:
            raise UsageError(f"{name} is a worker", "its core restarts it when its process ends")
        try:
            await self._core.questions.ask(name, "status", b"null")
        except Unavailable:
            await self._core.declare_dead(name, "the operator has declared it dead")
            return
        raise UsageError(f"{name} is connected and answers", "stop it; `braidmq ctl node drain` moves its clients first")

    async def drain(self, request: DrainRequest) -> DrainStatus:
        """Send the clients of a worker or replicant elsewhere. Raises UsageError and Unavailable."""
        if not request.node:
            return await super().drain(request)
        return await self._asking.ask_node(request.node, "drain", request, DrainStatus)

    async def drain_status(self, node: str) -> DrainStatus:
        """How far a drain is. Raises UsageError and Unavailable."""
        return await self._asking.ask_node(node, "drain_status", node, DrainStatus)

    async def shards(self) -> list[ShardLeader]:
        """The shards of the log with their leaders."""
        cores = self._core.core_list
        if not cores:
            name, led = self._core.settings.node.name, self._core.led_shards
            return [ShardLeader(shard=shard, core=name, state="serving", term=0) for shard in sorted(led)]
        found = [
            ShardLeader(shard=shard, core=core.name, state=core.state, term=term)
            for core in cores
            for shard, term in core.terms.items()
        ]
        return sorted(found, key=lambda each: each.shard)

    async def plan_joining(self, name: str, role: str) -> JoinPlan:
        """What a new node has to be configured with. Raises ConfigError for its name, and UsageError if it cannot join."""
        if role == CORE:
            names = [core.name for core in self._core.core_list] or [self._core.settings.node.name]
            raise UsageError(
                f"the cores of this cluster are fixed ({', '.join(names)}), because shards cannot move to other cores yet",
                "join a replicant, or start more workers",
            )
        check_name("node.name", name)
        if self._core.cluster_address is None or not self._core.settings.cluster.rpc_bind:
            raise UsageError("this core accepts no nodes of other machines", "set cluster.rpc_bind, and restart it")
        taken = {core.name for core in self._core.core_list} | {node.name for node in self._core.questions.nodes()}
        if name in taken | {self._core.settings.node.name}:
            raise UsageError(f"there is a node {name!r} already", "give the new node another name")
        settings = self._core.settings.cluster
        return JoinPlan(
            name=name,
            cluster=self._core.settings.node.cluster,
            core_nodes=addresses_of(self._core.core_list, str(self._core.cluster_address)),
            needs_secret=bool(settings.secret),
            needs_certificate=bool(settings.cert_file),
        )

    async def leave(self, request: DrainRequest) -> DrainStatus:
        """Begin to let a replicant leave: its clients are sent elsewhere; `finish_leaving` follows. Raises UsageError."""
        self._check_leaving(request.node)
        return await self.drain(request)

    async def finish_leaving(self, name: str) -> None:
        """End the process of a replicant that is drained, and its membership. Raises UsageError and Unavailable."""
        self._check_leaving(name)
        await self._asking.ask_node(name, "leave", None, object)
        await self._core.declare_dead(name, "it has left the cluster")

    def _check_leaving(self, name: str) -> None:
        led = {core.name: sorted(core.terms) for core in self._core.core_list}
        led.setdefault(self._core.settings.node.name, sorted(self._core.led_shards))
        if name in led:
            shards = ", ".join(map(str, led[name]))
            raise UsageError(
                f"{name} is a core and leads shard {shards}, which cannot move to another core yet",
                "stop it, if the cluster can do without these shards for a while",
            )
        if self._core.questions.find(name).role != REPLICANT:
            raise UsageError(f"{name} is a worker", "start its core with fewer workers; `ctl node drain` moves its clients")
