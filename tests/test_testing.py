"""``braidmq.testing``: a real broker for other people's tests."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.node import Node
from braidmq.testing import Broker
from tests.support.clients.wire import Wire
from tests.support.started import environment

EXAMPLE = """
pytest_plugins = ["braidmq.testing"]

def test_greeting(braidmq_broker):
    import paho.mqtt.publish, paho.mqtt.subscribe
    paho.mqtt.publish.single("greeting", "hello", retain=True, hostname=braidmq_broker.host, port=braidmq_broker.port)
    came = paho.mqtt.subscribe.simple("greeting", hostname=braidmq_broker.host, port=braidmq_broker.port)
    assert came.payload == b"hello"
"""


def test_a_broker_runs_inside_the_with_block_and_leaves_nothing_behind() -> None:
    with Broker() as broker:
        client = Wire(broker.host, broker.port).connect()
        client.ping()
        folder = broker.data_dir
        assert folder.is_dir()

    client.close()
    assert not folder.exists()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((broker.host, broker.port), timeout=5)


def test_two_brokers_run_beside_each_other() -> None:
    with Broker() as one, Broker() as two:
        listener, sender = Wire(two.host, two.port).connect(), Wire(one.host, one.port).connect()
        listener.subscribe("#")
        sender.publish("t", b"x")

        listener.expect_silence()
        assert one.ports != two.ports


def test_tables_of_the_configuration_are_keyword_arguments() -> None:
    with Broker(mqtt={"receive_maximum": 12}) as broker:
        assert Wire(broker.host, broker.port).connect().connack.properties.receive_maximum == 12


def test_a_wrong_table_is_told_where_the_broker_was_asked_for() -> None:
    with pytest.raises(ConfigError, match="receive_maximum"), Broker(mqtt={"receive_maximun": 12}):
        pass


def test_a_broker_that_does_not_stop_well_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Node.stop

    async def stop_and_fail(node: Node) -> None:
        await stop(node)
        raise RuntimeError("it ended badly")

    monkeypatch.setattr(Node, "stop", stop_and_fail)

    with pytest.raises(RuntimeError, match="it ended badly"), Broker():
        pass


def test_the_fixture_serves_a_test_of_a_few_lines(tmp_path: Path) -> None:
    example = tmp_path / "test_example.py"
    example.write_text(EXAMPLE)

    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(example)],
        capture_output=True,
        text=True,
        timeout=50,
        env=environment(),
        cwd=tmp_path,
    )

    assert "1 passed" in run.stdout, run.stdout + run.stderr
