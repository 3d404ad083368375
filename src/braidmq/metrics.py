"""The values of the metrics that `api.metric_names` declares. Collecting them is cheap: it reads counters and scans nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sized
from fnmatch import fnmatchcase
from functools import cached_property
from time import monotonic, time
from typing import Any

from braidmq.access.local import LocalAccess
from braidmq.api.metric_names import METRICS
from braidmq.base import logs
from braidmq.base.file_descriptors import Room
from braidmq.broker.broker import Broker
from braidmq.broker.listeners.listener_set import ListenerSet
from braidmq.cluster.administration.figures import ClusterFigures
from braidmq.cluster.workers.workers import Workers
from braidmq.history.messages import Served
from braidmq.history.node_side.supervisor import HistoryService
from braidmq.mqtt.reasons import Reason
from braidmq.storage.engine.health import Health, HealthState
from braidmq.storage.log import DurableLog

_HEALTH = {HealthState.OK: 0, HealthState.SLOW: 1, HealthState.STOPPED: 2}


_ALONE = ClusterFigures()


class _NoService:
    """Replaces a history service that the configuration has disabled."""

    restarts = readers_refused = 0
    address = certificate_expiry = None
    served = Served(rows=0, size_bytes=0, streams=0)


class _NoWorkers:
    """Replaces the workers of a node that has none."""

    running = restarts = 0


class Figures:
    """The root of the sources of metrics: the parts of a node, and values that have to be computed."""

    def __init__(
        self,
        broker: Broker,
        access: LocalAccess,
        listeners: ListenerSet,
        message_log: DurableLog | None,
        health: Health,
        service: HistoryService | None,
        client_room: Room,
        api_room: Room,
        control_room: Room,
        workers: Workers | None = None,
        cluster: ClusterFigures = _ALONE,
    ) -> None:
        """``message_log``: None on a replicant, which then has no metrics of a log."""
        self.cluster = cluster
        self.workers = _NoWorkers() if workers is None else workers
        self.broker = broker
        self.access = access
        self.state = broker.state
        self.counters = broker.state.counters
        self.statistics = broker.statistics
        self.sessions = broker.sessions
        self.service = _NoService() if service is None else service
        self.client_room = client_room
        self.api_room = api_room
        self.control_room = control_room
        self.named_readers = None if message_log is None else message_log.readers
        self.log = None if message_log is None else message_log.stats()
        self.log_health = None if message_log is None else _HEALTH[health.state]
        self.violations = _by_name(broker.statistics.violations)
        self.refusals = _by_name(broker.statistics.refusals)
        self._listeners = listeners

    # The node

    @property
    def uptime_s(self) -> float:
        """Seconds since the node started."""
        return monotonic() - self.broker.started_at

    @property
    def subscriptions(self) -> int:
        """Subscriptions of all sessions."""
        return self.broker.subscriptions.count() - self.cluster.held_routes

    @property
    def connections_refused(self) -> int:
        """Connections that ended before MQTT began."""
        return sum(self.statistics.listener_refusals.values())

    @property
    def cluster_connections_refused(self) -> int:
        """Connections of other nodes that were refused."""
        return sum(self.cluster.refusals.values())

    @property
    def cert_expiry_at(self) -> float | None:
        """When the first certificate expires; None without certificates."""
        ends = (self._listeners.certificate_expiry(), self.service.certificate_expiry)
        return min((end for end in ends if end is not None), default=None)

    @property
    def log_lines_suppressed(self) -> int:
        """Log lines suppressed by the rate limit."""
        return logs.lines_suppressed()

    # Messages and packets

    @cached_property
    def messages_sent(self) -> int:
        """PUBLISH packets sent."""
        counters = self.counters
        return counters.publish_qos0_sent + counters.publish_qos1_sent + counters.publish_qos2_sent

    @property
    def inflight(self) -> int:
        """QoS 1 and 2 messages sent and not settled."""
        counters = self.counters
        return counters.publish_qos1_sent + counters.publish_qos2_sent - counters.acked - counters.inflight_lost

    @cached_property
    def packets_received(self) -> Mapping[str, int]:
        """Packets by type: the lane counts those of the message path, the statistics the others."""
        counters = self.counters
        return self.statistics.packets_received + Counter(
            publish=counters.messages_received,
            puback=counters.puback_received,
            pubrec=counters.pubrec_received,
            pubrel=counters.pubrel_received,
            pubcomp=counters.pubcomp_received,
            pingreq=counters.pingreq_received,
        )

    @cached_property
    def packets_sent(self) -> Mapping[str, int]:
        """Packets by type; a PINGREQ is always answered."""
        counters = self.counters
        return self.statistics.packets_sent + Counter(
            publish=self.messages_sent,
            puback=counters.puback_sent,
            pubrec=counters.pubrec_sent,
            pubrel=counters.pubrel_sent,
            pubcomp=counters.pubcomp_sent,
            pingresp=counters.pingreq_received,
        )

    @property
    def packets_malformed(self) -> int:
        """Packets that broke the protocol."""
        return sum(self.violations.values())

    @property
    def connack_errors(self) -> int:
        """CONNECT packets that were rejected."""
        return sum(self.refusals.values())

    # The log and the history service

    @property
    def log_oldest_age_s(self) -> float | None:
        """Age of the oldest record; 0 without records."""
        if self.log is None:
            return None
        oldest_us = min((shard.oldest for shard in self.log.shards if shard.oldest), default=0)
        return max(0.0, time() - oldest_us / 1e6) if oldest_us else 0.0

    @property
    def log_appended(self) -> int | None:
        """Records committed since the start."""
        if self.log is None:
            return None
        return sum(shard.committed_records for shard in self.log.shards)

    @property
    def log_appended_bytes(self) -> int | None:
        """Bytes of those records."""
        if self.log is None:
            return None
        return sum(shard.committed_bytes for shard in self.log.shards)

    @property
    def log_replayed(self) -> int | None:
        """Records read from the log."""
        if self.log is None:
            return None
        return sum(shard.replayed_records for shard in self.log.shards)

    @property
    def log_commit_s(self) -> float | None:
        """Seconds that commits took."""
        if self.log is None:
            return None
        return self.log.store["commit_us_total"] / 1e6

    @property
    def service_is_up(self) -> bool:
        """Whether the history service listens."""
        return self.service.address is not None

    # Sources

    def collect(self) -> dict[str, float]:
        """The current value of every metric, by the stem of its name; omits metrics without a value."""
        values = {stem: self._read(metric.source) for stem, metric in METRICS.items() if "*" not in metric.source}
        found = {stem: value for stem, value in values.items() if value is not None}
        totals = {
            stem: sum(value for other, value in found.items() if fnmatchcase(other, metric.source))
            for stem, metric in METRICS.items()
            if "*" in metric.source
        }
        return found | totals

    def _read(self, source: str) -> float | None:
        parts = [self._follow(path) for path in source.split(" + ")]
        return None if None in parts else sum(part for part in parts if part is not None)

    def _follow(self, path: str) -> float | None:
        value: Any = self
        for name in path.split("."):
            if value is None:
                return None
            value = value[name] if isinstance(value, Mapping) else getattr(value, name)
        return float(len(value)) if isinstance(value, Sized) else value


def _by_name(counts: Counter[int]) -> Mapping[str, int]:
    return Counter({Reason(code).name: count for code, count in counts.items()})
