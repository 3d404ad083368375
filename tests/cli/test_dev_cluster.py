"""``braidmq dev-cluster``: nodes as processes, reported when they are ready, and ended with the command."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from braidmq.base.errors import UsageError
from braidmq.cli.dev_cluster import NodePlan, parse_settings, plan_nodes
from tests.support import command
from tests.support.clients.wire import Wire

DEADLINE_S = 60.0


@contextmanager
def cluster(*options: str) -> Iterator[subprocess.Popen[str]]:
    process = command.start("dev-cluster", *options, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def has_ended(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(DEADLINE_S * 1000))


def register(api_port: int) -> dict[str, object]:
    """What a core says to a node that registers over HTTP."""
    url = f"http://127.0.0.1:{api_port}/register?endpoint=10.0.0.7:1883"
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=DEADLINE_S) as answer:
        return dict(json.load(answer))


def test_a_cluster_reports_its_nodes_and_ends_upon_sigterm(tmp_path: Path) -> None:
    options = ("--replicants", "1", "--json", "--data-dir", str(tmp_path), "--set", "history.shards=2")
    with cluster(*options) as process:
        assert process.stdout is not None
        found = json.loads(process.stdout.readline())

        assert list(found) == ["nodes", "etcd"]
        assert found["etcd"] == []
        core, replicant = found["nodes"]
        assert (core["name"], core["role"], replicant["name"], replicant["role"]) == ("core1", "core", "replicant1", "replicant")
        assert all(isinstance(core[port], int) for port in ("pid", "mqtt", "api", "cluster"))
        assert replicant["cluster"] is None
        assert register(core["api"]) == {"reg_id": 3, "core_nodes": [f"127.0.0.1:{core['cluster']}"]}
        assert "shards = 2" in (tmp_path / "core1" / "braidmq.toml").read_text()
        assert "shards" not in (tmp_path / "replicant1" / "braidmq.toml").read_text()
        assert (tmp_path / "core1" / "braidmq.toml").stat().st_mode & 0o777 == 0o600
        watched = [os.pidfd_open(node["pid"]) for node in found["nodes"]]
        process.send_signal(signal.SIGTERM)

        assert process.wait(DEADLINE_S) == 0
        assert all(has_ended(each) for each in watched)
        assert process.stdout.read() == ""
        for each in watched:
            os.close(each)


def test_nodes_end_when_the_command_is_killed() -> None:
    with cluster("--replicants", "0", "--json") as process:
        assert process.stdout is not None
        [core] = json.loads(process.stdout.readline())["nodes"]
        watched = os.pidfd_open(core["pid"])

        process.kill()

        assert has_ended(watched)
        os.close(watched)


def test_a_node_that_cannot_start_ends_the_cluster() -> None:
    ended = command.run("dev-cluster", "--replicants", "0", "--set", "access.password_file=/nowhere/passwords")

    assert ended.exit_code == 1
    assert "there is no file /nowhere/passwords" in ended.errors
    assert "braidmq dev-cluster: core1 ended with status 2" in ended.errors


@pytest.mark.needs("etcd")
def test_several_cores_come_with_an_etcd_of_their_own() -> None:
    with cluster("--cores", "2", "--replicants", "1", "--etcd", "1", "--json") as process:
        assert process.stdout is not None
        found = json.loads(process.stdout.readline())
        core1, core2, replicant = found["nodes"]
        with (
            Wire("127.0.0.1", core2["mqtt"]).connect() as subscriber,
            Wire("127.0.0.1", replicant["mqtt"]).connect() as publisher,
        ):
            subscriber.subscribe("a/b", qos=1)

            publisher.publish("a/b", b"hello", qos=1)

            assert subscriber.receive_publish(DEADLINE_S).payload == b"hello"
        assert (core1["role"], core2["role"], replicant["role"]) == ("core", "core", "replicant")
        assert [member["name"] for member in found["etcd"]] == ["etcd1"]
        answer = register(core1["api"])
        assert answer["core_nodes"] == [f"127.0.0.1:{core1['cluster']}", f"127.0.0.1:{core2['cluster']}"]
        assert register(core2["api"]) == answer
        watched = os.pidfd_open(found["etcd"][0]["pid"])

        process.kill()

        assert has_ended(watched), "etcd outlives the command"
        os.close(watched)


@pytest.mark.needs("etcd")
def test_several_cores_and_all_members_of_etcd_end_upon_sigterm(tmp_path: Path) -> None:
    with cluster("--cores", "3", "--replicants", "1", "--etcd", "3", "--json", "--data-dir", str(tmp_path)) as process:
        assert process.stdout is not None
        found = json.loads(process.stdout.readline())
        watched = [os.pidfd_open(each["pid"]) for each in [*found["nodes"], *found["etcd"]]]
        assert [each["name"] for each in found["etcd"]] == ["etcd1", "etcd2", "etcd3"]
        assert [each["role"] for each in found["nodes"]] == ["core", "core", "core", "replicant"]

        process.send_signal(signal.SIGTERM)

        assert process.wait(DEADLINE_S) == 0
        assert all(has_ended(each) for each in watched)
        for each in watched:
            os.close(each)


def test_ports_follow_each_other() -> None:
    assert plan_nodes(1, 2, 0, 5000)[0] == [
        NodePlan("core1", "core", 5000, 5001, 5002),
        NodePlan("replicant1", "replicant", 5003, 5004, None),
        NodePlan("replicant2", "replicant", 5005, 5006, None),
    ]
    assert {port for node in plan_nodes(1, 2, 0, None)[0] for port in (node.mqtt, node.api)} == {0}


def test_ports_must_exist() -> None:
    with pytest.raises(UsageError, match="too few ports"):
        plan_nodes(1, 3, 0, 65530)


def test_settings_are_keys_and_values() -> None:
    assert parse_settings(["session.queue_wait=2s", "history.topics=['a/#']"]) == {
        "session.queue_wait": 2.0,
        "history.topics": ("a/#",),
    }
    with pytest.raises(UsageError, match="not KEY=VALUE"):
        parse_settings(["session.queue_wait"])
    with pytest.raises(UsageError, match="queue_wait"):
        parse_settings(["session.queue_wiat=1"])


def test_cores_and_etcd_have_consecutive_ports_too() -> None:
    nodes, etcd = plan_nodes(3, 1, 1, 5000)

    assert [(node.name, node.mqtt, node.cluster) for node in nodes] == [
        ("core1", 5000, 5002),
        ("core2", 5003, 5005),
        ("core3", 5006, 5008),
        ("replicant1", 5009, None),
    ]
    assert etcd == [5011, 5012]
