"""A log near its limits, and messages that no log can take: publishers are held or rejected, and no other client is affected."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from rocksdict import Rdict

from braidmq.lane.path.channel_reader import HOLD_LOG
from braidmq.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from braidmq.mqtt.reasons import Reason
from braidmq.storage.engine import health
from braidmq.storage.engine.health import HealthState
from braidmq.storage.engine.rocksdb import MIB, Disk
from braidmq.storage.log import LogOptions
from braidmq.storage.upkeep import watchdog as care
from braidmq.testing import Broker
from tests.support.clients.wire import Wires
from tests.support.simulator.peer import payloads
from tests.support.simulator.world import World
from tests.support.stage import wait_until

HUGE = bytes(65 * MIB)  # more than a row of the database may have
GIB = 1024 * MIB


# A log that is slow, or stopped


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look after the log often, and call a disk slow soon."""
    monkeypatch.setattr(care, "_CHECK_S", 0.02)
    monkeypatch.setattr(health, "COMMIT_SLOW_S", 0.1)


@pytest.fixture
def is_quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While it is cleared, no commit comes to its end."""
    quick = threading.Event()
    quick.set()
    flush = Disk.flush

    def wait_and_flush(disk: Disk, db: Rdict) -> None:
        quick.wait()
        flush(disk, db)

    monkeypatch.setattr(Disk, "flush", wait_and_flush)
    yield quick
    quick.set()


def held(broker: Broker) -> dict[str, int]:
    """Client ids of publishers that wait for the log, and how many messages were taken from each."""
    assert broker.node is not None
    connections = broker.node.broker.connections
    return {each.client_id: each.messages_received for each in connections if each.hold_bits & HOLD_LOG}


def test_publishers_are_held_while_the_log_is_slow_and_then_resume(is_quick: threading.Event) -> None:
    with Broker() as broker:
        assert broker.node is not None
        node = broker.node
        connect = Wires(broker.host, broker.port)
        subscriber, first, second, third = connect("s"), connect("p1"), connect("p2"), connect("p3")
        subscriber.subscribe("t", qos=1)

        is_quick.clear()
        first.send(Publish("t", b"1", 1, packet_id=1))
        wait_until(lambda: node.log_health.state is HealthState.SLOW, "the disk is called slow")
        second.send(*(Publish("t", b"%d" % number, 1, packet_id=number) for number in range(2, 6)))
        wait_until(lambda: "p2" in broker.call(held, broker), "the second publisher is held")
        third.send(Publish("t", b"third", 1, packet_id=1))
        wait_until(lambda: "p3" in broker.call(held, broker), "the third publisher is held, some turns later")

        assert broker.call(held, broker) == {"p2": 1, "p3": 1}
        is_quick.set()
        assert first.receive(Puback).packet_id == 1
        assert [second.receive(Puback).packet_id for _ in range(4)] == [2, 3, 4, 5]
        assert third.receive(Puback).packet_id == 1
        got = [subscriber.receive_publish().payload for _ in range(6)]
        got.remove(b"third")
        assert got == [b"1", b"2", b"3", b"4", b"5"]
        wait_until(lambda: node.log_health.state is HealthState.OK, "the disk is quick again")
        assert second.publish("t", b"6", 1) == 0
        assert broker.call(held, broker) == {}


def test_a_slow_log_holds_publishers_even_after_its_queue_has_drained() -> None:
    with World(LogOptions(pending_bytes_max=20_000)) as world:
        publishers = [world.connect(f"p{number}", expiry=0) for number in range(4)]
        world.broker.turn_writer.note_slow(True)

        for publisher in publishers:
            publisher.send(*(Publish("t", bytes(4000), 1, packet_id=packet_id) for packet_id in range(1, 4)))
        world.turn(3)
        was_congested = world.log.is_congested
        world.settle()

        assert (was_congested, world.log.is_congested) == (True, False)
        assert [len(publisher.take()) for publisher in publishers] == [1, 1, 1, 1]
        assert not any(publisher.is_read for publisher in publishers)
        world.broker.turn_writer.note_slow(False)
        assert [len(publisher.receive()) for publisher in publishers] == [2, 2, 2, 2]
        assert all(publisher.is_read for publisher in publishers)


def ready(broker: Broker) -> tuple[int, str]:
    """What ``/ready`` answers: the status and the reason."""
    assert broker.node is not None
    try:
        with urllib.request.urlopen(f"http://{broker.node.api_address}/ready") as answer:
            return answer.status, ""
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.loads(refusal.read())["reason"]


def test_a_node_whose_log_takes_nothing_is_not_ready_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [10 * GIB]

    def free_bytes(disk: Disk, path: Path) -> int:
        return free[0]

    monkeypatch.setattr(Disk, "free_bytes", free_bytes)
    with Broker() as broker:
        assert broker.node is not None
        node = broker.node
        assert ready(broker)[0] == 200

        free[0] = 3 * MIB
        wait_until(lambda: node.log_health.state is HealthState.STOPPED, "the disk is found full")
        status, reason = ready(broker)
        assert status == 503
        assert "the log accepts no messages" in reason
        assert "3 MiB left" in reason

        free[0] = 10 * GIB
        wait_until(lambda: node.log_health.state is HealthState.OK, "there is space again")
        assert ready(broker)[0] == 200


# Messages that are too large to be stored


@pytest.mark.parametrize(("qos", "answer"), [(1, Puback(7, Reason.QUOTA_EXCEEDED)), (2, Pubrec(7, Reason.QUOTA_EXCEEDED))])
def test_a_message_that_no_record_can_hold_is_refused_alone(qos: int, answer: Puback | Pubrec) -> None:
    with World(mqtt={"packet_bytes_max": "80MiB"}) as world:
        world.connect("s").subscribe("t")
        large, small = world.connect("large"), world.connect("small")

        small.send(Publish("t", b"before", 1, packet_id=1))
        large.send(Publish("t", HUGE, qos, packet_id=7), Publish("t", b"between", 1, packet_id=8))
        small.send(Publish("t", b"after", 1, packet_id=2))  # all of them in one turn, and so in one block
        world.settle()

        assert large.take() == [answer, Puback(8)]
        assert small.take() == [Puback(1), Puback(2)]
        world.crash(loses_power=True)
        large = world.connect("large")
        assert large.connack.session_present
        large.send(Publish("t", b"same id", 2, packet_id=7))
        assert large.expect(Pubrec) == Pubrec(7)
        large.send(Pubrel(7))
        assert large.expect(Pubcomp) == Pubcomp(7)
        got = payloads(world.connect("s").acknowledge_all())
        assert [each for each in got if each in (b"before", b"after")] == [b"before", b"after"]
        assert [each for each in got if each not in (b"before", b"after")] == [b"between", b"same id"]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(("topic", "retain"), [("$delayed/5/t", False), ("t", True)], ids=["delayed", "retained"])
def test_a_message_that_no_row_can_hold_is_refused_and_its_publisher_stays(qos: int, topic: str, retain: bool) -> None:
    with World(mqtt={"packet_bytes_max": "80MiB"}, retained={"payload_bytes_max": 0}, history={"topics": []}) as world:
        subscriber = world.connect("s", expiry=0)
        subscriber.subscribe("t")
        publisher = world.connect("p")

        publisher.send(Publish(topic, HUGE, qos, retain, packet_id=7 if qos else None))
        packets = publisher.receive()

        refused = {0: [], 1: [Puback(7, Reason.QUOTA_EXCEEDED)], 2: [Pubrec(7, Reason.QUOTA_EXCEEDED)]}
        assert packets == refused[qos]
        assert not publisher.is_closed
        publisher.publish(topic, b"small", qos, retain=retain)
        world.wait(10)
        assert payloads(subscriber.acknowledge_all()) == [b"small"]
        assert payloads(world.connect("later").subscribe("t")) == [b"small"] * retain
