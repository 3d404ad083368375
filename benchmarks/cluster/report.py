"""The figures of the cluster as JSON and as a page."""

from __future__ import annotations

import statistics
from pathlib import Path

import msgspec

from benchmarks.report import write_files


class Row(msgspec.Struct):
    """A line of the table: what one node does, what the cluster does, and the target."""

    title: str
    one: str
    found: str
    target: str
    is_met: bool
    why: str = ""


class Cost(msgspec.Struct):
    """Processor time for a message, in microseconds, by process."""

    title: str
    one_us: float
    processes_us: dict[str, float]

    @property
    def sum_us(self) -> float:
        """All processes together."""
        return sum(self.processes_us.values())


class Report(msgspec.Struct):
    """All figures, and the machine."""

    date: str
    commit: str
    machine: str
    rounds: int
    seconds: int
    rows: list[Row] = []
    costs: list[Cost] = []


def median_ratio(found: list[float], base: list[float]) -> float:
    """The median of the ratios of rounds that ran one after the other; 0 without any."""
    ratios = [mine / one for mine, one in zip(found, base, strict=True) if one]
    return statistics.median(ratios) if ratios else 0.0


def predict(cost: Cost, processors: int) -> tuple[float, float]:
    """Messages per second of a core, with as many other nodes as keep it busy, and the processors that takes.

    The nodes have their processors to themselves, and half of them publish while half of them deliver.
    """
    core = cost.processes_us.get("core1") or cost.processes_us.get("core") or 0.0
    rest = cost.sum_us - core
    if not core:
        return processors * 1e6 / cost.sum_us, processors
    wanted = 1 + rest / core
    return (1e6 / core, wanted) if wanted <= processors else ((processors - 1) * 1e6 / rest, processors)


def write(report: Report, results: Path, pages: Path) -> Path:
    """Write the JSON to ``results`` and the page to ``pages``; returns the path of the page."""
    page = write_files(report, pages / "cluster.md", render(report), results, "cluster-")
    return page


def missed(report: Report) -> list[str]:
    """The targets not met, by name."""
    return [row.title for row in report.rows if not row.is_met]


def render(report: Report) -> str:
    """The page."""
    lines = [
        "# The cluster compared with one node\n",
        f"Measured {report.date} UTC at commit {report.commit} by `make bench-cluster`.  ",
        f"Machine: {report.machine}.\n",
        "All nodes and the load generator share the processors of one machine, so rates show what a message costs and not what a",
        "cluster of several machines reaches. *One node* is a core without workers or replicants, measured in turn with the",
        f"cluster, in {report.rounds} rounds of {report.seconds} s. Rates are medians; a ratio is the median of the",
        "ratios of all rounds. *Through the core*: publishers on one replicant, subscribers on another one. Payloads have",
        "64 bytes.\n",
        "| work | one node | cluster | target | met |",
        "|---|---|---|---|---|",
        *(f"| {row.title} | {row.one} | {row.found} | {row.target} | {'yes' if row.is_met else 'no'} |" for row in report.rows),
        "",
    ]
    if notes := [row for row in report.rows if row.why]:
        lines += ["## Remarks\n", *(f"- {row.title}: {row.why}" for row in notes), ""]
    if report.costs:
        lines += [
            "## Processor time for a message\n",
            "Microseconds of all threads of a process, from `/proc/PID/stat`.\n",
            "| work | one node | processes of the cluster | sum | ratio |",
            "|---|---|---|---|---|",
            *map(_cost_line, report.costs),
            "",
            "## What that predicts\n",
            "Messages per second on machines with more processors, if each process has a processor of its own and the core's one",
            "is the limit: its cost is the inverse of the rate that no number of nodes exceeds. In brackets: the processors that",
            "this takes.\n",
            "| work | 4 processors | 16 processors |",
            "|---|---|---|",
            *(f"| {cost.title} | {_prediction(cost, 4)} | {_prediction(cost, 16)} |" for cost in report.costs),
            "",
        ]
    return "\n".join(lines)


def _cost_line(cost: Cost) -> str:
    each = ", ".join(f"{name} {_us(us)}" for name, us in cost.processes_us.items())
    ratio = f"{cost.sum_us / cost.one_us:.2f}" if cost.one_us else "-"
    return f"| {cost.title} | {_us(cost.one_us)} | {each} | {_us(cost.sum_us)} | {ratio} |"


def _prediction(cost: Cost, processors: int) -> str:
    rate, used = predict(cost, processors)
    shown = f"{rate / 1e6:.1f} M/s" if rate >= 1e6 else f"{rate / 1e3:.0f} k/s"
    return f"{shown} ({used:.1f})"


def _us(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}"
