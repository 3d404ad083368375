"""Schedules of docs/schedules.md on several cores: what would go wrong if one step came at the worst moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from braidmq.mqtt.packets import Puback, Publish, Pubrec, Suback, Subscribe, SubscribeOption
from tests.support.simulator.many_cores import ManyCores
from tests.support.simulator.peer import payloads

UNRECORDED: Any = {"history": {"topics": []}}
SURE_S = 2.0  # after which a core that has just started knows what it need not record (C23)


def test_c1_an_unrecorded_message_is_acknowledged_when_every_node_has_it() -> None:
    with ManyCores(**UNRECORDED) as cluster:
        one, two = cluster.node("one"), cluster.node("two")
        publisher = one.client("p", expiry=0)
        subscriber = two.client("s", expiry=0)
        subscriber.subscribe("t", qos=1)
        home = cluster.core_of("p")
        cluster.wait(SURE_S)
        two.freeze(home)

        publisher.send(Publish("t", b"x", 1, packet_id=1))
        assert publisher.receive() == []

        two.thaw(home)
        assert publisher.expect(Puback).reason == 0
        assert payloads(subscriber.receive()) == [b"x"]
        assert home.records() == []


def test_c1_a_stopped_node_holds_publishers_up_for_a_second_at_most() -> None:
    with ManyCores(**UNRECORDED) as cluster:
        one, two, three = (cluster.node(name) for name in ("one", "two", "three"))
        publisher = one.client("p", expiry=0)
        for number, node in enumerate((two, three)):
            node.client(f"s{number}", expiry=0).subscribe("t", qos=1)
        cluster.wait(SURE_S)
        two.freeze(cluster.core_of("p"))

        publisher.send(Publish("t", b"1", 1, packet_id=1))
        assert publisher.receive() == []
        cluster.wait(1.5)
        assert publisher.expect(Puback).reason == 0

        publisher.send(Publish("t", b"2", 1, packet_id=2))
        assert publisher.expect(Puback).reason == 0, "the node is lagging: nobody waits for it"


@pytest.mark.parametrize("after", range(6))
def test_c11_a_restarted_core_passes_nothing_before_it_has_a_nodes_routes(after: int) -> None:
    with ManyCores() as cluster:
        one, two = cluster.node("one"), cluster.node("two")
        home = next(iter(cluster.cores.values()))
        publisher = two.client(cluster.client_of(home, "p"))
        subscriber = one.client("s", expiry=0)
        subscriber.subscribe("a/#", qos=1)
        publisher.publish("a/1", b"before")
        home.die()
        cluster.settle()

        home.start_again()
        cluster.link_cores()
        one.connect(home)
        one.freeze(home, after=after)
        two.connect(home)
        publisher.send(Publish("a/2", b"meanwhile", 1, packet_id=9))
        cluster.settle()
        one.thaw(home)
        cluster.wait(1.0)

        assert payloads([*subscriber.acknowledge_all()]) == [b"before", b"meanwhile"]


def test_c24_an_unrecorded_qos2_message_is_not_repeated_when_its_session_moves() -> None:
    with ManyCores(**UNRECORDED) as cluster:
        one, two = cluster.node("one"), cluster.node("two")
        subscriber = two.client("s", expiry=0)
        subscriber.subscribe("t", qos=2)
        publisher = one.client("p")
        cluster.wait(SURE_S)
        publisher.send(Publish("t", b"x", 2, packet_id=7))
        cluster.settle()
        assert cluster.core_of("p").records() == []
        publisher.cut()  # with PUBREC

        again = two.client("p")
        assert again.connack.session_present
        again.send(Publish("t", b"x", 2, dup=True, packet_id=7))

        assert again.expect(Pubrec).reason == 0
        assert payloads([*subscriber.acknowledge_all()]) == [b"x"]


def test_c28_rules_that_change_while_a_session_is_between_two_nodes_hold_on_the_next(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.write_text("topic readwrite #\n")
    rules.chmod(0o600)
    with ManyCores(access={"acl_file": str(rules)}) as cluster:
        one, two = cluster.node("one"), cluster.node("two")
        reader = one.client("x")
        reader.subscribe("secret/#", "open", qos=1)
        reader.cut()
        cluster.settle()

        # The core's files may differ, and it does not serve the client.
        rules.write_text("topic readwrite open\ntopic write secret/#\n")
        cluster.loop.run_until_complete(two.access.reload())
        again = two.client("x")
        assert again.connack.session_present
        one.client("p", expiry=0).publish("secret/1", b"secret")
        one.client("q", expiry=0).publish("open", b"open")

        assert payloads([*again.acknowledge_all()]) == [b"open"]


def test_c40_the_second_subscriber_of_a_young_route_waits_for_it_too() -> None:
    with ManyCores() as cluster:
        one, two = cluster.node("one"), cluster.node("two")
        publisher = two.client("p", expiry=0)
        first, second = one.client("s1", expiry=0), one.client("s2", expiry=0)
        home = cluster.core_of("p")
        one.freeze(home)

        for number, subscriber in enumerate((first, second)):
            subscriber.send(Subscribe(number + 1, [SubscribeOption("t", 1)]))
            assert subscriber.receive() == []

        one.thaw(home)
        for subscriber in (first, second):
            assert subscriber.expect(Suback).reasons == [1]
        publisher.publish("t", b"x")
        for subscriber in (first, second):
            assert payloads(subscriber.receive()) == [b"x"]
