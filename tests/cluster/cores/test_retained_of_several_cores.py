"""Retained messages with several cores: each is at the home of its topic, also over crashes of either home (S9, C14, C26)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from braidmq.base.shards import shard_of
from braidmq.cluster.home.retained.sender import TAKE
from braidmq.mqtt.packets import Publish, Will
from braidmq.mqtt.properties import Properties
from tests.cluster.cores.retained_topic import ANSWER_S, TOPIC, acknowledged, intents, kept, retain, seen, set_clock, three_cores
from tests.support.simulator.many_cores import ManyCores


@pytest.fixture
def cluster() -> Iterator[ManyCores]:
    with ManyCores() as cluster:
        yield cluster


def test_s9_publishers_with_different_homes_set_a_topic_in_one_order(cluster: ManyCores) -> None:
    one, two = cluster.node("one"), cluster.node("two")
    home, left, right = three_cores(cluster)
    publishers = [node.client(cluster.client_of(core, "p"), expiry=0) for core, node in ((left, one), (right, two), (home, one))]

    for number in range(9):
        payload = b"%d" % number
        publishers[number % 3].publish(TOPIC, payload, qos=1 + number % 2, retain=True)
        assert kept(home) == payload
        assert seen(cluster) == {(payload,)}
    assert [kept(left), kept(right)] == [None, None]
    assert [intents(core) for core in cluster.cores.values()] == [0, 0, 0]
    senders = [core.home.retained.sender for core in cluster.cores.values() if core.home.retained is not None]
    assert [(len(each), each.may_match(b"#")) for each in senders] == [(0, False)] * 3


def test_s9_the_home_of_the_publisher_writes_an_intent_even_if_it_is_that_of_the_topic(cluster: ManyCores) -> None:
    node = cluster.node("one")
    home = cluster.core_of(TOPIC)
    names = (f"p{number}" for number in range(1000))
    other_shard = next(each for each in names if cluster.core_of(each) is home and shard_of(each, 6) != shard_of(TOPIC, 6))
    same_shard = next(each for each in names if shard_of(each, 6) == shard_of(TOPIC, 6))

    for client_id, expected in ((other_shard, 1), (same_shard, 0)):
        client = node.client(client_id, expiry=0)
        retain(client, client_id.encode())
        while not home.is_writing:
            home.turn()
        rows = intents(home)
        assert kept(home) == client_id.encode()
        assert (rows, intents(home)) == (expected, 0)
        assert acknowledged(client) == [0x10]


@pytest.mark.parametrize("qos", [1, 2])
def test_c26_the_acknowledgement_follows_both_commits_while_the_home_of_the_topic_answers(cluster: ManyCores, qos: int) -> None:
    node = cluster.node("one")
    home, left, _ = three_cores(cluster)
    client = node.client(cluster.client_of(left, "p"), expiry=0)

    cluster.calls[left.name, home.name].freeze()
    retain(client, b"1", qos=qos)
    assert acknowledged(client) == []
    assert kept(home) == b"1", "only the answer is missing"
    cluster.wait(1)
    assert acknowledged(client) == []
    cluster.calls[left.name, home.name].thaw()
    assert acknowledged(client) == [0x10]

    home.die()
    retain(client, b"2", 2, qos=qos)
    cluster.settle()
    assert acknowledged(client) == [0x10], "the first commit is enough while the other home is away"
    cluster.restart(home)
    cluster.wait(2)
    assert kept(home) == b"2"
    assert intents(left) == 0


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("topics", [["#"], ["nothing/here"]], ids=["recorded", "not recorded"])
def test_c14_an_intent_outlives_its_publishers_home(qos: int, topics: list[str]) -> None:
    with ManyCores(history={"topics": topics}) as cluster:
        node = cluster.node("one")
        cluster.wait(2)
        home, left, _ = three_cores(cluster)
        client = node.client(cluster.client_of(left, "p"), expiry=1000)
        home.die()
        cluster.wait(1)
        retain(client, b"1", qos=qos)
        cluster.settle()
        assert intents(left) == 1
        left.die()
        cluster.restart(home)
        cluster.wait(2)
        assert kept(home) is None

        cluster.restart(left)
        cluster.wait(3)

        assert kept(home) == b"1"
        assert intents(left) == 0
        assert seen(cluster) == {(b"1",)}


@pytest.mark.parametrize("qos", [1, 2])
def test_c14_the_answer_to_a_repeat_waits_for_the_home_of_the_topic(
    cluster: ManyCores, monkeypatch: pytest.MonkeyPatch, qos: int
) -> None:
    node = cluster.node("one")
    home, left, _ = three_cores(cluster)
    client = node.client(cluster.client_of(left, "p"), expiry=0)
    taker = home.home.retained
    assert taker is not None
    take, may_take = taker.taker.take, asyncio.Event()

    async def wait(arguments: bytes) -> bytes:
        await may_take.wait()
        return await take(arguments)

    home.home.core_calls.serve(TAKE, wait)
    retain(client, b"1", qos=qos)
    cluster.settle()
    assert intents(left) == 1
    left.die()
    cluster.restart(left)
    cluster.wait(1)
    assert acknowledged(client) == []
    assert kept(home) is None

    may_take.set()
    cluster.settle()

    assert acknowledged(client) == [0]
    assert kept(home) == b"1"


@pytest.mark.parametrize("crash_of_topic", [False, True])
@pytest.mark.parametrize("ahead_s", [0, 3600])
def test_c14_an_intent_that_was_taken_is_not_taken_again(
    cluster: ManyCores, monkeypatch: pytest.MonkeyPatch, ahead_s: int, crash_of_topic: bool
) -> None:
    """The home of its publisher dies before it hears that it was taken; its clock may be ahead of the others."""
    node = cluster.node("one")
    home, left, right = three_cores(cluster)
    first = node.client(cluster.client_of(left, "p"), expiry=0)
    second = node.client(cluster.client_of(right, "p"), expiry=0)
    set_clock(monkeypatch, left, ahead_s)
    cluster.calls[left.name, home.name].freeze()
    retain(first, b"old")
    cluster.settle()
    assert kept(home) == b"old"
    second.publish(TOPIC, b"new", retain=True)
    assert intents(left) == 1

    left.die()
    if crash_of_topic:
        home.die()
        cluster.restart(home)
    cluster.restart(left)
    cluster.wait(3)

    assert intents(left) == 0, "it was driven again"
    assert kept(home) == b"new"
    home.die()
    cluster.restart(home)
    assert kept(home) == b"new"


def test_c14_intents_of_a_home_whose_clock_was_set_back_are_taken(cluster: ManyCores, monkeypatch: pytest.MonkeyPatch) -> None:
    node = cluster.node("one")
    home, left, _ = three_cores(cluster)
    client = node.client(cluster.client_of(left, "p"), expiry=0)
    client.publish(TOPIC, b"1", retain=True)
    client.disconnect()
    left.die()
    cluster.restart(left)
    set_clock(monkeypatch, left, -3600)
    cluster.wait(2)

    node.client(client.client_id, expiry=0).publish(TOPIC, b"2", retain=True)

    assert kept(home) == b"2"
    assert intents(left) == 0


def test_s9_a_core_whose_clock_is_behind_sets_a_topic_nevertheless(cluster: ManyCores, monkeypatch: pytest.MonkeyPatch) -> None:
    node = cluster.node("one")
    home, left, right = three_cores(cluster)
    set_clock(monkeypatch, left, -3600)
    node.client(cluster.client_of(right, "p"), expiry=0).publish(TOPIC, b"1", retain=True)
    node.client(cluster.client_of(left, "p"), expiry=0).publish(TOPIC, b"2", retain=True)

    assert kept(home) == b"2"


def test_c26_a_home_that_was_silent_is_asked_again(cluster: ManyCores) -> None:
    node = cluster.node("one")
    home, left, _ = three_cores(cluster)
    client = node.client(cluster.client_of(left, "p"), expiry=0)
    line = cluster.calls[left.name, home.name]
    line.is_stopped = True
    retain(client, b"1")
    cluster.wait(ANSWER_S)
    assert acknowledged(client) == [0x10]
    assert kept(home) is None
    line.is_stopped = False
    cluster.wait(3)

    assert kept(home) == b"1"
    assert intents(left) == 0


def test_c14_an_intent_is_driven_again_by_a_home_that_goes_on(cluster: ManyCores) -> None:
    """The home of the topic has taken it, and dies before it says so; meanwhile nothing may be lost or repeated."""
    node = cluster.node("one")
    home, left, _ = three_cores(cluster)
    first = node.client(cluster.client_of(left, "p"), expiry=0)
    cluster.calls[left.name, home.name].freeze()
    retain(first, b"1")
    cluster.settle()
    assert kept(home) == b"1"
    home.die()
    cluster.settle()
    assert acknowledged(first) == [0x10]
    retain(first, b"2", 2)
    retain(first, b"3", 3)
    cluster.settle()
    assert intents(left) == 1, "the newest of a topic stands for those before it"

    cluster.restart(home)
    cluster.wait(2)

    assert kept(home) == b"3"
    assert intents(left) == 0


def test_a_home_that_is_away_is_asked_about_once_a_second(cluster: ManyCores, monkeypatch: pytest.MonkeyPatch) -> None:
    node = cluster.node("one")
    home, left, _ = three_cores(cluster)
    client = node.client(cluster.client_of(left, "p"), expiry=0)
    calls, asked = left.home.core_calls, 0
    ask = calls.ask

    async def count(core: str, operation: str, arguments: bytes, timeout_s: float) -> bytes:
        nonlocal asked
        asked += 1
        return await ask(core, operation, arguments, timeout_s)

    monkeypatch.setattr(calls, "ask", count)
    home.die()
    retain(client, b"1")
    cluster.wait(5)

    assert 3 <= asked <= 7


def test_c26_a_late_intent_replaces_only_what_is_older(cluster: ManyCores) -> None:
    node = cluster.node("one")
    home, left, right = three_cores(cluster)
    first = node.client(cluster.client_of(left, "p"), expiry=0)
    second = node.client(cluster.client_of(right, "p"), expiry=0)
    home.die()
    cluster.settle()
    retain(first, b"12:00", topic=TOPIC)
    cluster.settle()
    retain(second, b"12:50", topic=TOPIC)
    cluster.settle()
    assert acknowledged(first) == acknowledged(second) == [0x10]

    left.die()  # so the core that has the older one finds the home last
    cluster.restart(home)
    cluster.wait(2)
    assert kept(home) == b"12:50"
    cluster.restart(left)
    cluster.wait(3)

    assert intents(left) == intents(right) == 0
    assert kept(home) == b"12:50"
    first = node.client(first.client_id, expiry=0)
    first.publish(TOPIC, b"13:00", retain=True)
    assert kept(home) == b"13:00"


def test_c26_a_late_intent_does_not_bring_back_what_was_removed(cluster: ManyCores) -> None:
    node = cluster.node("one")
    home, left, right = three_cores(cluster)
    first = node.client(cluster.client_of(left, "p"), expiry=0)
    second = node.client(cluster.client_of(right, "p"), expiry=0)
    home.die()
    cluster.settle()
    retain(first, b"12:00")
    cluster.settle()
    left.die()
    cluster.restart(home)
    second.publish(TOPIC, b"12:40", retain=True)
    second.publish(TOPIC, b"", retain=True)
    assert kept(home) is None
    cluster.wait(20)
    home.die()
    cluster.restart(home)
    cluster.wait(20)
    assert home.broker.turn_writer.storage.retained.read(TOPIC.encode()) is not None, "the removal is kept on disk"

    cluster.restart(left)
    cluster.wait(3)

    assert intents(left) == 0
    assert kept(home) is None
    cluster.wait(20)
    assert home.broker.turn_writer.storage.retained.read(TOPIC.encode()) is None, "until no core can have an older intent"


def test_c26_a_removal_is_remembered_while_a_core_may_send_something_older(cluster: ManyCores) -> None:
    node = cluster.node("one")
    home, left, right = three_cores(cluster)
    first = node.client(cluster.client_of(left, "p"), expiry=0)
    line = cluster.calls[left.name, home.name]
    line.is_stopped = True
    retain(first, b"12:00")
    cluster.wait(ANSWER_S)
    second = node.client(cluster.client_of(right, "p"), expiry=0)
    second.publish(TOPIC, b"12:40", retain=True)
    second.publish(TOPIC, b"", retain=True)
    cluster.wait(20)
    line.is_stopped = False
    cluster.wait(3)

    assert intents(left) == 0
    assert kept(home) is None


@pytest.mark.parametrize("last", [0, 1])
def test_a_publisher_sets_a_topic_in_the_order_of_its_messages_with_any_qos(cluster: ManyCores, last: int) -> None:
    node = cluster.node("one")
    home, left, _ = three_cores(cluster)
    client = node.client(cluster.client_of(left, "p"), expiry=0)

    for sent, expected in (((b"1", b"2"), b"2"), ((b"", b"3"), b"3"), ((b"4", b""), None)):
        for number, (payload, qos) in enumerate(zip(sent, (1 - last, last), strict=True)):
            client.send(Publish(TOPIC, payload, qos, True, False, number + 1 if qos else None))
        cluster.settle()
        assert kept(home) == expected
    assert not client.is_closed


def test_wills_and_delayed_messages_are_retained_at_the_homes_of_their_topics(cluster: ManyCores) -> None:
    node = cluster.node("one")
    home, left, right = three_cores(cluster)
    dying = node.client(cluster.client_of(left, "p"), expiry=0, will=Will(TOPIC, b"will", 1, True, Properties()))
    dying.cut()
    cluster.settle()
    assert kept(home) == b"will"

    patient = node.client(cluster.client_of(right, "p"), expiry=0)
    patient.publish(f"$delayed/5/{TOPIC}", b"delayed", retain=True)
    assert kept(home) == b"will"
    cluster.wait(6)
    assert kept(home) == b"delayed"
    assert intents(left) == intents(right) == 0


def test_the_home_of_the_topic_refuses_what_is_beyond_its_bounds() -> None:
    with ManyCores(retained={"messages_max": 1}) as cluster:
        node = cluster.node("one")
        home, left, _ = three_cores(cluster)
        client = node.client(cluster.client_of(left, "p"), expiry=0)
        other = cluster.client_of(home, "full")
        client.publish(other, b"first", retain=True)
        client.receive()

        retain(client, b"second", 2)

        assert acknowledged(client) == [0x10], "else it would be sent, recorded and delivered again"
        assert home.broker.statistics.dropped_retained_full == 1
        assert kept(home) is None
        assert intents(left) == 0
        retain(client, b"replaces", 3, topic=other)
        assert acknowledged(client) == [0x10]
        assert kept(home, other) == b"replaces"


def test_a_large_retained_message_arrives_in_pieces_and_from_disk(cluster: ManyCores) -> None:
    node = cluster.node("one")
    home, left, _ = three_cores(cluster)
    client = node.client(cluster.client_of(left, "p"), expiry=0)
    large = bytes(range(256)) * 3500
    client.publish(TOPIC, large, retain=True)
    assert kept(home) == large

    home.die()
    cluster.wait(1)  # large messages are read with pauses
    client.publish(TOPIC, large[1:], retain=True)
    left.die()
    cluster.restart(left)
    cluster.restart(home)
    cluster.wait(3)
    assert kept(home) == large[1:]


def test_an_operator_removes_the_message_of_a_topic_at_any_core(cluster: ManyCores) -> None:
    node = cluster.node("one")
    home, left, _ = three_cores(cluster)
    client = node.client("p", expiry=0)
    for broker in (home.broker, left.broker, node.broker):
        client.publish(TOPIC, b"1", retain=True)
        assert kept(home) == b"1"
        assert broker.pipeline.forget_retained(TOPIC.encode())
        broker.lane.flush()
        assert kept(home) is None
