"""What subscribers get of retained messages that are on their way: between two homes, or to their node (S9, C26)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from braidmq.mqtt.packets import Puback, Publish
from braidmq.net.proto_v1_retained import RetainedFilters, RetainedMatches, RetainedPage, RetainedRead
from tests.cluster.cores.retained_topic import ANSWER_S, TOPIC, acknowledged, kept, retain, seen, three_cores
from tests.support.simulator.many_cores import ManyCores, SimCore, SimNode
from tests.support.simulator.peer import payloads


@pytest.fixture
def cluster() -> Iterator[ManyCores]:
    with ManyCores() as cluster:
        yield cluster


def hold_pages(node: SimNode, core: SimCore) -> asyncio.Event:
    """Pages of what this core keeps are made at once, and arrive when the event is set."""
    arrives = asyncio.Event()
    link = node.link.home(core.name)
    ask = link.ask_retained
    assert ask is not None

    async def late(request: RetainedRead | RetainedFilters) -> RetainedPage | RetainedMatches:
        answer = await ask(request)
        if isinstance(answer, RetainedPage) and not request.is_for_intents:
            await arrives.wait()
        return answer

    link.ask_retained = late
    return arrives


@pytest.mark.parametrize("payload", [b"new", b""])
@pytest.mark.parametrize("qos", [0, 1])
def test_s9_a_live_message_makes_what_is_on_its_way_to_a_subscriber_stale(cluster: ManyCores, qos: int, payload: bytes) -> None:
    one, two = cluster.node("one"), cluster.node("two")
    home, left, right = three_cores(cluster)
    publisher = two.client(cluster.client_of(left, "p"), expiry=0)
    publisher.publish(TOPIC, b"old", retain=True)
    other = cluster.client_of(home, "other")
    publisher.publish(other, b"other", retain=True)
    subscriber = one.client(cluster.client_of(right, "s"), expiry=0)
    arrives = hold_pages(one, home)

    assert payloads(subscriber.subscribe("#", qos=1)) == []
    publisher.publish(TOPIC, payload, qos=qos, retain=True)
    assert payloads(subscriber.acknowledge_all()) == [payload]
    arrives.set()
    cluster.settle()

    assert payloads(subscriber.acknowledge_all()) == [b"other"]


def test_s9_a_live_message_makes_what_waits_for_a_slow_subscriber_stale(cluster: ManyCores) -> None:
    node = cluster.node("one")
    home, left, right = three_cores(cluster)
    publisher = node.client(cluster.client_of(left, "p"), expiry=0)
    topics = [TOPIC, cluster.client_of(home, "other")]
    for topic in topics:
        publisher.publish(topic, b"old", retain=True)
    subscriber = node.client(cluster.client_of(right, "s"), expiry=0, receive_maximum=1)
    first = [packet for packet in subscriber.subscribe("#", qos=1) if isinstance(packet, Publish)]
    assert len(first) == 1
    (later,) = set(topics) - {first[0].topic}

    leaving = node.client(cluster.client_of(right, "leaving"), expiry=0, receive_maximum=1)
    assert len(payloads(leaving.subscribe("#", qos=1))) == 1

    publisher.publish(later, b"new", retain=True)
    subscriber.send(Puback(first[0].packet_id or 0))

    assert payloads(subscriber.acknowledge_all()) == [b"new"]
    assert node.broker.state.on_retained is not None
    leaving.cut()
    cluster.settle()
    assert node.broker.state.on_retained is None, "nothing waits any more"


def test_c26_what_the_home_of_the_topic_is_given_for_the_first_time_is_not_listed(cluster: ManyCores) -> None:
    node = cluster.node("one")
    home, left, _ = three_cores(cluster)
    client = node.client(cluster.client_of(left, "p"), expiry=0)
    assert left.home.retained is not None
    sender = left.home.retained.sender
    cluster.calls[left.name, home.name].is_stopped = True
    retain(client, b"1")
    cluster.settle()
    (found,) = [each for each in sender.match(b"#") if each is not None]
    assert sender.load(found) is None, "the home may have newer ones, whatever their numbers are"
    cluster.wait(ANSWER_S)

    listed = sender.load(found)
    assert listed is not None
    assert listed.message.payload == b"1"


@pytest.mark.parametrize("payload", [b"new", b""])
def test_c26_a_subscriber_finds_what_is_on_its_way(cluster: ManyCores, payload: bytes) -> None:
    node = cluster.node("one")
    home, left, right = three_cores(cluster)
    publisher = node.client(cluster.client_of(left, "p"), expiry=0)
    publisher.publish(TOPIC, b"old", retain=True)
    other = cluster.client_of(home, "other")
    publisher.publish(other, b"other", retain=True)
    cluster.calls[left.name, home.name].is_stopped = True
    retain(publisher, payload)
    early = node.client(cluster.client_of(right, "early"), expiry=0)
    assert payloads(early.subscribe("#", qos=1)) == [], "whether the home takes it is not known"
    cluster.wait(ANSWER_S)
    assert acknowledged(publisher) == [0x10]
    late = node.client(cluster.client_of(right, "late"), expiry=0)
    late.subscribe("nothing")
    found = late.subscribe("#", qos=1)

    expected = sorted([payload, b"other"] if payload else [b"other"])
    assert sorted(payloads(early.acknowledge_all())) == expected
    assert sorted(payloads(found)) == expected
    home.die()
    cluster.settle()
    last = node.client(cluster.client_of(right, "last"), expiry=0)
    assert payloads(last.subscribe("#", qos=1)) == [each for each in expected if each == payload]


def test_c26_a_subscriber_keeps_what_is_newer_than_what_is_on_its_way(cluster: ManyCores) -> None:
    node = cluster.node("one")
    home, left, right = three_cores(cluster)
    first = node.client(cluster.client_of(left, "p"), expiry=0)
    second = node.client(cluster.client_of(right, "p"), expiry=0)
    cluster.calls[left.name, home.name].is_stopped = True
    retain(first, b"12:00")
    cluster.wait(ANSWER_S)
    second.publish(TOPIC, b"12:50", retain=True)

    assert {found[-1] for found in seen(cluster)} == {b"12:50"}


def test_c26_a_subscriber_hears_of_an_intent_when_its_core_is_back(cluster: ManyCores) -> None:
    node = cluster.node("one")
    home, left, right = three_cores(cluster)
    publisher = node.client(cluster.client_of(left, "p"), expiry=0)
    publisher.publish(TOPIC, b"old", retain=True)
    home.die()
    retain(publisher, b"new")
    cluster.settle()
    left.die()
    cluster.restart(home)
    cluster.wait(2)
    subscriber = node.client(cluster.client_of(right, "s"), expiry=0)
    assert payloads(subscriber.subscribe(TOPIC, qos=1)) == [b"old"]

    cluster.restart(left)
    cluster.wait(5)

    assert payloads(subscriber.acknowledge_all())[-1:] == [b"new"]
    assert kept(home) == b"new"
