"""History of three cores as processes: any core answers for all shards, and an error names the core that is away."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from braidmq.base.errors import Unavailable
from braidmq.base.shards import shard_of
from braidmq.flight import connect
from braidmq.flight.client import HistoryClient
from braidmq.mqtt.packets import Publish
from tests.scenarios.cluster.several_cores import CoresOfProcesses
from tests.support import command

CLUSTER: dict[str, object] = {"lease": "5s", "home_wait": "20s"}
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


def history(folder: Path, core: str, *arguments: str) -> command.Ended:
    """What `braidmq history` says on a core's machine."""
    return command.run("history", *arguments, "--data-dir", str(folder / core))


def cat(folder: Path, core: str) -> list[bytes]:
    ended = history(folder, core, "cat", "plant/#")
    assert ended.exit_code == 0, ended.errors
    lines = [msgspec.json.decode(line) for line in ended.output.splitlines()]
    assert [line["timestamp"] for line in lines] == sorted(line["timestamp"] for line in lines)
    return [line["payload"].encode() for line in lines]


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
        assert sorted(cat(tmp_path, "core1")) == sorted(cat(tmp_path, "core2")) == sorted(sent)

        away, *_ = cluster.cores
        away.kill()
        with ask(cluster, "core2", retry_s=1.0) as client, pytest.raises(Unavailable, match="core1"):
            read(client)
        unread = history(tmp_path, "core2", "cat", "plant/#")
        assert (unread.exit_code, "core core1, which leads shard 0, 3, 6, 9, is away" in unread.errors) == (1, True), (
            unread.errors
        )
        stats = msgspec.json.decode(history(tmp_path, "core2", "stats", "--json").output)
        assert [shard["shard"] for shard in stats["shards"]] == [1, 2, 4, 5, 7, 8, 10, 11]
        assert list(stats["silent"]) == ["core1"]

        away.start()
        with ask(cluster, "core2") as client:
            assert read(client) == seen[0]
        later = publish_everywhere(cluster, EACH)
        with ask(cluster, "core3") as client:
            rows = read(client)
        assert seen[0].items() <= rows.items(), "a record has another place than before"
        assert sorted(rows.values()) == sorted(sent | later)
