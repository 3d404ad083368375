"""What an operator sees and does on a core: the clients of all nodes, and the sessions of all cores.

Sessions without a client are with the core that is their home. What this core does not have itself is asked of the nodes and of
the other cores, of all at once, and put together here. A node or core that does not answer is named in the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final, TypeVar

from msgspec.structs import replace

from braidmq.base.config.keys import dotted, find_key, parse_path
from braidmq.base.config.sources import is_shared, parse_override, shared_override
from braidmq.base.errors import Unavailable
from braidmq.cluster.administration.questions import ANSWER_S, Silence
from braidmq.cluster.protocol.roles import CORE, WORKER
from braidmq.control.cluster import ClusterMetrics, NodeMetrics
from braidmq.control.contract import (
    BanInfo,
    ClientDetail,
    ClientInfo,
    ConfValue,
    NodeSummary,
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
from braidmq.control.registry import RegistryEntry, RegistryReport, RegistryStats, SweepReport, SweepResult
from braidmq.operations.answers import SubscriptionRequest
from braidmq.operations.cluster_history import ClusterHistory
from braidmq.operations.cluster_trace import follow_all
from braidmq.operations.descriptions import subscription_name
from braidmq.operations.members import MemberOperations, RunningCore
from braidmq.operations.merging import merge_pages
from braidmq.operations.node_traces import TraceRequest
from braidmq.operations.questions import LIST_S, SWEEP_S, silences
from braidmq.operations.registry import HomeRegistryView
from braidmq.operations.sessions import BacklogRequest, CoreBacklog, NodeSession, NodeSessionDetail, with_backlogs
from braidmq.operations.totals import Totals

_POSITIONS_MAX: Final = 30_000  # in one question, which must fit into a frame: a position has at most 20 digits

Item = TypeVar("Item")
Value = TypeVar("Value")


class CoreOperations(MemberOperations):
    """Operations of a core that other nodes may join."""

    def __init__(self, node: RunningCore) -> None:
        super().__init__(node)
        self._totals = Totals()
        if node.core_calls.cores:
            self.history = ClusterHistory(node, self._asking)

    def serve_history(self) -> None:
        """Answer the other cores about this core's part of the log from now on."""
        if isinstance(self.history, ClusterHistory):
            self.history.serve()

    # The cluster

    async def overview(self) -> Status:
        """The current state of the core, of its workers and replicants, and of the other cores."""
        own = self.status()
        statuses, cores = await asyncio.gather(
            self._asking.ask_nodes("status", None, Status, ANSWER_S), self._asking.ask_cores("status", None, Status, ANSWER_S)
        )
        known = [(node.name, node.role) for node in self._core.questions.nodes()] + [(name, CORE) for name in cores]
        nodes: list[NodeSummary] = []
        for name, role in known:
            found = (statuses | cores).get(name, Silence("it has just joined"))
            if isinstance(found, Silence):
                nodes.append(NodeSummary(name=name, role=role, trouble=found.reason))
            else:
                nodes.append(NodeSummary(name=name, role=role, connections=found.connections, trouble=found.not_ready))
        answers = [each for each in (*statuses.values(), *cores.values()) if not isinstance(each, Silence)]
        return replace(
            own,
            connections=own.connections + sum(each.connections for each in answers),
            sessions=own.sessions + sum(each.sessions for each in answers),
            subscriptions=own.subscriptions + sum(each.subscriptions for each in answers),
            retained=own.retained + sum(each.retained for name, each in cores.items() if not isinstance(each, Silence)),
            nodes=nodes,
        )

    async def all_metrics(self) -> ClusterMetrics:
        """The metrics of the core and its workers together, and of each node alone."""
        known = self._core.questions.nodes()
        answers = await self._asking.ask_nodes("metrics", None, dict[str, float], ANSWER_S)
        values: dict[str, dict[str, float] | None] = {}
        for node in known:
            found = answers.get(node.name)
            values[node.name] = found if isinstance(found, dict) else None
        workers = {(node.name, node.incarnation): values[node.name] for node in known if node.role == WORKER}
        totals = self._totals.add(self.metrics(), workers)
        return ClusterMetrics(totals, [NodeMetrics(node.name, node.role, values[node.name]) for node in known])

    # Clients

    async def clients(self, page: PageRequest) -> Page[ClientInfo]:
        """Sessions of all nodes and cores in the order of their client ids."""
        own = super().clients(page)
        return await self._list("clients", page, own, page, Page[ClientInfo], lambda each: each.client_id, _newer_client)

    async def client(self, client_id: str) -> ClientDetail | None:
        """One client, wherever it is connected. Raises Unavailable."""
        home = self._core.core_of(client_id)
        if home is not None:
            return await self._ask_home(home, client_id, "client", ClientDetail)
        own = super().client
        found = await own(client_id) or await self._ask_owner(client_id, "client", ClientDetail)
        return found or await self._after_leaving(client_id, own)

    async def kick(self, client_id: str) -> bool:
        """Close the client's connection, wherever it is, and end its session; False if there is none. Raises Unavailable."""
        home = self._core.core_of(client_id)
        if home is not None:
            return bool(await self._ask_home(home, client_id, "kick", bool))
        if await super().kick(client_id):
            return True
        was_connected = self._core.registry.kick(client_id)  # the channel that is there now, and no newer one
        return bool(await self._after_leaving(client_id, super().kick) or was_connected)

    # The registry of client ids

    @property
    def registry(self) -> HomeRegistryView:
        """That of this core."""
        return self._core.registry

    async def registry_show(self, client_id: str) -> RegistryEntry | None:
        """What the home of a client id knows of it. Raises Unavailable."""
        home = self._core.core_of(client_id)
        if home is None:
            return self._core.registry.show(client_id)
        return await self._asking.ask_core(home, "registry_show", client_id, RegistryEntry | None)  # type: ignore[arg-type]

    async def registry_stats(self) -> RegistryReport:
        """The registries of all cores."""
        answers = await self._asking.ask_cores("registry_stats", None, RegistryStats)
        others = [each for each in answers.values() if not isinstance(each, Silence)]
        return RegistryReport(cores=[self._core.registry.stats(), *others], silent=silences(answers))

    async def registry_sweep(self) -> SweepReport:
        """Compare the registries of all cores with the lists of their nodes now."""
        own, answers = await asyncio.gather(
            self._core.registry.sweep(), self._asking.ask_cores("registry_sweep", None, SweepResult, SWEEP_S)
        )
        others = [each for each in answers.values() if not isinstance(each, Silence)]
        return SweepReport(cores=[own, *others], silent=silences(answers))

    async def sessions(self, page: PageRequest) -> Page[SessionInfo]:
        """Sessions of all nodes and cores in the order of their client ids, with their backlogs at all cores."""
        own = self.node_sessions(page)
        merged = await self._list(
            "sessions", page, own, page, Page[NodeSession], lambda each: each.info.client_id, _newer_session
        )
        backlogs, silent = await self._measure([each.positions for each in merged.items])
        items = [with_backlogs(each.info, found) for each, found in zip(merged.items, backlogs, strict=True)]
        return Page(items, merged.cursor, {**silent, **merged.silent})

    async def _measure(self, readers: list[list[int]]) -> tuple[list[list[CoreBacklog]], dict[str, str]]:
        """For each reader its backlogs at all cores that answer, and why others do not."""
        found: list[list[CoreBacklog]] = [[each] for each in await self.backlogs(readers)]
        silent: dict[str, str] = {}
        step = max(1, _POSITIONS_MAX // max(map(len, readers), default=1))
        for first in range(0, len(readers), step):
            answers = await self._asking.ask_cores("backlogs", readers[first : first + step], list[CoreBacklog])
            silent |= silences(answers)
            for answer in answers.values():
                for i, backlog in enumerate([] if isinstance(answer, Silence) else answer[:step], first):
                    found[i].append(backlog)
        return found, silent

    async def session(self, client_id: str) -> SessionDetail | None:
        """One session, wherever its client is, with its backlog at all cores. Raises Unavailable."""
        found = await self.node_session(client_id)
        if found is None:
            return None
        reader = BacklogRequest(found.filters, found.positions)
        own, answers = await asyncio.gather(self.backlog(reader), self._asking.ask_cores("backlog", reader, CoreBacklog))
        backlogs = [own, *(each for each in answers.values() if not isinstance(each, Silence))]
        return replace(found.detail, session=with_backlogs(found.detail.session, backlogs), silent=silences(answers))

    async def node_session(self, client_id: str) -> NodeSessionDetail | None:
        """One session, wherever its client is, without its backlog. Raises Unavailable."""
        home = self._core.core_of(client_id)
        if home is not None:
            return await self._ask_home(home, client_id, "session", NodeSessionDetail)
        own = super().node_session
        found = await own(client_id) or await self._ask_owner(client_id, "session", NodeSessionDetail)
        return found or await self._after_leaving(client_id, own)

    async def subscriptions(self, page: PageRequest, client_id: str | None = None) -> Page[SubscriptionInfo]:
        """Subscriptions by client id, then filter, of all clients or of one."""
        own = super().subscriptions(page, client_id)
        request = SubscriptionRequest(page, client_id)
        return await self._list("subscriptions", page, own, request, Page[SubscriptionInfo], subscription_name, _first)

    async def topics(self, page: PageRequest) -> Page[TopicInfo]:
        """Topic filters that have subscribers on any node."""
        own = super().topics(page)
        return await self._list("topics", page, own, page, Page[TopicInfo], lambda each: each.topic_filter, _sum_topics)

    # Retained messages

    async def retained(self, page: PageRequest) -> Page[RetainedInfo]:
        """Retained messages of all cores in the order of their topics."""
        own, answers = await asyncio.gather(super().retained(page), self._asking.ask_cores("retained", page, Page[RetainedInfo]))
        return _merge(page, own, answers, lambda each: each.topic, _newer_retained)

    async def retained_remove(self, topic: str) -> bool:
        """Remove the retained message of a topic, at its home; False if there is none. Raises Unavailable."""
        core = None if topic.startswith("$") else self._core.core_of(topic)
        if core is None:
            return await super().retained_remove(topic)
        return await self._asking.ask_core(core, "retained_remove", topic, bool)

    # Bans

    async def ban_add(self, ban: BanInfo) -> list[str]:
        """Add a ban and close the connections it applies to, on all nodes; the names of nodes that did not confirm it yet."""
        await super().ban_add(ban)
        return await self._core.administration.wait_bans_known(ANSWER_S)

    # Configuration

    async def use_settings(self, settings: Mapping[str, object]) -> None:
        """Use the settings of the cluster here. Raises ConfigError if they do not fit this core's file; then nothing changes."""
        await self._configuration.use_shared(settings)

    async def conf_set(self, key: str, text: str) -> ConfValue:
        """Set a value for the whole cluster; raises ConfigError, and then nothing has changed, and Unavailable."""
        name, value = parse_override(key, text)
        return await self._change_setting(name, shared_override(name, value))

    async def conf_unset(self, key: str) -> ConfValue:
        """Remove a value that was set for the whole cluster. Raises ConfigError and Unavailable."""
        if not is_shared(key):  # it was set before the node had others
            return await super().conf_unset(key)
        return await self._change_setting(dotted(parse_path(key)), None)

    async def _change_setting(self, name: str, value: object | None) -> ConfValue:
        before = self._configuration.value(name).value
        administration = self._core.administration
        await administration.cluster.set_setting(name, value, self._configuration.check_shared)
        silent = await administration.wait_settings_known(ANSWER_S)
        is_later = find_key(parse_path(name), "run time").restart and self._configuration.value(name).value != before
        found = self._configuration.value(name, is_later=is_later)
        notes = [found.note, *(f"{each} has not confirmed it yet" for each in silent)]
        notes += [f"{each} does not use it: {reason}" for each, reason in administration.troubles.items()]
        return replace(found, note="; ".join(filter(None, notes)))

    def trace(self, kind: TraceKind, value: str) -> AsyncIterator[str]:
        """Lines of all nodes about one client id, or about topics that match a filter, until the iterator is closed."""
        own, asking = super().trace(kind, value), self._asking
        name = self._core.settings.node.name
        return follow_all(name, own, asking.connected, asking.away_cores, TraceRequest(kind, value))

    # Questions

    async def _ask_owner(self, client_id: str, operation: str, type_: type[Value]) -> Value | None:
        """Ask the node that has the client's session; None if there is none. Raises Unavailable."""
        name = self._core.node_of(client_id)
        if name is None:
            return None
        return await self._asking.ask_node(name, operation, client_id, type_ | None)  # type: ignore[arg-type]

    async def _ask_home(self, home: str, client_id: str, operation: str, type_: type[Value]) -> Value | None:
        """Ask the home of a client; while it is away, the node that the client is connected to. Raises Unavailable."""
        wanted: type[Value | None] = type_ | None  # type: ignore[assignment]
        try:
            return await self._asking.ask_core(home, operation, client_id, wanted)
        except Unavailable:
            answers = await self._asking.ask_nodes(operation, client_id, wanted)
            found = next((each for each in answers.values() if each and not isinstance(each, Silence)), None)
            if found is None:
                raise
            return found

    async def _after_leaving(self, client_id: str, work: Callable[[str], Awaitable[Value]]) -> Value:
        """Do something with a session that has just left its node, once it is the core's own. Raises Unavailable."""
        try:
            async with asyncio.timeout(LIST_S):
                await self._core.registry.wait_left(client_id)
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
        mine, answers = await asyncio.gather(own, self._asking.ask_all(operation, arguments, type_))
        return _merge(page, mine, answers, name_of, join)


def _merge(
    page: PageRequest,
    own: Page[Item],
    answers: Mapping[str, Page[Item] | Silence],
    name_of: Callable[[Item], str],
    join: Callable[[Item, Item], Item],
) -> Page[Item]:
    pages = [own, *(each for each in answers.values() if not isinstance(each, Silence))]
    return replace(merge_pages(page.limit, pages, name_of, join), silent=silences(answers))


def _newer_client(one: ClientInfo, other: ClientInfo) -> ClientInfo:
    """Of a client that moves between two nodes, the connection."""
    return one if one.connected else other


def _newer_session(one: NodeSession, other: NodeSession) -> NodeSession:
    return one if one.info.connected else other


def _newer_retained(one: RetainedInfo, other: RetainedInfo) -> RetainedInfo:
    return one if one.stored_at >= other.stored_at else other


def _first(one: Item, other: Item) -> Item:
    return one


def _sum_topics(one: TopicInfo, other: TopicInfo) -> TopicInfo:
    return replace(one, subscribers=one.subscribers + other.subscribers)
