"""Spark on a real broker: the rows that MQTT would replay, each once, whoever is killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from braidmq.flight import connect
from braidmq.mqtt.packets import Publish
from braidmq.testing import Broker
from tests.durability.campaigns.node import write_config
from tests.spark import stream_driver
from tests.support.clients.wire import Wire
from tests.support.started import Started

pytestmark = [pytest.mark.timeout(180), pytest.mark.needs("java")]

MESSAGES = 1500
Place = tuple[int, int]  # shard and position


def publish(host: str, port: int, count: int, *, first: int = 0) -> None:
    """So many messages from four clients, acknowledged."""
    for which in range(4):
        with Wire(host, port).connect(f"device {which}") as client:
            numbers = range(first + which, first + count, 4)
            for start in range(0, len(numbers), 500):
                ids = {client.next_packet_id(): number for number in numbers[start : start + 500]}
                client.send(
                    *(Publish(f"plant/{number % 20}/temp", b"%d" % number, 1, packet_id=key) for key, number in ids.items())
                )
                for packet_id in ids:
                    client.finish_publish(1, packet_id)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(history={"bind": "127.0.0.1:0"}) as broker:
        publish(broker.host, broker.port, MESSAGES)
        yield broker


def read(spark: SparkSession, broker: Broker, topic_filter: str, **options: str) -> DataFrame:
    return spark.read.format("braidmq").options(servers=f"127.0.0.1:{broker.history_port}", **options).load(topic_filter)


def places(servers: str, topic_filter: str) -> list[Place]:
    """What the history service has, in order."""
    with connect(servers) as client:
        table = client.read(topic_filter, columns=["shard", "position"]).read_all()
    return sorted(zip(table["shard"].to_pylist(), table["position"].to_pylist(), strict=True))


def written(directory: Path) -> list[Place]:
    """What the driver wrote, in order; only whole batches count, as a reader of its files would have it."""
    files = [file for file in (directory / "out").rglob("*.json") if (file.parent / "_SUCCESS").exists()]
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return sorted((row["shard"], row["position"]) for row in rows)


def test_spark_has_the_same_rows_as_a_replay_by_mqtt(spark: SparkSession, broker: Broker) -> None:
    with Wire(broker.host, broker.port).connect("replays") as client:
        client.subscribe("$replay/earliest/plant/+/temp")
        replayed = sorted((packet.topic, packet.payload) for packet in client.receive_publishes(MESSAGES))

    rows = read(spark, broker, "plant/+/temp", minPartitions="4").select("topic", "payload").collect()

    assert sorted((row["topic"], bytes(row["payload"])) for row in rows) == replayed


def test_a_topic_is_in_order_within_its_partition(spark: SparkSession, broker: Broker) -> None:
    rows = read(spark, broker, "#", columns="topic,payload").rdd.mapPartitions(lambda part: [list(part)]).collect()

    for part in rows:
        last: dict[str, int] = {}
        for row in part:
            number = int(row["payload"])
            # A topic has one publisher here, whose numbers rise.
            assert last.get(row["topic"], -1) < number
            last[row["topic"]] = number
    assert sum(map(len, rows)) == MESSAGES


def test_a_range_read_again_gives_the_same_rows_while_more_comes(spark: SparkSession, broker: Broker) -> None:
    before = sorted(map(tuple, read(spark, broker, "plant/#", columns="shard,position").collect()))
    ends = dict(before)  # the last position of each shard
    offsets = json.dumps({"version": 1, "shards": {str(shard): position for shard, position in ends.items()}})

    publish(broker.host, broker.port, 100, first=MESSAGES)

    again = read(spark, broker, "plant/#", columns="shard,position", endingOffsets=offsets).collect()
    later = read(spark, broker, "plant/#", columns="shard,position", startingOffsets=offsets).collect()
    assert sorted(map(tuple, again)) == before
    assert len(later) == 100


class Node:
    """A broker process on fixed ports, which can be killed and started again where it was."""

    def __init__(self, folder: Path) -> None:
        self._file = write_config(folder)
        self.started = Started(self._file, {"BRAIDMQ_HISTORY__BIND": "127.0.0.1:0"})
        self.port = self.started.await_port()
        self.history_port = self._await_history()

    def _await_history(self) -> int:
        return int(self.started.await_line(r"history listens on 127\.0\.0\.1:(\d+)")[1])

    def kill_and_restart(self) -> None:
        self.started.send(signal.SIGKILL)
        self.started.await_end()
        self.started = Started(self._file, {"BRAIDMQ_HISTORY__BIND": f"127.0.0.1:{self.history_port}"})
        self._await_history()

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.history_port}"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    with node.started:
        publish("127.0.0.1", node.port, MESSAGES)
        yield node
    with node.started:  # the one that runs at the end may be another
        pass


class Driver:
    """`stream_driver` as a process."""

    def __init__(self, node: Node, directory: Path, master: str = "local[2]", rows: int = 500) -> None:
        words = [master, node.servers, "plant/+/temp", str(directory), str(rows)]
        source = str(Path(__file__).resolve().parents[2] / "src")
        self._process = subprocess.Popen(
            [sys.executable, stream_driver.__file__, *words],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": source},
        )

    def await_line(self, word: str) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word):
                return
        raise AssertionError(f"the driver ended without {word!r}")

    def kill(self) -> None:
        """The driver with its JVM and all its workers."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(20)

    def python_workers(self) -> list[int]:
        """The processes in which tasks read."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    group = os.getpgid(int(entry.name))
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if b"pyspark.daemon" in words and group == self._process.pid:
                    found.append(int(entry.name))
        return found

    def finish(self) -> None:
        try:
            self.await_line("done")
            assert self._process.wait(60) == 0
        finally:
            if self._process.poll() is None:
                self.kill()


@pytest.mark.row("K2")
def test_a_killed_driver_resumes_where_it_stopped(node: Node, tmp_path: Path) -> None:
    directory = tmp_path / "spark"
    first = Driver(node, directory)
    first.await_line("batch 0")
    first.kill()

    Driver(node, directory).finish()

    assert written(directory) == places(node.servers, "plant/+/temp")


@pytest.mark.row("K2")
def test_a_stream_lives_through_a_broker_and_a_service_that_are_killed(node: Node, tmp_path: Path) -> None:
    directory = tmp_path / "spark"
    driver = Driver(node, directory)
    driver.await_line("batch 0")

    node.kill_and_restart()

    driver.finish()
    assert written(directory) == places(node.servers, "plant/+/temp")
    assert len(written(directory)) == MESSAGES


@pytest.mark.row("K2")
def test_tasks_whose_workers_are_killed_run_again_elsewhere(node: Node, tmp_path: Path) -> None:
    directory = tmp_path / "spark"
    driver = Driver(node, directory, master="local-cluster[2,1,1024]")
    driver.await_line("batch 0")

    for process in driver.python_workers():
        os.kill(process, signal.SIGKILL)

    driver.finish()
    assert written(directory) == places(node.servers, "plant/+/temp")
