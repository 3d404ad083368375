"""`replay`: republishes recorded messages over MQTT in order of time. The driver publishes, one row after another.

The broker counts the messages of a named producer. So an interrupted replay resumes where it stopped if it has the
same `--name` and the same rows, and every message is published once (`sink.publisher`). The rows are those of a fixed range
(`range`), in a total order.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click
import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from braidmq.base.errors import UsageError
from braidmq.base.units import span
from braidmq.client.errors import reason_in_words
from braidmq.flight.columns import choose
from braidmq.mqtt.topics import matches
from braidmq.spark.jobs.framework.expressions import matches_filter, moment
from braidmq.spark.jobs.framework.failures import AGAIN
from braidmq.spark.jobs.framework.job import Job, job_command, pairs, secret_of
from braidmq.spark.jobs.framework.progress import Display, JobBacklog, Meter, show_summary
from braidmq.spark.jobs.framework.run import run_stream
from braidmq.spark.jobs.replay.pacing import CHUNK_ROWS_MAX, Pacer, TopicMap, parse_speed
from braidmq.spark.jobs.replay.range import ReplayRange, settle
from braidmq.spark.jobs.tables.tables import BatchName, Kind, open_table
from braidmq.spark.sink.options import WriteOptions, parse_write_options
from braidmq.spark.sink.producer_part import ProducerPart
from braidmq.spark.sink.publisher import RowPublisher
from braidmq.spark.sink.rows import RowBatch, RowMaker

# The columns of a message. The expiry is left out: it would have passed long ago.
SENT: Final = (
    *("topic", "payload", "qos", "retain", "payload_format"),
    *("content_type", "response_topic", "correlation_data", "user_properties"),
)
# Replacements for hints of the publisher that name sink options which a replay lacks or names differently.
_HINTS: Final = {
    "keyColumn": "use the --from and --to that the earlier run printed and its other options, or another --name",
    "producerName": "use another --name, or the --checkpoint of this name",
}
ORDER: Final = ("store_timestamp", "shard", "position")


class OtherRows(UsageError):
    """The rows differ from those that an earlier run with this name published."""


class Replayer:
    """Publishes rows in the given order, each at its time. Blocking, on the driver."""

    def __init__(self, options: WriteOptions, topics: TopicMap, pacer: Pacer[Any], *, name: str, skips_refused: bool) -> None:
        self._options = options
        self._topics = topics
        self._pacer = pacer
        self.name = name
        self._skips_refused = skips_refused
        self._schema = choose(SENT)
        self.published = 0
        self.resumed = 0
        self.refused = 0

    def run(self, rows: Iterable[Row], batch: int = 0) -> Iterator[int]:
        """Publish the rows of a batch; yields the number of rows done from time to time.

        Raises UsageError for a rejected row, and OtherRows.
        """
        maker = RowMaker({each: place for place, each in enumerate(SENT)}, self._options.qos)
        publisher = RowPublisher(ProducerPart(self.name, batch, 0), self._options, maker, self._refuse)
        before = self.published
        try:
            publisher.open()
            if publisher.is_done:
                return
            self.resumed += publisher.resumed_at
            for chunk in self._chunks(iter(rows), publisher.resumed_at):
                publisher.add(maker.take(self._to_arrow(chunk)))
                self.published += len(chunk)
                yield self.published
            publisher.finish()
        except UsageError as problem:
            for option, hint in _HINTS.items():
                if option in problem.hint:
                    raise OtherRows(problem.detail, hint) from None
            raise
        finally:
            publisher.close()
            self.published = max(before, self.published - publisher.resumed_at)

    def _chunks(self, rows: Iterator[Row], resumed_at: int) -> Iterator[Sequence[Row]]:
        """Yield the rows when they are due; rows that an earlier run has published are due at once, and only compared."""
        before = islice(rows, resumed_at)
        while chunk := list(islice(before, CHUNK_ROWS_MAX)):
            yield chunk
        yield from self._pacer.chunks(rows)

    def _to_arrow(self, rows: Sequence[Row]) -> pa.RecordBatch:
        columns = {name: [row[name] for row in rows] for name in SENT}
        columns["topic"] = [self._topics.of(topic) for topic in columns["topic"]]
        columns["payload"] = [None if each is None else bytes(each) for each in columns["payload"]]
        columns["correlation_data"] = [None if each is None else bytes(each) for each in columns["correlation_data"]]
        columns["user_properties"] = [
            None if each is None else [pair.asDict() for pair in each] for each in columns["user_properties"]
        ]
        return pa.RecordBatch.from_pydict(columns, schema=self._schema)

    def _refuse(self, row: int, batch: RowBatch, place: int, reason: int, detail: str) -> None:
        if self._skips_refused:
            self.refused += 1
            return
        topic = batch.topics[place].decode(errors="replace")
        words = f"{reason_in_words(reason)}{f', {detail}' if detail else ''}"
        raise UsageError(f"message {row}, to the topic {topic!r}, was rejected: {words}", "fix that, or use --skip-refused")


def ordered(frame: DataFrame, filters: Sequence[str], *, drops_retain: bool) -> DataFrame:
    """The rows to publish, in order of time; from a table only the matching topics."""

    chosen = (
        frame
        if "#" in filters and not any(each != "#" for each in filters)
        else frame.where(matches_filter(F.col("topic"), filters))
    )
    if drops_retain:
        chosen = chosen.withColumn("retain", F.lit(False))
    return chosen.orderBy(*ORDER).select(*SENT, "store_timestamp")


@job_command("replay")
@click.argument("target")
@click.option("--lake", help="Read this table, written by `archive`, instead of the history.")
@click.option(
    "--table",
    "kind",
    type=click.Choice(["parquet", "delta"]),
    default="parquet",
    show_default=True,
    help="Table format of --lake.",
)
@click.option("--to", "end", default="latest", show_default=True, help="End before this; same format as --from.")
@click.option(
    "--speed",
    default="max",
    show_default=True,
    help="1x replays at the original speed, 10x ten times as fast, max as fast as possible.",
)
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Maximum messages per second.")
@click.option("--prefix", default="", help="Prefix for every topic.")
@click.option(
    "--map", "rules", multiple=True, metavar="REGEX=>NEW", help="Rename topics; the first match applies; may be repeated."
)
@click.option(
    "--name",
    help="Name of this replay; a later run with the same name resumes it.  [default: a new one, or the checkpoint's]",
)
@click.option("--no-retain", is_flag=True, help="Clear the retain flag of every message.")
@click.option("--skip-refused", is_flag=True, help="Count messages that the broker rejects, and continue.")
@click.option("--target-user", default="", help="User to publish as.")
@click.option("--target-password-file", type=click.Path(dir_okay=False, path_type=Path), help="File with the password.")
@click.option("--target-option", "target_more", multiple=True, metavar="NAME=VALUE", help="Any other option of the sink.")
def command(
    job: Job,
    target: str,
    lake: str | None,
    kind: Kind,
    end: str,
    speed: str,
    rate: float | None,
    prefix: str,
    rules: tuple[str, ...],
    name: str | None,
    no_retain: bool,
    skip_refused: bool,
    target_user: str,
    target_password_file: Path | None,
    target_more: tuple[str, ...],
) -> None:
    """Republish history or an archived table to the MQTT server TARGET (host:port), in order of time.

    \b
      braidmq pipeline replay localhost:1884 -t 'plant/#' --from -1h --speed 10x --prefix replay/
      braidmq pipeline replay test:1883 --lake /data/lake --rate 500 --map '^plant/(.*)=>test/\\1'
    """
    sink = {
        "servers": target,
        "user": target_user,
        "password": secret_of(target_password_file),
        **pairs("--target-option", target_more),
    }
    topics = TopicMap(rules, prefix)
    replayer = Replayer(
        parse_write_options({key: value for key, value in sink.items() if value}),
        topics,
        Pacer(lambda row: row["store_timestamp"].timestamp(), speed=parse_speed(speed), rate=rate, sleep=job.stop.sleep),
        name=name or f"replay-{uuid.uuid4()}",
        skips_refused=skip_refused,
    )
    option = job.history.option_for("startingOffsets", "endingOffsets")
    if option is not None:
        raise UsageError(f"the range of a replay cannot be set with a source option: {option}", "give --from and --to")
    if job.pace.available_now:
        meter = _replay_once(job, replayer, lake, kind, end, no_retain)
    elif lake is not None:
        raise UsageError("a table cannot be followed", "remove --follow or --lake")
    else:
        meter = _replay_on(job, replayer, topics, name, no_retain)
    show_summary(
        "replay",
        [
            ("messages", f"{replayer.published:,} published, {replayer.published / max(meter.elapsed_s, 0.001):,.0f} a second"),
            ("before", f"{replayer.resumed:,} by earlier runs of this name"),
            ("refused", f"{replayer.refused:,}"),
            ("time", span(meter.elapsed_s)),
            ("target", target),
        ],
    )


def _lake(frame: DataFrame, range_: ReplayRange) -> DataFrame:
    # Filter by day first: days are directories, so others are not read.
    if range_.start != "earliest":
        first = moment(range_.start)
        frame = frame.where((F.col("date") >= F.to_date(first)) & (F.col("store_timestamp") >= first))
    if range_.end != "latest":
        last = moment(range_.end)
        frame = frame.where((F.col("date") <= F.to_date(last)) & (F.col("store_timestamp") < last))
    return frame


def _replay_once(job: Job, replayer: Replayer, lake: str | None, kind: Kind, end: str, no_retain: bool) -> Meter:
    if lake is None:
        with job.history.client(is_patient=True) as client:
            range_ = settle(job.history.start, end, client)
    else:
        range_ = settle(job.history.start, end, None)
        table = open_table(kind, lake, ()).read(job.spark)

    def rows_of(range_: ReplayRange) -> DataFrame:
        frame = job.batch(**range_.options()) if lake is None else _lake(table, range_)
        return ordered(frame, job.history.asking.filters, drops_retain=no_retain)

    counted = rows_of(range_).agg(F.count("*"), F.unix_micros(F.max("store_timestamp"))).head()
    assert counted is not None, "an aggregate always has one row"
    total, last_us = counted
    if total:
        range_ = range_.until(last_us)
    job.how_to_go_on = f"to continue, run the same command with --name {replayer.name} {range_.words()}"
    rows = rows_of(range_)
    meter = Meter()
    try:
        with Display(job.name) as display:
            for done in replayer.run(rows.toLocalIterator(prefetchPartitions=True)):
                meter.rows = done
                display.show(meter.words(JobBacklog(max(total - done, 0), 0.0)))
    except OtherRows:
        job.how_to_go_on = AGAIN  # the range differs from that of the earlier run
        raise
    return meter


def _replay_on(job: Job, replayer: Replayer, topics: TopicMap, name: str | None, no_retain: bool) -> Meter:
    if not job.pace.checkpoint:
        raise UsageError("there is nowhere to store the progress", "give --checkpoint with --follow")

    def each_batch(frame: DataFrame, batch: BatchName) -> None:
        # The query id comes from the checkpoint, so a repeated batch is published under the same name.
        replayer.name = name or f"replay-{batch.query}"
        frame.persist()  # checked and then published, but read once
        try:
            for row in frame.select("topic").distinct().toLocalIterator():
                made = topics.of(row["topic"])
                if any(matches(each, made) for each in job.history.asking.filters):
                    hint = "give --map or --prefix so that no new topic matches --topic-filter"
                    raise UsageError(f"messages to {made!r} would be read and published again in a loop", hint)
            rows = ordered(frame, job.history.asking.filters, drops_retain=no_retain)
            for _ in replayer.run(rows.toLocalIterator(prefetchPartitions=True), batch.number):
                job.stop.sleep(0)  # stop in the middle of a batch, which may take hours; the next run continues there
        finally:
            frame.unpersist()

    return run_stream(job, job.stream(), each_batch, job.pace.checkpoint)
