"""What a node answers when a core asks for its operator: a worker or replicant its core, and a core another one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from braidmq.base.errors import UsageError
from braidmq.cluster.administration.shared_bans import OPERATION as BANS
from braidmq.cluster.administration.shared_settings import OPERATION as SETTINGS
from braidmq.control.cluster import DrainRequest, DrainStatus
from braidmq.control.contract import (
    ClientDetail,
    ClientInfo,
    Page,
    PageRequest,
    Status,
    SubscriptionInfo,
    TopicInfo,
    TraceKind,
)
from braidmq.net.frames import BODY_BYTES_MAX
from braidmq.operations.descriptions import subscription_name
from braidmq.operations.node_traces import NodeTraces, TraceRequest
from braidmq.operations.sessions import NodeSession, NodeSessionDetail

_BYTES_MAX: Final = BODY_BYTES_MAX - 1024  # an answer fits into a frame

Item = TypeVar("Item")
Value = TypeVar("Value")


class SubscriptionRequest(msgspec.Struct, frozen=True):
    """Which subscriptions: those of all clients or of one."""

    page: PageRequest
    client_id: str | None = None


class ListedNode(Protocol):
    """What every node is asked for."""

    def status(self) -> Status:
        """The current state of the node."""
        ...

    async def clients(self, page: PageRequest) -> Page[ClientInfo]:
        """Clients in the order of their ids."""
        ...

    async def client(self, client_id: str) -> ClientDetail | None:
        """One client, or None."""
        ...

    async def kick(self, client_id: str) -> bool:
        """End a client and its session; False if there is none."""
        ...

    async def node_sessions(self, page: PageRequest) -> Page[NodeSession]:
        """Sessions in the order of their client ids."""
        ...

    async def node_session(self, client_id: str) -> NodeSessionDetail | None:
        """One session, or None."""
        ...

    async def subscriptions(self, page: PageRequest, client_id: str | None = None) -> Page[SubscriptionInfo]:
        """Subscriptions, of all clients or of one."""
        ...

    async def topics(self, page: PageRequest) -> Page[TopicInfo]:
        """Topic filters that have subscribers."""
        ...

    def trace(self, kind: TraceKind, value: str) -> AsyncIterator[str]:
        """Lines about one client id or about topics, until the iterator is closed."""
        ...


class AnsweringNode(ListedNode, Protocol):
    """The operations of a node that its core may ask for; `ReplicantOperations` has them."""

    def metrics(self) -> dict[str, float]:
        """Every counter and gauge by its stem."""
        ...

    async def drain(self, request: DrainRequest) -> DrainStatus:
        """Send the node's clients elsewhere."""
        ...

    async def drain_status(self, node: str) -> DrainStatus:
        """How far that is."""
        ...

    def leave_cluster(self) -> None:
        """End this node. Raises UsageError unless it is drained."""
        ...


Handler = Callable[[bytes], Awaitable[bytes]]


