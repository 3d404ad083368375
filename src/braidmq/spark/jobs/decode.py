"""`decode`: payloads into typed columns, and what does not decode into a table of its own, with the reason."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import click
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from braidmq.base.errors import UsageError
from braidmq.base.units import span
from braidmq.spark.jobs.job import Job, job_command
from braidmq.spark.jobs.parquet_table import OWN, local_path
from braidmq.spark.jobs.payloads import Format, decode, metrics, parse_schema, quarantined, schema_of, typed
from braidmq.spark.jobs.progress import show_summary
from braidmq.spark.jobs.running import checkpoint_for, run_stream
from braidmq.spark.jobs.sparkplug import COLUMNS
from braidmq.spark.jobs.tables import BatchName, Kind, Written, open_table


@job_command("decode", reader_name="decode")
@click.argument("output")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["json", "cbor", "sparkplug"]),
    default="json",
    show_default=True,
    help="What payloads are.",
)
@click.option(
    "--schema",
    "ddl",
    help="The fields, as `ts bigint, temperature double`.  [default: found in the first batch, and kept with the table]",
)
@click.option("--quarantine", help="The table of what does not decode.  [default: OUTPUT.quarantine]")
@click.option(
    "--table", "kind", type=click.Choice(["parquet", "delta"]), default="parquet", show_default=True, help="What OUTPUT is."
)
def command(job: Job, output: str, format_: Format, ddl: str | None, quarantine: str | None, kind: Kind) -> None:
    """Decode payloads of JSON, CBOR or Sparkplug B into the table OUTPUT.

    \b
      braidmq pipeline decode /data/temperatures -t 'plant/+/temp' --schema 'ts bigint, temperature double'
      braidmq pipeline decode /data/sparkplug -t 'spBv1.0/#' --format sparkplug
    """
    if format_ == "cbor" and importlib.util.find_spec("cbor2") is None:
        raise UsageError("CBOR needs cbor2", "pip install 'braidmq[spark]', also where Spark's executors run")
    good = open_table(kind, output, ["date"])
    bad_path = quarantine or f"{output.rstrip('/')}.quarantine"
    bad = open_table(kind, bad_path, ["date"])
    kept = None if "://" in output else local_path(output) / OWN / "schema.json"
    written, refused = Written(), Written()
    stream = job.stream()  # which starts Spark: it reads schemas
    schema = None if ddl is None else parse_schema(ddl)

    def each_batch(frame: DataFrame, batch: BatchName) -> None:
        nonlocal written, refused, schema
        # Kept for a moment: it is looked at for a schema, and goes to two tables, but is read once.
        frame.persist()
        try:
            if schema is None:
                schema = schema_for(frame, format_, kept)
            rows = decode(frame, format_, schema)
            written += good.append(metrics(rows) if format_ == "sparkplug" else typed(rows), batch)
            refused += bad.append(quarantined(rows), batch)
        finally:
            frame.unpersist()

    checkpoint = checkpoint_for(job, output)
    meter = run_stream(job, stream, each_batch, checkpoint)
    show_summary(
        "decode",
        [
            ("messages", f"{meter.rows:,} in {meter.batches:,} batches, {meter.rate:,.0f} a second"),
            ("rows decoded", f"{written.rows:,} to {output}"),
            ("quarantined", f"{refused.rows:,}" + (f" to {bad_path}" if refused.rows else "")),
            ("time", span(meter.elapsed_s)),
            ("checkpoint", checkpoint),
        ],
    )


def schema_for(frame: DataFrame, format_: Format, kept: Path | None) -> StructType:
    """The schema of a table for which none is given: the one that it has, else what a batch suggests, which is kept."""
    if format_ == "sparkplug":
        return parse_schema(COLUMNS)
    if kept is None:
        raise UsageError("a schema that is found can be kept in a local directory only", "give --schema")
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
