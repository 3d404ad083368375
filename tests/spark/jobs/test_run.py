"""Jobs from the command line, on a broker with clients: what they read, write, remember and tell."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import paho.mqtt.client as paho
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from paho.mqtt.enums import CallbackAPIVersion
from pyspark.sql import SparkSession

from braidmq.control.history import ReaderInfo
from braidmq.operations.history import NodeHistory
from braidmq.spark.jobs import archive, compact, decode, rollup
from braidmq.spark.jobs.framework.checkpoint import Checkpoint, SparkFiles, local_checkpoint
from braidmq.spark.jobs.framework.patterns import read_patterns
from braidmq.spark.jobs.learn import command as learn
from braidmq.spark.jobs.replay import command as replay
from braidmq.spark.jobs.tables.parquet_table import OWN, ParquetTable
from braidmq.testing import Broker

pytestmark = pytest.mark.timeout(180)
MINUTE_MS = 60_000
START_MS = 1_700_000_000_000 // MINUTE_MS * MINUTE_MS

Publish = Callable[..., None]
Run = Callable[..., str]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(history={"bind": "127.0.0.1:0"}) as broker:
        yield broker


@pytest.fixture
def publish(broker: Broker) -> Iterator[Publish]:
    """Publish messages, and wait until they are on disk."""
    client = paho.Client(CallbackAPIVersion.VERSION2, "plant", protocol=paho.MQTTv5)
    client.connect(broker.host, broker.port)
    client.loop_start()

    def publish(*messages: tuple[str, Any]) -> None:
        sent = [
            client.publish(topic, value if isinstance(value, bytes) else json.dumps(value), qos=1) for topic, value in messages
        ]
        for each in sent:
            each.wait_for_publish(30)
        assert all(each.is_published() for each in sent)

    yield publish
    client.disconnect()
    client.loop_stop()


@pytest.fixture
def run(spark: SparkSession, broker: Broker) -> Run:
    """Run a job in the session of the tests; gives what it printed. It must end well, unless a failure is expected."""

    def run(command: click.Command, *arguments: str, fails: bool = False) -> str:
        where = [] if command is compact.command else ["--servers", f"127.0.0.1:{broker.history_port}"]
        result = CliRunner().invoke(command, [*arguments, *where], catch_exceptions=False)
        assert (result.exit_code != 0) == fails, result.output
        return result.output

    return run


def readers_of(broker: Broker) -> dict[str, ReaderInfo]:
    assert broker.node is not None
    stats = broker.run(NodeHistory(broker.node).stats())
    return {each.name: each for each in stats.readers}


def payloads_in(table: Path, spark: SparkSession) -> list[str]:
    return sorted(bytes(row["payload"]).decode() for row in ParquetTable(str(table)).read(spark).select("payload").collect())


def test_an_archive_has_every_record_once_by_day_and_pattern_over_several_runs(
    spark: SparkSession, broker: Broker, publish: Publish, run: Run, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    publish(*((f"plant/d{number % 12}/temp", b"%d" % number) for number in range(120)), ("other", b"120"))

    first = run(archive.command, str(lake), "--batch-rows", "50", "--files-max", "2")
    publish(("plant/d99/temp", b"121"))
    second = run(archive.command, str(lake), "--files-max", "2")
    run(compact.command, str(lake))

    assert payloads_in(lake, spark) == sorted(map(str, range(122)))
    assert re.search(r"rows +│ 121 in \d+ batches", first)
    assert re.search(r"rows +│ 1 in 1 batches", second)
    rows = ParquetTable(str(lake)).read(spark).groupBy("pattern").count().collect()
    assert {row["pattern"]: row["count"] for row in rows} == {"plant/+/temp": 121, "other": 1}
    assert all(len(list(folder.glob("*.parquet"))) == 1 for folder in ParquetTable(str(lake)).directories())
    assert len(read_patterns(lake / OWN / "patterns")) == 2
    # The last batch counts, too: retention may take what is in the lake.
    reader = readers_of(broker)["archive"]
    assert (reader.records_behind, reader.pins) == (0, True)


@pytest.mark.row("K10")
def test_an_archive_with_a_second_checkpoint_is_refused_and_one_that_lost_its_own_adopts_the_table(
    spark: SparkSession, publish: Publish, run: Run, tmp_path: Path
) -> None:
    lake, checkpoint = tmp_path / "lake", tmp_path / "lake.checkpoint"
    publish(*((f"plant/d{number % 12}/temp", b"%d" % number) for number in range(100)))
    run(archive.command, str(lake), "--batch-rows", "30")
    local = local_checkpoint(str(checkpoint))
    anywhere = Checkpoint(str(checkpoint), SparkFiles(spark, str(checkpoint)))
    assert local is not None
    assert (local.query(), local.finished()) == (anywhere.query(), anywhere.finished())
    assert local.begin() == anywhere.begin() is not None
    assert anywhere.end_of(10_000) is None

    second = run(archive.command, str(lake), "--checkpoint", str(tmp_path / "other"), fails=True)
    assert f"the query {local.query()} of the job archive" in second
    shutil.rmtree(checkpoint)
    lost = run(archive.command, str(lake), fails=True)
    assert "its checkpoint was removed or replaced" in lost
    assert payloads_in(lake, spark) == sorted(map(str, range(100)))

    publish(("plant/d1/temp", b"100"))
    adopted = run(archive.command, str(lake), "--adopt")
    publish(("plant/d2/temp", b"101"))
    run(archive.command, str(lake))

    assert re.search(r"rows +│ 1 in 1 batches", adopted)
    assert payloads_in(lake, spark) == sorted(map(str, range(102)))


def test_an_archive_to_delta_has_every_record_once_in_a_bounded_number_of_files(
    publish: Publish, run: Run, tmp_path: Path
) -> None:
    publish(*(("plant/temp", b"%d" % number) for number in range(20)))

    told = run(archive.command, str(tmp_path), "--table", "delta", "--batch-rows", "4", "--files-max", "2")

    table = DeltaTable(tmp_path)
    assert sorted(map(int, table.to_pyarrow_table()["payload"].to_pylist())) == list(range(20))
    assert len(table.file_uris()) <= 2
    assert re.search(r"files +│ 5 of \d", told)
    assert re.search(r"joined +│ [1-9]\d* small files to [1-9]", told)


def test_an_archive_whose_driver_is_killed_resumes_and_has_every_record_once(
    spark: SparkSession, broker: Broker, publish: Publish, run: Run, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    publish(*((f"plant/d{number % 12}/temp", b"%d" % number) for number in range(600)))
    module = [sys.executable, "-m", "braidmq.spark.jobs.archive", str(lake), "--master", "local[2]", "--batch-rows", "20"]
    driver = subprocess.Popen([*module, "--servers", f"127.0.0.1:{broker.history_port}"], start_new_session=True)
    try:
        end = time.monotonic() + 90
        # The first commits are there, and more are to come.
        while not list(lake.glob("date=*/*/0000000002-*")):
            assert driver.poll() is None, "the job ended before it could be killed"
            assert time.monotonic() < end, "the job wrote nothing"
            time.sleep(0.02)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    survived = len(payloads_in(lake, spark))

    run(archive.command, str(lake))

    assert 0 < survived < 600
    assert payloads_in(lake, spark) == sorted(map(str, range(600)))


def test_windows_are_written_once_and_late_messages_are_counted(
    spark: SparkSession, publish: Publish, run: Run, tmp_path: Path
) -> None:
    def message(minute: float, value: int) -> tuple[str, Any]:
        return "plant/d1/env", {"ts": START_MS + int(minute * MINUTE_MS), "v": value}

    options = [str(tmp_path / "minutes"), "--event-time", "$.ts:ms", "--watermark", "1m"]
    publish(message(0.1, 1), message(0.2, 3), message(1.1, 10), message(4, 100))
    run(rollup.command, *options)
    publish(message(0.3, 1000), message(3.5, 5), message(9, 7))
    second = run(rollup.command, *options)

    rows = ParquetTable(str(tmp_path / "minutes")).read(spark).where("field = 'v'").collect()
    found = {int(row["window_start"].timestamp() * 1000 - START_MS) // MINUTE_MS: (row["count"], row["avg"]) for row in rows}
    # 0.3 was two minutes too late; 3.5 was within the watermark, and its window was still open; 9 waits for what comes later.
    assert found == {0: (2, 2.0), 1: (1, 10.0), 3: (1, 5.0), 4: (1, 100.0)}
    assert len(rows) == 4
    assert re.search(r"too late +│ 2 rows", second)  # the message, and its number
    open_from = datetime.fromtimestamp((START_MS + 8 * MINUTE_MS) / 1000, UTC)  # a minute before the last message
    assert re.search(rf"open windows +│ those that end after {open_from:%Y-%m-%dT%H:%M:%S}", second)


def test_payloads_are_decoded_with_a_schema_that_is_found_and_kept(
    spark: SparkSession, publish: Publish, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    publish(("t", {"v": 1.5}), ("t", b"junk"), ("t", {"v": 2}))
    first = run(decode.command, "typed")
    publish(("t", {"v": "warm", "new": 1}), ("t", {"v": 3}))
    run(decode.command, "typed")

    good = ParquetTable(str(tmp_path / "typed")).read(spark)
    bad = ParquetTable(str(tmp_path / "typed.quarantine")).read(spark)
    assert sorted(row["v"] for row in good.collect()) == [1.5, 2.0, 3.0]
    assert "new" not in good.columns
    assert sorted(row["reason"] for row in bad.collect()) == ["a field does not fit the schema", "not a JSON object"]
    assert re.search(r"messages +│ 3 in 1 batches", first)
    assert {each.name for each in tmp_path.iterdir()} == {"typed", "typed.quarantine", "typed.checkpoint"}


def test_learned_patterns_are_compared_and_applied(broker: Broker, publish: Publish, run: Run, tmp_path: Path) -> None:
    publish(*((f"plant/d{number}/{kind}", b"x") for number in range(30) for kind in ("temp", "hum")))
    arguments = ["--patterns", str(tmp_path / "patterns"), "--data-dir", str(broker.data_dir)]

    told = run(learn.command, *arguments, "--apply")
    publish(*((f"plant/d{number}/{kind}", b"y") for number in range(30) for kind in ("temp", "hum")))
    again = run(learn.command, *arguments)

    assert read_patterns(tmp_path / "patterns").filters == ("plant/+/hum", "plant/+/temp")
    assert "a new generation has begun" in told
    # One publisher has one home shard, and its first ten names were told apart.
    assert re.search(r"patterns in all shards +│ 22, proposed 8", told)
    assert re.search(r"patterns in all shards +│ 2, proposed 8", again)
    assert "begun" not in again


def test_a_replay_is_in_order_and_each_message_comes_once_over_runs_of_one_name(
    broker: Broker, publish: Publish, run: Run, tmp_path: Path
) -> None:
    publish(*((f"plant/d{number % 5}/temp", b"%d" % number) for number in range(100)))
    got: list[tuple[str, int]] = []
    listener = paho.Client(CallbackAPIVersion.VERSION2, "listener", protocol=paho.MQTTv5)
    listener.on_message = lambda _c, _u, message: got.append((message.topic, int(message.payload)))
    listener.connect(broker.host, broker.port)
    listener.subscribe("again/#", qos=1)
    listener.loop_start()
    options = [f"127.0.0.1:{broker.port}", "-t", "plant/#", "--prefix", "again/", "--name", "twice"]

    once = run(replay.command, *options)
    publish(("plant/d0/temp", b"100"), ("again/end", b"-1"))
    twice = run(replay.command, *options)
    publish(("again/end", b"-2"))
    end = time.monotonic() + 20
    while (not got or got[-1][1] != -2) and time.monotonic() < end:
        time.sleep(0.05)
    listener.disconnect()
    listener.loop_stop()

    assert "100 published" in once
    assert "1 published" in twice
    assert [number for _, number in got] == [*range(100), -1, 100, -2]
    assert {topic for topic, _ in got} == {*(f"again/plant/d{number}/temp" for number in range(5)), "again/end"}


def test_a_lake_is_replayed_at_a_rate(spark: SparkSession, broker: Broker, publish: Publish, run: Run, tmp_path: Path) -> None:
    publish(*((f"plant/d{number}/temp", b"%d" % number) for number in range(20)), ("other", b"no"))
    run(archive.command, str(tmp_path / "lake"))
    options = ["--lake", str(tmp_path / "lake"), "-t", "plant/#", "--map", r"^plant/(\w+)/.*=>copy/\1", "--rate", "40"]

    began = time.monotonic()
    told = run(replay.command, f"127.0.0.1:{broker.port}", *options)

    assert "20 published" in told
    assert time.monotonic() - began >= 19 / 40
    run(archive.command, str(tmp_path / "copy"), "-t", "copy/#")
    assert payloads_in(tmp_path / "copy", spark) == sorted(map(str, range(20)))


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        (archive.command, ["lake", "-t", "a/#/b"], "is not a topic filter"),
        (archive.command, ["s3://bucket/lake"], "--table delta"),
        (rollup.command, ["out", "--window", "100ms"], "whole number of seconds"),
        (rollup.command, ["out", "-t", "nothing/here"], "give --patterns"),
        (decode.command, ["out", "--schema", "what is that, then"], "cannot be read"),
        (learn.command, ["--apply"], "--data-dir or --api"),
        (learn.command, ["-t", "nothing/here"], "no records match"),
        (replay.command, ["127.0.0.1:1", "--follow"], "give --checkpoint"),
        (compact.command, ["/nowhere/at/all"], "there is no directory"),
    ],
)
def test_a_job_that_cannot_run_says_what_to_do(
    run: Run,
    publish: Publish,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: click.Command,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    publish(("t", {"v": 1}))

    told = run(command, *arguments, fails=True)

    assert words in told
    assert "Traceback" not in told
