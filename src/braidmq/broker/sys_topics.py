"""``$SYS``: statistics of the broker as retained messages, under Mosquitto's names.

``$SYS/broker/...`` has Mosquitto's names, and is for the node's own clients. The same state is under ``$SYS/brokers/NODE/...`` in
the form of EMQX, where the presence events are too: these reach subscribers on all nodes of a cluster.
"""

from __future__ import annotations

import asyncio
import math
from time import monotonic, time

from braidmq import __version__
from braidmq.broker.live_settings import LiveSettings
from braidmq.broker.messages.message import make_message
from braidmq.broker.messages.pipeline import MessagePipeline
from braidmq.broker.messages.retained import RetainedStore
from braidmq.broker.session.session import SessionTable
from braidmq.broker.session.subscriptions import Subscriptions
from braidmq.broker.shared.group import Groups
from braidmq.broker.statistics import Statistics
from braidmq.lane.path.lane import Lane

_LOADS = (("1min", 60.0), ("5min", 300.0), ("15min", 900.0))


class SysTopics:
    """Publishes every ``sys.interval``: values that have changed and, if other nodes have subscribers, all that these may want.

    Retained messages of ``$SYS`` are on their own node alone, so a new subscriber elsewhere gets them with the next round.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        lane: Lane,
        pipeline: MessagePipeline,
        sessions: SessionTable,
        subscriptions: Subscriptions,
        groups: Groups,
        retained: RetainedStore,
        statistics: Statistics,
        live: LiveSettings,
        started_at: float,
    ) -> None:
        """``started_at``: when the node started, on the monotonic clock."""
        self._loop = loop
        self._lane = lane
        self._pipeline = pipeline
        self._sessions = sessions
        self._subscriptions = subscriptions
        self._groups = groups
        self._retained = retained
        self._statistics = statistics
        self._live = live
        self._started_at = started_at
        self._timer: asyncio.TimerHandle | None = None
        self._last: dict[str, str] = {}
        self._loads: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._published_at = monotonic()

    def start(self) -> None:
        """Publish now and from now on, unless the interval is 0."""
        self.stop()
        if self._live.now.sys.interval > 0:
            self._turn()

    def stop(self) -> None:
        """Stop publishing."""
        if self._timer is not None:
            self._timer.cancel()

    def reconfigure(self) -> None:
        """The interval may have changed: apply it from now on."""
        self.start()

    def _turn(self) -> None:
        self._timer = self._loop.call_later(self._live.now.sys.interval, self._turn)
        has_nodes = self._lane.routes.remote > 0
        for topic, value in self._values().items():
            if self._last.get(topic) != value or (has_nodes and topic.startswith("brokers")):
                self._last[topic] = value
                self._pipeline.publish(make_message(f"$SYS/{topic}", value.encode(), retain=True))
        self._lane.flush()

    def _values(self) -> dict[str, str]:
        counters = self._lane.state.counters
        statistics = self._statistics
        uptime = int(monotonic() - self._started_at)
        sessions = len(self._sessions)
        sent = counters.publish_qos0_sent + counters.publish_qos1_sent + counters.publish_qos2_sent
        dropped = counters.dropped_outbox_full + counters.dropped_queue_full + counters.dropped_expired
        received = counters.messages_received
        packets = sum(statistics.packets_received.values()) + received + counters.pingreq_received + counters.puback_received
        packets += counters.pubrec_received + counters.pubrel_received + counters.pubcomp_received
        packets_sent = sum(statistics.packets_sent.values()) + sent + counters.pingreq_received + counters.puback_sent
        packets_sent += counters.pubrec_sent + counters.pubrel_sent + counters.pubcomp_sent
        values: dict[str, object] = {
            "broker/version": f"braidmq version {__version__}",
            "broker/uptime": f"{uptime} seconds",
            "broker/clients/total": sessions,
            "broker/clients/connected": statistics.live,
            "broker/clients/active": statistics.live,
            "broker/clients/disconnected": sessions - statistics.live,
            "broker/clients/inactive": sessions - statistics.live,
            "broker/clients/maximum": statistics.connections_max,
            "broker/clients/expired": statistics.expired,
            "broker/messages/received": packets,
            "broker/messages/sent": packets_sent,
            "broker/messages/stored": len(self._retained),
            "broker/store/messages/count": len(self._retained),
            "broker/publish/messages/received": received,
            "broker/publish/messages/sent": sent,
            "broker/publish/messages/dropped": dropped,
            "broker/bytes/received": counters.bytes_received,
            "broker/bytes/sent": counters.bytes_sent,
            "broker/retained messages/count": len(self._retained),
            "broker/subscriptions/count": self._subscriptions.count(),
            "broker/shared_subscriptions/count": self._groups.members,
        }
        values.update(self._load({
            "messages/received": packets,
            "messages/sent": packets_sent,
            "publish/received": received,
            "publish/sent": sent,
            "publish/dropped": dropped,
            "bytes/received": counters.bytes_received,
            "bytes/sent": counters.bytes_sent,
            "sockets": statistics.connected,
            "connections": statistics.connected,
        }))  # fmt: skip
        node = self._live.now.node.name
        values.update({
            "brokers": node,
            f"brokers/{node}/version": __version__,
            f"brokers/{node}/uptime": uptime * 1000,
            f"brokers/{node}/datetime": int(time()),
            f"brokers/{node}/sysdescr": "braidmq",
            f"brokers/{node}/stats/connections/count": sessions,
            f"brokers/{node}/stats/live_connections/count": statistics.live,
            f"brokers/{node}/stats/subscriptions/count": self._subscriptions.count(),
            f"brokers/{node}/stats/retained/count": len(self._retained),
        })  # fmt: skip
        return {topic: str(value) for topic, value in values.items()}

    def _load(self, counts: dict[str, int]) -> dict[str, object]:
        """Per-minute rates, averaged over 1, 5 and 15 minutes with an exponential window."""
        now = monotonic()
        elapsed = max(now - self._published_at, 1e-3)
        self._published_at = now
        loads: dict[str, object] = {}
        for name, count in counts.items():
            per_minute = (count - self._counts.get(name, count)) / elapsed * 60.0
            self._counts[name] = count
            for span, window_s in _LOADS:
                key = f"broker/load/{name}/{span}"
                weight = math.exp(-elapsed / window_s)
                self._loads[key] = per_minute + weight * (self._loads.get(key, 0.0) - per_minute)
                loads[key] = f"{self._loads[key]:.2f}"
        return loads
