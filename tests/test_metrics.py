"""Every counter is exported by a metric, and every metric has a source that exists."""

from __future__ import annotations

import re

from braidmq.api.metric_names import METRICS
from braidmq.broker.statistics import Statistics
from braidmq.lane.path.state import Counters

# Not metrics, and why.
ELSEWHERE = {
    "statistics.connections_max": "$SYS/broker/clients/maximum",
    "statistics.expired": "$SYS/broker/clients/expired",
    "statistics.drops": "the drop log has them by reason; the metrics have each reason's own counter",
    "statistics.disconnects": "a table by reason code, for tests and traces",
    "statistics.violations": "Figures.violations, by the name of the reason",
    "statistics.refusals": "Figures.refusals, by the name of the reason",
    "statistics.listener_refusals": "Figures.connections_refused",
    "statistics.packets_sent": "Figures.packets_sent",
    "counters.inflight_lost": "Figures.inflight",
}
COMPUTED = re.compile(r"puback|pubrec|pubrel|pubcomp|pingreq")  # Figures.packets_received and packets_sent


def sources() -> set[str]:
    return {path for metric in METRICS.values() for path in metric.source.split(" + ")}


def test_every_counter_is_exported() -> None:
    counted = {f"statistics.{name}" for name in vars(Statistics())}
    counted |= {f"counters.{name}" for name in dir(Counters()) if not name.startswith("_") and not COMPUTED.match(name)}
    exported = {".".join(path.split(".")[:2]) for path in sources()}

    assert counted - exported == ELSEWHERE.keys()


def test_every_source_names_a_counter_that_exists() -> None:
    named = {path for path in sources() if path.startswith(("statistics.", "counters."))}

    for path in named:
        owner, name, *_ = path.split(".")
        assert hasattr(Statistics() if owner == "statistics" else Counters(), name), path
