"""Ctrl-C and SIGTERM of jobs: an end in bounded time with a last line that says how to go on, and nothing twice afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any

import paho.mqtt.client as paho
import pyarrow.parquet as pq
import pytest
from click.exceptions import ClickException, Exit
from click.testing import CliRunner
from paho.mqtt.enums import CallbackAPIVersion
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from braidmq.base.errors import Unavailable, UsageError
from braidmq.mqtt.packets import Publish
from braidmq.spark.jobs import archive
from braidmq.spark.jobs.framework import run as running
from braidmq.spark.jobs.framework.job import HistoryOptions, Job, Pace, reported
from braidmq.spark.jobs.framework.progress import Display, Meter
from braidmq.spark.jobs.framework.run import Watch, follow
from braidmq.spark.jobs.framework.session import SparkOptions
from braidmq.spark.jobs.framework.stop import Interrupted, Stopped, StopRequest, ending_at_once, holding_signals
from braidmq.spark.jobs.replay import command as replay
from braidmq.testing import Broker
from tests.support.clients.wire import Wire
from tests.support.started import COMMAND, environment

# The batch at work has 30 s, and Spark 10 s to stop.
END_S = 60.0


def a_job(*, available_now: bool = True) -> Job:
    return Job("archive", SparkOptions(), HistoryOptions(servers="", filters=("#",)), Pace(available_now=available_now))


class FakeQuery:
    """A query that reports a batch for each look, and is always at work."""

    def __init__(self, *looks: Callable[[], None], finishes: bool) -> None:
        self._looks = list(looks)
        self._finishes = finishes
        self.batches = 0
        self.is_stopped = False
        self.status = {"isTriggerActive": True}

    def awaitTermination(self, _timeout: float) -> bool:
        if self._looks:
            self._looks.pop(0)()
        self.batches += self._finishes
        return False

    @property
    def recentProgress(self) -> list[Any]:
        class Report:
            json = f'{{"batchId": {self.batches}, "numInputRows": 1}}'

        return [Report] if self.batches else []

    def stop(self) -> None:
        self.is_stopped = True


def send(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def run(query: FakeQuery) -> StopRequest:
    job = a_job()
    follow(query, Meter(), Watch(job.history), Display("archive"), job.stop)  # type: ignore[arg-type]
    return job.stop


def test_the_batch_at_work_is_finished_and_no_other_is_waited_for() -> None:
    query = FakeQuery(lambda: None, send(signal.SIGTERM), finishes=True)

    stop = run(query)

    assert query.is_stopped
    assert (stop.is_granted, stop.exit_code) == (True, 143)
    assert query.batches == 3  # one before the signal, one with it, and the one that was at work


def test_a_batch_that_takes_too_long_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "FINISH_S", 0.05)
    query = FakeQuery(send(signal.SIGINT), finishes=False)

    stop = run(query)

    assert query.is_stopped
    assert (stop.is_granted, stop.exit_code) == (True, 130)


def test_a_second_signal_ends_at_once_and_handlers_are_as_before() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    query = FakeQuery(send(signal.SIGTERM), send(signal.SIGTERM), finishes=False)

    with pytest.raises(Interrupted):
        run(query)

    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_stop_request_wakes_a_sleeping_job() -> None:
    stop = StopRequest()
    stop.sleep(0.001)
    with stop.listening():
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        stop.sleep(3600)


@pytest.mark.parametrize(("available_now", "code"), [(True, 143), (False, 0)])
def test_a_stopped_job_has_succeeded_only_if_it_was_following(
    capsys: pytest.CaptureFixture[str], available_now: bool, code: int
) -> None:
    job = a_job(available_now=available_now)
    found = 0

    try:
        with reported(job), job.stop.listening():
            os.kill(os.getpid(), signal.SIGTERM)
            job.stop.is_granted = True
    except Exit as end:
        found = end.exit_code

    assert found == code
    assert capsys.readouterr().err == "archive: stopped; run the same command again to continue\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_does_not_stream_ends_at_once(capsys: pytest.CaptureFixture[str], number: signal.Signals) -> None:
    with pytest.raises(Exit) as end, reported(a_job()):
        os.kill(os.getpid(), number)

    assert end.value.exit_code == 128 + number
    assert capsys.readouterr().err == "archive: interrupted; run the same command again to continue\n"


def start_spark(*signals: signal.Signals) -> list[str]:
    """What a start of Spark does by which these signals come: it sets a handler of its own."""
    steps = []
    with contextlib.suppress(Interrupted), holding_signals():
        for each in signals:
            os.kill(os.getpid(), each)
            steps.append(each.name)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        steps.append("started")
    return steps


def test_signals_while_spark_starts_count_when_it_has_so_that_no_java_is_left_alone() -> None:
    with ending_at_once():
        ours = signal.getsignal(signal.SIGINT)

        assert start_spark(signal.SIGTERM) == ["SIGTERM", "started"]
        assert start_spark(signal.SIGTERM, signal.SIGINT) == ["SIGTERM", "SIGINT", "started"]
        assert signal.getsignal(signal.SIGINT) is ours
    with pytest.raises(Interrupted), holding_signals():
        os.kill(os.getpid(), signal.SIGINT)


_CUT_CALL = """
import logging, signal, sys
from py4j.java_gateway import GatewayClient
from braidmq.spark.jobs.framework.stop import Interrupted, quieten_py4j

