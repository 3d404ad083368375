"""Nodes in the mode "eventual", with several cores: a lock, the bag, then the claim."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.mqtt.packets import MQTT5, Connack, Connect, Disconnect
from braidmq.mqtt.reasons import Reason
from tests.support.simulator.many_cores import HOME_WAIT_S, ManyCores, SimNode
from tests.support.simulator.peer import Peer, payloads

TAKEOVER_WAIT_S = 2.0
LOCK_TIMEOUT_S = 30.0


@pytest.fixture
def cluster() -> Iterator[ManyCores]:
    with ManyCores(registry={"mode": "eventual"}) as cluster:
        yield cluster


def locks(cluster: ManyCores) -> int:
    """Requests that hold a lock, or wait for one, at any core."""
    return sum(len(core.home.eventual.locks.table) for core in cluster.cores.values() if core.home.eventual.locks is not None)


def connecting(node: SimNode, client_id: str) -> Peer:
    """A client that has sent its CONNECT and was not answered yet."""
    client = node.open()
    client.send(Connect(client_id, MQTT5))
    return client


def answer(client: Peer) -> int | None:
    """The reason code of its CONNACK, if there is one."""
    return next((packet.reason for packet in client.receive() if isinstance(packet, Connack)), None)


def owners(cluster: ManyCores, client_id: str) -> list[str]:
    """The nodes on which a client of this id is connected."""
    sessions = [(node.name, node.broker.sessions.get(client_id)) for node in cluster.nodes]
    return [name for name, session in sessions if session is not None and session.connection is not None]


def test_the_newest_connection_takes_the_client_id_from_another_node(cluster: ManyCores) -> None:
    one, two = cluster.node("one"), cluster.node("two")
    old = one.client("c")
    old.subscribe("a/#", qos=1)

    new = two.client("c")

    assert new.connack.session_present
    assert [packet.reason for packet in old.receive() if isinstance(packet, Disconnect)] == [Reason.SESSION_TAKEN_OVER]
    assert owners(cluster, "c") == ["two"]
    assert locks(cluster) == 0
    one.client("p").publish("a/b", b"1", qos=1)
    assert payloads(new.acknowledge_all()) == [b"1"]


def test_the_bags_of_all_nodes_name_the_owner_and_forget_it(cluster: ManyCores) -> None:
    nodes = [cluster.node(name) for name in ("one", "two", "three")]
    for node in nodes:
        node.client("c")

    def named() -> set[str]:
        bags = [node.link.front.bag for node in nodes if node.link.front.bag is not None]
        assert len(bags) == len(nodes)
        return {entry.node for bag in bags for entry in bag.others("c")}

    assert named() == {"three"}
    session = nodes[2].broker.sessions.get("c")
    assert session is not None
    assert session.connection is not None
    session.connection.close(Reason.ADMINISTRATIVE_ACTION, "test")
    cluster.settle()
    assert named() == set()


def test_of_many_connects_at_once_one_lives_and_no_lock_is_left(cluster: ManyCores) -> None:
    nodes = [cluster.node(name) for name in ("one", "two", "three")]
    clients = [connecting(node, "c") for _ in range(5) for node in nodes]

    cluster.settle()

    assert len(owners(cluster, "c")) == 1
    assert {answer(client) for client in clients} <= {0, int(Reason.SERVER_BUSY)}
    assert locks(cluster) == 0


def test_a_node_that_stands_still_with_a_lock_blocks_the_client_id_until_the_lock_is_over(cluster: ManyCores) -> None:
    one, two = cluster.node("one"), cluster.node("two")
    stuck = connecting(one, "c")
    for core in cluster.cores.values():
        one.freeze(core, after=1)
    cluster.settle()
    assert locks(cluster) == 2
    assert answer(stuck) is None

    early = connecting(two, "c")
    cluster.wait(HOME_WAIT_S + 1.0)
    assert answer(early) == Reason.SERVER_BUSY
    cluster.wait(LOCK_TIMEOUT_S - HOME_WAIT_S - 2.0)
    late = connecting(two, "c")
    cluster.settle()
    assert answer(late) is None

    cluster.wait(2.0)

    assert answer(late) == 0
    assert owners(cluster, "c") == ["two"]


def test_the_death_of_the_node_that_holds_a_lock_frees_it(cluster: ManyCores) -> None:
    one, two = cluster.node("one"), cluster.node("two")
    connecting(one, "c")
    for core in cluster.cores.values():
        one.freeze(core, after=1)
    cluster.settle()
    waiting = connecting(two, "c")
    cluster.settle()
    assert answer(waiting) is None

    for core in cluster.cores.values():
        core.home.bury(one.member)
    cluster.settle()

    assert answer(waiting) == 0


def test_an_owner_that_stands_still_costs_the_waits_and_then_it_is_fenced(cluster: ManyCores) -> None:
    one, two = cluster.node("one"), cluster.node("two")
    one.client("c")
    for core in cluster.cores.values():
        one.freeze(core)
    new = connecting(two, "c")

    cluster.wait(TAKEOVER_WAIT_S - 1.0)
    assert answer(new) is None
    cluster.wait(TAKEOVER_WAIT_S + 2.0)

    assert answer(new) == 0
    assert two.link.front.node is not None
    assert two.link.front.node.ends_missed == 1


def test_a_core_that_is_away_is_left_out_of_the_locks(cluster: ManyCores) -> None:
    one, two = cluster.node("one"), cluster.node("two")
    away, other = cluster.cores["core1"], cluster.cores["core2"]
    names = [cluster.client_of(other, prefix) for prefix in "abcdef"]
    away.die()
    cluster.settle()

    for name in names:
        one.client(name)
        two.client(name)

    assert [owners(cluster, name) for name in names] == [["two"]] * len(names)
    assert locks(cluster) == 0


def test_a_client_that_hangs_up_while_it_waits_leaves_no_lock(cluster: ManyCores) -> None:
    one, two = cluster.node("one"), cluster.node("two")
    connecting(one, "c")
    for core in cluster.cores.values():
        one.freeze(core, after=1)
    cluster.settle()
    waiting = connecting(two, "c")
    cluster.settle()
    waiting.cut()

    cluster.wait(LOCK_TIMEOUT_S + 1.0)

    assert owners(cluster, "c") == []
    assert locks(cluster) == 0


def test_a_linear_node_takes_no_lock_and_writes_no_bag() -> None:
    with ManyCores() as cluster:
        one = cluster.node("one")
        one.client("c")

        assert one.link.front.node is None
        assert [origin for origin, _ in cluster.cores["core1"].home.tables if origin.startswith("channels/")] == []
