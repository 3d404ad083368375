"""What the HTTP and control API needs of a node; the values are those of ``control``.

The API does not depend on the broker: the composition root passes in an object with these methods. Something that does not exist
is a return value (None or False), an invalid argument raises ``UsageError`` or ``ConfigError``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

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
from braidmq.control.history import (
    DurabilityInfo,
    GenerationInfo,
    HistoryStats,
    ReadRequest,
    Relearned,
    RelearnRequest,
    ShardPatterns,
    Token,
    TokenRequest,
)
from braidmq.control.registry import RegistryEntry, RegistryReport, SweepReport


class HistoryOperations(Protocol):
    """What an operator can see and do with the durable log. Streams yield whole lines, several at a time."""

    def read(self, request: ReadRequest) -> AsyncIterator[bytes]:
        """Lines ``begin``, ``gap``, ``record``, ``progress``, ``end``; records in order of time. Raises UsageError at once."""
        ...

    def topics(self, request: ReadRequest) -> AsyncIterator[bytes]:
        """Lines ``begin``, ``gap``, ``progress``, then ``topic`` by name, ``end``. Raises UsageError at once."""
        ...

    async def stats(self) -> HistoryStats:
        """Statistics of the log."""
        ...

    async def generations(self) -> list[GenerationInfo]:
        """Every generation, by shard and number."""
        ...

    async def patterns(self) -> list[ShardPatterns]:
        """The patterns that records are being written with, by shard."""
        ...

    async def relearn(self, request: RelearnRequest) -> Relearned:
        """Start a generation with the given patterns, or with better ones if that would help. Raises UsageError."""
        ...

    async def forget(self, name: str) -> bool:
        """Remove a named reader, so that retention no longer waits for it; False if there is none. Raises Unavailable."""
        ...

    async def token(self, request: TokenRequest) -> Token:
        """A token for a user of the password file. Raises UsageError if there is no such user, or no history service."""
        ...

    async def durability(self) -> DurabilityInfo:
        """The current state of the log and its disk."""
        ...

    def backup(self, path: str) -> AsyncIterator[bytes]:
        """Create a backup in a new directory: lines ``copying``, ``made``, ``end``. Raises UsageError at once."""
        ...


class Operations(Protocol):
    """What an operator can see and do on a node."""

    @property
    def history(self) -> HistoryOperations: ...

    def status(self) -> Status:
        """The current state of the node."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """Every counter and gauge by the stem of its name (``metric_names.METRICS``), without the prefix."""
        ...

    async def overview(self) -> Status:
        """The current state of the node and of its workers and replicants."""
        ...

    async def all_metrics(self) -> ClusterMetrics:
        """The metrics of the node, and of its workers and replicants; takes a second at most."""
        ...

    async def cluster(self) -> ClusterStatus:
        """The members of the cluster. Raises UsageError unless this node is the core of one."""
        ...

    async def forget(self, name: str) -> None:
        """Declare a node dead that does not answer. Raises UsageError if it does, or if there is none."""
        ...

    async def shards(self) -> list[ShardLeader]:
        """The shards of the log with their leaders. Raises UsageError unless this node is the core of a cluster."""
        ...

    async def plan_joining(self, name: str, role: str) -> JoinPlan:
        """What a new node has to be configured with. Raises ConfigError for its name, and UsageError if it cannot join."""
        ...

    async def leave(self, request: DrainRequest) -> DrainStatus:
        """Begin to let a replicant leave: its clients are sent elsewhere. Raises UsageError and Unavailable."""
        ...

    async def finish_leaving(self, name: str) -> None:
        """End the process of a replicant that is drained, and its membership. Raises UsageError and Unavailable."""
        ...

    async def drain(self, request: DrainRequest) -> DrainStatus:
        """Send the clients of a worker or replicant elsewhere. Raises UsageError and Unavailable."""
        ...

    async def drain_status(self, node: str) -> DrainStatus:
        """How far a drain is. Raises UsageError and Unavailable."""
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

    async def registry_show(self, client_id: str) -> RegistryEntry | None:
        """The channels of a client id, as its home knows them; None if it knows none. Raises UsageError and Unavailable."""
        ...

    async def registry_stats(self) -> RegistryReport:
        """The registries of all cores. Raises UsageError."""
        ...

    async def registry_sweep(self) -> SweepReport:
        """Compare the registries of all cores with the lists of their nodes now. Raises UsageError."""
        ...

    async def sessions(self, page: PageRequest) -> Page[SessionInfo]:
        """Sessions in the order of their client ids, with their backlogs; ``kick`` removes one."""
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
        """Remove the retained message of a topic; False if there is none."""
        ...

    async def listeners(self) -> list[ListenerStatus]:
        """Every listener of the node."""
        ...

    async def bans(self, page: PageRequest) -> Page[BanInfo]:
        """The active bans."""
        ...

    async def ban_add(self, ban: BanInfo) -> list[str]:
        """Add a ban and close the connections it applies to; replaces a ban of the same kind and value.

        Returns the names of nodes that did not confirm it yet.
        """
        ...

    async def ban_remove(self, kind: BanKind, value: str) -> bool:
        """Lift a ban; False if there is none."""
        ...

    async def conf_show(self, prefix: str = "") -> list[ConfValue]:
        """The current configuration, or the part of it under a table or key."""
        ...

    async def conf_set(self, key: str, text: str) -> ConfValue:
        """Set a value at run time, ``text`` as on a command line; raises ConfigError. Returns the resulting value."""
        ...

    async def conf_unset(self, key: str) -> ConfValue:
        """Remove a value set by ``conf_set``; returns the resulting value."""
        ...

    def trace(self, kind: TraceKind, value: str) -> AsyncIterator[str]:
        """Lines about one client id, or about topics that match a filter, until the iterator is closed.

        If the reader is too slow, the node drops lines and reports it in a line.
        """
        ...

    async def log_level(self, level: LogLevel | None = None) -> LogLevel:
        """Set the level of the log until the next start, if one is given; returns the current level."""
        ...
