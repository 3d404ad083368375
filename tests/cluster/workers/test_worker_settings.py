"""The settings of a worker, made from its core's."""

from __future__ import annotations

from pathlib import Path

from braidmq.base.config import sources
from braidmq.base.config.settings import Settings
from braidmq.cluster.workers.worker_settings import share_of, worker_settings

RUN_DIR = Path("/run/w2")


def settings(**tables: object) -> Settings:
    return sources.from_tables(tables).settings


def test_a_worker_listens_where_its_core_is_bound() -> None:
    core = settings(
        listeners={
            "tcp": {"a": {"bind": "127.0.0.1:0"}, "off": {"bind": "127.0.0.1:9", "enabled": False}},
            "ws": {"b": {"bind": "[::1]:0", "path": "/other"}},
        }
    )

    worker = worker_settings(core, 2, RUN_DIR, {"tcp:a": ("127.0.0.1", 4001), "ws:b": ("::1", 4002)}, 3)

    assert {name: each.bind for name, each in worker.listeners.tcp.items()} == {"a": "127.0.0.1:4001"}
    assert {name: (each.bind, each.path) for name, each in worker.listeners.ws.items()} == {"b": ("[::1]:4002", "/other")}


def test_a_worker_on_all_addresses_stays_on_all_addresses() -> None:
    core = settings(listeners={"tcp": {"a": {"bind": ":0", "allow_anonymous": True}}})

    worker = worker_settings(core, 1, RUN_DIR, {"tcp:a": ("0.0.0.0", 4001)}, 2)

    assert worker.listeners.tcp["a"].bind == ":4001"


def test_a_worker_has_its_own_name_and_directory_and_no_port_of_the_core() -> None:
    core = settings(cluster={"secret": "hush", "rpc_bind": "127.0.0.1:4370"})

    worker = worker_settings(core, 2, RUN_DIR, {}, 3)

    assert (worker.node.name, worker.node.role, worker.node.data_dir) == ("core1/w2", "replicant", "/run/w2")
    assert (worker.api.bind, worker.history.bind, worker.cluster.rpc_bind, worker.cluster.secret) == ("", "", "", "")


def test_rates_of_the_node_are_divided_and_those_of_a_client_are_not() -> None:
    core = settings(limits={"connections_per_s": 90, "messages_per_s": 90, "bytes_per_s": 90})

    shares = [share_of(core, 3), worker_settings(core, 1, RUN_DIR, {}, 3)]

    assert [each.limits.connections_per_s for each in shares] == [30, 30]
    assert [(each.limits.messages_per_s, each.limits.bytes_per_s) for each in shares] == [(90, 90), (90, 90)]


def test_counts_are_not_divided() -> None:
    core = settings(session={"sessions_max": 10}, listeners={"tcp": {"a": {"bind": "127.0.0.1:0", "connections_max": 5}}})

    worker = worker_settings(core, 1, RUN_DIR, {"tcp:a": ("127.0.0.1", 1)}, 3)

    assert worker.session.sessions_max == 10
    assert worker.listeners.tcp["a"].connections_max == 5


def test_no_limit_stays_no_limit() -> None:
    assert share_of(settings(), 4).limits.connections_per_s == 0
