"""The figures of the registry as JSON, as a page, and as curves."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import msgspec

from benchmarks.report import write_files

matplotlib.use("svg")
from matplotlib import pyplot

COLOURS = {"linear": "#1f6feb", "eventual": "#d29922", "one": "#8c959f"}
_SHOWN_MIN_MS = 0.1


class ModeRow(msgspec.Struct):
    """A line of the table: what either mode does, and the target of the linear one."""

    title: str
    linear: str
    eventual: str
    target: str
    is_met: bool


class ModeCost(msgspec.Struct):
    """Processor time of a connection, in microseconds, by process."""

    title: str
    mode: str
    processes_us: dict[str, float]


class Curve(msgspec.Struct):
    """The distribution of times, in milliseconds, at 0 to 100 %, by mode."""

    title: str
    percentiles_ms: dict[str, list[float]]


class RegistryReport(msgspec.Struct):
    """All figures, and the machine."""

    date: str
    commit: str
    machine: str
    rounds: int
    rows: list[ModeRow] = []
    costs: list[ModeCost] = []
    curves: list[Curve] = []


def write(report: RegistryReport, results: Path, pages: Path) -> Path:
    """Write the JSON to ``results``, the page and its curves to ``pages``; returns the path of the page."""
    page = write_files(report, pages / "registry.md", render(report), results, "registry-")
    if report.curves:
        _draw(report.curves, pages / "registry.svg")
    return page


def missed(report: RegistryReport) -> list[str]:
    """The targets not met, by name."""
    return [row.title for row in report.rows if not row.is_met]


def render(report: RegistryReport) -> str:
    """The page."""
    lines = [
        "# Who owns a client id: the linear registry and the old way\n",
        f"Measured {report.date} UTC at commit {report.commit} by `make bench-registry`.  ",
        f"Machine: {report.machine}.\n",
        "Three cores, each with a worker, and three replicants, all on one machine with etcd and the load generator: rates show",
        "what a connection costs, and not what a cluster of several machines reaches. *linear* and *eventual* (a lock from more",
        'than half of the cores, `registry.lock = "quorum"`) are two clusters that run side by side and are measured in turn, in',
        f"{report.rounds} rounds. Rates and times are medians of the rounds, a ratio is the median of the ratios of all rounds.",
        "A time is that from the first attempt to connect to the CONNACK; where clients try again, refused attempts are part of",
        "it.\n",
        "| work | linear | eventual | target | met |",
        "|---|---|---|---|---|",
        *(
            f"| {row.title} | {row.linear} | {row.eventual} | {row.target} | {'yes' if row.is_met else 'no'} |"
            for row in report.rows
        ),
        "",
    ]
    if report.curves:
        lines += [
            "## How long clients wait\n",
            "![The share of clients that are served within a time](registry.svg)\n",
            "The share of clients that have their CONNACK within a time.\n",
        ]
    if report.costs:
        lines += [
            "## Processor time of a connection\n",
            "Microseconds of all threads of a process, from `/proc/PID/stat`; `core1/w1` is the worker of `core1`, `one` a node",
            "without a cluster.\n",
            "| work | mode | processes | sum |",
            "|---|---|---|---|",
            *map(_cost_line, report.costs),
            "",
        ]
    return "\n".join(lines)


def _cost_line(cost: ModeCost) -> str:
    each = ", ".join(f"{name} {us:.0f}" for name, us in sorted(cost.processes_us.items()))
    return f"| {cost.title} | {cost.mode} | {each} | {sum(cost.processes_us.values()):.0f} |"


def _draw(curves: list[Curve], file: Path) -> None:
    """For each row, the share of clients by time, on a logarithmic scale."""
    # Plain text and fixed identifiers keep the file small and its changes readable.
    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": "braidmq", "font.size": 9}):
        height = 2.2 * ((len(curves) + 1) // 2)
        figure, grid = pyplot.subplots((len(curves) + 1) // 2, 2, figsize=(9, height), squeeze=False)
        places = list(grid.flat)
        for axes, curve in zip(places, curves, strict=False):
            for mode, times in curve.percentiles_ms.items():
                shown = [max(each, _SHOWN_MIN_MS) for each in times]
                axes.plot(shown, range(len(times)), label=mode, color=COLOURS[mode])
            axes.set_xscale("log")
            axes.set_title(curve.title, fontsize=9)
            axes.set_xlabel("ms")
            axes.set_ylabel("% of clients")
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(frameon=False)
        for axes in places[len(curves) :]:
            axes.set_visible(False)
        figure.tight_layout()
        figure.savefig(file, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
