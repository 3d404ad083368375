"""The values that a node and its operator exchange over the control paths; plain, so that they can cross a process boundary."""

from __future__ import annotations

from typing import Final, Generic, Literal, TypeVar

import msgspec

from braidmq.control.cluster import ClockInfo

SOCKET_NAME: Final = "ctl.sock"
TOKEN_NAME: Final = "ctl.token"  # noqa: S105 - the name of a file

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
    """Part of a list; ``cursor`` selects the next part and is empty at the end.

    ``silent``: nodes that did not answer, with the reason; their entries are missing.
    """

    items: list[Item]
    cursor: str = ""
    silent: dict[str, str] = {}


class ListenerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One listener; ``kind`` is tcp, tls, ws or wss."""

    kind: str
    name: str
    bind: str
    running: bool
    connections: int
    connections_max: int


class NodeSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A worker or replicant of a core, or another core; ``trouble`` says why it does not answer, and is empty if it does."""

    name: str
    role: str
    connections: int = 0
    trouble: str = ""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the node. ``not_ready`` says what it waits for and is empty when it serves.

    On a core, the numbers of connections, sessions, subscriptions and retained messages include those of its ``nodes``, as far as
    these answer.
    """

    node: str
    version: str
    uptime_s: float
    listeners: list[ListenerStatus]
    connections: int
    sessions: int
    subscriptions: int
    retained: int
    not_ready: str = ""
    nodes: list[NodeSummary] = []
    clock: ClockInfo | None = None  # of a member of a cluster


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
    """One subscription; ``topic_filter`` is as the client wrote it, with ``$share/group/`` if it is shared."""

    client_id: str
    topic_filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    subscription_identifier: int | None = None


class ClientDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One client with details that lists omit; ``subscriptions`` holds the first page of them."""

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

    About ``records_behind`` records of the log, covering ``lag_s`` seconds, are still to be read for it. The first message that
    waits for it there was recorded at ``oldest_at``, if it was searched for and found.
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
    """One session with details that lists omit; ``subscriptions`` holds the first page of them.

    ``silent``: cores that did not answer, with the reason; what waits in their part of the log is not counted.
    """

    session: SessionInfo
    subscriptions: list[SubscriptionInfo]
    will_topic: str | None = None
    messages_dropped: int = 0
    silent: dict[str, str] = {}


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A topic filter that has subscribers."""

    topic_filter: str
    subscribers: int


class RetainedInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One retained message without its payload. Times are seconds since 1970."""

    topic: str
    qos: int
    payload_bytes: int
    stored_at: float
    expires_at: float | None = None


class BanInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A ban of a client id, user name or address; ``until`` is None for a permanent ban."""

    kind: BanKind
    value: str
    reason: str = ""
    until: float | None = None


class ConfValue(msgspec.Struct, frozen=True, kw_only=True):
    """One value of the configuration as TOML writes it, and its origin. A secret is shown as ``"***"``."""

    key: str
    value: str
    origin: Origin
    note: str = ""  # a remark on a change, such as that it takes effect at the next start
