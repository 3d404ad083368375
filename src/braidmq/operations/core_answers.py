"""What a core answers when another core asks for its operator.

Lists are of what this core has itself: both cores ask the nodes on their own. A question about one client comes to the core that
is its home, which also asks the client's node.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Protocol

import msgspec

from braidmq.cluster.cores.core_calls import CoreCalls
from braidmq.control.contract import (
    ClientDetail,
    ClientInfo,
    Page,
    PageRequest,
    RetainedInfo,
    Status,
    SubscriptionInfo,
    TopicInfo,
    TraceKind,
)
from braidmq.operations.answers import ListAnswers, ListedNode, decode, fitting
from braidmq.operations.questions import CORE_PREFIX
from braidmq.operations.registry import HomeRegistryView
from braidmq.operations.sessions import BacklogRequest, CoreBacklog, NodeSession, NodeSessionDetail


class OwnPart(ListedNode, Protocol):
    """What a core has itself; `NodeOperations` of a node with a log."""

    async def retained(self, page: PageRequest) -> Page[RetainedInfo]:
        """Retained messages in the order of their topics."""
        ...

    async def retained_remove(self, topic: str) -> bool:
        """Remove the retained message of a topic; False if there is none."""
        ...

    async def backlogs(self, readers: list[list[int]]) -> list[CoreBacklog]:
        """How far readers at these positions are behind this core's log."""
        ...

    async def backlog(self, reader: BacklogRequest) -> CoreBacklog:
        """How far one is behind, and its oldest waiting message."""
        ...


class Homes(Protocol):
    """What a core knows of the clients that are at home there; `CoreOperations`."""

    async def client(self, client_id: str) -> ClientDetail | None:
        """One client, wherever it is connected."""
        ...

    async def kick(self, client_id: str) -> bool:
        """End a client and its session, wherever it is connected."""
        ...

    async def node_session(self, client_id: str) -> NodeSessionDetail | None:
        """One session, wherever its client is."""
        ...

    @property
    def registry(self) -> HomeRegistryView:
        """Which connections have the client ids that are at home here."""
        ...


class CoreAnswers(ListAnswers):
    """Carries out what other cores ask."""

    def __init__(self, own: OwnPart, homes: Homes) -> None:
        super().__init__(_CorePart(own, homes))
        self._own = own
        self._handlers |= {
            "retained": self._retained,
            "retained_remove": self._retained_remove,
            "backlogs": self._backlogs,
            "backlog": self._backlog,
            "registry_show": self._registry_show,
            "registry_stats": self._registry_stats,
            "registry_sweep": self._registry_sweep,
        }
        self._homes = homes

    def serve(self, calls: CoreCalls) -> None:
        """Answer from now on."""
        for operation in self._handlers:
            calls.serve(CORE_PREFIX + operation, partial(self.answer, operation))

    async def _retained(self, arguments: bytes) -> bytes:
        return fitting(await self._own.retained(decode(arguments, PageRequest)), lambda each: each.topic)

    async def _retained_remove(self, arguments: bytes) -> bytes:
        return msgspec.json.encode(await self._own.retained_remove(decode(arguments, str)))

    async def _backlogs(self, arguments: bytes) -> bytes:
        return msgspec.json.encode(await self._own.backlogs(decode(arguments, list[list[int]])))

    async def _backlog(self, arguments: bytes) -> bytes:
        return msgspec.json.encode(await self._own.backlog(decode(arguments, BacklogRequest)))

    async def _registry_show(self, arguments: bytes) -> bytes:
        return msgspec.json.encode(self._homes.registry.show(decode(arguments, str)))

    async def _registry_stats(self, _: bytes) -> bytes:
        return msgspec.json.encode(self._homes.registry.stats())

    async def _registry_sweep(self, _: bytes) -> bytes:
        return msgspec.json.encode(await self._homes.registry.sweep())


class _CorePart:
    """Lists of the core's own part, and its clients wherever they are."""

    def __init__(self, own: OwnPart, homes: Homes) -> None:
        self._own = own
        self.client = homes.client
        self.kick = homes.kick
        self.node_session = homes.node_session

    def status(self) -> Status:
        return self._own.status()

    async def clients(self, page: PageRequest) -> Page[ClientInfo]:
        return await self._own.clients(page)

    async def node_sessions(self, page: PageRequest) -> Page[NodeSession]:
        return await self._own.node_sessions(page)

    async def subscriptions(self, page: PageRequest, client_id: str | None = None) -> Page[SubscriptionInfo]:
        return await self._own.subscriptions(page, client_id)

    async def topics(self, page: PageRequest) -> Page[TopicInfo]:
        return await self._own.topics(page)

    def trace(self, kind: TraceKind, value: str) -> AsyncIterator[str]:
        return self._own.trace(kind, value)
