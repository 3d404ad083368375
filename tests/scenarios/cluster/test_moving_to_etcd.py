"""A single node with a replicant moves its tables to etcd, and goes on as a core there."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.scenarios.cluster.cluster import SECRET, NodeProcess
from tests.support import command
from tests.support.clients.wire import Wire
from tests.support.etcd import running_etcd
from tests.support.ports import free_port

pytestmark = [pytest.mark.needs("etcd"), pytest.mark.timeout(120)]


def ctl(data_dir: Path, *arguments: str) -> command.Ended:
    return command.run("ctl", "--data-dir", str(data_dir), *arguments)


def test_a_node_with_a_replicant_continues_with_its_tables_in_etcd(tmp_path: Path) -> None:
    data_dir = tmp_path / "core1"
    rpc, port = f"127.0.0.1:{free_port()}", free_port()
    shared: dict[str, object] = {"secret": SECRET, "rpc_bind": rpc, "lease": "3s", "home_wait": "20s"}
    core = NodeProcess(tmp_path, "core1", {"cluster": shared}, port)
    joining: dict[str, dict[str, object]] = {
        "node": {"role": "replicant"},
        "cluster": {"secret": SECRET, "core_nodes": [rpc], "lease": "3s"},
    }
    replicant = NodeProcess(tmp_path, "r1", joining, free_port())
    (tmp_path / "etcd").mkdir()
    with running_etcd(tmp_path / "etcd", count=1) as etcd:
        try:
            core.start()
            replicant.start()
            with replicant.client("s", persistent=True) as wire:
                wire.subscribe("t", qos=1)
                wire.disconnect()
            with core.client("writer") as wire:
                wire.publish("t", b"kept", 1)
            assert ctl(data_dir, "conf", "set", "mqtt.receive_maximum", "7").exit_code == 0
            assert ctl(data_dir, "bans", "add", "client", "banned").exit_code == 0
            addresses = ",".join(etcd.addresses)
            running = ctl(data_dir, "cluster", "init", "--etcd", addresses)
            core.kill()
            renamed = command.run(
                "ctl", "--data-dir", str(data_dir), "cluster", "init", "--etcd", addresses, env={"BRAIDMQ_NODE__NAME": "core9"}
            )
            moved = ctl(data_dir, "cluster", "init", "--etcd", addresses)
            again = ctl(data_dir, "cluster", "init", "--etcd", addresses)
            core.launch()
            refused = core.process.await_end()
            core.close()
            tables = {"cluster": {**shared, "store": "etcd", "etcd": etcd.addresses}}
            core = NodeProcess(tmp_path, "core1", tables, port)
            core.start()

            assert running.exit_code != 0
            assert (renamed.exit_code, "has run as core1" in renamed.errors) == (1, True)
            assert (moved.exit_code, "moved " in moved.output) == (0, True), moved.errors
            assert (again.exit_code, "moved 0 rows" in again.output) == (0, True)
            assert refused != 0
            status = msgspec.json.decode(ctl(data_dir, "cluster", "status", "--json").output)
            assert {"core1", "r1"} <= {each["name"] for each in status["members"]}
            assert [len(each["terms"]) for each in status["cores"]] == [4]  # a node that grows keeps its shards
            back = replicant.client("s", persistent=True)
            assert back.connack.session_present
            assert back.connack.properties.receive_maximum == 7
            assert back.receive_publish(timeout_s=20).payload == b"kept"
            with Wire("127.0.0.1", replicant.port) as wire:
                wire.send_request(client_id="banned")
                wire.expect_refusal(0x8A)
            in_use = ctl(data_dir, "cluster", "init", "--etcd", addresses)
            assert in_use.exit_code != 0  # it runs
            core.kill()
            in_use = ctl(data_dir, "cluster", "init", "--etcd", addresses)
            assert (in_use.exit_code, "in use already" in in_use.output) == (0, True)
        finally:
            replicant.close()
            core.close()
