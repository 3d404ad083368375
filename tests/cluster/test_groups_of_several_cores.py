"""Shared groups with several cores: each core chooses the members for the messages of its own shards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.mqtt.packets import Suback, Subscribe, SubscribeOption
from tests.support.simulator.many_cores import ManyCores
from tests.support.simulator.peer import payloads


@pytest.fixture
def cluster() -> Iterator[ManyCores]:
    with ManyCores() as cluster:
        yield cluster


def test_each_message_of_any_core_reaches_one_member(cluster: ManyCores) -> None:
    one, two = cluster.node("one"), cluster.node("two")
    members = [node.client(f"m{number}", expiry=0) for number, node in enumerate((one, two, two))]
    for member in members:
        member.subscribe("$share/g/a", qos=1)
    sent: list[bytes] = []
    for core in cluster.cores.values():
        publisher = one.client(cluster.client_of(core, "p"), expiry=0)
        for number in range(6):
            sent.append(b"%s %d" % (core.name.encode(), number))
            publisher.publish("a", sent[-1], qos=1)

    got = [payloads(member.acknowledge_all()) for member in members]

    assert sorted(payload for each in got for payload in each) == sorted(sent)
    assert all(got)


def test_qos_2_is_granted_as_qos_1(cluster: ManyCores) -> None:
    member = cluster.node("one").client("m", expiry=0)

    member.send(Subscribe(1, [SubscribeOption("$share/g/a", 2)]))

    assert member.expect(Suback).reasons == [1]


def test_what_a_member_did_not_acknowledge_goes_to_another_one(cluster: ManyCores) -> None:
    node = cluster.node("one")
    leaving, staying = node.client("m1", expiry=0), node.client("m2", expiry=0)
    leaving.subscribe("$share/g/a", qos=1)
    sent: list[bytes] = []
    for core in cluster.cores.values():
        sent.append(core.name.encode())
        node.client(cluster.client_of(core, "p"), expiry=0).publish("a", sent[-1], qos=1)
    assert sorted(payloads(leaving.receive())) == sorted(sent)
    staying.subscribe("$share/g/a", qos=1)

    leaving.disconnect()
    cluster.settle()

    assert sorted(payloads(staying.acknowledge_all())) == sorted(sent)


def test_a_dead_core_stops_its_own_messages_alone(cluster: ManyCores) -> None:
    node = cluster.node("one")
    dead, other = cluster.cores["core1"], cluster.cores["core2"]
    publishers = {core.name: node.client(cluster.client_of(core, "p"), expiry=0) for core in (dead, other)}
    first = node.client(cluster.client_of(other, "m"), expiry=0)
    first.subscribe("$share/g/a", qos=1)
    dead.die()
    cluster.settle()

    late = node.client(cluster.client_of(other, "n"), expiry=0)
    late.send(Subscribe(1, [SubscribeOption("$share/g/a", 1)]))
    cluster.wait(2)
    assert isinstance(late.receive()[0], Suback)
    for number in range(4):
        publishers[other.name].publish("a", b"%d" % number, qos=1)
    got = payloads(first.acknowledge_all()) + payloads(late.acknowledge_all())
    assert sorted(got) == [b"0", b"1", b"2", b"3"]

    cluster.restart(dead)
    for number in range(4, 8):
        publishers[dead.name].publish("a", b"%d" % number, qos=1)
    got = payloads(first.acknowledge_all()) + payloads(late.acknowledge_all())
    assert sorted(got) == [b"4", b"5", b"6", b"7"]
