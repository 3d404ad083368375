"""The sink with a real Spark and a real broker: rows once and in order, whoever fails in between."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from braidmq.mqtt.reasons import Reason
from braidmq.spark.sink.rows import RowMaker
from braidmq.spark.sink.writer import to_batches
from braidmq.testing import Broker
from tests.durability.campaigns.node import read_log, write_config
from tests.spark.sink.frames import numbers, put_file, recorded, rows, stream, write
from tests.support.ports import free_port
from tests.support.present import present
from tests.support.stage import wait_until
from tests.support.started import Started

pytestmark = pytest.mark.timeout(120)

ACL = "topic readwrite t/#\n"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    acl = tmp_path / "acl"
    acl.write_text(ACL)
    acl.chmod(0o600)
    with Broker(access={"acl_file": str(acl)}) as broker:
        yield broker


def count(broker: Broker) -> int:
    """How many records there are."""

    async def read() -> int:
        assert broker.node is not None
        return broker.node.log.stats().records

    return broker.run(read())


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Let rows reach the sink long before its task is over."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    usual = spark.conf.get(name)
    spark.conf.set(name, "500")
    yield
    spark.conf.set(name, present(usual))


# A batch


def test_a_batch_is_published_once_and_in_order_by_partition(spark: SparkSession, broker: Broker) -> None:
    write(rows(spark, 25_000), broker.port)

    found = recorded(broker)
    publishers = {publisher for _, _, publisher in found}
    assert len(publishers) == 2
    for publisher in publishers:
        own = [int(payload) for _, payload, each in found if each == publisher]
        assert own == list(range(min(own), max(own) + 1))
    assert sorted(numbers(found)) == list(range(25_000))
    assert all(topic == f"t/{int(payload) % 7}" for topic, payload, _ in found)


def test_columns_become_the_fields_of_a_message(spark: SparkSession, broker: Broker) -> None:
    frame = spark.createDataFrame(
        [Row(topic="t/a", payload=None, qos=2, retain=True, content_type="text", user_properties=[Row(name="a", value="1")])],
        "topic string, payload binary, qos int, retain boolean, content_type string, "
        "user_properties array<struct<name:string,value:string>>",
    )

    write(frame, broker.port)
    write(
        spark.createDataFrame([("t/b", "state")], "topic string, payload string").withColumn("retain", F.lit(True)), broker.port
    )

    async def read() -> list[Any]:
        assert broker.node is not None
        replay = broker.node.log.replay(["t/a"], 0)
        found = []
        while not replay.is_caught_up:
            found += [record for _, record in replay.next(10)]
        assert len(broker.node.broker.retained) == 1
        return found

    (record,) = broker.run(read())
    assert (record.payload, record.qos, record.retain) == (b"", 2, True)
    assert b"text" in record.properties


@pytest.mark.parametrize(
    ("columns", "mode", "words"),
    [
        ("id AS other", "append", "no column topic"),
        ("'t' AS topic, '' AS payload, id", "append", "unknown columns: id"),
        ("'t' AS topic, '' AS payload", "overwrite", "cannot be taken back"),
    ],
)
def test_a_frame_that_cannot_be_written_is_rejected_with_a_clear_message(
    spark: SparkSession, columns: str, mode: str, words: str
) -> None:
    frame = spark.range(3).selectExpr(*columns.split(", "))

    with pytest.raises(PySparkException, match=words):
        frame.write.format("braidmq").option("servers", "127.0.0.1:1").mode(mode).save()


@pytest.mark.usefixtures("small_batches")
def test_a_named_batch_resumes_where_it_failed(spark: SparkSession, broker: Broker) -> None:
    with pytest.raises(PySparkException, match="boom"):
        write(rows(spark, 40_000, fails_at=39_999), broker.port, producerName="import")
    assert 0 < len(recorded(broker)) < 40_000

    write(rows(spark, 40_000), broker.port, producerName="import")
    write(rows(spark, 40_000), broker.port, producerName="import")

    assert sorted(numbers(recorded(broker))) == list(range(40_000))


@pytest.mark.row("K3")
def test_other_partitions_than_before_fail_with_a_clear_message(spark: SparkSession, broker: Broker) -> None:
    write(rows(spark, 4000, 2), broker.port, producerName="import")

    with pytest.raises(PySparkException, match="keyColumn"):
        write(rows(spark, 4000, 3), broker.port, producerName="import")


@pytest.mark.usefixtures("small_batches")
def test_with_a_key_rows_are_published_once_with_any_number_of_partitions(spark: SparkSession, broker: Broker) -> None:
    options = {"producerName": "import", "keyColumn": "payload"}
    with pytest.raises(PySparkException, match="boom"):
        write(rows(spark, 20_000, 4, fails_at=19_999), broker.port, **options)
    assert 0 < len(recorded(broker)) < 20_000

    write(rows(spark, 20_000, 3).orderBy(F.rand(1)), broker.port, **options)

    assert sorted(numbers(recorded(broker))) == list(range(20_000))


# Refusals


def refused_rows(spark: SparkSession) -> DataFrame:
    frame = spark.range(0, 300, 1, 1)
    topic = F.when(F.col("id") % 100 == 50, "forbidden").when(F.col("id") == 7, "bad/#").otherwise("t/x")
    return frame.select(topic.alias("topic"), F.col("id").cast("string").alias("payload"))


def test_a_refused_row_fails_the_write_and_names_the_row(spark: SparkSession, broker: Broker) -> None:
    with pytest.raises(PySparkException, match=r"row 8 of partition 0, to the topic 'bad/#', was rejected"):
        write(refused_rows(spark), broker.port)

    assert numbers(recorded(broker)) == list(range(7))


@pytest.mark.parametrize("key", ["", "payload"])
def test_refused_rows_go_to_the_dead_letters_and_the_others_are_published(
    spark: SparkSession, broker: Broker, tmp_path: Path, key: str
) -> None:
    options = {"keyColumn": key} if key else {}
    write(refused_rows(spark), broker.port, deadLetterPath=str(tmp_path / "dead"), producerName="p", **options)

    files = list((tmp_path / "dead" / "p" / "batch=0").glob("part-00000-*.jsonl"))
    letters = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert {(letter["row"], letter["reason"]) for letter in letters} == {
        (8, Reason.TOPIC_NAME_INVALID),
        (51, Reason.NOT_AUTHORIZED),
        (151, Reason.NOT_AUTHORIZED),
        (251, Reason.NOT_AUTHORIZED),
    }
    assert {base64.b64decode(letter["payload"]) for letter in letters} == {b"7", b"50", b"150", b"250"}
    assert sorted(numbers(recorded(broker))) == [each for each in range(300) if each not in (7, 50, 150, 250)]


def test_rows_with_invalid_utf8_are_rejected_too(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    text = F.when(F.col("id") == 2, F.expr("CAST(X'FF' AS STRING)"))
    topic = F.when(F.col("id") == 1, F.expr("CAST(X'FF' AS STRING)")).otherwise("t/x")
    frame = spark.range(0, 4, 1, 1).select(
        topic.alias("topic"), F.col("id").cast("string").alias("payload"), text.alias("content_type")
    )

    with pytest.raises(PySparkException, match=r"row 2 of partition 0, .* was rejected"):
        write(frame, broker.port)
    write(frame, broker.port, deadLetterPath=str(tmp_path / "dead"), producerName="p")

    assert numbers(recorded(broker)) == [0, 0, 3]
    letters = "".join(file.read_text() for file in (tmp_path / "dead" / "p" / "batch=0").iterdir()).splitlines()
    assert [json.loads(letter)["row"] for letter in letters] == [2, 3]


# A stream


@pytest.mark.usefixtures("small_batches")
def test_a_stream_is_published_once_over_failures_and_restarts(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    for first in range(0, 80_000, 20_000):
        put_file(tmp_path / "in", first, first + 20_000)

    before = 0
    for fails_at in (19_999, 79_999):
        query = stream(spark, tmp_path, broker.port, fails_at=fails_at)
        with pytest.raises(PySparkException, match="boom"):
            query.awaitTermination()
        assert before < count(broker) < 80_000
        before = count(broker)
    stream(spark, tmp_path, broker.port).awaitTermination()
    stream(spark, tmp_path, broker.port).awaitTermination()

    assert sorted(numbers(recorded(broker))) == list(range(80_000))


# Faults


class Killer(threading.Thread):
    """Kills a node twice, each time when it has recorded some more, and starts it again."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.kills = 0
        self.is_over = threading.Event()
        self._file = file
        self.node = Started(file)
        self.node.await_port()

    def run(self) -> None:
        while self.kills < 2:
            size = log_bytes(self._file.parent)
            while log_bytes(self._file.parent) < size + 2_000_000:
                if self.is_over.wait(0.01):
                    return
            self.node.send(signal.SIGKILL)
            self.node.await_end()
            self.kills += 1
            self.node = Started(self._file)
            self.node.await_port()


