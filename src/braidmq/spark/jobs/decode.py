"""`decode`: decodes payloads into typed columns; records that cannot be decoded go to a quarantine table with the reason."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import click
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from braidmq.base.errors import UsageError
from braidmq.base.units import span
from braidmq.spark.jobs.framework.job import Job, job_command
from braidmq.spark.jobs.framework.payloads import Format, decode, parse_schema, quarantined, schema_of, typed
from braidmq.spark.jobs.framework.preflight import check_service
from braidmq.spark.jobs.framework.progress import show_summary
from braidmq.spark.jobs.framework.run import checkpoint_for, run_stream
from braidmq.spark.jobs.sparkplug.frames import births_after, births_and_deaths, metrics
from braidmq.spark.jobs.sparkplug.payload import COLUMNS
from braidmq.spark.jobs.sparkplug.state import KeptBirths
from braidmq.spark.jobs.tables.ownership import own_tables
from braidmq.spark.jobs.tables.parquet_table import own_place
from braidmq.spark.jobs.tables.tables import BatchName, Kind, OutputTable, Written, open_table

_WHY_NAMELESS: Final = " metrics: their births are older than the start: start earlier (--from), or request a rebirth"
_WHY_BIRTHS_ARE_LOST: Final = (
    "decode: the known births are in the checkpoint of the previous query; metrics that have only an alias get no name until "
    "the next birth of their node"
)
# Up to this many known metrics, at some hundred bytes each, are broadcast to every task. Spark would decide by the size of their
# file, in which similar names compress to almost nothing.
_SENT_WHOLE_MAX: Final = 300_000


@job_command("decode", table=True, reader_name="decode")
@click.argument("output")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["json", "cbor", "sparkplug"]),
    default="json",
    show_default=True,
    help="Payload format.",
)
@click.option(
    "--schema",
    "ddl",
    help="The fields, as `ts bigint, temperature double`.  [default: inferred from the first batch and kept with the table]",
)
@click.option("--quarantine", help="Table for records that cannot be decoded.  [default: OUTPUT.quarantine]")
@click.option(
    "--table",
    "kind",
    type=click.Choice(["parquet", "delta"]),
    default="parquet",
    show_default=True,
    help="Table format of OUTPUT.",
)
def command(job: Job, output: str, format_: Format, ddl: str | None, quarantine: str | None, kind: Kind) -> None:
    """Decode payloads of JSON, CBOR or Sparkplug B into the table OUTPUT.

    Sparkplug B metrics that have only an alias get their name and datatype from the last birth before them, which may be in an
    earlier run. Metrics without a birth are kept without a name and counted.

    \b
      braidmq pipeline decode /data/temperatures -t 'plant/+/temp' --schema 'ts bigint, temperature double'
      braidmq pipeline decode /data/sparkplug -t 'spBv1.0/#' --format sparkplug
    """
    if format_ == "cbor" and importlib.util.find_spec("cbor2") is None:
        raise UsageError("CBOR needs cbor2", "pip install 'braidmq[spark]', also where Spark's executors run")
    if format_ == "sparkplug" and ddl is not None:
        raise UsageError("Sparkplug B has columns of its own", "remove --schema")
    good = open_table(kind, output, ["date"])
    bad_path = quarantine or f"{output.rstrip('/')}.quarantine"
    bad = open_table(kind, bad_path, ["date"])
    kept = own_place(output, "schema.json")
    written, refused, nameless = Written(), Written(), 0
    checkpoint = checkpoint_for(job, output)
    ownership = own_tables(job, checkpoint, [good, bad])
    check_service(job, checkpoint)
    if ownership.start is not None and format_ == "sparkplug":
        click.echo(_WHY_BIRTHS_ARE_LOST, err=True)
    stream = job.stream()  # starts Spark, which is needed to parse schemas
    schema = None if ddl is None else parse_schema(ddl)

    def each_batch(frame: DataFrame, batch: BatchName) -> None:
        nonlocal written, refused, schema
        # Cached: it is used to infer a schema and for two tables, but should be read once.
        with _held(frame):
            if schema is None:
                schema = schema_for(frame, format_, kept)
            rows = decode(frame, format_, schema)
            written += good.append(typed(rows), batch)
            refused += bad.append(quarantined(rows), batch)

    def each_sparkplug_batch(frame: DataFrame, batch: BatchName) -> None:
        nonlocal written, refused, nameless
        # Here the decoded rows are cached, since they are also searched for births.
        with _held(decode(frame, format_, parse_schema(COLUMNS))) as rows:
            added, unresolved = append_metrics(good, rows, KeptBirths(frame.sparkSession, checkpoint), batch)
            written += added
            nameless += unresolved
            refused += bad.append(quarantined(rows), batch)

    meter = run_stream(job, stream, each_sparkplug_batch if format_ == "sparkplug" else each_batch, checkpoint, ownership)
    show_summary(
        "decode",
        [
            ("messages", f"{meter.rows:,} in {meter.batches:,} batches, {meter.rate:,.0f} a second"),
            ("rows decoded", f"{written.rows:,} to {output}"),
            *([("without a name", f"{nameless:,}{_WHY_NAMELESS if nameless else ''}")] if format_ == "sparkplug" else []),
            ("quarantined", f"{refused.rows:,}" + (f" to {bad_path}" if refused.rows else "")),
            ("time", span(meter.elapsed_s)),
            ("checkpoint", checkpoint),
        ],
    )


def append_metrics(table: OutputTable, rows: DataFrame, kept: KeptBirths, batch: BatchName) -> tuple[Written, int]:
    """Append the metrics of decoded Sparkplug messages, named by the births before them; also returns the number of unnamed ones.

    A batch that is already in the table is not counted again.
    """
    births = kept.before(batch.number)
    news = births_and_deaths(rows)
    with ExitStack() as kept_frames:
        if not news.isEmpty():
            births = kept_frames.enter_context(_held(births_after(births, news)))
            kept.write(batch.number, births)
        known = births.select(F.sum(F.size("metrics"))).collect()[0][0] or 0
        if known > _SENT_WHOLE_MAX:
            births = births.hint("merge")
        seen = Observation()
        found = metrics(rows, births).observe(seen, F.count_if("is_unresolved").alias("unresolved"))
        added = table.append(found.drop("is_unresolved"), batch)
        # Spark counts while it writes; if nothing was written, the count never arrives.
        return added, seen.get["unresolved"] if added.rows else 0


@contextmanager
def _held(frame: DataFrame) -> Iterator[DataFrame]:
    """Keep the rows of a frame cached while the block runs."""
    frame.persist()
    try:
        yield frame
    finally:
        frame.unpersist()


def schema_for(frame: DataFrame, format_: Format, kept: Path | None) -> StructType:
    """The schema of a table if none is given: the stored one, else one inferred from a batch, which is then stored."""
    if kept is None:
        raise UsageError("an inferred schema can be kept only in a local directory", "give --schema")
    if kept.exists():
        return StructType.fromJson(json.loads(kept.read_text()))
    found = schema_of(frame, format_)
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = kept.with_suffix(".partial")
    partial.write_text(found.json())
    partial.replace(kept)
    return found


if __name__ == "__main__":
    command()
