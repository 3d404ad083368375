"""A node without a broker: ``Operations`` over plain lists, for tests of the API and of ``ctl``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TypeVar

from msgspec.structs import replace

from braidmq.base.errors import ConfigError, UsageError
from braidmq.control.cluster import (
    ClusterMetrics,
    ClusterStatus,
    DrainRequest,
    DrainStatus,
    JoinPlan,
    MemberInfo,
    NodeMetrics,
    ShardLeader,
)
from braidmq.control.contract import (
    BanInfo,
    BanKind,
    ClientDetail,
    ClientInfo,
    ConfValue,
    ListenerStatus,
    LogLevel,
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
from braidmq.control.registry import RegistryEntry, RegistryReport, SweepReport
from tests.support.fakes.history import FakeHistory

Item = TypeVar("Item")


def page_by_name(items: list[Item], name_of: Callable[[Item], str], page: PageRequest) -> Page[Item]:
    """What a page request asks for, in the order of the names."""
    left = sorted((item for item in items if name_of(item) > page.cursor and page.contains in name_of(item)), key=name_of)
    chosen = left[: page.limit]
    return Page(chosen, name_of(chosen[-1]) if len(left) > len(chosen) else "")


class FakeOperations:
    """Keeps what it is given; tests read and change the lists directly."""

    def __init__(self) -> None:
        self.history = FakeHistory()
        self.not_ready = ""
        self.drain_asked: DrainRequest | None = None
        self.drain_steps: list[DrainStatus] = []
        self.silent: dict[str, str] = {}
        self.node_list: list[NodeSummary] = []
        self.node_metrics: list[NodeMetrics] = []
        self.member_list: list[MemberInfo] = []
        self.counters: dict[str, float] = {"messages_received": 7}
        self.client_list: list[ClientInfo] = []
        self.session_list: list[SessionInfo] = []
        self.subscription_list: list[SubscriptionInfo] = []
        self.retained_list: list[RetainedInfo] = []
        self.listener_list: list[ListenerStatus] = []
        self.ban_list: list[BanInfo] = []
        self.conf = {"mqtt.receive_maximum": "1000", "session.queue_wait": '"5s"'}
        self.overrides: dict[str, str] = {}
        self.level: LogLevel = "info"
        self.trace_lines: asyncio.Queue[str | None] = asyncio.Queue(maxsize=100)
        self.traces_running = 0
        self.trace_asked: tuple[TraceKind, str] | None = None
        self.trace_ended = asyncio.Event()

    def status(self) -> Status:
        return Status(
            node="core1",
            version="1.2.3",
            uptime_s=3723.0,
            listeners=self.listener_list,
            connections=sum(client.connected for client in self.client_list),
            sessions=len(self.client_list),
            subscriptions=len(self.subscription_list),
            retained=len(self.retained_list),
            not_ready=self.not_ready,
        )

    def metrics(self) -> Mapping[str, float]:
        return self.counters

    async def overview(self) -> Status:
        return replace(self.status(), nodes=self.node_list)

    async def all_metrics(self) -> ClusterMetrics:
        return ClusterMetrics(self.counters, self.node_metrics)

    async def cluster(self) -> ClusterStatus:
        return ClusterStatus(cluster="braidmq", members=self.member_list)

    async def forget(self, name: str) -> None:
        if name not in [member.name for member in self.member_list]:
            raise UsageError(f"there is no node {name!r}")
        self.member_list = [member for member in self.member_list if member.name != name]

    async def shards(self) -> list[ShardLeader]:
        return [ShardLeader(shard=shard, core="core1", state="serving", term=3) for shard in range(2)]

    async def plan_joining(self, name: str, role: str) -> JoinPlan:
        if role == "core":
            raise UsageError("the cores of this cluster are fixed (core1)", "join a replicant")
        return JoinPlan(name=name, cluster="plant", core_nodes=["10.0.0.1:4370"], needs_secret=True, needs_certificate=True)

    async def leave(self, request: DrainRequest) -> DrainStatus:
        if request.node == "core1":
            raise UsageError("core1 is a core and leads shard 0", "stop it")
        return await self.drain(request)

    async def finish_leaving(self, name: str) -> None:
        await self.forget(name)

    async def drain(self, request: DrainRequest) -> DrainStatus:
        self.drain_asked = request
        return await self.drain_status(request.node)

    async def drain_status(self, node: str) -> DrainStatus:
        return self.drain_steps.pop(0)

    async def clients(self, page: PageRequest) -> Page[ClientInfo]:
        return replace(page_by_name(self.client_list, lambda client: client.client_id, page), silent=self.silent)

    async def client(self, client_id: str) -> ClientDetail | None:
        for client in self.client_list:
            if client.client_id == client_id:
                own = [each for each in self.subscription_list if each.client_id == client_id]
                return ClientDetail(client=client, subscriptions=own)
        return None

    async def kick(self, client_id: str) -> bool:
        before = len(self.client_list) + len(self.session_list)
        self.client_list = [client for client in self.client_list if client.client_id != client_id]
        self.session_list = [session for session in self.session_list if session.client_id != client_id]
        return len(self.client_list) + len(self.session_list) < before

    async def registry_show(self, client_id: str) -> RegistryEntry | None:
        return None

    async def registry_stats(self) -> RegistryReport:
        return RegistryReport(cores=[], silent={})

    async def registry_sweep(self) -> SweepReport:
        return SweepReport(cores=[], silent={})

    async def sessions(self, page: PageRequest) -> Page[SessionInfo]:
        return page_by_name(self.session_list, lambda session: session.client_id, page)

    async def session(self, client_id: str) -> SessionDetail | None:
        for session in self.session_list:
            if session.client_id == client_id:
                own = [each for each in self.subscription_list if each.client_id == client_id]
                return SessionDetail(session=session, subscriptions=own)
        return None

    async def subscriptions(self, page: PageRequest, client_id: str | None = None) -> Page[SubscriptionInfo]:
        chosen = [each for each in self.subscription_list if client_id in (None, each.client_id)]
        return page_by_name(chosen, lambda each: f"{each.client_id} {each.topic_filter}", page)

    async def topics(self, page: PageRequest) -> Page[TopicInfo]:
        names = [each.topic_filter for each in self.subscription_list]
        topics = [TopicInfo(topic_filter=name, subscribers=names.count(name)) for name in set(names)]
        return page_by_name(topics, lambda each: each.topic_filter, page)

    async def retained(self, page: PageRequest) -> Page[RetainedInfo]:
        return page_by_name(self.retained_list, lambda each: each.topic, page)

    async def retained_remove(self, topic: str) -> bool:
        before = len(self.retained_list)
        self.retained_list = [each for each in self.retained_list if each.topic != topic]
        return len(self.retained_list) < before

    async def listeners(self) -> list[ListenerStatus]:
        return self.listener_list

    async def bans(self, page: PageRequest) -> Page[BanInfo]:
        return page_by_name(self.ban_list, lambda each: f"{each.kind} {each.value}", page)

    async def ban_add(self, ban: BanInfo) -> list[str]:
        await self.ban_remove(ban.kind, ban.value)
        self.ban_list.append(ban)
        return list(self.silent)

    async def ban_remove(self, kind: BanKind, value: str) -> bool:
        before = len(self.ban_list)
        self.ban_list = [each for each in self.ban_list if (each.kind, each.value) != (kind, value)]
        return len(self.ban_list) < before

    async def conf_show(self, prefix: str = "") -> list[ConfValue]:
        return [self._value(key) for key in self.conf if key.startswith(prefix)]

    async def conf_set(self, key: str, text: str) -> ConfValue:
        if key not in self.conf:
            raise ConfigError(key, "unknown key", "did you mean mqtt.receive_maximum?")
        self.overrides[key] = text
        return self._value(key)

    async def conf_unset(self, key: str) -> ConfValue:
        self.overrides.pop(key, None)
        return self._value(key)

    def _value(self, key: str) -> ConfValue:
        if key in self.overrides:
            return ConfValue(key=key, value=self.overrides[key], origin="run time")
        return ConfValue(key=key, value=self.conf[key], origin="default")

    async def trace(self, kind: TraceKind, value: str) -> AsyncIterator[str]:
        self.trace_asked = (kind, value)
        self.traces_running += 1
        try:
            while (line := await self.trace_lines.get()) is not None:
                yield line
        finally:
            self.traces_running -= 1
            self.trace_ended.set()

    async def log_level(self, level: LogLevel | None = None) -> LogLevel:
        self.level = level or self.level
        return self.level
