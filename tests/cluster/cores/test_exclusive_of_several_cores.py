"""Exclusive topics with several cores: the home of the topic decides for the clients of all nodes and all homes (C38)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.mqtt.packets import Suback, Subscribe, SubscribeOption
from tests.support.simulator.many_cores import HOME_WAIT_S, ManyCores, SimCore, SimNode
from tests.support.simulator.peer import Peer, payloads

TAKEN = [0x97]
GRANTED = [1]
SURE_S = 2.0  # in which the cores hear of everything


@pytest.fixture
def cluster() -> Iterator[ManyCores]:
    with ManyCores() as cluster:
        yield cluster


def nodes(cluster: ManyCores) -> tuple[SimNode, SimNode]:
    """Two of them, when the cores have heard them."""
    found = cluster.node("one"), cluster.node("two")
    cluster.wait(SURE_S)
    return found


def topic_of(cluster: ManyCores, home: SimCore) -> str:
    """An exclusive topic that this core decides about."""
    return "$exclusive/" + cluster.client_of(home, "t")


def ask(client: Peer, *topics: str) -> None:
    client.send(Subscribe(77, [SubscribeOption(each, 1) for each in topics]))


def asks(client: Peer, *topics: str) -> list[int]:
    """SUBSCRIBE; the reason codes of SUBACK."""
    ask(client, *topics)
    return list(client.expect(Suback).reasons)


def three_cores(cluster: ManyCores) -> tuple[SimCore, SimCore, SimCore]:
    one, two, three = cluster.cores.values()
    return one, two, three


@pytest.mark.parametrize("expiry", [0, 1000], ids=["memory", "durable"])
def test_of_clients_with_different_homes_one_has_the_topic(cluster: ManyCores, expiry: int) -> None:
    one, two = nodes(cluster)
    home, left, right = three_cores(cluster)
    topic = topic_of(cluster, home)
    first = one.client(cluster.client_of(left), expiry=expiry)
    second = two.client(cluster.client_of(right), expiry=expiry)

    for client in (first, second):
        ask(client, topic)
    answers = [list(client.expect(Suback).reasons) for client in (first, second)]

    assert sorted(answers) == [GRANTED, TAKEN]
    owner, other = (first, second) if answers[0] == GRANTED else (second, first)
    assert asks(owner, topic) == GRANTED, "its owner may subscribe again"
    assert asks(other, topic, topic.removeprefix("$exclusive/")) == [*TAKEN, 1], "others subscribe in the ordinary form"
    one.client("p", expiry=0).publish(topic.removeprefix("$exclusive/"), b"m")
    assert payloads(owner.acknowledge_all()) == [b"m"]


@pytest.mark.parametrize("how", ["unsubscribe", "disconnect", "cut", "die"])
def test_a_topic_is_free_when_its_client_has_gone(cluster: ManyCores, how: str) -> None:
    one, two = nodes(cluster)
    home, left, right = three_cores(cluster)
    topic = topic_of(cluster, home)
    first, second = one.client(cluster.client_of(left), expiry=0), two.client(cluster.client_of(right), expiry=0)
    assert asks(first, topic) == GRANTED
    assert asks(second, topic) == TAKEN

    if how == "unsubscribe":
        first.unsubscribe(topic)
    elif how == "disconnect":
        first.disconnect()
    elif how == "cut":
        first.cut()
    else:
        bury(cluster, one)
    cluster.settle()

    assert asks(second, topic) == GRANTED


def bury(cluster: ManyCores, node: SimNode) -> None:
    """A node dies, and every core learns it."""
    for core in cluster.cores.values():
        node.cut(core)
        core.home.bury(node.member)
    cluster.nodes.remove(node)
    cluster.settle()


@pytest.mark.parametrize("how", ["cut", "die"])
def test_a_durable_session_keeps_its_topic_while_its_client_is_away(cluster: ManyCores, how: str) -> None:
    one, two = nodes(cluster)
    home, left, right = three_cores(cluster)
    topic = topic_of(cluster, home)
    client_id = cluster.client_of(left)
    first, second = one.client(client_id, expiry=100), two.client(cluster.client_of(right), expiry=0)
    assert asks(first, topic) == GRANTED

    if how == "cut":
        first.cut()
    else:
        bury(cluster, one)
    cluster.wait(SURE_S)
    assert asks(second, topic) == TAKEN
    back = two.client(client_id, expiry=100)
    assert back.connack.session_present
    assert asks(second, topic) == TAKEN
    assert asks(back, topic) == GRANTED
    back.cut()
    cluster.wait(SURE_S)
    assert asks(second, topic) == TAKEN
    cluster.wait(101)

    assert asks(second, topic) == GRANTED


def test_a_durable_session_gives_its_topic_up_by_unsubscribe(cluster: ManyCores) -> None:
    one, two = nodes(cluster)
    home, left, right = three_cores(cluster)
    topic = topic_of(cluster, home)
    client_id = cluster.client_of(left)
    first, second = one.client(client_id, expiry=100), two.client(cluster.client_of(right), expiry=0)
    assert asks(first, topic) == GRANTED
    first.cut()
    cluster.settle()
    back = two.client(client_id, expiry=100)

    back.unsubscribe(topic)
    cluster.wait(SURE_S)

    assert asks(second, topic) == GRANTED


@pytest.mark.parametrize("expiry", [0, 1000], ids=["memory", "durable"])
def test_a_topic_stays_taken_when_its_home_has_restarted(cluster: ManyCores, expiry: int) -> None:
    one, two = nodes(cluster)
    home, left, right = three_cores(cluster)
    topic = topic_of(cluster, home)
    first, second = one.client(cluster.client_of(left), expiry=expiry), two.client(cluster.client_of(right), expiry=0)
    assert asks(first, topic) == GRANTED

    home.die()
    cluster.settle()
    cluster.restart(home)

    assert asks(second, topic) == TAKEN, "at once, before all nodes have said what their clients have"
    cluster.wait(SURE_S)
    assert asks(second, topic) == TAKEN
    assert asks(first, topic) == GRANTED
    first.unsubscribe(topic)
    cluster.wait(SURE_S)
    assert asks(second, topic) == GRANTED


def test_a_home_that_has_restarted_grants_nothing_before_every_node_was_heard(cluster: ManyCores) -> None:
    one, two = nodes(cluster)
    home, left, right = three_cores(cluster)
    topic = topic_of(cluster, home)
    first, second = one.client(cluster.client_of(left), expiry=0), two.client(cluster.client_of(right), expiry=0)
    assert asks(first, topic) == GRANTED
    home.die()
    cluster.settle()
    home.start_again()
    cluster.link_cores()
    one.connect(home)
    cluster.settle()
    one.freeze(home)  # it has said which channels it has, and no more
    two.connect(home)
    cluster.wait(SURE_S)

    assert asks(second, topic) == TAKEN
    one.thaw(home)
    cluster.wait(SURE_S)

    assert asks(second, topic) == TAKEN
    first.disconnect()
    cluster.settle()
    assert asks(second, topic) == GRANTED


def test_while_the_home_of_a_topic_is_away_nobody_is_granted_it(cluster: ManyCores) -> None:
    one, _ = nodes(cluster)
    home, left, _ = three_cores(cluster)
    client = one.client(cluster.client_of(left), expiry=0)
    home.die()
    cluster.settle()

    ask(client, topic_of(cluster, home), topic_of(cluster, left))
    cluster.wait(HOME_WAIT_S - 1)
    assert not client.take(), "the home may come back"
    cluster.wait(2)

    assert list(client.expect(Suback).reasons) == [0x97, 1]
    assert asks(client, topic_of(cluster, home)) == TAKEN, "at once, from now on"
    client.publish("a", b"")
    cluster.restart(home)
    cluster.wait(SURE_S)
    assert asks(client, topic_of(cluster, home)) == GRANTED


def test_a_home_that_comes_back_in_time_grants_what_was_asked_for(cluster: ManyCores) -> None:
    one, two = nodes(cluster)
    home, left, right = three_cores(cluster)
    topic = topic_of(cluster, home)
    first, second = one.client(cluster.client_of(left), expiry=0), two.client(cluster.client_of(right), expiry=0)
    for node in (one, two):
        node.cut(home)
    ask(first, topic)
    cluster.settle()
    assert not first.take()

    for node in (one, two):
        node.connect(home)
    cluster.settle()

    assert list(first.expect(Suback).reasons) == GRANTED
    assert asks(second, topic) == TAKEN


def test_what_was_granted_to_a_client_that_has_gone_is_free(cluster: ManyCores) -> None:
    one, two = nodes(cluster)
    home, left, right = three_cores(cluster)
    topic = topic_of(cluster, home)
    first, second = one.client(cluster.client_of(left), expiry=0), two.client(cluster.client_of(right), expiry=0)
    one.freeze(home)
    ask(first, topic)
    cluster.settle()

    first.cut()
    cluster.settle()
    one.thaw(home)
    cluster.settle()

    assert asks(second, topic) == GRANTED


@pytest.mark.parametrize("how", ["cut", "die"])
def test_a_dead_core_keeps_the_topics_of_its_durable_sessions(cluster: ManyCores, how: str) -> None:
    one, two = nodes(cluster)
    home, left, right = three_cores(cluster)
    topic = topic_of(cluster, home)
    client_id = cluster.client_of(left)
    first, second = one.client(client_id, expiry=1000), two.client(cluster.client_of(right), expiry=0)
    assert asks(first, topic) == GRANTED
    left.die()
    cluster.settle()

    if how == "cut":
        first.cut()
    else:
        for core in (home, right):
            one.cut(core)
            core.home.bury(one.member)
        cluster.nodes.remove(one)
    cluster.wait(SURE_S)

    assert asks(second, topic) == TAKEN
    assert asks(second, topic_of(cluster, right)) == GRANTED, "other topics are granted meanwhile"
    cluster.restart(left)
    cluster.wait(SURE_S)
    assert asks(second, topic) == TAKEN
    assert two.client(client_id, expiry=1000).connack.session_present