class Cut:  # a connection to Java in whose call the signal comes
    socket = None
    def send_command(self, command):
        raise Interrupted(signal.SIGINT)
    def close(self, *reason):
        pass

logging.basicConfig(format="%(message)s", stream=sys.stderr)
quieten_py4j()
client = GatewayClient()
client.deque.append(Cut())
try:
    client.send_command("c\\n")
except Interrupted:
    logging.getLogger("py4j.java_gateway").error("the end of a connection")
    logging.getLogger("braidmq.spark").warning("something of ours")
"""


@pytest.mark.row("K16")
def test_a_call_to_spark_that_a_signal_cuts_off_leaves_no_traceback_in_the_log() -> None:
    # In a process of its own: what other tests have done to loggers must not matter.
    ended = subprocess.run([sys.executable, "-c", _CUT_CALL], capture_output=True, text=True, timeout=60, check=True)

    assert ended.stderr.splitlines() == ["something of ours"]


@pytest.mark.parametrize("kind", [Unavailable, UsageError, PySparkException])
def test_a_failed_job_says_how_to_resume_if_that_takes_more_than_the_same_command(kind: type[Exception]) -> None:
    job = a_job()
    job.how_to_go_on = "to continue, run the same command with --name x"

    with (
        pytest.raises(ClickException, match=r"the broker is gone.*; to continue, run the same command with --name x$"),
        reported(job),
    ):
        raise kind("the broker is gone")


class Running:
    """A job as a process with a group of its own. A context manager; leaving it kills what still runs."""

    def __init__(self, log: Path, *words: str) -> None:
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [*COMMAND, "pipeline", *words, "--master", "local[2]"],
                stdout=subprocess.DEVNULL,
                stderr=file,
                start_new_session=True,
                env=environment(),
            )

    def __enter__(self) -> Running:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(20)

    def await_that(self, holds: Callable[[], bool]) -> None:
        """Wait until something is so while the job runs."""
        end = time.monotonic() + 90
        while not holds():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < end, self._log.read_text()
            time.sleep(0.02)

    @property
    def has_started_spark(self) -> bool:
        """Spark has told its log level, and sets its own handler for Ctrl-C about now."""
        return "Setting Spark log level" in self._log.read_text()

    def end_by(self, number: signal.Signals) -> tuple[int, str]:
        """The exit status and the last line. Ctrl-C comes from a terminal, which sends it to Spark's processes as well."""
        if number == signal.SIGINT:
            os.killpg(self._process.pid, number)
        else:
            self._process.send_signal(number)
        told = self._process.wait(END_S), self._log.read_text().splitlines()[-1]
        assert "Traceback" not in self._log.read_text()
        return told


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(history={"bind": "127.0.0.1:0"}) as broker:
        yield broker


def publish(broker: Broker, numbers: range) -> None:
    with Wire(broker.host, broker.port).connect("plant") as client:
        ids = [client.next_packet_id() for _ in numbers]
        client.send(
            *(Publish(f"plant/d{each % 5}", b"%d" % each, 1, packet_id=key) for key, each in zip(ids, numbers, strict=True))
        )
        for packet_id in ids:
            client.finish_publish(1, packet_id)


@contextmanager
def listening_at(broker: Broker, on_message: Callable[[paho.Client, Any, paho.MQTTMessage], None]) -> Iterator[None]:
    """A subscriber of what is replayed."""
    listener = paho.Client(CallbackAPIVersion.VERSION2, "listener", protocol=paho.MQTTv5)
    listener.on_message = on_message
    listener.connect(broker.host, broker.port)
    listener.subscribe("again/#", qos=1)
    listener.loop_start()
    yield
    listener.disconnect()
    listener.loop_stop()


