"""From history to live: nothing is missing, nothing comes twice, every publisher's order holds, whoever publishes meanwhile."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from braidmq.mqtt.packets import MQTT5, MQTT311, Disconnect, Puback, Publish, Suback, Subscribe, SubscribeOption
from braidmq.mqtt.properties import Properties
from tests.durability.replay.asking import amid, ask, bodies, read, read_to_end, record, replay
from tests.support.clients.wire import Wire, payloads, unique
from tests.support.stage import Stage

Start = Callable[..., Stage]


@contextmanager
def publishers(stage: Stage, topic: str, qos: int, count: int, each: int) -> Iterator[None]:
    """So many clients publish so many numbered messages, each as fast as it is acknowledged; at the end all are."""

    def run(wire: Wire, name: int) -> None:
        for number in range(each):
            wire.publish(f"{topic}/{name}", b"%d %d" % (name, number), qos)

    threads = [threading.Thread(target=run, args=(stage.connect(), name)) for name in range(count)]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


def numbers_by_publisher(messages: list[Publish]) -> dict[int, list[int]]:
    """What came from each publisher, in the order in which it came."""
    found: dict[int, list[int]] = defaultdict(list)
    for each in messages:
        name, number = map(int, each.payload.split())
        found[name].append(number)
    return dict(found)


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_replay_misses_and_repeats_nothing_while_many_clients_publish(start: Start, qos: int, version: int) -> None:
    stage = start(history={"min_qos": 0})
    count, each = 6, 150
    clients = [stage.connect(version=version) for _ in range(4)]

    with publishers(stage, "t", qos, count, each):
        stage.connect().publish("t/9", b"9 0", 1)  # history has begun
        for client in clients:
            replay(client, "t/+", qos=qos)

    wanted = {name: list(range(each)) for name in range(count)} | {9: [0]}
    for client in clients:
        assert numbers_by_publisher(read(client, count * each + 1)) == wanted
        assert payloads(client.drain()) == []


@pytest.mark.parametrize("qos", [1, 2])
def test_a_durable_session_gets_every_message_once_while_many_clients_publish(start: Start, qos: int) -> None:
    stage = start()
    count, each = 5, 100
    client = stage.connect(persistent=True, receive_maximum=7)

    with publishers(stage, "t", qos, count, each):
        client.subscribe("live/#", qos=qos)
        replay(client, "t/#", qos=qos)

    assert numbers_by_publisher(read(client, count * each)) == {name: list(range(each)) for name in range(count)}
    assert payloads(client.drain()) == []


@pytest.mark.parametrize("is_rude", [False, True])
def test_lost_connections_do_not_disturb_a_durable_replay(start: Start, is_rude: bool) -> None:
    stage = start()
    sent = record(stage, "t", 120, clients=4, qos=2)
    name, dice = unique(), random.Random(7)
    held: set[int] = set()
    client = stage.connect(name, persistent=True, receive_maximum=8)
    replay(client, "t", qos=2, end=True)
    seen: list[bytes] = []

    for _ in range(5):
        seen += bodies(read(client, dice.randint(1, 15), held=held))
        if not is_rude:
            client.send(Disconnect())
        client.close()
        client = stage.connect(name, persistent=True, receive_maximum=8)
        assert client.connack.session_present
    seen += bodies(read_to_end(client, "t", held=held))

    assert seen == sent
    record(stage, "t", 1, stem=b"live")
    assert bodies(read(client, 1, held=held)) == [b"live00000"]


def test_a_replay_may_end_before_its_session_has_caught_up(start: Start) -> None:
    stage = start(mqtt={"inflight_max": 65535, "receive_maximum": 65535})
    name, backlog = unique(), 15_000
    client = stage.connect(name, persistent=True)
    client.subscribe("a", qos=1)
    client.disconnect()
    record_at_once(stage, "a", backlog)

    with publishers(stage, "b", 1, 3, 150):
        client = stage.connect(name, persistent=True, receive_maximum=65535)
        option = SubscribeOption("b/+", 1)
        came, _ = amid(client, Subscribe(client.next_packet_id(), [option], Properties(user_properties=ask("earliest"))), Suback)
        came += read(client, backlog + 450 - len(came))

    assert numbers_by_publisher([each for each in came if each.topic != "a"]) == {name: list(range(150)) for name in range(3)}
    assert payloads(client.drain()) == []


def record_at_once(stage: Stage, topic: str, count: int) -> None:
    """Record so many messages as fast as one client can publish."""
    publisher = stage.connect()
    publisher.send(*(Publish(topic, b"x", 1, packet_id=number) for number in range(1, count + 1)))
    for _ in range(count):
        publisher.receive(Puback)


def test_several_replays_of_one_client_run_in_parallel(stage: Stage) -> None:
    topic = unique()
    sent = {name: record(stage, f"{topic}/{name}", 80, stem=name.encode()) for name in "ab"}
    client = stage.connect(receive_maximum=4)
    client.subscribe(*(f"{topic}/{name}" for name in sent), qos=1, user_properties=ask("earliest"))

    came = read(client, 160)

    assert {name: [each for each in bodies(came) if each.startswith(name.encode())] for name in "ab"} == sent
    first_half = bodies(came[:80])
    assert all(any(each.startswith(name) for each in first_half) for name in (b"a", b"b")), "neither waits for the other's end"
