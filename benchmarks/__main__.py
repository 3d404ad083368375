"""``python -m benchmarks``: run the benchmarks and write the results."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from benchmarks import durable, history
from benchmarks import report as reports
from benchmarks.brokers import BROKERS, ROOT, make_certificate, version_of
from benchmarks.measure import Bench, known_brokers
from benchmarks.shapes import (
    ALL,
    CONNECT,
    FLOWS,
    FULL,
    HISTORY,
    IDLE,
    LATENCY,
    LOG,
    MEMORY,
    QUICK,
    RECORDED,
    RESUME,
    SINGLE_QOS0,
    SPARK,
    TABLE,
)
from benchmarks.spark import table as spark_table


@click.command()
@click.option("--quick", is_flag=True, help="Two minutes: one round, smaller numbers, braidmq and mosquitto only.")
@click.option("--shape", "shapes", multiple=True, type=click.Choice(ALL), help="Only this shape; may be repeated.")
@click.option("--broker", "brokers", multiple=True, type=click.Choice(BROKERS), help="Only this broker; may be repeated.")
@click.option(
    "--generator",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Another load generator with the same options and output as ours, to verify ours.",
)
def main(quick: bool, shapes: tuple[str, ...], brokers: tuple[str, ...], generator: Path | None) -> None:
    """Compare braidmq with other brokers. A full run updates docs/benchmarks; a partial one writes to build/benchmarks."""
    scale = QUICK if quick else FULL
    wanted = shapes or tuple(ALL)
    with tempfile.TemporaryDirectory(prefix="braidmq-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # mosquitto, started as root, reads its files as its own user
        bench = Bench(folder, make_certificate(folder), scale, click.echo, generator)
        try:
            bench.start(known_brokers(brokers, scale))
            report = _measure(bench, wanted)
        finally:
            bench.stop()
    is_whole = not (quick or shapes or brokers or generator)
    target = ROOT if is_whole else ROOT / "build"
    pages = target / "docs" / "benchmarks" if is_whole else target / "benchmarks"
    page = reports.write(report, target / "benchmarks" / "results", pages)
    click.echo(f"\n{page.read_text()}\nwritten: {page.relative_to(ROOT)}")
    if missed := reports.missed(report):
        click.echo(f"targets missed: {'; '.join(missed)}")


def _measure(bench: Bench, wanted: tuple[str, ...]) -> reports.Report:
    report = reports.Report(
        date=reports.today(),
        commit=reports.describe_commit(),
        machine=reports.describe_machine(),
        versions={name: version_of(name) for name in bench.brokers},
        scale=bench.scale,
        flows=[bench.flow(shape) for shape in FLOWS if shape.name in wanted],
    )
    if LATENCY in wanted:
        known = next((series for series in report.flows if series.name == SINGLE_QOS0.name), None)
        base = known or bench.flow(SINGLE_QOS0)
        report.latency = bench.latency({name: rate for name in bench.brokers if (rate := base.median(name))})
    if CONNECT in wanted:
        report.connect = bench.connect()
    if MEMORY in wanted:
        report.memory_kib = bench.memory()
    if IDLE in wanted:
        report.idle_cpu, report.idle_clients = bench.idle(), bench.scale.idle_clients
    if TABLE in wanted:
        report.table = bench.table()
    if RECORDED.name in wanted:
        report.recorded = durable.recorded(bench)
    if LOG in wanted:
        report.log += durable.log(bench)
    if RESUME in wanted:
        report.log += durable.resume(bench)
    if HISTORY in wanted:
        report.history += history.measure(bench)
    if SPARK in wanted:
        report.history += spark_table.measure(bench)
    return report


if __name__ == "__main__":
    main()
