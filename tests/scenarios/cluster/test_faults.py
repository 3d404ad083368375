"""Nodes that die, stop and stall, as processes: what clients on the others see."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from braidmq.mqtt.packets import Puback, Publish, Will
from braidmq.mqtt.reasons import Reason
from tests.scenarios.cluster.cluster import ClusterOfProcesses
from tests.support.clients.wire import Wire

LEASE: dict[str, object] = {"lease": "1s"}
PATIENCE_S = 15.0


def payloads(client: Wire, count: int) -> list[bytes]:
    """So many messages, acknowledged."""
    return [client.receive_publish(timeout_s=PATIENCE_S).payload for _ in range(count)]


def test_clients_of_a_killed_replicant_continue_on_another_one(tmp_path: Path) -> None:
    with ClusterOfProcesses(tmp_path, 2, cluster=LEASE) as cluster:
        one, two = cluster.replicants
        witness = two.client("witness")
        witness.subscribe("will/#", qos=1)
        one.client("brief", will=Will("will/brief", b"gone", 1, False))
        reader = one.client("reader", persistent=True, will=Will("will/reader", b"gone", 1, False))
        reader.subscribe("t/#", qos=1)
        writer = two.client("writer")
        writer.publish("t/1", b"1", 1)
        assert payloads(reader, 1) == [b"1"]
        writer.publish("t/2", b"2", 1)
        assert reader.receive(Publish).payload == b"2"  # and it is not acknowledged

        one.kill()
        wills = [witness.receive_publish(timeout_s=PATIENCE_S) for _ in range(2)]
        writer.publish("t/3", b"3", 1)
        back = two.client("reader", persistent=True)

        assert sorted((will.topic, will.payload) for will in wills) == [("will/brief", b"gone"), ("will/reader", b"gone")]
        assert back.connack.session_present
        came = payloads(back, 2)
        if came == [b"1", b"2"]:  # its acknowledgement was not on disk
            came = [b"2", *payloads(back, 1)]
        assert came == [b"2", b"3"]
        back.expect_silence()
        witness.expect_silence()
        one.start()
        assert one.client("reader", persistent=True).connack.session_present


def test_a_killed_core_is_found_again_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    with ClusterOfProcesses(tmp_path, 2, cluster={"lease": "10s"}) as cluster:
        one, two = cluster.replicants
        reader = one.client("reader", persistent=True)
        reader.subscribe("t/#", qos=1)
        away = two.client("away", persistent=True)
        away.subscribe("t/#", qos=2)
        away.disconnect()
        writer = two.client("writer")
        for number in range(10):
            writer.publish(f"t/{number}", b"%d" % number, 1)

        cluster.core.kill()
        writer.send(Publish("t/10", b"10", 1, False, False, 100))
        cluster.core.start()

        assert writer.receive(Puback, PATIENCE_S).packet_id == 100
        assert payloads(reader, 11) == [b"%d" % number for number in range(11)]
        reader.expect_silence()
        back = one.client("away", persistent=True)
        assert back.connack.session_present
        assert payloads(back, 11) == [b"%d" % number for number in range(11)]


@pytest.mark.row("F5")
def test_a_replicant_that_stands_still_loses_its_clients_to_others(tmp_path: Path) -> None:
    with ClusterOfProcesses(tmp_path, 2, cluster=LEASE) as cluster:
        one, two = cluster.replicants
        reader = one.client("reader", persistent=True)
        reader.subscribe("t/#", qos=1)
        writer = two.client("writer")

        one.process.pause()
        back = two.client("reader", persistent=True)
        writer.publish("t/1", b"1", 1)
        one.process.send(signal.SIGCONT)

        assert back.connack.session_present
        assert payloads(back, 1) == [b"1"]
        reader.expect_disconnect(Reason.SESSION_TAKEN_OVER, Reason.SERVER_SHUTTING_DOWN, timeout_s=PATIENCE_S)
        writer.publish("t/2", b"2", 1)
        assert payloads(back, 1) == [b"2"]


@pytest.mark.row("F5")
def test_a_replicant_that_hangs_for_a_lease_is_dead_though_its_connections_stand(tmp_path: Path) -> None:
    with ClusterOfProcesses(tmp_path, 2, cluster=LEASE) as cluster:
        one, two = cluster.replicants
        witness = two.client("witness")
        witness.subscribe("will/#", qos=1)
        cut_off = one.client("cut-off", will=Will("will/1", b"gone", 1, False))

        one.process.pause()

        assert payloads(witness, 1) == [b"gone"]
        one.process.send(signal.SIGCONT)
        cut_off.expect_disconnect(Reason.SERVER_SHUTTING_DOWN, timeout_s=PATIENCE_S)
        one.port = one.process.await_port()  # the same process, as a new member
        one.client("cut-off").disconnect()
        witness.expect_silence()


def test_a_slow_replicant_delays_nobody_and_catches_up(tmp_path: Path) -> None:
    # The lease is long: the core must not help itself by declaring the node dead.
    with ClusterOfProcesses(tmp_path, 2, cluster={"lease": "60s", "home_wait": "61s"}) as cluster:
        one, two = cluster.replicants
        slow, quick = one.client("slow", persistent=True), two.client("quick", persistent=True)
        slow.subscribe("t/#", qos=1)
        quick.subscribe("t/#", qos=1)
        writer = two.client("writer")
        payload = b"x" * 100_000

        one.process.pause()
        for number in range(200):  # 20 MB: more than the bound of a peer
            writer.publish(f"t/{number}", payload, 1)
            assert quick.receive_publish(timeout_s=PATIENCE_S).topic == f"t/{number}"
        one.process.send(signal.SIGCONT)

        assert [slow.receive_publish(timeout_s=PATIENCE_S).topic for _ in range(200)] == [f"t/{number}" for number in range(200)]
        slow.expect_silence()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_large_message_crosses_the_nodes(tmp_path: Path, qos: int) -> None:
    with ClusterOfProcesses(tmp_path, 2, mqtt={"packet_bytes_max": "8MiB"}, retained={"payload_bytes_max": "8MiB"}) as cluster:
        one, two = cluster.replicants
        reader = one.client("reader")
        reader.subscribe("t", qos=2)
        writer = two.client("writer")

        writer.publish("t", payload := b"x" * 5_000_000, qos, retain=True)

        assert reader.receive_publish(timeout_s=PATIENCE_S).payload == payload
        reader.unsubscribe("t")
        reader.subscribe("t", qos=1)
        assert reader.receive_publish(timeout_s=PATIENCE_S).payload == payload
