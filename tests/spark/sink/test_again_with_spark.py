"""What is written again, with a real Spark and a real broker: from an older or a new checkpoint, or in other partitions."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from braidmq.spark.sink.writer import TaskReport, make_stream_writer, make_writer
from braidmq.testing import Broker
from tests.spark.sink.attempts import Attempt, table
from tests.spark.sink.frames import numbers, put_file, recorded, rows, stream, write

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def published(broker: Broker) -> list[int]:
    return sorted(numbers(recorded(broker)))


# Checkpoints


@pytest.mark.row("K3")
@pytest.mark.parametrize("key", ["", "payload"])
def test_a_new_checkpoint_under_a_name_that_has_come_further_fails_with_a_clear_message_and_loses_no_row(
    spark: SparkSession, broker: Broker, tmp_path: Path, key: str
) -> None:
    named: dict[str, Any] = {"producerName": "q"} | ({"keyColumn": key} if key else {})
    for first in (0, 100, 200):
        put_file(tmp_path / "in", first, first + 100)
        stream(spark, tmp_path, broker.port, **named).awaitTermination()
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.rmtree(tmp_path / "in")
    put_file(tmp_path / "in", 300, 400)

    with pytest.raises(PySparkException, match=r"the broker has batch 2 of q, and this is batch 0.*producerName.*onEarlierBatch"):
        stream(spark, tmp_path, broker.port, **named).awaitTermination()
    assert published(broker) == list(range(300))
    stream(spark, tmp_path, broker.port, **named | {"producerName": "another"}).awaitTermination()

    assert published(broker) == list(range(400))


def test_a_new_checkpoint_without_a_name_is_a_new_producer(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    for first in (0, 100):
        put_file(tmp_path / "in", first, first + 100)
        stream(spark, tmp_path, broker.port).awaitTermination()
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.rmtree(tmp_path / "in")
    put_file(tmp_path / "in", 200, 300)

    stream(spark, tmp_path, broker.port).awaitTermination()

    assert published(broker) == list(range(300))


@pytest.mark.parametrize("make", [make_writer, make_stream_writer])
def test_a_skipped_batch_is_reported_on_the_driver_and_causes_no_request(
    make: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    columns = StructType([StructField("topic", StringType()), StructField("payload", StringType())])
    writer = make({"servers": "127.0.0.1:1", "producername": "q"}, columns, False)
    number = () if make is make_writer else (3,)

    writer.commit([TaskReport("q", 3, 0, 0, 0, 0, is_skipped=True)], *number)

    assert "batch 3 of q was skipped: the broker has a later one" in caplog.text


# Partitions


@pytest.mark.row("K3")
def test_a_batch_that_is_run_again_in_fewer_partitions_fails_with_a_clear_message_or_warns(
    spark: SparkSession, broker: Broker
) -> None:
    write(rows(spark, 4000, 2), broker.port, producerName="import")

    words = "had more than 1 partitions, and had published 2000 rows of partition 1"
    with pytest.raises(PySparkException, match=words):
        write(rows(spark, 4000, 2).coalesce(1), broker.port, producerName="import")
    write(rows(spark, 4000, 2).coalesce(1), broker.port, producerName="import", onPartitionChange="warn")

    assert len(recorded(broker)) == 6000


@pytest.mark.row("K3")
@pytest.mark.parametrize("partition", [1, 3])
def test_an_earlier_attempt_with_more_partitions_is_found_when_the_batch_is_over(
    spark: SparkSession, broker: Broker, tmp_path: Path, partition: int
) -> None:
    put_file(tmp_path / "in", 0, 100)
    stream(spark, tmp_path, broker.port, producerName="q").awaitTermination()
    write(rows(spark, 1, 1), broker.port, producerName=f"q-{partition}")  # an unlike name: the stream does not mind
    put_file(tmp_path / "in", 100, 200)
    # As if the task of another partition had published, and those between had not begun, before the driver was lost.
    Attempt(broker.port, "q", 1, partition).run(table(topic=["t/x"], payload=["1000"]))

    words = f"had more than 1 partitions, and had published 1 rows of partition {partition};"
    with pytest.raises(PySparkException, match=words):
        stream(spark, tmp_path, broker.port, producerName="q").awaitTermination()
    stream(spark, tmp_path, broker.port, producerName="q", onPartitionChange="warn").awaitTermination()

    assert published(broker) == sorted([0, *range(200), 1000])
