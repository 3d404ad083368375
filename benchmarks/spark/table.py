"""All Spark measurements, in the order of least interference."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from benchmarks.durable import running
from benchmarks.figures import Figure
from benchmarks.history import prepare
from benchmarks.measure import Bench
from benchmarks.shapes import SPARK
from benchmarks.spark.memory_source import keep_batches
from benchmarks.spark.reading import group_by_topic, one_topic
from benchmarks.spark.session import spark_session
from benchmarks.spark.streaming import follow_tail
from benchmarks.spark.writing import archive_all, publish_rows


def measure(bench: Bench) -> list[Figure]:
    """Measure with one Spark session, a node on the data set, and new nodes to publish to."""
    figures = []

    def add(figure: Figure) -> None:
        figures.append(figure)
        bench.say(f"{SPARK:10} {figure.title}: {figure.found}")

    with spark_session(bench.folder) as spark:
        _read(bench, spark, add)
        with running(bench, "braidmq", is_recorded=True) as broker:
            add(follow_tail(bench, broker, spark))
        with running(bench, "braidmq", is_recorded=True) as broker:
            add(publish_rows(bench.scale.sink_records, bench.scale.history_rounds, broker, spark))
    return figures


def _read(bench: Bench, spark: SparkSession, add: Callable[[Figure], None]) -> None:
    data, rounds = prepare(bench), bench.scale.history_rounds
    batches, empty = bench.folder / "batches", bench.folder / "no-batches"
    with running(bench, "braidmq", is_recorded=True, data_dir=data.folder) as broker:
        port = broker.await_history()
        servers = f"127.0.0.1:{port}"
        keep_batches(batches, port)
        empty.mkdir()

        def history() -> DataFrame:
            return spark.read.format("braidmq").option("servers", servers).load("#")

        def memory() -> DataFrame:
            return spark.read.format("memory").load(str(batches))

        add(group_by_topic(data, rounds, history, memory))
        add(one_topic(data, rounds, spark, servers, empty))
        add(archive_all(data, rounds, bench.folder, servers, memory))
