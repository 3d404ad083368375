"""`rollup`: aggregates over windows of event time, per pattern, device and numeric field. Runs on the driver.

A row of the result describes one field of the payloads, or the messages themselves (`field` is empty). A window is written once,
when the watermark has passed its end; messages that arrive later are dropped and counted in the summary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click
import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from braidmq.base.errors import UsageError
from braidmq.base.units import parse_seconds, span
from braidmq.spark.jobs.archive import patterns_for
from braidmq.spark.jobs.framework.expressions import device_of, event_time, levels_of, pattern_of, payload_text
from braidmq.spark.jobs.framework.job import Job, job_command
from braidmq.spark.jobs.framework.patterns import Patterns
from braidmq.spark.jobs.framework.preflight import check_service
from braidmq.spark.jobs.framework.progress import show_summary
from braidmq.spark.jobs.framework.run import checkpoint_for, run_stream
from braidmq.spark.jobs.tables.ownership import own_tables
from braidmq.spark.jobs.tables.parquet_table import own_place
from braidmq.spark.jobs.tables.tables import BatchName, Kind, Written, open_table

# Silence is measured in slots of a window, so that its state stays small however many messages it has.
SLOTS: Final = 240
PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_WHY_NOT_ADOPTED: Final = "windows that are still open exist only in the checkpoint"
# The field name for a payload that is a plain number.
BARE: Final = "value"


class Windows(msgspec.Struct, frozen=True, kw_only=True):
    """What to aggregate, and how."""

    window_s: float = 60.0
    watermark_s: float = 600.0
    event_time: str = "store_timestamp"
    device_level: int | None = None
    fields: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise UsageError for invalid values."""
        if self.window_s < 1 or self.window_s != int(self.window_s):
            raise UsageError(f"a window cannot last {self.window_s:g} s", "use a whole number of seconds, at least one")
        if self.watermark_s < 0:
            raise UsageError("the watermark must not be negative")


def roll_up(frame: DataFrame, patterns: Patterns, windows: Windows) -> DataFrame:
    """The figures of each window, pattern, device and field; a stream yields them when a window has closed."""

    windows.check()
    seconds = int(windows.window_s)
    rows = measurements(frame, patterns, windows).withWatermark("event_time", f"{windows.watermark_s:g} seconds")
    is_message = F.col("field") == ""
    grouped = rows.groupBy(F.window("event_time", f"{seconds} seconds"), "pattern", "device", "field").agg(
        F.count("*").alias("count"),
        F.sum(F.when(is_message, F.col("payload_bytes"))).alias("bytes"),
        F.min("value").alias("min"),
        F.max("value").alias("max"),
        F.avg("value").alias("avg"),
        F.percentile_approx("value", list(PERCENTILES.values()), F.lit(1000)).alias("percentiles"),
        F.collect_set(F.when(is_message, F.col("slot"))).alias("slots"),
    )
    return grouped.select(
        F.col("window.start").alias("window_start"),
        F.col("window.end").alias("window_end"),
        "pattern",
        "device",
        "field",
        "count",
        "bytes",
        "min",
        "max",
        "avg",
        *(F.get("percentiles", F.lit(place)).alias(name) for place, name in enumerate(PERCENTILES)),
        F.when(is_message, _silence(F.col("slots")) * F.lit(seconds / SLOTS)).alias("largest_silence_s"),
        F.to_date("window.start").alias("date"),
    )


def measurements(frame: DataFrame, patterns: Patterns, windows: Windows) -> DataFrame:
    """One row per message and one per number in it: event time, pattern, device, field, value, slot of the window.

    A message without a valid event time counts at the time it was stored.
    """

    topic = F.col("topic")
    rows = frame.select(
        F.coalesce(event_time(windows.event_time), F.col("store_timestamp")).alias("event_time"),
        pattern_of(levels_of(topic), patterns),
        device_of(topic, patterns, windows.device_level),
        F.length("payload").alias("payload_bytes"),
        payload_text().alias("text"),
    )
    window_us = int(windows.window_s) * 1_000_000
    slot = F.floor(F.pmod(F.unix_micros("event_time"), F.lit(window_us)) * F.lit(SLOTS) / F.lit(window_us)).cast("int")
    the_message = F.array(F.struct(F.lit("").alias("field"), F.lit(None).cast("double").alias("value")))
    found = F.concat(the_message, _numbers(windows))
    return rows.select("event_time", "pattern", "device", "payload_bytes", slot.alias("slot"), F.inline(found))


