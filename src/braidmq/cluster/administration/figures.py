"""What the metrics say about the cluster: of a core, of a replicant, or of a node without one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Final

from braidmq.cluster.clock.watch import ClockWatch
from braidmq.cluster.cores.core_side import CoreSide
from braidmq.cluster.home.home import Home
from braidmq.cluster.home.node_peer import PeerView
from braidmq.cluster.protocol.roles import REPLICANT, WORKER
from braidmq.cluster.registry.messages import Outcome
from braidmq.cluster.remote.cluster_link import ClusterLink
from braidmq.control.cluster import ClockInfo

_NO_REFUSALS: Final[Mapping[str, int]] = Counter()


class ClusterFigures:
    """The figures of a node that is in no cluster."""

    nodes = replicants = workers = away = silent = lagging = lagged = 0
    sessions = leases = held_routes = routes_own = routes_remote = scans = 0
    feeds_following = feeds_behind = 0
    feed_lag_s = 0.0
    rlog_lag_p50 = rlog_lag_p99 = rlog_lag_max = 0
    outlets_bytes = unanswered_bytes = blocks_refused = entries_fenced = 0
    claims_granted = claims_rejected = claims_taken_over = claims_fenced = 0
    times_ignored = 0
    happy_endings = happy_fails = expensive_fails = aborts = late = full = misdated = 0
    registered = claims_waiting = restarts = probes = swept = found = outdated = 0
    takeovers = takeovers_10ms = takeovers_100ms = takeovers_1s = 0
    takeovers_s = 0.0
    locks = locks_overdue = locks_refused = locks_missed = ends_missed = bag = 0
    misdirected = in_doubt = doubts = routes_durable = 0
    intents = intents_superseded = removals = 0
    clock: ClockInfo | None = None
    clock_bound_s: float | None = 0.0
    clock_offset_s: float | None = 0.0
    clock_reference = clock_refused = 0
    clock_trouble = ""
    refusals: Mapping[str, int] = _NO_REFUSALS

    def read_clock(self, watch: ClockWatch) -> None:
        """Take the figures of the node's cluster clock."""
        self.clock = info = watch.info
        self.clock_reference, self.clock_refused, self.clock_trouble = int(info.is_reference), watch.refused, watch.trouble
        self.clock_offset_s = None if info.offset_ms is None else info.offset_ms / 1000
        self.clock_bound_s = None if info.bound_ms is None else info.bound_ms / 1000


class CoreFigures(ClusterFigures):
    """The figures of a core, read once."""

    def __init__(self, side: CoreSide, home: Home) -> None:
        self._side = side
        nodes = side.questions.nodes()
        self.read_clock(side.time.watch)
        self._views = views = [peer.view() for peer in home]
        self.nodes = 1 + len(nodes)
        self.replicants = sum(node.role == REPLICANT for node in nodes)
        self.workers = sum(node.role == WORKER for node in nodes)
        self.away = sum(not node.is_connected for node in nodes)
        self.silent = side.questions.silent
        self.lagging = sum(view.is_lagging for view in views)
        self.lagged = home.lagged
        self.sessions = len(home.sessions)
        self.leases = len(home.sessions.lending)
        self.held_routes = home.sessions.held_routes
        self.routes_own, self.routes_remote = home.count_routes()
        self.scans = sum(view.scans for view in views)
        self.feeds_following = sum(view.is_feeding for view in views)
        self.feeds_behind = sum(view.is_behind for view in views)
        self.feed_lag_s = max((view.feed_lag_us for view in views), default=0) / 1e6
        self.outlets_bytes = sum(view.outlet_bytes for view in views)
        self.unanswered_bytes = sum(view.unanswered_bytes for view in views)
        self.blocks_refused = home.blocks_refused + sum(view.blocks_refused for view in views)
        self.entries_fenced = home.entries_fenced + sum(view.entries_fenced for view in views)
        self.rlog_lag_p50, self.rlog_lag_p99, self.rlog_lag_max = _spread(views)
        registry = home.registry
        self.claims_granted = registry.claims_granted
        self.claims_rejected = registry.claims_rejected
        self.claims_taken_over = registry.claims_taken_over
        self.claims_fenced = registry.claims_fenced
        self.times_ignored = registry.times.stated.ignored
        self._read_registry(home)
        if (locks := home.eventual.locks) is not None:
            table = locks.table
            self.locks, self.locks_overdue, self.locks_refused = len(table), table.overdue, table.refused
        self.misdirected = sum(home.misdirected.counts.values())
        if home.doubt is not None:
            self.in_doubt, self.doubts = int(home.doubt.is_in_doubt), home.doubt.doubts
        self.routes_durable = home.routes_durable
        if home.retained is not None:
            self.intents, self.removals = len(home.retained.sender), home.retained.taker.removals
            self.intents_superseded = home.retained.taker.superseded

    def _read_registry(self, home: Home) -> None:
        claims, registry = home.claims, home.registry
        outcomes, sweep, times = claims.outcomes, registry.upkeep.sweep, registry.takeovers
        self.registered, self.claims_waiting = len(claims), claims.waiting
        self.happy_endings, self.happy_fails = outcomes[Outcome.HAPPY_ENDING], outcomes[Outcome.HAPPY_FAIL]
        self.expensive_fails, self.aborts = outcomes[Outcome.EXPENSIVE_FAIL], outcomes[Outcome.ABORT]
        self.late, self.full, self.misdated = outcomes[Outcome.LATE], outcomes[Outcome.FULL], registry.claims_misdated
        self.restarts, self.probes = claims.restarts, claims.probes
        self.swept, self.found = sweep.removed, sweep.found
        self.takeovers, self.takeovers_s = sum(times.counts), times.sum_s
        self.takeovers_10ms, self.takeovers_100ms, self.takeovers_1s = map(times.within, (0.01, 0.1, 1.0))

    @cached_property
    def refusals(self) -> Mapping[str, int]:  # type: ignore[override]
        """Connections of other nodes that were refused, by reason."""
        names = Counter(unwelcome=self._side.registrations_refused)
        return sum((acceptor.refusals for acceptor in self._side.acceptors), names)


class ReplicantFigures(ClusterFigures):
    """The figures of a replicant or worker, read once."""

    def __init__(self, link: ClusterLink, watch: ClockWatch) -> None:
        self.read_clock(watch)
        self.routes_own, self.routes_remote = link.count_routes()
        self.scans = link.scans
        self.outlets_bytes = link.outlet_bytes
        self.unanswered_bytes = link.log.unanswered_bytes
        self.times_ignored = link.registry.times.stated.ignored
        if link.front.node is not None:
            self.locks_missed, self.ends_missed = link.front.node.locks_missed, link.front.node.ends_missed
        self.bag = 0 if link.front.bag is None else len(link.front.bag)
        self.outdated = link.registry.outdated


def _spread(views: list[PeerView]) -> tuple[int, int, int]:
    """Median, 99th percentile and maximum of the nodes' lags in the replication log."""
    lags = sorted(view.rlog_lag for view in views if view.is_connected)
    if not lags:
        return 0, 0, 0
    return lags[(len(lags) - 1) // 2], lags[(len(lags) - 1) * 99 // 100], lags[-1]
