"""``python -m benchmarks.registry``: run the benchmarks of the channel registry and write the results."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from benchmarks.brokers import ROOT
from benchmarks.measure import build
from benchmarks.registry import report as reports
from benchmarks.registry.clusters import clusters
from benchmarks.registry.memory import measure_memory
from benchmarks.registry.rows import (
    QUICK,
    Contest,
    Scale,
    measure_crowd,
    measure_home,
    measure_initial,
    measure_reconnect,
    measure_stopped,
)
from benchmarks.registry.storm import Storm
from benchmarks.report import describe_commit, describe_machine, today

# In this order: the last ones stop and kill nodes.
SHAPES: dict[str, Callable[[Contest], None]] = {
    "initial": measure_initial,
    "reconnect": measure_reconnect,
    "crowd": measure_crowd,
    "stopped": measure_stopped,
    "home": measure_home,
}
QUICK_SHAPES = ("initial", "reconnect", "crowd")


@click.command()
@click.option("--quick", is_flag=True, help="Less than a minute: one round, smaller numbers, no faults.")
@click.option("--shape", "shapes", multiple=True, type=click.Choice([*SHAPES, "memory"]), help="Only this; may be repeated.")
def main(quick: bool, shapes: tuple[str, ...]) -> None:
    """Compare the modes of the channel registry. A full run updates docs/benchmarks/registry.md; others write to build."""
    scale = QUICK if quick else Scale()
    wanted = shapes or ((*QUICK_SHAPES, "memory") if quick else (*SHAPES, "memory"))
    report = reports.RegistryReport(today(), describe_commit(), describe_machine(), scale.rounds)
    if any(name in SHAPES for name in wanted):
        with tempfile.TemporaryDirectory(prefix="braidmq-bench-") as name:
            _run(report, scale, wanted, Path(name))
    if "memory" in wanted:
        report.rows.append(measure_memory())
    is_whole = not (quick or shapes)
    results = ROOT / "benchmarks" / "results" if is_whole else ROOT / "build" / "benchmarks" / "results"
    page = reports.write(report, results, ROOT / "docs" / "benchmarks" if is_whole else ROOT / "build" / "benchmarks")
    click.echo(f"\n{page.read_text()}\nwritten: {page.relative_to(ROOT)}")
    if missed := reports.missed(report):
        click.echo(f"targets missed: {'; '.join(missed)}")


def _run(report: reports.RegistryReport, scale: Scale, wanted: tuple[str, ...], folder: Path) -> None:
    with clusters(folder, with_one="initial" in wanted) as found, Storm(build(folder, "storm")) as storm:
        contest = Contest(found, storm, scale, click.echo)
        for name, measure in SHAPES.items():
            if name in wanted:
                measure(contest)
        report.rows += contest.rows
        report.costs += contest.costs
        report.curves += contest.curves


if __name__ == "__main__":
    main()