def _numbers(windows: Windows) -> Column:
    """The numbers in a payload: the requested ones, or all at the top level of a JSON object except the event time."""

    def named(name: Column, text: Column) -> Column:
        return F.struct(name.alias("field"), text.try_cast("double").alias("value"))

    text = F.col("text")
    if windows.fields:
        found = F.array(*(named(F.lit(each), F.get_json_object(text, f"$.{each}")) for each in windows.fields))
    else:
        time_field = windows.event_time.removeprefix("$.").partition(":")[0]
        entries = F.map_entries(F.from_json(text, "map<string,string>"))
        every = F.transform(entries, lambda each: named(each["key"], each["value"]))
        bare = F.array(named(F.lit(BARE), text))
        found = F.when(F.startswith(F.ltrim(text), F.lit("{")), every).otherwise(bare)
        found = F.filter(found, lambda each: each["field"] != F.lit(time_field))
    real = F.filter(found, lambda each: each["value"].isNotNull() & (each["field"] != F.lit("")))
    return F.coalesce(real, F.filter(F.array(named(F.lit(""), text)), lambda _: F.lit(False)))


def _silence(slots: Column) -> Column:
    """The longest run of slots without a message in the window."""

    edges = F.concat(F.array(F.lit(-1)), F.sort_array(slots), F.array(F.lit(SLOTS)))
    steps = F.sequence(F.lit(1), F.size(edges) - 1)
    return F.array_max(F.transform(steps, lambda place: F.get(edges, place) - F.get(edges, place - 1) - 1))


@job_command("rollup", table=True, reader_name="rollup")
@click.argument("output")
@click.option("--window", default="1m", show_default=True, help="Length of a window.")
@click.option(
    "--watermark", default="10m", show_default=True, help="How late a message may arrive, by event time, and still count."
)
@click.option(
    "--event-time",
    default="store_timestamp",
    show_default=True,
    help="Event time: store_timestamp, publish_timestamp, or a JSON field: $.ts (ISO), $.ts:ms, $.ts:s, $.ts:us.",
)
@click.option(
    "--fields",
    default="",
    help="Numbers to aggregate: temperature,motor.speed.  [default: all at the top level of a JSON object, or the payload]",
)
@click.option(
    "--device-level",
    type=click.IntRange(1),
    help="The topic level that names the device, counted from 1.  [default: all levels that vary]",
)
@click.option(
    "--patterns",
    "patterns_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File of patterns: one topic filter per line.  [default: learned from the history and kept with the table]",
)
@click.option(
    "--table",
    "kind",
    type=click.Choice(["parquet", "delta"]),
    default="parquet",
    show_default=True,
    help="Table format of OUTPUT.",
)
def command(
    job: Job,
    output: str,
    window: str,
    watermark: str,
    event_time: str,
    fields: str,
    device_level: int | None,
    patterns_file: Path | None,
    kind: Kind,
) -> None:
    """Aggregate messages and their numbers over time windows into the table OUTPUT.

    \b
      braidmq pipeline rollup /data/minutes -t 'plant/#' --event-time '$.ts:ms' --window 1m
    """
    windows = Windows(
        window_s=parse_seconds(window),
        watermark_s=parse_seconds(watermark),
        event_time=event_time,
        device_level=device_level,
        fields=tuple(each.strip() for each in fields.split(",") if each.strip()),
    )
    windows.check()
    table = open_table(kind, output, ["date"])
    checkpoint = checkpoint_for(job, output)
    ownership = own_tables(job, checkpoint, [table], cannot_adopt=_WHY_NOT_ADOPTED)
    check_service(job, checkpoint)
    kept = own_place(output, "patterns")
    patterns = patterns_for(job.history, patterns_file, kept, 50)
    written = Written()

    def each_batch(frame: DataFrame, batch: BatchName) -> None:
        nonlocal written
        written += table.append(frame, batch)

    meter = run_stream(job, roll_up(job.stream(), patterns, windows), each_batch, checkpoint, ownership)
    show_summary(
        "rollup",
        [
            ("messages", f"{meter.rows:,} in {meter.batches:,} batches, {meter.rate:,.0f} a second"),
            ("rows", f"{written.rows:,} to {output}"),
            ("open windows", f"those that end after {meter.watermark} wait for later messages" if meter.watermark else "-"),
            ("too late", f"{meter.late_rows:,} rows: later than the watermark of {watermark}"),
            ("patterns", f"{len(patterns):,}"),
            ("time", span(meter.elapsed_s)),
            ("checkpoint", checkpoint),
        ],
    )


if __name__ == "__main__":
    command()
