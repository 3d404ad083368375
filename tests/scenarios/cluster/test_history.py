"""History of three cores as processes: any core answers for all shards, and an error names the core that is away."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.base.errors import Unavailable
from braidmq.base.shards import shard_of
from braidmq.flight import connect
from braidmq.flight.client import HistoryClient
from braidmq.mqtt.packets import Publish
from tests.scenarios.cluster.several_cores import CoresOfProcesses

CLUSTER: dict[str, object] = {"lease": "5s", "takeover_wait": "200ms", "home_wait": "20s"}
SHARDS = 12
CLIENTS = [f"device {number}" for number in range(24)]
EACH = 5

Place = tuple[int, int]


def publish_everywhere(cluster: CoresOfProcesses, first: int) -> set[bytes]:
    """Each client publishes through one of the nodes, in turns; the payloads, all of them acknowledged."""
    sent = set()
    for number, client_id in enumerate(CLIENTS):
        node = cluster.nodes[number % len(cluster.nodes)]
        with node.client(client_id) as client:
            for each in range(first, first + EACH):
                payload = f"{client_id}/{each}".encode()
                packet_id = client.next_packet_id()
                client.send(Publish(f"plant/{number}", payload, 1, packet_id=packet_id))
                client.finish_publish(1, packet_id)
                sent.add(payload)
    return sent


def ask(cluster: CoresOfProcesses, core: str, retry_s: float = 30.0) -> HistoryClient:
    return connect(f"127.0.0.1:{cluster.history_ports[core]}", retry_s=retry_s)


def read(client: HistoryClient) -> dict[Place, bytes]:
    """All rows by their place; each has one."""
    table = client.read("plant/#", columns=["shard", "position", "payload"]).read_all()
    places = zip(table["shard"].to_pylist(), table["position"].to_pylist(), strict=True)
    rows = dict(zip(places, table["payload"].to_pylist(), strict=True))
    assert len(rows) == table.num_rows
    return rows


@pytest.mark.needs("etcd")
@pytest.mark.timeout(180)
def test_any_core_answers_for_all_and_an_error_names_the_core_that_is_away(tmp_path: Path) -> None:
    assert {shard_of(each, SHARDS) for each in CLIENTS} == set(range(SHARDS)), "some shard would have no record"
    with CoresOfProcesses(tmp_path, 1, serves_history=True, cluster=CLUSTER) as cluster:
        sent = publish_everywhere(cluster, 0)
        seen = []
        for core in cluster.history_ports:
            with ask(cluster, core) as client:
                seen.append(read(client))
        assert seen[0] == seen[1] == seen[2]
        assert sorted(seen[0].values()) == sorted(sent)

        away, *_ = cluster.cores
        away.kill()
        with ask(cluster, "core2", retry_s=1.0) as client, pytest.raises(Unavailable, match="core1"):
            read(client)

        away.start()
        with ask(cluster, "core2") as client:
            assert read(client) == seen[0]
        later = publish_everywhere(cluster, EACH)
        with ask(cluster, "core3") as client:
            rows = read(client)
        assert seen[0].items() <= rows.items(), "a record has another place than before"
        assert sorted(rows.values()) == sorted(sent | later)
