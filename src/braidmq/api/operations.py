"""What the HTTP and control API asks of a node. The values are plain, so that they can cross a process.

The API knows nothing of the broker's insides: the composition root passes in an object with these methods. An absent thing is
a return value (None or False), a wrong argument raises ``UsageError`` or ``ConfigError`` in words.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Generic, Literal, Protocol, TypeVar

import msgspec

from braidmq.api.history import HistoryOperations

BanKind = Literal["client", "user", "address"]
TraceKind = Literal["client", "topic"]
LogLevel = Literal["debug", "info", "warning", "error"]
Origin = Literal["environment", "run time", "file", "default"]

PAGE_LIMIT_DEFAULT = 100
PAGE_LIMIT_MAX = 1000  # a page is built in one turn of the event loop, so it must stay small

Item = TypeVar("Item")


class PageRequest(msgspec.Struct, frozen=True):
    """Which part of a list: at most ``limit`` entries after ``cursor``, of those whose name contains ``contains``."""

    limit: int = PAGE_LIMIT_DEFAULT
    cursor: str = ""
    contains: str = ""


class Page(msgspec.Struct, Generic[Item], frozen=True):
    """Part of a list; ``cursor`` asks for the next part and is empty at the end."""

    items: list[Item]
    cursor: str = ""


class ListenerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One listener; ``kind`` is tcp, tls, ws or wss."""

    kind: str
    name: str
    bind: str
    running: bool
    connections: int
    connections_max: int


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How the node is. ``not_ready`` says what it still waits for and is empty when it serves."""

    node: str
    version: str
    uptime_s: float
    listeners: list[ListenerInfo]
    connections: int
    sessions: int
    subscriptions: int
    retained: int
    not_ready: str = ""


class ClientInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One session and, while ``connected``, its connection. Times are seconds since 1970."""

    client_id: str
    connected: bool
    user_name: str | None = None
    peer: str = ""
    listener: str = ""
    protocol: str = ""  # "MQTT 3.1", "MQTT 3.1.1" or "MQTT 5"
    clean_start: bool = True
    keep_alive_s: int = 0
    session_expiry_s: float = 0.0
    connected_at: float | None = None
    disconnected_at: float | None = None
    subscriptions: int = 0
    inflight: int = 0
    queue_messages: int = 0
    queue_bytes: int = 0


class SubscriptionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription; ``topic_filter`` is what the client wrote, with ``$share/group/`` if it is shared."""

    client_id: str
    topic_filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    subscription_identifier: int | None = None


class ClientDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One client with what would make a list too long; ``subscriptions`` holds the first page of them."""

    client: ClientInfo
    subscriptions: list[SubscriptionInfo]
    will_topic: str | None = None
    messages_received: int = 0
    messages_sent: int = 0
    messages_dropped: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One session. ``session_expiry_s`` is None if it never expires; times are seconds since 1970.

    It has about ``records_behind`` records of the log still to look at, which are ``lag_s`` of the log's time. The first of its
    messages that wait there was recorded at ``oldest_at``, if that was looked for and found.
    """

    client_id: str
    durable: bool
    connected: bool
    user_name: str | None = None
    session_expiry_s: float | None = 0.0
    connected_at: float | None = None
    disconnected_at: float | None = None
    expires_at: float | None = None
    subscriptions: int = 0
    inflight: int = 0
    queue_messages: int = 0
    records_behind: int = 0
    lag_s: float = 0.0
    oldest_at: float | None = None


class SessionDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One session with what would make a list too long; ``subscriptions`` holds the first page of them."""

    session: SessionInfo
    subscriptions: list[SubscriptionInfo]
    will_topic: str | None = None
    messages_dropped: int = 0


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A topic filter that somebody is subscribed to."""

    topic_filter: str
    subscribers: int


class RetainedInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One retained message without its payload. Times are seconds since 1970."""

    topic: str
    qos: int
    payload_bytes: int
    stored_at: float
    expires_at: float | None = None


class Ban(msgspec.Struct, frozen=True, kw_only=True):
    """Nobody of this client id, user name or address may connect; ``until`` is None for always."""

    kind: BanKind
    value: str
    reason: str = ""
    until: float | None = None


class ConfValue(msgspec.Struct, frozen=True, kw_only=True):
    """One value of the configuration as TOML writes it, and where it comes from. A secret comes as ``"***"``."""

    key: str
    value: str
    origin: Origin
    note: str = ""  # what else there is to know of a change, such as that it waits for the next start


class Operations(Protocol):
    """What a node lets its operator see and do."""

    @property
    def history(self) -> HistoryOperations: ...

    def status(self) -> Status:
        """How the node is now."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """Every counter and gauge by the stem of its name (``metric_names.METRICS``), without the prefix."""
        ...

    async def clients(self, page: PageRequest) -> Page[ClientInfo]:
        """Sessions in the order of their client ids."""
        ...

    async def client(self, client_id: str) -> ClientDetail | None:
        """One client, or None if there is no such session."""
        ...

    async def kick(self, client_id: str) -> bool:
        """Close the client's connection (0x98) and end its session; False if there is none."""
        ...

    async def sessions(self, page: PageRequest) -> Page[SessionInfo]:
        """Sessions in the order of their client ids, with what waits for them; ``kick`` drops one."""
        ...

    async def session(self, client_id: str) -> SessionDetail | None:
        """One session, or None if there is none."""
        ...

    async def subscriptions(self, page: PageRequest, client_id: str | None = None) -> Page[SubscriptionInfo]:
        """Subscriptions, of all clients or of one."""
        ...

    async def topics(self, page: PageRequest) -> Page[TopicInfo]:
        """Topic filters that have subscribers."""
        ...

    async def retained(self, page: PageRequest) -> Page[RetainedInfo]:
        """Retained messages in the order of their topics."""
        ...

    async def retained_remove(self, topic: str) -> bool:
        """Forget the retained message of a topic; False if there is none."""
        ...

    async def listeners(self) -> list[ListenerInfo]:
        """Every listener of the node."""
        ...

    async def bans(self, page: PageRequest) -> Page[Ban]:
        """Bans in force."""
        ...

    async def ban_add(self, ban: Ban) -> None:
        """Ban, and close the connections it concerns. A ban of the same kind and value is replaced."""
        ...

    async def ban_remove(self, kind: BanKind, value: str) -> bool:
        """Lift a ban; False if there is none."""
        ...

    async def conf_show(self, prefix: str = "") -> list[ConfValue]:
        """The configuration in force, or the part of it under a table or key."""
        ...

    async def conf_set(self, key: str, text: str) -> ConfValue:
        """Set a value at run time, ``text`` as on a command line; raises ConfigError. Gives what is in force afterwards."""
        ...

    async def conf_unset(self, key: str) -> ConfValue:
        """Take back what ``conf_set`` did; gives what is in force afterwards."""
        ...

    def trace(self, kind: TraceKind, value: str) -> AsyncIterator[str]:
        """Lines about one client id, or about topics that match a filter, until the iterator is closed.

        The node drops lines, and says so in one, rather than keep them for a reader that is too slow.
        """
        ...

    async def log_level(self, level: LogLevel | None = None) -> LogLevel:
        """Set the level of the log until the next start, if one is given; gives the level in force."""
        ...