@pytest.mark.row("K3")
def test_a_broker_that_is_killed_in_the_middle_of_a_batch_has_every_row_once(spark: SparkSession, tmp_path: Path) -> None:
    port = free_port()
    file = write_config(tmp_path, listeners={"tcp": {"default": {"bind": f"127.0.0.1:{port}"}}}, history={"bind": ""})
    killer = Killer(file)
    killer.start()
    try:
        write(rows(spark, 300_000), port)
    finally:
        killer.is_over.set()
        killer.join()
        killer.node.send(signal.SIGTERM)
        killer.node.await_end()

    assert killer.kills == 2
    assert sorted(int(record.payload) for record in read_log(file)) == list(range(300_000))


DRIVER = """
import sys
from pyspark.sql import SparkSession
folder, port = sys.argv[1:]
conf = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
frame = spark.readStream.schema("topic string, payload string").json(folder + "/in")
writer = frame.writeStream.format("braidmq").option("checkpointLocation", folder + "/checkpoint")
writer.option("servers", "127.0.0.1:" + port).trigger(availableNow=True).start().awaitTermination()
"""


@pytest.mark.row("K3")
def test_a_driver_that_is_killed_within_a_batch_resumes_when_it_is_started_again(tmp_path: Path) -> None:
    for first in range(0, 200_000, 100_000):
        put_file(tmp_path / "in", first, first + 100_000)
    with Broker() as broker:
        command = [sys.executable, "-c", DRIVER, str(tmp_path), str(broker.port)]
        # Its Python workers and the JVM are killed with it, as when a machine is lost.
        killed = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: count(broker) > 20_000, "rows are published", timeout_s=60)
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
        before = count(broker)

        finished = subprocess.run(command, capture_output=True, text=True, timeout=90)

        assert finished.returncode == 0, finished.stderr
        assert before < 200_000, "the batch was over too soon for this test"
        assert sorted(numbers(recorded(broker))) == list(range(200_000))


def log_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in (folder / "data" / "log").glob("*.log"))


# Spark 4.0


def test_rows_of_a_spark_without_arrow_writers_are_the_same_messages() -> None:
    given = [
        Row(topic="t", payload=bytearray(b"1"), user_properties=[Row(name="a", value="1")], qos=None),
        Row(topic="t", payload=None, user_properties={"b": "2"}, qos=2),
        Row(topic="t", payload=None, user_properties=[None], qos=2),
    ]
    maker = RowMaker({"topic": 0, "payload": 1, "user_properties": 2, "qos": 3}, 1)

    (batch,) = [maker.take(each) for each in to_batches(iter(given))]

    assert batch.payloads == [b"1", b"", b""]
    assert [batch.qos(row) for row in range(3)] == [1, 2, 2]
    assert list(batch.problems) == [2]
