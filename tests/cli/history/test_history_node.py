"""History, sessions and backups through the command line, on a node with clients."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from braidmq.cli.main import main
from braidmq.testing import Broker
from tests.storage.message_log import Stage
from tests.support.clients.wire import Wires

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def connect(broker: Broker) -> Iterator[Wires]:
    wires = Wires(broker.host, broker.port)
    yield wires
    wires.close()


@pytest.fixture
def run(broker: Broker, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Run a command against the node; gives exit status, output and errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--data-dir", str(broker.data_dir)])
        sys.stdout.flush()
        captured = capfdbinary.readouterr()
        return int(ended.value.code or 0), captured.out.decode(), captured.err.decode()

    return run


def test_acknowledged_messages_are_in_the_history(connect: Wires, run: Run) -> None:
    publisher = connect("sensor")
    for number in range(20):
        publisher.publish(f"plant/{number % 4}/temperature", b"%d" % number, qos=1 + number % 2)

    _, output, _ = run("history", "cat", "plant/+/temperature")
    _, listed, _ = run("history", "ls", "plant/#")
    _, stats, _ = run("history", "stats", "--json")

    records = [json.loads(line) for line in output.splitlines()]
    assert [record["payload"] for record in records] == [str(number) for number in range(20)]
    assert {record["client_id"] for record in records} == {"sensor"}
    assert [record["qos"] for record in records[:2]] == [1, 2]
    assert [line.split()[:2] for line in listed.splitlines()[1:]] == [[f"plant/{number}/temperature", "5"] for number in range(4)]
    assert json.loads(stats)["records"] >= 20


def test_tail_continues_from_the_given_position(connect: Wires, run: Run) -> None:
    publisher = connect("sensor")
    publisher.publish("a", b"1", qos=1)
    publisher.publish("b", b"2", qos=1)

    _, output, _ = run("history", "tail", "a", "b", "--from", "earliest", "-C", "2")

    assert [line.split()[1:] for line in output.splitlines()] == [["a", "1"], ["b", "2"]]


def test_a_durable_session_shows_what_waits_for_it_until_it_is_dropped(connect: Wires, run: Run) -> None:
    away = connect("away", persistent=True)
    away.subscribe("t/#", qos=1)
    away.disconnect()
    publisher = connect("here")
    for _ in range(3):
        publisher.publish("t/1", b"x", qos=1)

    _, listed, _ = run("ctl", "sessions", "ls", "--json")
    dropped = run("ctl", "sessions", "drop", "away")
    _, after, _ = run("ctl", "sessions", "ls", "--json")

    sessions = {each["client_id"]: each for each in json.loads(listed)["items"]}
    assert (sessions["away"]["durable"], sessions["away"]["connected"]) == (True, False)
    assert sessions["away"]["records_behind"] >= 3
    assert (sessions["here"]["durable"], sessions["here"]["connected"]) == (False, True)
    assert dropped[:2] == (0, "dropped away\n")
    assert [each["client_id"] for each in json.loads(after)["items"]] == ["here"]


def test_durability_follows_a_publish(connect: Wires, run: Run) -> None:
    before = json.loads(run("ctl", "durability", "--json")[1])
    connect("sensor").publish("t", b"x", qos=1)
    after = json.loads(run("ctl", "durability", "--json")[1])

    assert (after["mode"], after["health"]) == ("fsync", "ok")
    assert after["commits"] > before["commits"]
    assert after["commit_age_s"] < 60
    assert max(each["watermark"] for each in after["shards"]) > max(each["watermark"] for each in before["shards"])


def test_remains_of_a_backup_are_gone_when_the_node_serves_again(tmp_path: Path) -> None:
    left = tmp_path / "backup.partial"
    left.mkdir()
    (left / "000001.sst").write_bytes(b"half")

    with Broker(node={"data_dir": str(tmp_path)}):
        assert not left.exists()


def restore(source: Path, data_dir: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["restore", str(source), "--data-dir", str(data_dir)])
    assert not ended.value.code


def test_a_backup_under_load_has_every_message_that_was_acknowledged_before_it(connect: Wires, run: Run, tmp_path: Path) -> None:
    publisher = connect("sensor")
    acknowledged: list[int] = []
    is_over, many = threading.Event(), threading.Event()

    def publish() -> None:
        while not is_over.is_set():
            publisher.publish("t", b"%d" % len(acknowledged), qos=1)
            acknowledged.append(len(acknowledged))
            if len(acknowledged) == 200:
                many.set()

    load = threading.Thread(target=publish)
    load.start()
    try:
        assert many.wait(20)
        before = len(acknowledged)
        made = run("backup", str(tmp_path / "backup"))
        after = len(acknowledged)
    finally:
        is_over.set()
        load.join()
    again = run("backup", str(tmp_path / "backup"))
    restore(tmp_path / "backup", tmp_path / "new")

    assert made[0] == 0
    assert after > before, "there was no load meanwhile"
    assert again[0] == 1
    assert "already exists" in again[2]
    with Stage(tmp_path / "new", shards=4) as stage:
        found = [int(payload) for payload in stage.payloads("t")]
    assert found == list(range(len(found)))
    assert before <= len(found) <= len(acknowledged)


def test_a_restored_node_has_sessions_and_retained_messages(connect: Wires, run: Run, tmp_path: Path) -> None:
    away = connect("away", persistent=True)
    away.subscribe("t/#", qos=1)
    away.disconnect()
    publisher = connect("sensor")
    publisher.publish("t/1", b"waits", qos=1)
    publisher.publish("r", b"retained", qos=1, retain=True)

    run("backup", str(tmp_path / "backup"))
    restore(tmp_path / "backup", tmp_path / "new")

    with Broker(node={"data_dir": str(tmp_path / "new")}) as broker:
        connect = Wires(broker.host, broker.port)
        back = connect("away", persistent=True)
        assert back.receive_publish().payload == b"waits"
        other = connect("other")
        other.subscribe("r")
        assert other.receive_publish().payload == b"retained"
        connect.close()
