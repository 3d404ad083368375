"""An operator at a core with workers, each a process: they look like one broker."""

from __future__ import annotations

import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidmq.control.client import ControlClient
from braidmq.control.cluster import ClusterStatus, DrainRequest, DrainStatus
from braidmq.control.contract import SOCKET_NAME, ClientInfo, Page, Status
from tests.support.clients.wire import Wire
from tests.support.ports import free_port
from tests.support.started import Started


class Broker:
    """A core with two workers that serve all clients."""

    def __init__(self, core: Started, data_dir: Path, api_port: int) -> None:
        self.core = core
        self.port = core.await_port()  # the first worker's
        core.await_line("2 workers are ready")
        self.ctl = ControlClient(socket_path=data_dir / SOCKET_NAME)
        self._api_port = api_port
        self._wires: list[Wire] = []

    def connect(self, count: int) -> list[Wire]:
        wires = [Wire("127.0.0.1", self.port).connect(f"c{len(self._wires) + number:02}") for number in range(count)]
        self._wires += wires
        return wires

    def metrics(self, path: str = "/metrics") -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._api_port}{path}", timeout=20) as answer:
            return str(answer.read().decode())

    def value(self, stem: str) -> float:
        """A metric of the whole broker."""
        [found] = re.findall(rf"^braidmq_{stem} (\S+)$", self.metrics(), re.MULTILINE)
        return float(found)

    def close(self) -> None:
        for wire in self._wires:
            wire.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    file, data_dir, api_port = tmp_path / "braidmq.toml", tmp_path / "data", free_port()
    file.write_text(f"""
        [node]
        data_dir = "{data_dir}"
        [listeners.tcp.default]
        bind = "127.0.0.1:0"
        [api]
        bind = "127.0.0.1:{api_port}"
        """)
    with Started(file, options=["--workers", "2", "--no-core-listeners"]) as core:
        broker = Broker(core, data_dir, api_port)
        yield broker
        broker.close()


def worker_pids(broker: Broker) -> dict[str, int]:
    """The processes of the workers, by the names of the nodes."""
    lines = (re.search(r"worker (\d+) is process (\d+)", line) for line in broker.core.log)
    return {f"core1/w{found[1]}": int(found[2]) for found in lines if found}


def test_workers_look_like_one_broker(broker: Broker) -> None:
    broker.connect(20)

    status = broker.ctl.get("/status", Status)
    first = broker.ctl.get("/clients", Page[ClientInfo], limit=7)
    rest = broker.ctl.get("/clients", Page[ClientInfo], cursor=first.cursor)

    assert status.connections == 20
    assert [(each.name, each.role, each.trouble) for each in status.nodes] == [
        ("core1/w1", "worker", ""),
        ("core1/w2", "worker", ""),
    ]
    assert sum(each.connections for each in status.nodes) == 20
    assert [each.client_id for each in first.items + rest.items] == [f"c{number:02}" for number in range(20)]
    assert broker.value("live_connections_count") == broker.value("client_connected") == 20
    each = re.findall(r'^braidmq_client_connected\{node="(\S+)"\} (\d+)$', broker.metrics("/metrics/nodes"), re.MULTILINE)
    assert sorted(name for name, _ in each) == ["core1", "core1/w1", "core1/w2"]
    assert sum(int(count) for _, count in each) == 20


def test_counters_do_not_fall_when_a_worker_is_killed(broker: Broker) -> None:
    broker.connect(20)
    assert broker.value("client_connected") == 20

    os.kill(worker_pids(broker)["core1/w1"], signal.SIGKILL)
    broker.core.await_line(r"worker 1 is down")

    assert broker.value("client_connected") == 20
    broker.core.await_line(r"core1/w1: room for \d+ client")
    assert broker.value("client_connected") == 20
    assert broker.value("workers_restarts") == 1


def test_a_worker_that_is_stopped_is_named_and_the_rest_answers(broker: Broker) -> None:
    broker.connect(20)
    stopped = worker_pids(broker)["core1/w2"]
    os.kill(stopped, signal.SIGSTOP)
    try:
        status = broker.ctl.get("/status", Status)
        clients = broker.ctl.get("/clients", Page[ClientInfo])
        text = broker.metrics()
        [_, one, other] = broker.ctl.get("/cluster", ClusterStatus).members
    finally:
        os.kill(stopped, signal.SIGCONT)

    working, silent = status.nodes
    assert working.trouble == ""
    assert "did not answer within 1 s" in silent.trouble
    assert status.connections == working.connections == len(clients.items)
    assert list(clients.silent) == ["core1/w2"]
    assert 'braidmq_node_up{node="core1/w2",role="worker"} 0' in text
    assert (one.state, other.state, other.clients) == ("serving", "silent", None)


def test_clients_of_a_drained_worker_come_back_to_the_other(broker: Broker) -> None:
    broker.connect(20)
    before = broker.ctl.get("/status", Status).nodes

    broker.ctl.send("POST", "/drain", DrainRequest(node="core1/w1", rate=10_000))
    while not broker.ctl.get("/drain", DrainStatus, node="core1/w1").is_done:
        pass
    broker.connect(before[0].connections)

    drained, other = broker.ctl.get("/status", Status).nodes
    assert (drained.connections, other.connections) == (0, 20)
    assert "drained" in drained.trouble
