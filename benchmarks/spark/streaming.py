"""A stream at the tail of history while it grows."""

from __future__ import annotations

import statistics
import time

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.brokers import Broker
from benchmarks.figures import Figure, show_rate
from benchmarks.history import publish
from benchmarks.measure import Bench
from benchmarks.shapes import TAIL_LAG_TARGET_S, TAIL_TARGET_PER_S

# Spark is cold during the first batches.
WARM_UP_S = 5
# How long a stream may take to catch up after the last message.
CATCH_UP_S = 30.0
# Tolerance of the rate: the generator and this program start and stop at slightly different times.
RATE_SLACK = 0.01


class _Batch(msgspec.Struct):
    """The contents of a batch, and when it was processed; seconds since 1970."""

    rows: int
    newest_s: float
    done_s: float


class _Tail:
    """The processed batches; Spark calls `add`."""

    def __init__(self) -> None:
        self._batches: list[_Batch] = []

    def add(self, frame: DataFrame, number: int) -> None:
        rows, newest_us = frame.agg(F.count("*"), F.max(F.unix_micros("store_timestamp"))).collect()[0]
        if rows:
            self._batches.append(_Batch(rows, newest_us / 1e6, time.time()))

    @property
    def rows(self) -> int:
        """The rows of all batches."""
        return sum(batch.rows for batch in self._batches)

    def lags_s(self, since_s: float, until_s: float) -> list[float]:
        """The maximum lag at each batch in this time: the age of the newest processed row just before the batch was done."""
        pairs = zip(self._batches, self._batches[1:], strict=False)
        return [after.done_s - before.newest_s for before, after in pairs if since_s <= after.done_s <= until_s]


def follow_tail(bench: Bench, broker: Broker, spark: SparkSession) -> Figure:
    """Publish to a new broker at the target rate, and count what a query with a one-second trigger receives."""
    title = f"stream from the tail, trigger of 1 s, for {bench.scale.tail_seconds} s"
    target = f"keeps up with {show_rate(TAIL_TARGET_PER_S)}, lag under {TAIL_LAG_TARGET_S:g} s"
    tail = _Tail()
    servers = f"127.0.0.1:{broker.await_history()}"
    stream = spark.readStream.format("braidmq").option("servers", servers).option("startingOffsets", "earliest").load("#")
    query = stream.writeStream.foreachBatch(tail.add).trigger(processingTime="1 second").start()
    try:
        began = time.time()
        run = publish(bench, broker, TAIL_TARGET_PER_S, bench.scale.tail_seconds)
        ended = time.time()
        while tail.rows < run.sent and query.isActive and time.time() < ended + CATCH_UP_S:
            time.sleep(0.1)
    finally:
        query.stop()
    if error := run.error or query.exception():
        return Figure(title, str(error), target, False)
    lags = tail.lags_s(began + WARM_UP_S, ended)
    median, worst = (statistics.median(lags), max(lags)) if lags else (float("inf"), float("inf"))
    missing = run.sent - tail.rows
    unseen = f", {missing:,} messages not seen" if missing else ""
    is_fast = run.delivered_per_s >= TAIL_TARGET_PER_S * (1 - RATE_SLACK) and worst < TAIL_LAG_TARGET_S
    found = f"{show_rate(run.delivered_per_s)} published, lag {median:.1f} s, at most {worst:.1f} s{unseen}"
    return Figure(title, found, target, is_fast and not missing)
