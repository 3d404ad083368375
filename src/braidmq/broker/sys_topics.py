"""``$SYS``: statistics of the broker as retained messages, under Mosquitto's names.

``$SYS/broker/...`` has Mosquitto's names; the same state is under ``$SYS/brokers/NODE/...`` in the form of EMQX, where the
presence events are too.
"""

from __future__ import annotations

import asyncio
import math
from time import monotonic, time
from typing import TYPE_CHECKING

from braidmq import __version__
from braidmq.broker.messages.message import make_message

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker

_LOADS = (("1min", 60.0), ("5min", 300.0), ("15min", 900.0))


class SysTopics:
    """Publishes every ``sys.interval``, only values that have changed."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._timer: asyncio.TimerHandle | None = None
        self._last: dict[str, str] = {}
        self._loads: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._published_at = monotonic()

    def start(self) -> None:
        """Publish now and from now on, unless the interval is 0."""
        if self._broker.settings.sys.interval > 0:
            self._turn()

    def stop(self) -> None:
        """Publish no more."""
        if self._timer is not None:
            self._timer.cancel()

    def reconfigure(self) -> None:
        """The interval may have changed: go by it from now on."""
        self.stop()
        self.start()

    def _turn(self) -> None:
        self._timer = self._broker.loop.call_later(self._broker.settings.sys.interval, self._turn)
        for topic, value in self._values().items():
            if self._last.get(topic) != value:
                self._last[topic] = value
                self._broker.publish(make_message(f"$SYS/{topic}", value.encode(), retain=True))
        self._broker.lane.flush()

    def _values(self) -> dict[str, str]:
        broker = self._broker
        counters = broker.state.counters
        statistics = broker.statistics
        uptime = int(monotonic() - broker.started_at)
        sessions = len(broker.sessions)
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
            "broker/messages/stored": len(broker.retained),
            "broker/store/messages/count": len(broker.retained),
            "broker/publish/messages/received": received,
            "broker/publish/messages/sent": sent,
            "broker/publish/messages/dropped": dropped,
            "broker/bytes/received": counters.bytes_received,
            "broker/bytes/sent": counters.bytes_sent,
            "broker/retained messages/count": len(broker.retained),
            "broker/subscriptions/count": broker.subscription_count(),
            "broker/shared_subscriptions/count": broker.groups.members,
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
        node = broker.settings.node.name
        values.update({
            "brokers": node,
            f"brokers/{node}/version": __version__,
            f"brokers/{node}/uptime": uptime * 1000,
            f"brokers/{node}/datetime": int(time()),
            f"brokers/{node}/sysdescr": "braidmq",
            f"brokers/{node}/stats/connections/count": sessions,
            f"brokers/{node}/stats/live_connections/count": statistics.live,
            f"brokers/{node}/stats/subscriptions/count": broker.subscription_count(),
            f"brokers/{node}/stats/retained/count": len(broker.retained),
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
