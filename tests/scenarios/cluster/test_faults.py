"""Nodes that die, stop and stall, as processes: what clients on the others see."""

from __future__ import annotations

import re
import signal
import urllib.request
from pathlib import Path

import pytest

from braidmq.mqtt.packets import Puback, Publish, Will
from braidmq.mqtt.reasons import Reason
from tests.scenarios.cluster.cluster import ClusterOfProcesses
from tests.support.clients.wire import Wire
from tests.support.ports import free_port

LEASE: dict[str, object] = {"lease": "1s"}
PATIENCE_S = 15.0


def payloads(client: Wire, count: int) -> list[bytes]:
    """So many messages, acknowledged."""
    return [client.receive_publish(timeout_s=PATIENCE_S).payload for _ in range(count)]


def counted(api: str, metric: str) -> float:
    """A metric of the core and its nodes."""
    with urllib.request.urlopen(f"http://{api}/metrics", timeout=PATIENCE_S) as answer:
        [found] = re.findall(rf"^braidmq_{metric} (\S+)$", answer.read().decode(), re.MULTILINE)
    return float(found)


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
    api = {"bind": f"127.0.0.1:{free_port()}"}
    with ClusterOfProcesses(tmp_path, 2, cluster={"lease": "60s", "home_wait": "61s"}, api=api) as cluster:
        one, two = cluster.replicants
        slow, quick = one.client("slow", persistent=True), two.client("quick", persistent=True)
        slow.subscribe("t/#", qos=1)
        slow.subscribe("live/#", qos=0)
        quick.subscribe("t/#", qos=1)
        writer = two.client("writer")
        payload = b"x" * 100_000

        one.process.pause()
        for number in range(200):  # 20 MB: more than the bound of a peer
            writer.publish(f"t/{number}", payload, 1)
            assert quick.receive_publish(timeout_s=PATIENCE_S).topic == f"t/{number}"
        for number in range(200):  # too much for it: dropped and counted
            writer.publish(f"live/{number}", payload, 0)
        writer.ping()
        one.process.send(signal.SIGCONT)

        came: list[str] = []
        while len([topic for topic in came if topic.startswith("t/")]) < 200:
            came.append(slow.receive_publish(timeout_s=PATIENCE_S).topic)
        writer.publish("live/end", b"", 0)  # it has room again
        while came[-1] != "live/end":
            came.append(slow.receive_publish(timeout_s=PATIENCE_S).topic)
        live = [topic for topic in came if topic.startswith("live/")]
        assert [topic for topic in came if topic not in live] == [f"t/{number}" for number in range(200)]
        dropped = counted(api["bind"], "delivery_dropped_peer_full")
        assert dropped == 201 - len(live) > 0


def test_the_only_core_carries_on_after_it_stood_still_for_three_leases(tmp_path: Path) -> None:
    """It has no lease to lose, and it was not awake for those of its nodes."""
    with ClusterOfProcesses(tmp_path, 2, cluster={"lease": "1s", "home_wait": "30s"}) as cluster:
        one, two = cluster.replicants
        reader = one.client("reader", persistent=True, will=Will("will/reader", b"gone", 1, False))
        reader.subscribe("#", qos=1)
        writer = two.client("writer", will=Will("will/writer", b"gone", 1, False))

        cluster.core.process.pause()
        writer.send(Publish("t/1", b"meanwhile", 1, False, False, 100))
        for node in cluster.replicants:
            node.process.await_line("the connection to the core has ended: the core was silent")
        cluster.core.process.send(signal.SIGCONT)

        assert writer.receive(Puback, PATIENCE_S).packet_id == 100
        writer.publish("t/2", b"after", 1)
        assert payloads(reader, 2) == [b"meanwhile", b"after"]
        assert "is dead" not in "\n".join([*cluster.core.process.log, *cluster.core.process.arrived()])
        reader.expect_silence()


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
