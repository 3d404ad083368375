"""Cores and etcd that die, stop and forget, as processes: what clients see on the nodes that stay."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidmq.base.shards import shard_of
from braidmq.cluster.membership.shard_map import SHARDS_OF_NEW_CLUSTER
from braidmq.mqtt.packets import MQTT5, Connack, Connect, Puback, Publish, Will
from braidmq.mqtt.reasons import Reason
from tests.scenarios.cluster.cluster import NodeProcess
from tests.scenarios.cluster.several_cores import CoresOfProcesses
from tests.support import command
from tests.support.clients.wire import Wire

pytestmark = [pytest.mark.needs("etcd"), pytest.mark.timeout(180)]

LEASE_S = 2.0
PATIENCE_S = 20.0


def cluster_in(folder: Path, *, etcd_members: int = 1, home_wait: str = "15s") -> CoresOfProcesses:
    keys: dict[str, object] = {"lease": f"{LEASE_S:g}s", "home_wait": home_wait}
    return CoresOfProcesses(folder, 2, etcd_members=etcd_members, cluster=keys)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoresOfProcesses]:
    """Each test leaves it as it was."""
    with cluster_in(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def id_at(core: int, stem: str) -> str:
    """A client id that is at home at a core, 1 to 3; the shards go round the cores in turn."""
    return next(name for n in range(1000) if shard_of(name := f"{stem}{n}", SHARDS_OF_NEW_CLUSTER) % 3 == core - 1)


def client_at(node: NodeProcess, core: int, stem: str, **fields: object) -> Wire:
    """A client that is at home at a core."""
    return node.client(id_at(core, stem), **fields)


def read(client: Wire, count: int) -> list[bytes]:
    """The payloads of so many messages, acknowledged."""
    return [client.receive_publish(timeout_s=PATIENCE_S).payload for _ in range(count)]


def exchange(cluster: CoresOfProcesses, reader: Wire, stem: str) -> None:
    """A client at home at each core, on either replicant, publishes, and the reader gets it all."""
    for core in (1, 2, 3):
        publisher = client_at(cluster.replicants[core % 2], core, stem)
        until = time.monotonic() + PATIENCE_S
        while publisher.publish("t/x", b"%d" % core, 1):  # a core that is back is reached a moment later
            assert time.monotonic() < until
        publisher.disconnect()
    assert sorted(read(reader, 3)) == [b"1", b"2", b"3"]


def test_one_of_three_cores_that_is_killed_holds_up_its_own_clients_alone(cluster: CoresOfProcesses) -> None:
    one, two = cluster.replicants
    reader = client_at(one, 1, "reader", persistent=True)
    reader.subscribe("t/#", qos=1)
    free, stuck = client_at(two, 3, "free"), client_at(two, 2, "stuck")

    cluster.cores[1].kill()
    stuck.send(Publish("t/x", b"stuck", 1, False, False, 100))
    for number in range(3):
        free.publish("t/x", b"%d" % number, 1)
    assert read(reader, 3) == [b"0", b"1", b"2"]
    waiting = Wire("127.0.0.1", one.port)
    waiting.send(Connect(id_at(2, "waiting"), MQTT5, clean_start=True))
    cluster.cores[1].start()

    assert waiting.receive(Connack, PATIENCE_S).reason == 0
    assert stuck.receive(Puback, PATIENCE_S).packet_id == 100
    assert read(reader, 1) == [b"stuck"]
    reader.expect_silence()


@pytest.mark.row("F5")
@pytest.mark.parametrize("fault", ["killed", "stopped"])
def test_clients_of_a_replicant_that_is_gone_continue_on_another_one(cluster: CoresOfProcesses, fault: str) -> None:
    one, two = cluster.replicants
    witness = client_at(one, 1, "witness")
    witness.subscribe("will/#", qos=1)
    wills = [Will(f"will/{core}", b"gone", 1, False) for core in (1, 2, 3)]
    held = [client_at(two, core, fault, persistent=True, will=will) for core, will in enumerate(wills, 1)]
    for client in held:
        client.subscribe("t/#", qos=1)
    writer = client_at(one, 3, "writer")
    writer.publish("t/x", b"before", 1)
    assert [read(client, 1) for client in held] == [[b"before"]] * 3

    if fault == "killed":
        two.kill()
    else:
        two.process.pause()
    assert sorted(witness.receive_publish(timeout_s=PATIENCE_S).topic for _ in wills) == ["will/1", "will/2", "will/3"]
    writer.publish("t/x", b"after", 1)
    for core in (1, 2, 3):
        back = client_at(one, core, fault, persistent=True)
        assert back.connack.session_present
        came = read(back, 1)
        if came == [b"before"]:  # its acknowledgement was not on disk
            came = read(back, 1)
        assert came == [b"after"]
        back.expect_silence()
        back.disconnect()

    if fault == "killed":
        two.start()
    else:
        two.process.send(signal.SIGCONT)
        for client in held:
            client.expect_disconnect(Reason.SERVER_SHUTTING_DOWN, Reason.SESSION_TAKEN_OVER, timeout_s=PATIENCE_S)
        two.process.await_port()  # the same process, as a new member
    witness.expect_silence()
    client_at(two, 1, "newcomer").disconnect()


def test_a_worker_that_is_killed_is_dead_at_once_for_all_cores(cluster: CoresOfProcesses) -> None:
    witness = client_at(cluster.replicants[0], 3, "witness")
    witness.subscribe("will/#", qos=1)
    client_at(cluster.cores[0], 2, "with-a-will", will=Will("will/worker", b"gone", 1, False))
    core = cluster.cores[0].process
    [worker] = Path(f"/proc/{core.pid}/task/{core.pid}/children").read_text().split()

    os.kill(int(worker), signal.SIGKILL)

    assert witness.receive_publish(timeout_s=PATIENCE_S).topic == "will/worker"
    core.await_line("is dead: its process has ended")  # which does not wait for a lease
    core.await_port()
    client_at(cluster.cores[0], 2, "with-a-will").disconnect()
    witness.expect_silence()


@pytest.mark.soak
def test_a_core_that_was_stopped_for_three_leases_is_a_new_member_and_lost_nothing(cluster: CoresOfProcesses) -> None:
    one, two = cluster.replicants
    reader = client_at(one, 1, "stopped-reader", persistent=True)
    reader.subscribe("t/#", qos=1)
    exchange(cluster, reader, "before")
    stuck = client_at(two, 2, "stuck")
    stopped = cluster.cores[1]

    stopped.process.pause()
    stuck.send(Publish("t/x", b"stuck", 1, False, False, 100))
    time.sleep(3 * LEASE_S)  # the fault
    stopped.process.send(signal.SIGCONT)
    stopped.process.await_line("this node was declared dead: its clients were disconnected, and it starts as a new member")
    stopped.process.await_port()

    assert stuck.receive(Puback, PATIENCE_S).reason == 0
    assert read(reader, 1) == [b"stuck"]
    exchange(cluster, reader, "after")
    reader.expect_silence()


@pytest.mark.soak
def test_the_death_of_the_leader_of_etcd_stops_nothing_and_without_a_quorum_all_are_alone(tmp_path: Path) -> None:
    with cluster_in(tmp_path, etcd_members=3, home_wait="3s") as cluster:
        one, two = cluster.replicants
        reader = client_at(one, 1, "reader", persistent=True)
        reader.subscribe("t/#", qos=1)
        live, idle = client_at(two, 1, "live"), client_at(two, 3, "idle")
        live.subscribe("live", qos=0)
        leader = cluster.etcd.leader()

        leader.kill()
        until = time.monotonic() + 3 * LEASE_S
        while time.monotonic() < until:
            exchange(cluster, reader, "p")

        two.process.arrived()
        next(member for member in cluster.etcd.members if member is not leader).kill()
        two.await_loss_of("core1", "core2", "core3")
        idle.send(Publish("t/x", b"refused", 1, False, False, 9))
        idle.send(Publish("live", b"live", 0))
        assert live.receive_publish(timeout_s=PATIENCE_S).payload == b"live"
        answer = idle.receive(Puback, PATIENCE_S)
        assert (answer.packet_id, answer.reason) == (9, Reason.QUOTA_EXCEEDED)
        with Wire("127.0.0.1", two.port) as newcomer:
            newcomer.send(Connect("newcomer", MQTT5, clean_start=True))
            assert newcomer.receive(Connack, PATIENCE_S).reason == Reason.SERVER_UNAVAILABLE

        leader.start()
        for core in cluster.cores:
            core.process.await_line("this core is back in its cluster")
        exchange(cluster, reader, "back")
        reader.expect_silence()


@pytest.mark.soak
def test_c8_after_etcd_was_restored_from_a_backup_the_cluster_is_as_it_was(tmp_path: Path) -> None:
    with cluster_in(tmp_path) as cluster:
        one, _ = cluster.replicants
        reader = client_at(one, 1, "reader", persistent=True)
        reader.subscribe("t/#", qos=1)
        [etcd] = cluster.etcd.members
        etcd.kill()
        etcd.back_up(tmp_path / "backup")
        etcd.start()
        exchange(cluster, reader, "before")
        cluster.cores[1].kill()
        cluster.cores[1].start()  # under a term and an incarnation that the backup does not have
        late = cluster.replicant("late")
        late.start()

        etcd.kill()
        etcd.restore(tmp_path / "backup")
        etcd.start()

        try:
            cluster.cores[0].process.await_line("rows that the cluster's store had lost are back|this core is back")
            exchange(cluster, reader, "after")
            writer = client_at(late, 2, "writer")
            writer.publish("t/x", b"late", 1)
            assert read(reader, 1) == [b"late"]
            reader.expect_silence()
        finally:
            late.close()


@pytest.mark.soak
def test_a_core_that_was_restored_from_its_backup_serves_its_shards_again(tmp_path: Path) -> None:
    with cluster_in(tmp_path) as cluster:
        one, two = cluster.replicants
        lost, data_dir = cluster.cores[1], tmp_path / "core2"
        sleeper = client_at(one, 2, "sleeper", persistent=True)
        sleeper.subscribe("t/#", qos=1)
        sleeper.disconnect()
        publisher = client_at(two, 2, "publisher")
        publisher.publish("t/x", b"kept", 1)
        made = command.run("backup", str(tmp_path / "backup"), "--data-dir", str(data_dir))
        assert made.exit_code == 0, made.errors
        assert "it covers the shards 1, 4, 7, 10; the others are led by core1, core3" in made.output
        publisher.publish("t/x", b"after the backup", 1)

        lost.kill()
        shutil.rmtree(data_dir)
        made = command.run("restore", str(tmp_path / "backup"), "--data-dir", str(data_dir), "--keep-log-id")
        assert made.exit_code == 0, made.errors
        lost.start()

        reader = client_at(two, 1, "reader")
        reader.subscribe("t/#", qos=1)
        exchange(cluster, reader, "new")
        back = client_at(one, 2, "sleeper", persistent=True)
        assert back.connack.session_present
        # What came after the backup is lost where this core kept it; the other cores have kept theirs.
        assert sorted(read(back, 4)) == [b"1", b"2", b"3", b"kept"]
        back.expect_silence()
