"""The Prometheus text format of a node's metrics.

The node's own lines are written here and not by ``prometheus_client``, which would append ``_total`` to every counter: existing
dashboards use the stems without it. The lines about the process come from ``prometheus_client``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest

from braidmq.api.metric_names import METRICS, PREFIX

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def render(values: Mapping[str, float]) -> str:
    """The metrics in the order of the table; names that are not in the table come last, untyped."""
    lines: list[str] = []
    for stem, name in METRICS.items():
        if stem in values:
            lines += (f"# HELP {PREFIX}{stem} {name.help}", f"# TYPE {PREFIX}{stem} {name.kind}", _sample(stem, values[stem]))
    for stem in sorted(values.keys() - METRICS.keys()):
        lines += (f"# TYPE {PREFIX}{stem} untyped", _sample(stem, values[stem]))
    return "\n".join(lines) + "\n"


def _sample(stem: str, value: float) -> str:
    # An integer must not lose digits: at 10 M messages a second %g would show steps.
    return f"{PREFIX}{stem} {int(value) if float(value).is_integer() else repr(float(value))}"


class ProcessMetrics:
    """Memory, CPU, file descriptors and garbage collection of this process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(namespace=PREFIX.rstrip("_"), registry=self._registry)
        GCCollector(registry=self._registry)

    def render(self) -> str:
        """The current lines."""
        return generate_latest(self._registry).decode()
