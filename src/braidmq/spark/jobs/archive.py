"""`archive`: copies history to a table partitioned by day and topic pattern, each record exactly once. Runs on the driver."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import quote

import click
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from braidmq.base.errors import UsageError
from braidmq.base.units import parse_bytes, size, span
from braidmq.spark.jobs.framework.expressions import levels_of, pattern_of
from braidmq.spark.jobs.framework.job import HistoryOptions, Job, job_command
from braidmq.spark.jobs.framework.patterns import Patterns, make_patterns, read_patterns
from braidmq.spark.jobs.framework.preflight import check_service
from braidmq.spark.jobs.framework.progress import show_summary
from braidmq.spark.jobs.framework.run import checkpoint_for, run_stream
from braidmq.spark.jobs.framework.sampling import sample_topics
from braidmq.spark.jobs.learn.patterns import TopicStats, propose
from braidmq.spark.jobs.tables.ownership import own_tables
from braidmq.spark.jobs.tables.parquet_table import ParquetTable, own_place
from braidmq.spark.jobs.tables.tables import BatchName, Compacted, Kind, Written, open_table

PARTITIONED_BY: Final = ("date", "pattern")
# Tasks write Parquet rows directly to files, so large batches are cheap. Rows of a Delta table pass through the driver.
_PARQUET_BATCH_BYTES: Final = "2GiB"
_LEVELS: Final = "_levels"
# A directory name has at most 255 bytes, including `pattern=` and escaped slashes.
_PATTERN_BYTES_MAX: Final = 200


def with_partitions(frame: DataFrame, patterns: Patterns) -> DataFrame:
    """Add the columns that the table is partitioned by: the day (UTC) on which a record was stored, and its pattern."""
    split = frame.withColumn(_LEVELS, levels_of(F.col("topic")))
    added = {"date": F.to_date("store_timestamp"), "pattern": pattern_of(F.col(_LEVELS), patterns)}
    return split.withColumns(added).drop(_LEVELS)


def patterns_for(history: HistoryOptions, given: Path | None, kept: Path | None, patterns_max: int) -> Patterns:
    """The patterns of a table: those given, else those stored with it, else those learned from the topics of the history.

    Learned patterns are stored, so that a topic stays in its partition; raises UsageError if they cannot be stored.
    """
    if given is not None:
        patterns = read_patterns(given)
        long = [each for each in patterns if len(quote(each, safe="")) > _PATTERN_BYTES_MAX]
        if long:
            raise UsageError(
                f"the pattern {long[0]!r} is too long for the name of a directory", "remove it: its topics then belong to #"
            )
    elif kept is None:
        raise UsageError(
            "learned patterns can be kept only in a local directory",
            "give --patterns, or learn them first: `braidmq pipeline learn`",
        )
    elif kept.exists():
        return read_patterns(kept)
    else:
        patterns = learn_patterns(history, patterns_max)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        patterns.write(kept)
    return patterns


def learn_patterns(history: HistoryOptions, patterns_max: int) -> Patterns:
    """Learn the patterns with the most records from a sample of the history.

    Raises UsageError if no records match.
    """
    with history.client() as client:
        counts = sample_topics(client, history.asking.filters)
    if not counts:
        hint = "give --patterns, or start again when there are records"
        raise UsageError("no records match, so no patterns can be learned", hint)
    proposal = propose(TopicStats(topic, records) for topic, records in counts.items())
    fitting = [each.pattern for each in proposal.patterns if len(quote(each.pattern, safe="")) <= _PATTERN_BYTES_MAX]
    return make_patterns(fitting[:patterns_max])


@job_command("archive", table=True, reader_name="archive")
@click.argument("output")
@click.option(
    "--table",
    "kind",
    type=click.Choice(["parquet", "delta"]),
    default="parquet",
    show_default=True,
    help="Table format of OUTPUT.",
)
@click.option(
    "--patterns",
    "patterns_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File of topic filters to partition by, one per line.  [default: learned from the history and kept with the table]",
)
@click.option(
    "--patterns-max",
    type=click.IntRange(0, 1000),
    default=50,
    show_default=True,
    help="Maximum number of patterns to learn; all other topics belong to #.",
)
@click.option("--target-file-bytes", default="128MiB", show_default=True, help="Target size when small files are merged.")
@click.option(
    "--files-max",
    type=click.IntRange(2),
    default=64,
    show_default=True,
    help="Merge the small files of a directory when it has more than this many; not in an object store.",
)
def command(
    job: Job, output: str, kind: Kind, patterns_file: Path | None, patterns_max: int, target_file_bytes: str, files_max: int
) -> None:
    """Copy history to OUTPUT, a directory or an address, partitioned by day and topic pattern; each record once.

    \b
      braidmq pipeline archive /data/lake -t 'plant/#'
      braidmq pipeline archive /data/lake --follow --trigger '1 minute'
    """
    target_bytes = parse_bytes(target_file_bytes)
    table = open_table(kind, output, PARTITIONED_BY)
    kept = own_place(output, "patterns")
    written, compacted = Written(), Compacted()
    patterns: Patterns | None = None

    def each_batch(frame: DataFrame, batch: BatchName) -> None:
        nonlocal written, compacted, patterns
        if patterns is None:
            patterns = patterns_for(job.history, patterns_file, kept, patterns_max)
        written += table.append(with_partitions(frame, patterns), batch)
        compacted += table.tidy(batch.query, target_bytes, files_max)

    checkpoint = checkpoint_for(job, output)
    ownership = own_tables(job, checkpoint, [table])
    check_service(job, checkpoint)
    stream = job.stream(_PARQUET_BATCH_BYTES) if isinstance(table, ParquetTable) else job.stream()
    meter = run_stream(job, stream, each_batch, checkpoint, ownership)
    show_summary(
        "archive",
        [
            ("rows", f"{written.rows:,} in {meter.batches:,} batches, {meter.rate:,.0f} a second"),
            ("files", f"{written.files:,} of {size(written.size_bytes)}"),
            ("joined", f"{compacted.files_before:,} small files to {compacted.files_after:,}"),
            ("patterns", f"{len(patterns):,}" if patterns is not None else "-"),
            ("time", span(meter.elapsed_s)),
            ("table", output),
            ("checkpoint", checkpoint),
        ],
    )


if __name__ == "__main__":
    command()
