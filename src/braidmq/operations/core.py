"""What an operator sees and does on a core: its own clients and those of its workers and replicants.

Sessions without a client are the core's own. Everything else is asked of the nodes, of all at once, and put together here. A node
that does not answer is named in the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from braidmq.base.config.addresses import Address
from braidmq.base.errors import Unavailable, UsageError
from braidmq.cluster.administration.questions import ANSWER_S, KnownNode, NodeQuestions, Silence
from braidmq.cluster.cores.core_side import REPLICANT, WORKER
from braidmq.cluster.home.node_peer import PeerView
from braidmq.control.cluster import ClusterMetrics, ClusterStatus, CoreInfo, DrainRequest, DrainStatus, MemberInfo, NodeMetrics
from braidmq.control.contract import (
    BanInfo,
    ClientDetail,
    ClientInfo,
    NodeSummary,
    Page,
    PageRequest,
    SessionDetail,
    SessionInfo,
    Status,
    SubscriptionInfo,
    TopicInfo,
    TraceKind,
)
from braidmq.operations.answers import NodeSession, NodeSessionDetail, SubscriptionRequest
from braidmq.operations.cluster_trace import follow_all
from braidmq.operations.descriptions import subscription_name
from braidmq.operations.merging import merge_pages
from braidmq.operations.node import NodeOperations, RunningNode
from braidmq.operations.node_traces import TraceRequest
from braidmq.operations.sessions import search_backlog, with_backlog
from braidmq.operations.totals import Totals

_LIST_S: Final = 5.0  # a node with very many clients looks at all of them for a page
_NOTHING: Final = b"null"

Item = TypeVar("Item")
Value = TypeVar("Value")


class RunningCore(RunningNode, Protocol):
    """The core of a cluster, as its operations see it."""

    @property
    def questions(self) -> NodeQuestions: ...
    @property
    def cluster_address(self) -> Address | None: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def core_list(self) -> list[CoreInfo]: ...
    def node_of(self, client_id: str) -> str | None:
        """The node that has the session of a client id."""
        ...

    async def wait_left(self, client_id: str) -> None:
        """Wait until no node has the session of a client id."""
        ...

    def peer_view(self, name: str) -> PeerView | None:
        """A node's connections, as the core sees them."""
        ...

    async def wait_bans_known(self, timeout_s: float) -> list[str]:
        """Wait until all nodes have the operators' bans; the names of those that did not confirm in time."""
        ...

    async def declare_dead(self, name: str) -> None:
        """End a node's connections and its membership."""
        ...


