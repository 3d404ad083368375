"""``/metrics``, ``/status`` and ``/ready``, which are public."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from braidmq.api import prometheus
from braidmq.api.metric_names import METRICS
from braidmq.api.server import ApiServer
from braidmq.control.cluster import NodeMetrics
from braidmq.control.contract import ListenerStatus
from tests.support.fakes.operations import FakeOperations


def fetch(operations: FakeOperations, data_dir: Path, path: str) -> tuple[int, str, str]:
    """Status, content type and body of a path, over TCP."""

    async def over_tcp() -> tuple[int, str, str]:
        server = ApiServer(operations, bind="127.0.0.1:0", data_dir=data_dir)
        await server.start()
        try:
            async with aiohttp.ClientSession() as session, session.get(f"http://{server.address}{path}") as answer:
                return answer.status, answer.headers["Content-Type"], await answer.text()
        finally:
            await server.stop()

    return asyncio.run(over_tcp())


@pytest.fixture
def operations() -> FakeOperations:
    return FakeOperations()


def test_metrics_have_the_stems_that_dashboards_know_and_their_types(operations: FakeOperations, tmp_path: Path) -> None:
    operations.counters = {"messages_received": 12_345_678_901, "connections_count": 3}

    status, content_type, text = fetch(operations, tmp_path, "/metrics")

    assert status == 200
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert "\n# TYPE braidmq_messages_received counter\nbraidmq_messages_received 12345678901\n" in text
    assert "# TYPE braidmq_connections_count gauge\nbraidmq_connections_count 3\n" in text
    assert "# HELP braidmq_connections_count " in text


def test_metrics_describe_the_process(operations: FakeOperations, tmp_path: Path) -> None:
    _, _, text = fetch(operations, tmp_path, "/metrics")

    assert "braidmq_process_resident_memory_bytes " in text
    assert "braidmq_process_open_fds " in text


def test_metrics_can_be_read_by_prometheus(operations: FakeOperations, tmp_path: Path) -> None:
    operations.counters = dict.fromkeys(METRICS, 1.5)

    _, _, text = fetch(operations, tmp_path, "/metrics")

    # This parser puts _total behind every counter that it reads.
    families = text_string_to_metric_families(text)
    samples = {sample.name.removesuffix("_total"): sample.value for family in families for sample in family.samples}
    assert all(samples[f"braidmq_{name}"] == 1.5 for name in METRICS)


def test_a_metric_that_the_table_does_not_name_is_not_lost() -> None:
    assert prometheus.render({"surprise": 2}) == "# TYPE braidmq_surprise untyped\nbraidmq_surprise 2\n"


def test_a_core_says_which_nodes_have_answered(operations: FakeOperations, tmp_path: Path) -> None:
    operations.node_metrics = [NodeMetrics("r1", "replicant", {"messages_received": 3}), NodeMetrics("core1/w1", "worker", None)]

    _, _, text = fetch(operations, tmp_path, "/metrics")

    assert "\nbraidmq_messages_received 7\n" in text
    assert 'braidmq_node_up{node="r1",role="replicant"} 1\nbraidmq_node_up{node="core1/w1",role="worker"} 0\n' in text


def test_each_node_has_its_metrics_under_its_name_and_there_is_no_sum(operations: FakeOperations, tmp_path: Path) -> None:
    operations.node_metrics = [NodeMetrics('r"1', "replicant", {"messages_received": 3}), NodeMetrics("w1", "worker", None)]

    _, _, text = fetch(operations, tmp_path, "/metrics/nodes")

    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    received = {sample.labels["node"]: sample.value for sample in families["braidmq_messages_received"]}
    assert received == {"core1": 7, 'r"1': 3}
    assert {sample.labels["node"]: sample.value for sample in families["braidmq_node_up"]} == {"core1": 1, 'r"1': 1, "w1": 0}


def test_every_metric_has_a_help_text_of_one_sentence() -> None:
    assert all(name.help.endswith(".") and "\n" not in name.help for name in METRICS.values())


def test_status_is_json_without_the_name_of_any_client(operations: FakeOperations, tmp_path: Path) -> None:
    listener = ListenerStatus(kind="tcp", name="default", bind="127.0.0.1:1883", running=True, connections=2, connections_max=10)
    operations.listener_list = [listener]

    status, content_type, text = fetch(operations, tmp_path, "/status")

    assert (status, content_type) == (200, "application/json")
    answer = json.loads(text)
    assert (answer["node"], answer["version"], answer["uptime_s"]) == ("core1", "1.2.3", 3723.0)
    assert answer["listeners"][0]["bind"] == "127.0.0.1:1883"


def test_ready_answers_503_and_says_what_the_node_waits_for(operations: FakeOperations, tmp_path: Path) -> None:
    assert fetch(operations, tmp_path, "/ready")[0] == 200

    operations.not_ready = "its listeners"
    status, _, text = fetch(operations, tmp_path, "/ready")

    assert status == 503
    assert json.loads(text) == {"ready": False, "reason": "its listeners"}


def test_an_unknown_path_is_answered_with_a_clear_message(operations: FakeOperations, tmp_path: Path) -> None:
    status, content_type, text = fetch(operations, tmp_path, "/nothing")

    assert (status, content_type) == (404, "application/json")
    assert json.loads(text)["code"] == "NOT_FOUND"


def test_an_internal_error_is_not_shown_to_the_client(
    operations: FakeOperations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("the secret detail")

    monkeypatch.setattr(operations, "status", broken)

    status, _, text = fetch(operations, tmp_path, "/status")

    assert status == 500
    assert "secret" not in text
    assert "the secret detail" in caplog.text
