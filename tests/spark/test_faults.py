"""Faults between a broker and Spark: retention, a killed service, an old checkpoint, a bare executor, payloads meant to hurt."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from braidmq.spark.jobs import decode, rollup
from braidmq.spark.jobs.tables.parquet_table import ParquetTable
from braidmq.testing import Broker
from tests.spark.publishing import publish
from tests.support.fakes.history_service import FakeHistoryService

pytestmark = [pytest.mark.timeout(120), pytest.mark.needs("java")]

DAY_US = 86_400_000_000
SOURCES = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(history={"bind": "127.0.0.1:0", "shards": 1}) as broker:
        yield broker


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def last_position(broker: Broker) -> int:
    assert broker.node is not None
    log = broker.node.log
    return max(broker.call(lambda: log.watermarks).values())


def forget(broker: Broker) -> int:
    """Let retention take all that was recorded, once more was; gives the last position that goes."""
    assert broker.node is not None
    log, gone = broker.node.log, last_position(broker)
    broker.call(lambda: log.add_generation("learned"))
    publish(broker, "t", b"kept 1", b"kept 2")
    broker.call(lambda: log.retain(gone + 1 + 7 * DAY_US))
    return gone


def read(spark: SparkSession, broker: Broker, topic_filter: str = "t", **options: str) -> DataFrame:
    return spark.read.format("braidmq").options(servers=f"127.0.0.1:{broker.history_port}", **options).load(topic_filter)


def run_stream(spark: SparkSession, broker: Broker, folder: Path, **options: str) -> StreamingQuery:
    """Append what there is to the files in `folder`/out, from the checkpoint on if there is one."""
    given = {"servers": f"127.0.0.1:{broker.history_port}", "topicFilter": "t", "startingOffsets": "earliest"} | options
    rows = spark.readStream.format("braidmq").options(**given).load().selectExpr("CAST(payload AS STRING) AS payload")
    writer = rows.writeStream.format("json").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.option("path", str(folder / "out")).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()
    return query


def payloads_in(spark: SparkSession, folder: Path) -> list[str]:
    return [row["payload"] for row in spark.read.schema("payload string").json(str(folder / "out")).collect()]


@pytest.mark.row("K1")
def test_retention_that_overtakes_a_checkpoint_fails_the_query_with_the_gap_until_it_is_let_pass(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    publish(broker, "t", *numbered(0, 10))
    run_stream(spark, broker, tmp_path)
    read_to = last_position(broker)
    publish(broker, "t", *numbered(10, 20))
    gone = forget(broker)

    gap = rf"shard 0: wanted everything after {read_to} \(.*\), the earliest kept is {gone + 1} \("
    with pytest.raises(StreamingQueryException, match=gap):
        run_stream(spark, broker, tmp_path)
    assert sorted(payloads_in(spark, tmp_path)) == [str(number) for number in range(10)]

    run_stream(spark, broker, tmp_path, failOnDataLoss="false")

    assert sorted(payloads_in(spark, tmp_path)) == [str(number) for number in range(10)] + ["kept 1", "kept 2"]


@pytest.mark.row("K1")
def test_a_start_before_the_retained_records_fails_a_read_unless_loss_is_allowed(spark: SparkSession, broker: Broker) -> None:
    publish(broker, "t", b"first")
    start = last_position(broker)
    publish(broker, "t", b"second")
    gone = forget(broker)
    offsets = f'{{"0": {start}}}'

    with pytest.raises(PySparkException, match=rf"wanted everything after {start} .*the earliest kept is {gone + 1} "):
        read(spark, broker, startingOffsets=offsets).collect()

    assert read(spark, broker, startingOffsets=offsets, failOnDataLoss="false").count() == 2
    assert read(spark, broker).count() == 2, "the beginning, whatever it is, is no loss"


@pytest.mark.row("K4")
def test_a_service_that_is_killed_in_the_middle_of_a_scan_costs_a_task_no_row(spark: SparkSession) -> None:
    count, limit = 4000, {"reader_bytes_per_s_max": "4MiB"}  # a scan of seconds
    with Broker(history={"bind": "127.0.0.1:0", "shards": 1, **limit}) as broker:
        publish(broker, "t", *(b"%08d" % number + bytes(4088) for number in range(count)))
        assert broker.history_port
        assert broker.node is not None
        service = broker.node.history
        assert service is not None
        killed: list[int] = []

        def kill_midway() -> None:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                if service.served.rows and service.process_id:
                    killed.append(service.served.rows)
                    os.kill(service.process_id, signal.SIGKILL)
                    return
                time.sleep(0.02)

        killer = threading.Thread(target=kill_midway)
        killer.start()
        found = read(spark, broker, columns="payload").selectExpr("CAST(substring(payload, 1, 8) AS STRING) AS number").collect()
        killer.join()

    assert killed, "nobody was killed"
    assert killed[0] < count, "the scan was over before"
    assert service.restarts >= 1
    assert sorted(int(row["number"]) for row in found) == list(range(count))


def run_copy(spark: SparkSession, broker: Broker, checkpoint: Path, rows_max: str = "", **options: str) -> None:
    """Publish what there is of the topic t as the topic `copied`, from the checkpoint on if there is one."""
    source = {"servers": f"127.0.0.1:{broker.history_port}", "startingOffsets": "earliest"}
    limit = {"maxRowsPerTrigger": rows_max} if rows_max else {}
    # Spark looks for sinks in the session that is active in its thread for ours, and threads of Python may change that.
    spark.createDataFrame([], "nothing INT")
    stream = spark.readStream.format("braidmq").options(**source, **limit).load("t").coalesce(1)
    writer = stream.selectExpr("'copied' AS topic", "payload").writeStream.format("braidmq")
    writer = writer.options(servers=f"mqtt://127.0.0.1:{broker.port}", **options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()


def copied(spark: SparkSession, broker: Broker) -> list[int]:
    found = read(spark, broker, "copied").selectExpr("CAST(payload AS STRING) AS payload").collect()
    return sorted(int(row["payload"]) for row in found)


@pytest.mark.row("K2")
def test_a_checkpoint_of_last_week_gives_the_same_batches(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    seen: dict[int, list[list[str]]] = {}

    def note(batch: DataFrame, number: int) -> None:
        seen.setdefault(number, []).append(sorted(row["payload"] for row in batch.collect()))

    def run() -> None:
        source = {"servers": f"127.0.0.1:{broker.history_port}", "startingOffsets": "earliest", "maxRowsPerTrigger": "8"}
        stream = spark.readStream.format("braidmq").options(**source).load("t").selectExpr("CAST(payload AS STRING) AS payload")
        writer = stream.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path / "now"))
        assert writer.trigger(availableNow=True).start().awaitTermination(60)

    publish(broker, "t", *numbered(0, 10))
    run()
    shutil.copytree(tmp_path / "now", tmp_path / "last week")
    publish(broker, "t", *numbered(10, 20))
    run()
    shutil.rmtree(tmp_path / "now")
    shutil.copytree(tmp_path / "last week", tmp_path / "now")
    run()

    again = {number: batches for number, batches in seen.items() if len(batches) > 1}
    assert again, "nothing was read again"
    assert all(first == second for first, second in again.values())
    assert sorted(int(each) for batches in seen.values() for each in batches[0]) == list(range(20))


@pytest.mark.row("K3")
def test_a_checkpoint_of_last_week_publishes_nothing_twice_and_its_batches_are_skipped_when_that_is_asked_for(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    publish(broker, "t", *numbered(0, 10))
    run_copy(spark, broker, tmp_path / "now", "8")
    shutil.copytree(tmp_path / "now", tmp_path / "last week")
    publish(broker, "t", *numbered(10, 20))
    run_copy(spark, broker, tmp_path / "now", "8")

    with pytest.raises(StreamingQueryException, match=r"the broker has batch 3 of .*, and this is batch 2.*onEarlierBatch"):
        run_copy(spark, broker, tmp_path / "last week", "8")
    assert copied(spark, broker) == list(range(20))
    run_copy(spark, broker, tmp_path / "last week", "8", onEarlierBatch="skip")
    publish(broker, "t", *numbered(20, 30))
    run_copy(spark, broker, tmp_path / "last week", "8")

    assert copied(spark, broker) == list(range(30))


@pytest.mark.row("K3")
def test_a_week_old_checkpoint_whose_next_batch_also_has_new_rows_drops_none_of_them(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    publish(broker, "t", *numbered(0, 10))
    run_copy(spark, broker, tmp_path / "now")
    shutil.copytree(tmp_path / "now", tmp_path / "last week")
    for first in (10, 15):
        publish(broker, "t", *numbered(first, first + 5))
        run_copy(spark, broker, tmp_path / "now")
    publish(broker, "t", *numbered(20, 25))

    with pytest.raises(StreamingQueryException, match=r"the broker has batch 2 of .*, and this is batch 1.*onEarlierBatch"):
        run_copy(spark, broker, tmp_path / "last week")
    assert copied(spark, broker) == list(range(20))
    run_copy(spark, broker, tmp_path / "now")

    assert copied(spark, broker) == list(range(25))


POISON = {
    b"": "nothing",
    b"\x00": "a zero",
    b"\xff\xfe\x80": "no UTF-8",
    b"\xed\xa0\x80": "half a surrogate",
    b"{": "half an object",
    b'{"v": NaN}': "no JSON",
    b'{"v": 1e999}': "more than a double",
    b'{"v": ' + b"9" * 5000 + b"}": "a long number",
    b'{"v": 1, "v": 2}': "a key twice",
    b'{"a": ' * 20_000 + b"1" + b"}" * 20_000: "a deep object",
    b"[" * 100_000: "a deep array",
    b'{"' + b"k" * 100_000 + b'": 1}': "a long key",
    b"{" + b",".join(b'"k%d": %d' % (number, number) for number in range(5000)) + b"}": "many keys",
    b'{"v": "' + b"x" * 900_000 + b'"}': "a long text",
}


@pytest.mark.row("K7")
def test_payloads_meant_to_hurt_are_read_as_they_are_and_stop_no_job(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    good = [b'{"v": %d}' % number for number in range(20)]
    publish(broker, "t", *good[:10], *POISON, *good[10:])
    servers = ["--servers", f"127.0.0.1:{broker.history_port}", "-t", "t"]

    read_back = [bytes(row["payload"]) for row in read(spark, broker, columns="payload").collect()]
    decoded = CliRunner().invoke(decode.command, [f"{tmp_path}/typed", "--schema", "v double", *servers])
    rolled = CliRunner().invoke(rollup.command, [f"{tmp_path}/windows", "--window", "1m", "--watermark", "0s", *servers])

    assert read_back == [*good[:10], *POISON, *good[10:]]
    assert decoded.exit_code == 0, decoded.output
    assert rolled.exit_code == 0, rolled.output
    typed = ParquetTable(f"{tmp_path}/typed").read(spark)
    quarantine = ParquetTable(f"{tmp_path}/typed.quarantine").read(spark)
    assert set(map(float, range(20))) <= {row["v"] for row in typed.select("v").collect()}
    assert typed.count() + quarantine.count() == len(read_back), "a message is in one of the two"


BARE_EXECUTORS = """
import sys
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
session = session.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
session.sparkContext.setLogLevel("FATAL")
try:
    session.read.format("braidmq").option("servers", sys.argv[1]).load("#").collect()
except Exception as problem:
    print("the read failed:", problem)
"""


@pytest.mark.row("K6")
def test_an_executor_without_pyarrow_fails_the_read_and_says_what_it_lacks(history: FakeHistoryService, tmp_path: Path) -> None:
    history.add("t")
    nothing = tmp_path / "nothing" / "pyarrow"
    nothing.mkdir(parents=True)
    (nothing / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'pyarrow'\", name='pyarrow')\n")
    python = tmp_path / "python"
    # Tasks lack it; whoever plans, on the driver's machine, does not.
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *pyspark.worker*) export PYTHONPATH="{nothing.parent}:$PYTHONPATH";; esac\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    # For a source that was not registered by hand Spark prefers the driver's Python, if it has a name.
    pythons = {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), **pythons}

    done = subprocess.run(
        [sys.executable, "-c", BARE_EXECUTORS, history.address], capture_output=True, text=True, env=environment, timeout=90
    )

    # Spark's own worker needs it, too, and speaks before anything of ours is there.
    assert "the read failed: " in done.stdout, done.stderr
    assert "No module named 'pyarrow'" in done.stdout
