"""Spark Connect: the server has braidmq, the client is a process that does not; on every Spark from 4.0 on."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from braidmq.testing import Broker
from tests.spark import connect_client
from tests.spark.publishing import publish
from tests.support.clients.wire import Wire
from tests.support.ports import free_port

pytestmark = [pytest.mark.timeout(180), pytest.mark.needs("java")]
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
SOURCES = str(Path(__file__).resolve().parents[2] / "src")
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.connect.grpc.binding.address": "127.0.0.1",
}

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Connect server that runs in a process of its own."""
    directory = tmp_path_factory.mktemp("connect")
    port = free_port()
    settings = {**SETTINGS, "spark.connect.grpc.binding.port": str(port), "spark.local.dir": str(directory)}
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    submit = Path(sys.executable).with_name("spark-submit")
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen(
            [submit, "--master", "local[2]", "--class", SERVER, *words, "spark-internal"],
            stdout=log,
            stderr=log,
            cwd=directory,
            start_new_session=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": SOURCES},
        )
    try:
        await_server(server, port, directory / "log")
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(20)


def await_server(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except ConnectionRefusedError:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)


@pytest.fixture
def ask(remote: str) -> Ask:
    """What a client says that does one thing at the server."""

    def ask(*words: str) -> Any:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [sys.executable, connect_client.__file__, remote, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=150, env=environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return ask


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(history={"bind": "127.0.0.1:0"}) as broker:
        yield broker


def test_a_client_of_connect_reads_history(ask: Ask, broker: Broker) -> None:
    publish(broker, "table/1", b"a", b"b")
    publish(broker, "table/2", b"c")

    rows = ask("read", f"127.0.0.1:{broker.history_port}", "table/#")

    assert sorted(rows) == [["table/1", "a"], ["table/1", "b"], ["table/2", "c"]]


def test_a_spark_connect_stream_resumes_where_it_stopped(ask: Ask, broker: Broker, tmp_path: Path) -> None:
    def run() -> list[str]:
        ask("stream", f"127.0.0.1:{broker.history_port}", "stream/#", str(tmp_path))
        lines = [line for file in (tmp_path / "out").glob("*.json") for line in file.read_text().splitlines()]
        return sorted(json.loads(line)["text"] for line in lines)

    publish(broker, "stream/1", b"a", b"b", b"c")
    assert run() == ["a", "b", "c"]

    publish(broker, "stream/1", b"d", b"e")

    assert run() == ["a", "b", "c", "d", "e"]


def test_a_client_of_connect_publishes_a_frame(ask: Ask, broker: Broker) -> None:
    ask("write", f"mqtt://127.0.0.1:{broker.port}", json.dumps([["written/1", "x"], ["written/2", "y"]]))

    with Wire(broker.host, broker.port).connect("replays") as client:
        client.subscribe("$replay/earliest/written/+")
        assert sorted((packet.topic, packet.payload) for packet in client.receive_publishes(2)) == [
            ("written/1", b"x"),
            ("written/2", b"y"),
        ]
