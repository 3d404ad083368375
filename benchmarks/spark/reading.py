"""`spark.read` of all of history, and of one topic."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.figures import Figure, show_share
from benchmarks.history import compare
from benchmarks.shapes import EXACT_TARGET, GROUP_TARGET
from benchmarks.storage import dataset
from benchmarks.storage.dataset import DataSet

Reading = Callable[[], DataFrame]
WARM = 5


def group_by_topic(data: DataSet, rounds: int, history: Reading, memory: Reading) -> Figure:
    """Count the records of each topic, and discard the result."""

    def rate(read: Reading) -> float:
        began = time.perf_counter()
        read().groupBy("topic").count().write.format("noop").mode("overwrite").save()
        return data.records / (time.perf_counter() - began)

    for read in (history, memory):
        rate(read)
    ours, theirs, ratio = compare(rounds, lambda: rate(history), lambda: rate(memory))
    return Figure(
        '`spark.read...groupBy("topic").count()`',
        show_share(ours, theirs, "from memory"),
        f"{GROUP_TARGET:.0%} of the same from memory",
        ratio >= GROUP_TARGET,
    )


def one_topic(data: DataSet, rounds: int, spark: SparkSession, servers: str, empty: Path) -> Figure:
    """Collect the records of topics not requested before; measures from creating the reader to its rows."""
    numbers = iter(range(1, 1000))

    def collect_one() -> float:
        topic = dataset.topic_of(next(numbers) * 99_991 % data.records, data.topics)
        began = time.perf_counter()
        rows = spark.read.format("braidmq").option("servers", servers).load(topic).collect()
        taken_s = time.perf_counter() - began
        if len(rows) != data.records // data.topics:
            raise RuntimeError(f"{len(rows)} records of {topic}")
        return taken_s

    def collect_none() -> float:
        began = time.perf_counter()
        spark.read.format("memory").load(str(empty)).collect()
        return time.perf_counter() - began

    for _ in range(WARM):
        collect_one(), collect_none()
    ours, floor, ratio = compare(max(rounds, 5), collect_one, collect_none)
    return Figure(
        f"one exact topic among {data.topics:,}",
        f"{ours * 1000:.0f} ms, {ratio:.2f} x of {floor * 1000:.0f} ms",
        f"within {EXACT_TARGET:g} x of a job without rows",
        ratio <= EXACT_TARGET,
    )
