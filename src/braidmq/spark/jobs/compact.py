"""`compact`: merges many small files into few large ones atomically: a reader sees either set, never both or neither."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from braidmq.base.errors import UsageError
from braidmq.base.units import parse_bytes, parse_seconds, size
from braidmq.spark.jobs.framework.job import Job, job_command
from braidmq.spark.jobs.framework.progress import Display, show_summary
from braidmq.spark.jobs.tables.delta_table import DeltaFiles
from braidmq.spark.jobs.tables.parquet_table import ParquetTable
from braidmq.spark.jobs.tables.tables import Compacted, Kind


def old_enough(directory: Path, until: datetime | None) -> bool:
    """Whether the day in a directory's path ended before `until` (None: no limit). True for a directory without a day."""
    if until is None:
        return True
    days = [part.removeprefix("date=") for part in directory.parts if part.startswith("date=")]
    try:
        return all(datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC) + timedelta(days=1) <= until for day in days)
    except ValueError:
        return False  # such as a null day


@job_command("compact", history=False, pace=False)
@click.argument("path")
@click.option(
    "--table", "kind", type=click.Choice(["parquet", "delta"]), default="parquet", show_default=True, help="Table format of PATH."
)
@click.option(
    "--target-file-bytes",
    default="128MiB",
    show_default=True,
    help="Merge files smaller than half of this into files of about this size.",
)
@click.option("--older-than", help="Only days that ended at least this long ago, such as 1d; for Parquet.  [default: all]")
@click.option("--keep", default="168h", show_default=True, help="Keep files of older versions for this long; for Delta.")
def command(job: Job, path: str, kind: Kind, target_file_bytes: str, older_than: str | None, keep: str) -> None:
    """Merge the small files of the table at PATH.

    \b
      braidmq pipeline compact /data/lake
      braidmq pipeline compact /data/lake --older-than 1d
    """
    target_bytes = parse_bytes(target_file_bytes)
    if kind == "delta":
        done = DeltaFiles(path).compact(target_bytes, round(parse_seconds(keep) / 3600))
    else:
        until = None if older_than is None else datetime.now(UTC) - timedelta(seconds=parse_seconds(older_than))
        done = _compact_parquet(job, ParquetTable(path), target_bytes, until)
    figures = (
        f"{done.files_before:,} became {done.files_after:,} of {size(done.size_bytes)}"
        if done.files_before
        else "nothing to merge, or another compaction is running"
    )
    show_summary("compact", [("files", figures), ("table", path)])


def _compact_parquet(job: Job, table: ParquetTable, target_bytes: int, until: datetime | None) -> Compacted:
    if not table.root.is_dir():
        raise UsageError(f"there is no directory {table.root}", "give the directory that a job wrote to")
    chosen = [str(each) for each in table.directories() if old_enough(each.relative_to(table.root), until)]
    if not chosen:
        return Compacted()
    total = Compacted()
    root = str(table.root)

    def compact(directory: str) -> Compacted:
        return ParquetTable(root).compact(Path(directory), target_bytes)

    # One task per directory; the tasks are independent.
    context = job.spark.sparkContext
    at_once = context.defaultParallelism * 4
    with Display(job.name) as display:
        for first in range(0, len(chosen), at_once):
            some = chosen[first : first + at_once]
            total = sum(context.parallelize(some, len(some)).map(compact).collect(), total)
            done = min(first + at_once, len(chosen))
            display.show(f"{done:,} of {len(chosen):,} directories, {total.files_before:,} files became {total.files_after:,}")
    return total


if __name__ == "__main__":
    command()