class CoreOperations(NodeOperations):
    """Operations of a core that other nodes may join."""

    def __init__(self, node: RunningCore) -> None:
        super().__init__(node)
        self._core = node
        self._totals = Totals()

    # The cluster

    async def overview(self) -> Status:
        """The current state of the core and of its workers and replicants."""
        own = self.status()
        statuses = await self._ask_all("status", _NOTHING, Status, ANSWER_S)
        nodes: list[NodeSummary] = []
        for node in self._core.questions.nodes():
            found = statuses.get(node.name, Silence("it has just joined"))
            if isinstance(found, Silence):
                nodes.append(NodeSummary(name=node.name, role=node.role, trouble=found.reason))
            else:
                nodes.append(NodeSummary(name=node.name, role=node.role, connections=found.connections, trouble=found.not_ready))
        answers = [each for each in statuses.values() if not isinstance(each, Silence)]
        return replace(
            own,
            connections=own.connections + sum(each.connections for each in answers),
            sessions=own.sessions + sum(each.sessions for each in answers),
            subscriptions=own.subscriptions + sum(each.subscriptions for each in answers),
            nodes=nodes,
        )

    async def all_metrics(self) -> ClusterMetrics:
        """The metrics of the core and its workers together, and of each node alone."""
        known = self._core.questions.nodes()
        answers = await self._ask_all("metrics", _NOTHING, dict[str, float], ANSWER_S)
        values: dict[str, dict[str, float] | None] = {}
        for node in known:
            found = answers.get(node.name)
            values[node.name] = found if isinstance(found, dict) else None
        workers = {(node.name, node.incarnation): values[node.name] for node in known if node.role == WORKER}
        totals = self._totals.add(self.metrics(), workers)
        return ClusterMetrics(totals, [NodeMetrics(node.name, node.role, values[node.name]) for node in known])

    async def cluster(self) -> ClusterStatus:
        """The members of the cluster, the core first."""
        statuses = await self._ask_all("status", _NOTHING, Status, ANSWER_S)
        own = self.status()
        settings = self._core.settings
        core = MemberInfo(
            name=own.node,
            role="core",
            state="serving",
            incarnation=self._core.incarnation,
            address="" if self._core.cluster_address is None else str(self._core.cluster_address),
            clients=own.connections,
            routes=self._core.cluster_figures().routes_own,
            alarms=[own.not_ready] if own.not_ready else [],
        )
        nodes = self._core.questions.nodes()
        members = [self._member(node, statuses.get(node.name, Silence("it has just joined"))) for node in nodes]
        return ClusterStatus(cluster=settings.node.cluster, members=[core, *members], cores=self._core.core_list)

    def _member(self, node: KnownNode, found: Status | Silence) -> MemberInfo:
        view = self._core.peer_view(node.name)
        alarms: list[str] = []
        if isinstance(found, Silence):
            alarms.append(found.reason)
        elif found.not_ready:
            alarms.append(found.not_ready)
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
            alarms=alarms,
        )

    async def forget(self, name: str) -> None:
        """Declare a replicant dead that does not answer. Raises UsageError if it does."""
        node = self._core.questions.find(name)
        if node.role != REPLICANT:
            raise UsageError(f"{name} is a worker", "its core restarts it when its process ends")
        try:
            await self._core.questions.ask(name, "status", _NOTHING)
        except Unavailable:
            await self._core.declare_dead(name)
            return
        raise UsageError(f"{name} is connected and answers", "stop it; `braidmq ctl node drain` moves its clients first")

    async def drain(self, request: DrainRequest) -> DrainStatus:
        """Send the clients of a worker or replicant elsewhere. Raises UsageError and Unavailable."""
        if not request.node:
            return await super().drain(request)
        return await self._ask_drain(request.node, "drain", msgspec.json.encode(request))

    async def drain_status(self, node: str) -> DrainStatus:
        """How far a drain is. Raises UsageError and Unavailable."""
        return await self._ask_drain(node, "drain_status", msgspec.json.encode(node))

    async def _ask_drain(self, node: str, operation: str, arguments: bytes) -> DrainStatus:
        found = _read(await self._core.questions.ask(node, operation, arguments, _LIST_S), DrainStatus)
        if isinstance(found, Silence):
            raise Unavailable(f"{node}: {found.reason}")
        return found

    # Clients

    async def clients(self, page: PageRequest) -> Page[ClientInfo]:
        """Sessions of all nodes in the order of their client ids."""
        own = super().clients(page)
        return await self._list("clients", page, own, page, Page[ClientInfo], lambda each: each.client_id, _newer_client)

    async def client(self, client_id: str) -> ClientDetail | None:
        """One client, wherever it is connected."""
        own = super().client
        found = await own(client_id) or await self._ask_owner(client_id, "client", ClientDetail)
        return found or await self._after_leaving(client_id, own)

    async def kick(self, client_id: str) -> bool:
        """Close the client's connection, wherever it is, and end its session; False if there is none."""
        if await super().kick(client_id):
            return True
        was_connected = await self._ask_owner(client_id, "kick", bool)
        return bool(await self._after_leaving(client_id, super().kick) or was_connected)

    async def sessions(self, page: PageRequest) -> Page[SessionInfo]:
        """Sessions of all nodes in the order of their client ids, with their backlogs."""

        async def own() -> Page[NodeSession]:
            found = await super(CoreOperations, self).sessions(page)
            return Page([NodeSession(each, []) for each in found.items], found.cursor)

        merged = await self._list(
            "sessions", page, own(), page, Page[NodeSession], lambda each: each.info.client_id, _newer_session
        )
        log = self._core.log
        items = [with_backlog(each.info, each.positions, log) if each.positions else each.info for each in merged.items]
        return Page(items, merged.cursor, merged.silent)

    async def session(self, client_id: str) -> SessionDetail | None:
        """One session, wherever its client is."""
        own = await super().session(client_id)
        if own is not None:
            return own
        found = await self._ask_owner(client_id, "session", NodeSessionDetail)
        if found is None:
            return await self._after_leaving(client_id, super().session)
        return await search_backlog(found.detail, found.filters, found.positions, self._core.log)

    async def subscriptions(self, page: PageRequest, client_id: str | None = None) -> Page[SubscriptionInfo]:
        """Subscriptions by client id, then filter, of all clients or of one."""
        own = super().subscriptions(page, client_id)
        request = SubscriptionRequest(page, client_id)
        return await self._list("subscriptions", page, own, request, Page[SubscriptionInfo], subscription_name, _first)

    async def topics(self, page: PageRequest) -> Page[TopicInfo]:
        """Topic filters that have subscribers on any node."""
        own = super().topics(page)
        return await self._list("topics", page, own, page, Page[TopicInfo], lambda each: each.topic_filter, _sum_topics)

    async def ban_add(self, ban: BanInfo) -> list[str]:
        """Add a ban and close the connections it applies to, on all nodes; the names of nodes that did not confirm it yet."""
        await super().ban_add(ban)
        return await self._core.wait_bans_known(ANSWER_S)

    def trace(self, kind: TraceKind, value: str) -> AsyncIterator[str]:
        """Lines of all nodes about one client id, or about topics that match a filter, until the iterator is closed."""
        own = super().trace(kind, value)
        return follow_all(self._core.settings.node.name, own, self._core.questions, TraceRequest(kind, value))

    # Questions

    async def _ask_all(
        self, operation: str, arguments: bytes, type_: type[Value], timeout_s: float
    ) -> dict[str, Value | Silence]:
        answers = await self._core.questions.ask_all(operation, arguments, timeout_s)
        return {name: _read(answer, type_) for name, answer in answers.items()}

    async def _ask_owner(self, client_id: str, operation: str, type_: type[Value]) -> Value | None:
        """Ask the node that has the client's session; None if there is none. Raises Unavailable."""
        name = self._core.node_of(client_id)
        if name is None:
            return None
        answer = await self._core.questions.ask(name, operation, msgspec.json.encode(client_id), _LIST_S)
        found = _read(answer, type_ | None)  # type: ignore[arg-type]
        if isinstance(found, Silence):
            raise Unavailable(f"{name}: {found.reason}")
        return found

    async def _after_leaving(self, client_id: str, work: Callable[[str], Awaitable[Value]]) -> Value:
        """Do something with a session that has just left its node, once it is the core's own. Raises Unavailable."""
        try:
            async with asyncio.timeout(_LIST_S):
                await self._core.wait_left(client_id)
        except TimeoutError:
            raise Unavailable(f"the session of {client_id!r} has not left its node yet") from None
        return await work(client_id)

    async def _list(
        self,
        operation: str,
        page: PageRequest,
        own: Awaitable[Page[Item]],
        arguments: object,
        type_: type[Page[Item]],
        name_of: Callable[[Item], str],
        join: Callable[[Item, Item], Item],
    ) -> Page[Item]:
        mine, answers = await asyncio.gather(own, self._ask_all(operation, msgspec.json.encode(arguments), type_, _LIST_S))
        pages = [mine, *(each for each in answers.values() if not isinstance(each, Silence))]
        silent = {name: each.reason for name, each in answers.items() if isinstance(each, Silence)}
        return replace(merge_pages(page.limit, pages, name_of, join), silent=silent)


def _read(answer: bytes | Silence, type_: type[Value]) -> Value | Silence:
    if isinstance(answer, Silence):
        return answer
    try:
        return msgspec.json.decode(answer, type=type_)
    except msgspec.MsgspecError as problem:
        return Silence(f"its answer cannot be read: {problem}")


def _newer_client(one: ClientInfo, other: ClientInfo) -> ClientInfo:
    """Of a client that moves between two nodes, the connection."""
    return one if one.connected else other


def _newer_session(one: NodeSession, other: NodeSession) -> NodeSession:
    return one if one.info.connected else other


def _first(one: Item, other: Item) -> Item:
    return one


def _sum_topics(one: TopicInfo, other: TopicInfo) -> TopicInfo:
    return replace(one, subscribers=one.subscribers + other.subscribers)