@pytest.mark.timeout(240)
@pytest.mark.needs("java")
def test_an_archive_that_is_stopped_again_and_again_has_every_record_once(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    words = [str(lake), "--servers", f"127.0.0.1:{broker.history_port}", "--batch-rows", "10"]
    publish(broker, range(300))

    def archived() -> list[int]:
        files = [pq.ParquetFile(each).read(["payload"]) for each in lake.glob("date=*/*/*.parquet")]
        return sorted(int(payload.as_py()) for file in files for payload in file["payload"])

    def last_batch() -> int:
        return max((json.loads(each.read_bytes())["batch"] for each in lake.glob("_braidmq/commits/*.json")), default=-1)

    ends, counts = [], [0]
    for number in (signal.SIGINT, signal.SIGTERM):
        enough = last_batch() + 2
        with Running(tmp_path / "log", "archive", *words, "--follow", "--trigger", "0 seconds") as job:
            job.await_that(lambda enough=enough: last_batch() >= enough)  # type: ignore[misc]
            ends.append(job.end_by(number))
        counts.append(len(archived()))
    assert ends == [(0, "archive: stopped; run the same command again to continue")] * 2
    assert 0 < counts[1] < counts[2] < 300

    publish(broker, range(300, 320))
    last = CliRunner().invoke(archive.command, [*words[:-2]], catch_exceptions=False)

    assert last.exit_code == 0
    assert archived() == list(range(320))


@pytest.mark.row("K16")
@pytest.mark.timeout(120)
@pytest.mark.needs("java")
def test_an_archive_that_is_stopped_while_spark_starts_leaves_no_traceback(broker: Broker, tmp_path: Path) -> None:
    publish(broker, range(10))
    words = [str(tmp_path / "lake"), "--servers", f"127.0.0.1:{broker.history_port}"]

    with Running(tmp_path / "log", "archive", *words) as job:
        job.await_that(lambda: job.has_started_spark)
        code, line = job.end_by(signal.SIGINT)

    assert code == 130
    assert re.fullmatch(r"archive: (stopped|interrupted); run the same command again to continue", line)


@pytest.mark.timeout(240)
@pytest.mark.needs("java")
def test_a_replay_that_follows_publishes_once_what_was_there_and_what_comes(broker: Broker, tmp_path: Path) -> None:
    got: SimpleQueue[int] = SimpleQueue()
    words = ["-t", "plant/#", "--prefix", "again/", "--checkpoint", str(tmp_path / "checkpoint"), "--trigger", "0 seconds"]
    words = [f"127.0.0.1:{broker.port}", "--servers", f"127.0.0.1:{broker.history_port}", *words, "--follow"]
    publish(broker, range(200))

    # In the middle of a batch, which would take twenty seconds.
    with listening_at(broker, lambda _client, _data, message: got.put(int(message.payload))):
        with Running(tmp_path / "log", "replay", *words, "--rate", "10") as job:
            job.await_that(lambda: got.qsize() >= 5)
            first = job.end_by(signal.SIGTERM)
        before = got.qsize()
        publish(broker, range(200, 250))
        with Running(tmp_path / "log", "replay", *words) as job:
            job.await_that(lambda: got.qsize() >= 250)
            publish(broker, range(250, 300))
            job.await_that(lambda: got.qsize() >= 300)
            second = job.end_by(signal.SIGINT)
        with Wire(broker.host, broker.port).connect("last") as client:
            client.publish("again/end", b"-1", 1)
        numbers = list(iter(lambda: got.get(timeout=20), -1))

    assert first == second == (0, "replay: stopped; run the same command again to continue")
    assert 5 <= before < 200
    assert numbers == list(range(300))


@pytest.mark.timeout(180)
@pytest.mark.needs("java")
def test_a_replay_that_is_interrupted_tells_how_another_run_publishes_the_rest_of_the_same_rows(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    got: SimpleQueue[int] = SimpleQueue()
    words = [f"127.0.0.1:{broker.port}", "--servers", f"127.0.0.1:{broker.history_port}", "-t", "plant/#", "--prefix", "again/"]
    publish(broker, range(200))

    with listening_at(broker, lambda _client, _data, message: got.put(int(message.payload))):
        with Running(tmp_path / "log", "replay", *words, "--from", "-1h", "--rate", "10") as job:
            job.await_that(lambda: got.qsize() >= 3)
            code, line = job.end_by(signal.SIGTERM)
        moment = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"
        told = re.fullmatch(
            rf"replay: interrupted; to continue, run the same command with (--name \S+ --from {moment} --to {moment})", line
        )
        assert told is not None, line
        publish(broker, range(200, 210))  # which are not of this replay
        CliRunner().invoke(replay.command, [*words, "--from", "-1h", *told[1].split()], catch_exceptions=False)
        with Wire(broker.host, broker.port).connect("last") as client:
            client.publish("again/end", b"-1", 1)
        numbers = list(iter(lambda: got.get(timeout=20), -1))

    assert code == 143
    assert numbers == list(range(200))
