"""The values that a core and its operator exchange about the nodes of the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

MemberState = Literal["serving", "silent", "away"]
RATE_DEFAULT = 100
RATE_MAX = 100_000


class DrainRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Send the clients of a node elsewhere, ``rate`` per second; those that are left after ``deadline_s``, all at once.

    ``node``: on a core, the worker or replicant; empty on the node itself.
    """

    node: str = ""
    rate: int = RATE_DEFAULT
    deadline_s: float | None = None


class DrainStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far that is. ``moved``: clients that were sent away, ``left``: clients that are still connected."""

    node: str
    is_done: bool
    moved: int
    left: int


class NodeMetrics(msgspec.Struct, frozen=True):
    """The metrics of one node by their stems; None if it did not answer."""

    node: str
    role: str
    values: Mapping[str, float] | None


class ClusterMetrics(msgspec.Struct, frozen=True):
    """``totals``: of this node and its workers. ``nodes``: each node alone; empty if this node is not a core with others."""

    totals: Mapping[str, float]
    nodes: list[NodeMetrics] = []


class ClockInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A node's cluster clock: the time of the cluster minus the node's wall clock, and how wrong it may be; None: not known.

    ``is_reference``: the node gives the time. ``reign``: how many times that has changed.
    """

    is_reference: bool
    reign: int
    offset_ms: int | None
    bound_ms: int | None


class MemberInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A member of the cluster. ``state``: *silent* is connected and does not answer, *away* is not connected.

    ``clients`` is None if the node does not answer. ``feed``: following, behind or empty. ``rlog``: how far the node has the
    routes of all others: catchup, switchover, normal or empty; ``rlog_lag`` entries are still to be sent to it. ``routes``: the
    filters that it has announced, ``rlog_position`` the sequence of its last announcement. ``alarms``: what is wrong, in words.
    """

    name: str
    role: str
    state: MemberState
    incarnation: int
    address: str = ""
    clients: int | None = None
    routes: int = 0
    feed: str = ""
    feed_lag_s: float = 0.0
    rlog: str = ""
    rlog_lag: int = 0
    rlog_position: int = 0
    clock: ClockInfo | None = None
    alarms: list[str] = []


CoreState = Literal["serving", "alone", "dead", "away"]


class ShardLeader(msgspec.Struct, frozen=True, kw_only=True):
    """A shard of the log, the core that leads it, in which state that is (see `CoreInfo`), and its latest term.

    ``term``: 0 if the core has never been started, or is the only one.
    """

    shard: int
    core: str
    state: CoreState
    term: int


class JoinPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a replicant that joins has to be configured with. The secret is not named: it is that of the other nodes."""

    name: str
    cluster: str
    core_nodes: list[str]
    needs_secret: bool
    needs_certificate: bool


class CoreInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One of several cores. ``terms``: of the shards that it leads, by shard; 0 if it has never been started.

    ``state``: *serving*; *alone*, if the cluster's store cannot be reached; *dead*; or *away*, which lives and is not connected.
    """

    name: str
    state: CoreState
    incarnation: int
    address: str
    terms: dict[int, int]


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster as the core that was asked sees it; this core comes first. ``cores``: all of them, if there are several.

    ``version``: of rows and messages, which all members understand.
    """

    cluster: str
    members: list[MemberInfo]
    cores: list[CoreInfo] = []
    version: int = 1
