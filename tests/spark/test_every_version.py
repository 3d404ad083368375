"""What holds on every Spark from 4.0 on; `make test-spark-matrix` runs this file on older ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from braidmq.testing import Broker
from tests.spark.publishing import publish

pytestmark = [pytest.mark.timeout(180), pytest.mark.needs("java")]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(history={"bind": "127.0.0.1:0"}) as broker:
        yield broker


def options(broker: Broker, **more: str) -> dict[str, str]:
    return {"servers": f"127.0.0.1:{broker.history_port}", **more}


def test_history_is_a_table(spark: SparkSession, broker: Broker) -> None:
    publish(broker, "table/1", b"a", b"b")
    publish(broker, "table/2", b"c")

    rows = spark.read.format("braidmq").options(**options(broker)).load("table/#").groupBy("topic").count().collect()

    assert {row["topic"]: row["count"] for row in rows} == {"table/1": 2, "table/2": 1}


def test_nothing_to_read_is_an_empty_table(spark: SparkSession, broker: Broker) -> None:
    assert spark.read.format("braidmq").options(**options(broker)).load("nobody/publishes/this").collect() == []


def test_a_history_stream_resumes_where_it_stopped(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    def run() -> list[str]:
        reader = spark.readStream.format("braidmq").options(
            **options(broker, topicFilter="stream/#", startingOffsets="earliest", maxRowsPerTrigger="2")
        )
        writer = reader.load().selectExpr("CAST(payload AS STRING) AS text").writeStream.format("json")
        query = (
            writer.option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()
        lines = [line for file in (tmp_path / "out").glob("*.json") for line in file.read_text().splitlines()]
        return sorted(json.loads(line)["text"] for line in lines)

    publish(broker, "stream/1", b"a", b"b", b"c")
    assert run() == ["a", "b", "c"]

    publish(broker, "stream/1", b"d")

    assert run() == ["a", "b", "c", "d"]


def test_a_frame_is_published(spark: SparkSession, broker: Broker) -> None:
    frame = spark.createDataFrame([("written/1", "x"), ("written/2", "y")], "topic string, payload string")

    frame.write.format("braidmq").option("servers", f"mqtt://127.0.0.1:{broker.port}").mode("append").save()

    rows = spark.read.format("braidmq").options(**options(broker)).load("written/+").collect()
    assert sorted((row["topic"], bytes(row["payload"])) for row in rows) == [("written/1", b"x"), ("written/2", b"y")]
