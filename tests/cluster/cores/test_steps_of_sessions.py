"""QoS 2 steps of sessions on one node whose rows are at home at different cores, one of which says nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.mqtt.packets import Puback, Publish, Pubrec, Pubrel
from tests.support.simulator.many_cores import ManyCores
from tests.support.simulator.peer import Peer, payloads


@pytest.fixture
def cluster() -> Iterator[ManyCores]:
    with ManyCores() as cluster:
        yield cluster


def subscribed(cluster: ManyCores, core: str, *filters: str) -> Peer:
    """A durable session on the first node, at home at this core, with QoS 2."""
    client = cluster.nodes[0].client(cluster.client_of(cluster.cores[core], "s"))
    for topic_filter in filters:
        client.subscribe(topic_filter, qos=2)
    return client


def test_c41_messages_of_a_session_keep_their_order_while_the_home_of_another_is_silent(cluster: ManyCores) -> None:
    node = cluster.node("one")
    session = subscribed(cluster, "core1", "both", "own")
    subscribed(cluster, "core2", "both")
    publisher = node.client(cluster.client_of(cluster.cores["core3"], "p"), expiry=0)

    node.freeze(cluster.cores["core2"])
    publisher.send(Publish("both", b"1", 2, False, False, 1))
    cluster.settle()
    publisher.send(Publish("own", b"2", 2, False, False, 2))
    cluster.settle()

    assert payloads(session.receive()) == [b"1", b"2"]


def test_c41_a_dead_home_stops_the_steps_of_its_own_sessions_and_of_no_other(cluster: ManyCores) -> None:
    node = cluster.node("one")
    session, stuck = subscribed(cluster, "core1", "both"), subscribed(cluster, "core2", "both")
    publisher = node.client(cluster.client_of(cluster.cores["core3"], "p"), expiry=0)

    cluster.cores["core2"].die()
    cluster.settle()
    for number in range(3):
        publisher.send(Publish("both", b"%d" % number, 2, False, False, number + 1))
        cluster.settle()

    assert payloads(session.acknowledge_all()) == [b"0", b"1", b"2"]
    assert stuck.receive() == []
    cluster.restart(cluster.cores["core2"])
    assert payloads(stuck.acknowledge_all()) == [b"0", b"1", b"2"]


def test_c41_a_block_that_waits_for_another_node_does_not_hold_back_a_step_behind_later_ones() -> None:
    with ManyCores(history={"topics": ["kept/#"]}) as cluster:
        one, two = cluster.node("one"), cluster.node("two")
        home = cluster.cores["core1"]
        session = subscribed(cluster, "core1", "kept/#")
        two.client("far", expiry=0).subscribe("live", qos=1)
        publisher = one.client(cluster.client_of(cluster.cores["core3"], "p"), expiry=0)
        for number in (1, 2):
            publisher.publish("kept/a", b"%d" % number, qos=2)
        ids = [packet.packet_id or 0 for packet in session.receive() if isinstance(packet, Publish)]

        cluster.wait(2)  # then the home is sure of all routes, and records only what is to be kept
        two.freeze(home)
        # In one block: the receipt, and a message that is not recorded, whose answer waits for the other node.
        session.send(Pubrec(ids[0]), Publish("live", b"x", 1, False, False, 9))
        cluster.settle()
        session.send(Pubrec(ids[1]))
        cluster.settle()

        answers = session.receive()
        assert not any(isinstance(packet, Puback) for packet in answers)  # the block is not answered
        released = [packet.packet_id for packet in answers if isinstance(packet, Pubrel)]
        assert released == ids  # [MQTT-4.6.0-4]
