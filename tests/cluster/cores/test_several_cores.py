"""A node with several cores: each shard is at home at its own, and one that is away concerns only its own shards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.mqtt.packets import MQTT5, MQTT311, Connack, Puback, Publish, Subscribe, SubscribeOption
from tests.support.simulator.many_cores import HOME_WAIT_S, ManyCores
from tests.support.simulator.peer import Peer, payloads


@pytest.fixture
def cluster() -> Iterator[ManyCores]:
    with ManyCores() as cluster:
        yield cluster


def publish(client: Peer, topic: str, payload: bytes, packet_id: int) -> None:
    """Send a PUBLISH with QoS 1 and wait for nothing."""
    client.send(Publish(topic, payload, 1, False, False, packet_id))


def pubacks(client: Peer) -> list[int]:
    """The packet ids that the client was told of since the last call."""
    return [packet.packet_id for packet in client.receive() if isinstance(packet, Puback)]


def test_a_message_is_recorded_once_at_the_home_of_its_publisher(cluster: ManyCores) -> None:
    node = cluster.node("one")
    for core in cluster.cores.values():
        publisher = node.client(cluster.client_of(core), expiry=0)
        publisher.publish("a/b", core.name.encode(), qos=1)

    assert {name: core.records() for name, core in cluster.cores.items()} == {name: [name.encode()] for name in cluster.cores}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_of_all_homes_reach_subscribers_on_all_nodes_once(cluster: ManyCores, qos: int) -> None:
    one, two = cluster.node("one"), cluster.node("two")
    near, far = one.client("near", expiry=0), two.client("far", expiry=0)
    near.subscribe("a/+", qos=2)
    far.subscribe("a/+", qos=2)
    publishers = [one.client(cluster.client_of(core, "p"), expiry=0) for core in cluster.cores.values()]
    for publisher in publishers:
        publisher.publish("a/b", publisher.client_id.encode(), qos=qos)

    expected = sorted(publisher.client_id.encode() for publisher in publishers)
    assert sorted(payloads(near.acknowledge_all())) == expected
    assert sorted(payloads(far.acknowledge_all())) == expected


def test_a_durable_session_continues_on_another_node_with_the_messages_of_all_homes(cluster: ManyCores) -> None:
    one, two = cluster.node("one"), cluster.node("two")
    client = one.client("c")
    client.subscribe("a/#", qos=1)
    client.cut()
    cluster.settle()
    sent: list[bytes] = []
    for number in range(3):
        for core in cluster.cores.values():
            publisher = two.client(cluster.client_of(core, "p"), expiry=0)
            sent.append(b"%s %d" % (publisher.client_id.encode(), number))
            publisher.publish("a/b", sent[-1], qos=1)

    back = two.client("c")

    assert back.connack.session_present
    assert sorted(payloads(back.acknowledge_all())) == sorted(sent)


def test_a_dead_core_holds_up_its_own_publishers_and_nobody_else(cluster: ManyCores) -> None:
    node = cluster.node("one")
    dead, other = cluster.cores["core2"], cluster.cores["core3"]
    subscriber = node.client(cluster.client_of(other, "s"), expiry=0)
    subscriber.subscribe("a", qos=1)
    stuck = node.client(cluster.client_of(dead, "p"), expiry=0)
    free = node.client(cluster.client_of(other, "p"), expiry=0)

    dead.die()
    cluster.settle()
    publish(stuck, "a", b"stuck", 1)
    for number in range(20):
        publish(free, "a", b"free %d" % number, number + 1)
        cluster.settle()

    assert pubacks(free) == list(range(1, 21))
    assert payloads(subscriber.acknowledge_all()) == [b"free %d" % number for number in range(20)]
    assert pubacks(stuck) == []

    cluster.restart(dead)
    assert pubacks(stuck) == [1]
    assert payloads(subscriber.acknowledge_all()) == [b"stuck"]
    assert dead.records() == [b"stuck"]


def test_after_the_wait_for_a_home_only_its_publishers_are_rejected(cluster: ManyCores) -> None:
    node = cluster.node("one")
    dead, other = cluster.cores["core1"], cluster.cores["core2"]
    stuck = node.client(cluster.client_of(dead, "p"), expiry=0)
    free = node.client(cluster.client_of(other, "p"), expiry=0)
    dead.die()
    cluster.settle()
    publish(stuck, "a", b"1", 1)
    cluster.settle()

    cluster.wait(16)

    (rejected,) = [packet for packet in stuck.receive() if isinstance(packet, Puback)]
    assert rejected.reason == 0x97
    publish(stuck, "a", b"2", 2)
    publish(free, "a", b"3", 1)
    cluster.settle()
    assert [packet.reason for packet in stuck.receive() if isinstance(packet, Puback)] == [0x97]
    assert pubacks(free) == [1]


def test_claims_wait_only_for_their_own_home(cluster: ManyCores) -> None:
    node = cluster.node("one")
    dead, other = cluster.cores["core1"], cluster.cores["core2"]
    dead.die()
    cluster.settle()

    waiting = node.open()
    waiting.request_connect(cluster.client_of(dead))
    cluster.settle()
    node.client(cluster.client_of(other))

    assert waiting.receive() == []
    cluster.restart(dead)
    assert len(waiting.receive()) == 1


@pytest.mark.parametrize(("version", "code"), [(MQTT5, 0x88), (MQTT311, 3)])
def test_a_connect_waits_for_its_home_and_is_then_answered(cluster: ManyCores, version: int, code: int) -> None:
    node = cluster.node("one")
    dead = cluster.cores["core1"]
    dead.die()
    cluster.settle()
    waiting = node.open(version)
    waiting.request_connect(cluster.client_of(dead), expiry=0)

    cluster.wait(HOME_WAIT_S - 1)  # longer than a client has to send its CONNECT

    assert waiting.receive() == []
    assert not waiting.is_closed
    cluster.wait(2)
    assert [packet.reason for packet in waiting.receive() if isinstance(packet, Connack)] == [code]
    assert waiting.is_closed


def test_a_restarted_core_is_told_only_of_the_clients_at_home_there(cluster: ManyCores) -> None:
    node = cluster.node("one")
    clients = {name: node.client(cluster.client_of(core)) for name, core in cluster.cores.items()}
    again = cluster.cores["core2"]

    again.die()
    cluster.restart(again)

    owned = {name: again.home.registry.client_of(node.member, number + 1) for number, name in enumerate(clients)}
    assert owned == {"core1": None, "core2": clients["core2"].client_id, "core3": None}
    for client in clients.values():
        client.publish("a", b"m", qos=1)
    assert [core.records() for core in cluster.cores.values()] == [[b"m"]] * 3


def test_c22_a_session_that_is_behind_reads_from_the_cores_that_answer(cluster: ManyCores) -> None:
    node = cluster.node("one")
    dead, other = cluster.cores["core1"], cluster.cores["core3"]
    client_id = cluster.client_of(cluster.cores["core2"], "s")
    client = node.client(client_id)
    client.subscribe("a/#", qos=1)
    client.cut()
    cluster.settle()
    for core in (dead, other):
        publisher = node.client(cluster.client_of(core, "p"), expiry=0)
        for number in range(3):
            publisher.publish("a", b"%s %d" % (core.name.encode(), number), qos=1)
    dead.die()
    cluster.settle()

    back = node.client(client_id)
    cluster.wait(2)
    assert payloads(back.acknowledge_all()) == [b"core3 %d" % number for number in range(3)]
    node.client(cluster.client_of(other, "p"), expiry=0).publish("a", b"core3 3", qos=1)
    cluster.wait(2)
    assert payloads(back.acknowledge_all()) == [b"core3 3"]

    cluster.restart(dead)
    cluster.wait(2)
    assert payloads(back.acknowledge_all()) == [b"core1 %d" % number for number in range(3)]
    for core in (dead, other):
        node.client(cluster.client_of(core, "p"), expiry=0).publish("a", b"%s last" % core.name.encode(), qos=1)
    cluster.wait(2)
    assert sorted(payloads(back.acknowledge_all())) == [b"core1 last", b"core3 last"]


def test_c13_a_silent_core_holds_up_a_suback_for_a_second_and_nothing_is_missed(cluster: ManyCores) -> None:
    node = cluster.node("one")
    silent, other = cluster.cores["core1"], cluster.cores["core2"]
    subscriber = node.client(cluster.client_of(other, "s"))
    publisher = node.client(cluster.client_of(silent, "p"), expiry=0)
    node.freeze(silent)
    publish(publisher, "a/1", b"before", 1)
    subscriber.send(Subscribe(77, [SubscribeOption("a/#", 1)]))
    cluster.settle()
    assert subscriber.receive() == []

    cluster.wait(1)
    assert len(subscriber.receive()) == 1
    publish(publisher, "a/1", b"after", 2)
    node.thaw(silent)
    cluster.wait(2)

    assert b"after" in payloads(subscriber.acknowledge_all())


def test_retained_messages_of_all_cores_are_found_and_a_dead_core_holds_up_only_its_own(cluster: ManyCores) -> None:
    node = cluster.node("one")
    publisher = node.client("p", expiry=0)
    for name, core in cluster.cores.items():
        publisher.publish(cluster.client_of(core, "r/"), name.encode(), qos=1, retain=True)
    subscriber = node.client("s", expiry=0)
    assert sorted(payloads(subscriber.subscribe("r/#", qos=1))) == [b"core1", b"core2", b"core3"]

    cluster.cores["core2"].die()
    cluster.settle()
    late = node.client(cluster.client_of(cluster.cores["core1"], "t"), expiry=0)
    assert sorted(payloads(late.subscribe("r/#", qos=1))) == [b"core1", b"core3"]

    cluster.restart(cluster.cores["core2"])
    cluster.wait(3)
    assert payloads(late.acknowledge_all()) == [b"core2"]


def test_c21_what_a_silent_core_commits_after_a_suback_is_read_when_it_answers(cluster: ManyCores) -> None:
    one, two = cluster.node("one"), cluster.node("two")
    silent, other = cluster.cores["core1"], cluster.cores["core2"]
    subscriber = one.client(cluster.client_of(other, "s"), expiry=0)
    publisher = two.client(cluster.client_of(silent, "p"), expiry=0)
    one.freeze(silent)
    subscriber.send(Subscribe(77, [SubscribeOption("a/#", 1)]))
    cluster.wait(1)
    assert len(subscriber.receive()) == 1

    publisher.publish("a/1", b"1", qos=1)
    publisher.publish("a/1", b"2", qos=1)
    assert subscriber.receive() == []
    one.thaw(silent)
    cluster.wait(2)
    publisher.publish("a/1", b"3", qos=1)

    assert payloads(subscriber.acknowledge_all()) == [b"1", b"2", b"3"]


def test_clients_are_served_without_a_core_that_was_never_reached(cluster: ManyCores) -> None:
    missing, other = cluster.cores["core1"], cluster.cores["core2"]
    cluster.node("first")
    missing.die()
    cluster.wait(1)  # then no core waits for it any more
    node = cluster.node("one", is_ready=False)
    ready = [node.is_ready]

    node.link.leave_out()

    assert [*ready, node.is_ready] == [False, True]
    subscriber = node.client(cluster.client_of(other, "s"))
    subscriber.subscribe("a", qos=1)
    publisher = node.client(cluster.client_of(other, "p"), expiry=0)
    publisher.publish("a", b"1", qos=1)
    assert payloads(subscriber.acknowledge_all()) == [b"1"]
    cluster.restart(missing)
    late = node.client(cluster.client_of(missing, "p"), expiry=0)
    late.publish("a", b"2", qos=1)
    assert payloads(subscriber.acknowledge_all()) == [b"2"]
