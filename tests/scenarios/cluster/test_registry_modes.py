"""Modes of the registry with real processes: one core and two replicants."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidmq.mqtt.packets import MQTT5, Connect, Disconnect
from braidmq.mqtt.reasons import Reason
from tests.scenarios.cluster.cluster import ClusterOfProcesses, NodeProcess
from tests.support import command
from tests.support.clients.wire import Wire, unique

pytestmark = pytest.mark.timeout(120)

LEASE_S = 2.0
LOCK_S = 4.0


@pytest.fixture(scope="module", params=["linear", "both", "eventual"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def cluster(mode: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfProcesses]:
    """Each test leaves it as it was, but for clients."""
    keys = {"lease": f"{LEASE_S:g}s"}
    registry = {"mode": mode, "wait": "500ms", "lock_timeout": f"{LOCK_S:g}s"}
    with ClusterOfProcesses(tmp_path_factory.mktemp("cluster"), 2, cluster=keys, registry=registry) as cluster:
        yield cluster


def end_of(client: Wire) -> int:
    """The reason with which a client is disconnected."""
    packet = client.receive_any()
    assert isinstance(packet, Disconnect)
    return packet.reason


def test_a_session_moves_between_nodes_with_its_messages_in_every_mode(cluster: ClusterOfProcesses) -> None:
    one, two = cluster.replicants
    name, publisher = unique(), cluster.core.client(unique())
    old = one.client(name, persistent=True)
    old.subscribe("m/#", qos=1)

    for node in (two, one, two, one):
        new = node.client(name, persistent=True)
        assert new.connack.session_present
        assert end_of(old) == Reason.SESSION_TAKEN_OVER
        publisher.publish("m/x", b"to " + node.name.encode(), qos=1)
        assert new.receive_publish().payload == b"to " + node.name.encode()
        old = new
    old.disconnect()


def test_r21_a_node_with_the_other_mode_is_refused_and_told_why(cluster: ClusterOfProcesses, mode: str, tmp_path: Path) -> None:
    stranger = cluster.replicant("stranger", tmp_path)
    other = "eventual" if mode == "linear" else "linear"
    stranger.configure("registry.mode", other)
    try:
        if mode == "both":
            stranger.start()
            return
        stranger.launch()
        said = stranger.process.await_line(r'registry.mode: "(\w+)" is not possible while (.+) have "(\w+)": set "both"')
        assert said.groups() == (other, "core, r1, r2", mode)
        assert stranger.process.await_end() != 0
    finally:
        stranger.close()


def test_the_death_of_a_node_in_the_middle_of_takeovers_costs_its_lease_at_most(cluster: ClusterOfProcesses) -> None:
    one, two = cluster.replicants
    names = [unique() for _ in range(20)]
    owners = [one.client(name, persistent=True) for name in names]
    moving = [Wire(two.host, two.port) for _ in names]
    for wire, name in zip(moving, names, strict=True):
        wire.send(Connect(name, MQTT5, clean_start=False))
    two.kill()
    began = time.monotonic()

    back = [one.client(name, persistent=True) for name in names]

    assert time.monotonic() - began < LEASE_S + LOCK_S
    assert all(client.connack.session_present for client in back)
    for client in (*owners, *moving, *back):
        client.close()
    two.start()


def test_an_owner_on_a_node_that_stands_still_does_not_keep_its_client_out(cluster: ClusterOfProcesses) -> None:
    one, two = cluster.replicants
    name = unique()
    one.client(name, persistent=True)
    one.process.send(signal.SIGSTOP)
    try:
        began = time.monotonic()
        new = two.client(name, persistent=True)
        assert time.monotonic() - began < LEASE_S + 2.0
        assert new.connack.session_present
    finally:
        one.process.send(signal.SIGCONT)
    new.disconnect()


def test_r21_linear_mode_is_switched_off_at_run_time_through_both(tmp_path: Path) -> None:
    def conf_set(mode: str) -> command.Ended:
        return command.run("ctl", "--data-dir", str(tmp_path / "core"), "conf", "set", "registry.mode", mode)

    def moves(old: Wire, node: NodeProcess) -> Wire:
        new = node.client(name, persistent=True)
        assert new.connack.session_present
        assert end_of(old) == Reason.SESSION_TAKEN_OVER
        return new

    with ClusterOfProcesses(tmp_path, 2) as cluster:
        one, two = cluster.replicants
        name = unique()
        client = one.client(name, persistent=True)
        assert 'while core, r1, r2 have "linear": set "both"' in conf_set("eventual").errors
        for mode, node in (("both", two), ("eventual", one)):
            changed = conf_set(mode)
            assert (changed.exit_code, changed.errors) == (0, "")
            for each in (cluster.core, one, two):
                each.process.await_line(f'registry.mode is "{mode}" from now on')
            client = moves(client, node)
        assert 'while core, r1, r2 have "eventual"' in conf_set("linear").errors
        back = conf_set("both")
        assert back.exit_code == 0
        assert back.errors.count('"both" takes effect when the node starts again; now it has "eventual"') == 3
        client = moves(client, two)
