"""Settings that hold for a whole cluster, set on its core."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import tomli_w

from braidmq.base.config import sources
from braidmq.base.errors import ConfigError, UsageError
from braidmq.control.contract import BanInfo
from braidmq.node import Node
from braidmq.operations import CoreOperations, ReplicantOperations
from tests.node.core_cluster import ALL, Cluster, in_cluster
from tests.support.joined import joined


def test_a_setting_holds_on_all_nodes_and_on_those_that_join_later(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        found = await cluster.operations.conf_set("mqtt.receive_maximum", "7")

        assert (found.value, found.origin, found.note) == ("7", "run time", "")
        for node in (cluster.core, cluster.replicant):
            assert node.settings.mqtt.receive_maximum == 7
            assert sources.read_overrides(node.settings.node.data_dir) == {"mqtt.receive_maximum": 7}
        async with joined(tmp_path, cluster.core, "r2") as late:
            assert await cluster.core.administration.wait_settings_known(20) == []
            assert late.settings.mqtt.receive_maximum == 7

        assert (await cluster.operations.conf_unset("mqtt.receive_maximum")).origin == "default"
        assert cluster.replicant.settings.mqtt.receive_maximum == 1000

    in_cluster(tmp_path, scenario)


def test_settings_of_the_log_concern_cores_only(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        found = await cluster.operations.conf_set("history.min_qos", "2")

        assert "restart" in found.note
        assert cluster.replicant.settings.history.min_qos == 1

    in_cluster(tmp_path, scenario)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("listeners.tcp.default.bind", "127.0.0.1:0", "belongs to one node"),
        ("access.password_file", "users", "belongs to one node"),
        ("history.cert_file", "cert.pem", "belongs to one node"),
        ("cluster.rpc_bind", "127.0.0.1:0", "belongs to one node"),
        ("api.bind", "", "belongs to one node"),
        ("cluster.secret", "hidden-text", "is a secret"),
        ("node.name", "other", "cannot be set at run time"),
    ],
)
def test_what_belongs_to_one_node_cannot_be_set_for_all(tmp_path: Path, key: str, value: str, reason: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        with pytest.raises(ConfigError, match=reason) as refusal:
            await cluster.operations.conf_set(key, value)

        assert "hidden-text" not in str(refusal.value)

    in_cluster(tmp_path, scenario)


def test_a_replicant_sets_only_what_is_its_own(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        operations = ReplicantOperations(cluster.replicant)
        await cluster.operations.conf_set("log.drops", "true")

        with pytest.raises(UsageError, match="holds for the whole cluster"):
            await operations.conf_set("log.drops", "false")
        with pytest.raises(UsageError, match="holds for the whole cluster"):
            await operations.conf_unset("log.drops")
        await operations.conf_set("listeners.tcp.default.connections_max", "9")
        await cluster.operations.conf_unset("log.drops")

        assert cluster.replicant.settings.listeners.tcp["default"].connections_max == 9
        assert not cluster.replicant.settings.log.drops

    in_cluster(tmp_path, scenario)


def test_a_node_whose_file_contradicts_a_setting_is_named(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        found = await cluster.operations.conf_set("cluster.home_wait", "12s")
        status = await cluster.operations.cluster()

        assert float(cluster.core.settings.cluster.home_wait) == 12.0
        assert float(cluster.replicant.settings.cluster.home_wait) == 20.0
        assert "r1 does not use it" in found.note
        assert any("does not use the settings" in alarm for alarm in status.members[1].alarms)
        await cluster.core.declare_dead("r1", "for the test")
        assert cluster.core.administration.troubles == {}

    in_cluster(tmp_path, scenario, lease="19s", home_wait="20s")


def test_settings_and_bans_survive_a_restart_with_and_without_other_nodes(tmp_path: Path) -> None:
    tables = {
        "node": {"data_dir": str(tmp_path / "core")},
        "listeners": {"tcp": {"default": {"bind": "127.0.0.1:0"}}},
        "cluster": {"rpc_bind": "127.0.0.1:0"},
        "history": {"bind": ""},
        "api": {"bind": ""},
    }
    file = tmp_path / "core.toml"
    file.write_text(tomli_w.dumps(tables))

    async def restarted(scenario: Callable[[CoreOperations, Node], Awaitable[None]]) -> None:
        core = Node(sources.load(file, environ={}))
        await core.start()
        try:
            await scenario(CoreOperations(core), core)
        finally:
            await core.stop()

    async def set_both(operations: CoreOperations, core: Node) -> None:
        await operations.conf_set("mqtt.receive_maximum", "7")
        await operations.ban_add(BanInfo(kind="client", value="b"))

    async def see_both(operations: CoreOperations, core: Node) -> None:
        assert core.settings.mqtt.receive_maximum == 7
        assert [ban.value for ban in (await operations.bans(ALL)).items] == ["b"]
        assert core.administration.cluster.settings == {"mqtt.receive_maximum": 7}

    asyncio.run(restarted(set_both))
    asyncio.run(restarted(see_both))
    sources.write_overrides(tmp_path / "core", {"mqtt.receive_maximum": 7, "log.drops": True})  # by the node without others

    async def see_more(operations: CoreOperations, core: Node) -> None:
        assert core.administration.cluster.settings == {"mqtt.receive_maximum": 7, "log.drops": True}

    asyncio.run(restarted(see_more))
