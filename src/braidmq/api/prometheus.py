"""The Prometheus text format of a node's metrics.

The node's own lines are written here and not by ``prometheus_client``, which would append ``_total`` to every counter: existing
dashboards use the stems without it. The lines about the process come from ``prometheus_client``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest

from braidmq.api.metric_names import METRICS, PREFIX
from braidmq.control.cluster import NodeMetrics

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_UP_HELP: Final = "Whether a worker or replicant has answered within a second."


def render(values: Mapping[str, float]) -> str:
    """The metrics in the order of the table; names that are not in the table come last, untyped."""
    lines: list[str] = []
    for stem, name in METRICS.items():
        if stem in values:
            lines += (f"# HELP {PREFIX}{stem} {name.help}", f"# TYPE {PREFIX}{stem} {name.kind}", _sample(stem, values[stem]))
    for stem in sorted(values.keys() - METRICS.keys()):
        lines += (f"# TYPE {PREFIX}{stem} untyped", _sample(stem, values[stem]))
    return "\n".join(lines) + "\n"


def render_presence(nodes: Sequence[NodeMetrics]) -> str:
    """Which nodes have answered: one line for each."""
    if not nodes:
        return ""
    lines = [f"# HELP {PREFIX}node_up {_UP_HELP}", f"# TYPE {PREFIX}node_up gauge"]
    lines += (_sample("node_up", float(node.values is not None), _labels(node, with_role=True)) for node in nodes)
    return "\n".join(lines) + "\n"


def render_nodes(nodes: Sequence[NodeMetrics]) -> str:
    """Every node's own metrics, with its name as a label."""
    lines: list[str] = []
    for stem, name in METRICS.items():
        samples = [_sample(stem, node.values[stem], _labels(node)) for node in nodes if node.values and stem in node.values]
        if samples:
            lines += (f"# HELP {PREFIX}{stem} {name.help}", f"# TYPE {PREFIX}{stem} {name.kind}", *samples)
    return "\n".join(lines) + "\n" + render_presence(nodes)


def _labels(node: NodeMetrics, *, with_role: bool = False) -> str:
    role = f',role="{_escaped(node.role)}"' if with_role else ""
    return f'{{node="{_escaped(node.node)}"{role}}}'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _sample(stem: str, value: float, labels: str = "") -> str:
    # An integer must not lose digits: at 10 M messages a second %g would show steps.
    return f"{PREFIX}{stem}{labels} {int(value) if float(value).is_integer() else repr(float(value))}"


class ProcessMetrics:
    """Memory, CPU, file descriptors and garbage collection of this process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(namespace=PREFIX.rstrip("_"), registry=self._registry)
        GCCollector(registry=self._registry)

    def render(self) -> str:
        """The current lines."""
        return generate_latest(self._registry).decode()
