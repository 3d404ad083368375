"""What is declared of a metric."""

from __future__ import annotations

from typing import Literal, NamedTuple


class MetricName(NamedTuple):
    """The type of a metric, its HELP text, and where its value comes from.

    ``is_summed``: a core with workers exports the sum over all its processes; otherwise its own value, which covers them.
    """

    kind: Literal["counter", "gauge"]
    help: str
    source: str
    is_summed: bool = True


def gauge(help: str, source: str, *, is_summed: bool = True) -> MetricName:
    """A value that rises and falls."""
    return MetricName("gauge", help, source, is_summed)


def counter(help: str, source: str) -> MetricName:
    """A value that only rises."""
    return MetricName("counter", help, source)