class ListAnswers:
    """Carries out what every node is asked, by the name of the operation."""

    def __init__(self, node: ListedNode) -> None:
        self._node = node
        self.traces = NodeTraces(node.trace)
        self._handlers: dict[str, Handler] = {
            "status": self._status,
            "clients": self._clients,
            "client": self._client,
            "kick": self._kick,
            "sessions": self._sessions,
            "session": self._session,
            "subscriptions": self._subscriptions,
            "topics": self._topics,
            "trace_open": self._trace_open,
            "trace_read": self._trace_read,
        }

    async def answer(self, operation: str, arguments: bytes) -> bytes:
        """The answer as JSON. Raises UsageError."""
        handler = self._handlers.get(operation)
        if handler is None:
            raise UsageError(f"this node cannot answer {operation!r}", "it may run another version")
        return await handler(arguments)

    async def _status(self, _: bytes) -> bytes:
        return msgspec.json.encode(self._node.status())

    async def _clients(self, arguments: bytes) -> bytes:
        return fitting(await self._node.clients(decode(arguments, PageRequest)), lambda each: each.client_id)

    async def _client(self, arguments: bytes) -> bytes:
        found = await self._node.client(decode(arguments, str))
        answer = msgspec.json.encode(found)
        if found is not None and len(answer) > _BYTES_MAX:  # a hundred filters may have 64 KiB each
            return msgspec.json.encode(replace(found, subscriptions=[]))
        return answer

    async def _kick(self, arguments: bytes) -> bytes:
        return msgspec.json.encode(await self._node.kick(decode(arguments, str)))

    async def _sessions(self, arguments: bytes) -> bytes:
        return fitting(await self._node.node_sessions(decode(arguments, PageRequest)), lambda each: each.info.client_id)

    async def _session(self, arguments: bytes) -> bytes:
        found = await self._node.node_session(decode(arguments, str))
        answer = msgspec.json.encode(found)
        if found is not None and len(answer) > _BYTES_MAX:
            return msgspec.json.encode(replace(found, detail=replace(found.detail, subscriptions=[]), filters=[]))
        return answer

    async def _subscriptions(self, arguments: bytes) -> bytes:
        request = decode(arguments, SubscriptionRequest)
        return fitting(await self._node.subscriptions(request.page, request.client_id), subscription_name)

    async def _topics(self, arguments: bytes) -> bytes:
        return fitting(await self._node.topics(decode(arguments, PageRequest)), lambda each: each.topic_filter)

    async def _trace_open(self, arguments: bytes) -> bytes:
        return msgspec.json.encode(self.traces.open(decode(arguments, TraceRequest)))

    async def _trace_read(self, arguments: bytes) -> bytes:
        return msgspec.json.encode(await self.traces.read(decode(arguments, int)))


class NodeAnswers(ListAnswers):
    """What a core asks its workers and replicants."""

    def __init__(
        self, node: AnsweringNode, take_bans: Callable[[bytes], None], take_settings: Callable[[bytes], Awaitable[str]]
    ) -> None:
        super().__init__(node)
        self._replicant = node
        self._take_bans = take_bans
        self._take_settings = take_settings
        self._handlers |= {
            "metrics": self._metrics,
            BANS: self._bans,
            SETTINGS: self._settings,
            "drain": self._drain,
            "drain_status": self._drain_status,
            "leave": self._leave,
        }

    async def _metrics(self, _: bytes) -> bytes:
        return msgspec.json.encode(self._replicant.metrics())

    async def _drain(self, arguments: bytes) -> bytes:
        return msgspec.json.encode(await self._replicant.drain(decode(arguments, DrainRequest)))

    async def _drain_status(self, arguments: bytes) -> bytes:
        return msgspec.json.encode(await self._replicant.drain_status(decode(arguments, str)))

    async def _leave(self, _: bytes) -> bytes:
        self._replicant.leave_cluster()
        return b"null"

    async def _bans(self, arguments: bytes) -> bytes:
        self._take_bans(arguments)
        return b"null"

    async def _settings(self, arguments: bytes) -> bytes:
        return msgspec.json.encode(await self._take_settings(arguments))


def decode(arguments: bytes, type_: type[Value]) -> Value:
    """The arguments of an operation. Raises UsageError."""
    try:
        return msgspec.json.decode(arguments, type=type_)
    except msgspec.MsgspecError as problem:
        raise UsageError(f"invalid arguments: {problem}") from None


def fitting(page: Page[Item], name_of: Callable[[Item], str]) -> bytes:
    """A page as JSON, cut where it would not fit into a frame."""
    answer = msgspec.json.encode(page)
    while len(answer) > _BYTES_MAX and len(page.items) > 1:
        kept = page.items[: len(page.items) // 2]
        page = Page(kept, name_of(kept[-1]))
        answer = msgspec.json.encode(page)
    return answer
