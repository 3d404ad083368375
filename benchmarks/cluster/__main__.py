"""``python -m benchmarks.cluster``: run the benchmarks of the cluster and write the results."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from benchmarks.brokers import ROOT
from benchmarks.cluster import report as reports
from benchmarks.cluster.clients import measure_connects, measure_resume
from benchmarks.cluster.flows import FLOWS, QUICK, Loads, Scale, measure_flow, measure_latency
from benchmarks.cluster.report import Row
from benchmarks.cluster.routes import measure_loading, measure_spread
from benchmarks.report import describe_commit, describe_machine, today

OTHERS: dict[str, Callable[[Loads], Row | list[Row]]] = {
    "latency": measure_latency,
    "connect": measure_connects,
    "spread": measure_spread,
    "resume": measure_resume,
    "load": measure_loading,
}
ALL = [*(shape.name for shape in FLOWS), *OTHERS]


@click.command()
@click.option("--quick", is_flag=True, help="Three minutes: one round, smaller numbers.")
@click.option("--shape", "shapes", multiple=True, type=click.Choice(ALL), help="Only this shape; may be repeated.")
def main(quick: bool, shapes: tuple[str, ...]) -> None:
    """Compare a cluster with one node. A full run updates docs/benchmarks/cluster.md; a partial one writes to build."""
    scale = QUICK if quick else Scale()
    wanted = shapes or tuple(ALL)
    report = reports.Report(today(), describe_commit(), describe_machine(), scale.rounds, scale.seconds)
    with tempfile.TemporaryDirectory(prefix="braidmq-bench-") as name:
        loads = Loads(Path(name), scale, click.echo)
        for shape in FLOWS:
            if shape.name not in wanted:
                continue
            try:
                row, cost = measure_flow(loads, shape)
            except RuntimeError as problem:
                report.rows.append(Row(shape.title, "", f"failed: {problem}", "", False))
            else:
                report.rows.append(row)
                report.costs.append(cost)
        for each, measure in OTHERS.items():
            if each in wanted:
                try:
                    found = measure(loads)
                except RuntimeError as problem:
                    found = Row(each, "", f"failed: {problem}", "", False)
                report.rows += found if isinstance(found, list) else [found]
    is_whole = not (quick or shapes)
    results = ROOT / "benchmarks" / "results" if is_whole else ROOT / "build" / "benchmarks" / "results"
    page = reports.write(report, results, ROOT / "docs" / "benchmarks" if is_whole else ROOT / "build" / "benchmarks")
    click.echo(f"\n{page.read_text()}\nwritten: {page.relative_to(ROOT)}")
    if missed := reports.missed(report):
        click.echo(f"targets missed: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
