"""Sums the metrics of a core and its workers, so that they look like those of one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from braidmq.api.metric_names import METRICS

Process = tuple[str, int]  # the name of a worker and its incarnation


class Totals:
    """Counters never fall: a worker that does not answer counts as it was, and one that has ended stays in the sum."""

    def __init__(self) -> None:
        self._last: dict[Process, Mapping[str, float]] = {}
        self._ended: Counter[str] = Counter()

    def add(self, own: Mapping[str, float], workers: Mapping[Process, Mapping[str, float] | None]) -> dict[str, float]:
        """The sums. ``workers``: all that are alive; None: it did not answer."""
        for process in [each for each in self._last if each not in workers]:
            ended = self._last.pop(process)
            for stem, metric in METRICS.items():
                if metric.kind == "counter":
                    self._ended[stem] += ended.get(stem, 0)  # type: ignore[assignment]  # seconds are fractions
        self._last.update((process, values) for process, values in workers.items() if values is not None)
        return {stem: self._total(stem, value, workers) for stem, value in own.items()}

    def _total(self, stem: str, own: float, workers: Mapping[Process, Mapping[str, float] | None]) -> float:
        metric = METRICS[stem]
        if not metric.is_summed:
            return own
        if metric.kind == "counter":
            return own + self._ended[stem] + sum(values.get(stem, 0) for values in self._last.values())
        return own + sum(values.get(stem, 0) for values in workers.values() if values is not None)
