"""Shared groups whose members are on several nodes: each message goes to one member, wherever it is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import pytest

from braidmq.broker.reading.replay import REPLAYS_MAX
from braidmq.mqtt.packets import Puback, Publish, Pubrec, Pubrel, Subscribe, SubscribeOption
from braidmq.net.frames import FrameKind
from tests.support.simulator.cluster_world import ClusterWorld, Replicant
from tests.support.simulator.peer import Peer, payloads

SHARED = "$share/g/a"


@pytest.fixture
def world() -> Iterator[ClusterWorld]:
    with ClusterWorld() as world:
        yield world


def numbered(first: int, last: int) -> list[bytes]:
    """The payloads of messages with these numbers."""
    return [b"%d" % number for number in range(first, last)]


def member(
    where: Replicant | ClusterWorld, client_id: str, qos: int = 1, *, expiry: int = 0, topic_filter: str = SHARED, **fields: int
) -> Peer:
    client = where.client(client_id, expiry=expiry, **fields)
    client.subscribe(topic_filter, qos=qos)
    return client


@pytest.mark.parametrize("strategy", ["round_robin", "random", "sticky", "hash_clientid", "hash_topic"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_c5_each_message_goes_to_one_member_wherever_it_is(strategy: str, qos: int) -> None:
    with ClusterWorld(shared={"strategy": strategy}) as world:
        one, two = world.replicant("one"), world.replicant("two")
        members = [member(where, name, qos) for where, name in ((one, "m1"), (two, "m2"), (world, "m3"), (one, "m4"))]
        for where, name in ((one, "p1"), (two, "p2"), (world, "p3")):
            publisher = where.client(name, expiry=0)
            for number in range(4):
                publisher.publish("a", f"{name}-{number}".encode(), qos=qos)

        got = [payloads(each.acknowledge_all()) for each in members]

        assert sorted(chain.from_iterable(got)) == sorted(f"p{p}-{number}".encode() for p in (1, 2, 3) for number in range(4))
        if strategy == "round_robin":
            assert all(len(each) == 3 for each in got)
        if strategy in ("sticky", "hash_topic"):
            assert sum(bool(each) for each in got) == 1


def test_an_unacknowledged_message_of_a_member_that_leaves_goes_to_another_node(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    first = member(one, "m1")
    world.client("p", expiry=0).publish("a", b"m", qos=1)
    assert payloads(first.receive()) == [b"m"]
    second = member(two, "m2")
    assert second.receive() == []

    first.cut()

    assert payloads(second.acknowledge_all()) == [b"m"]


def test_the_messages_of_a_dead_node_go_to_members_on_others(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    first = member(one, "m1")
    publisher = world.client("p", expiry=0)
    for number in range(5):
        publisher.publish("a", b"%d" % number, qos=1)
    assert payloads(first.receive()) == numbered(0, 5)
    second = member(two, "m2")

    one.die()

    assert payloads(second.acknowledge_all()) == numbered(0, 5)


def test_a_message_that_a_member_acknowledged_is_not_given_to_another(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    first, second = member(one, "m1"), member(two, "m2")
    world.client("p", expiry=0).publish("a", b"m", qos=1)
    (packet,) = [each for each in [*first.receive(), *second.receive()] if isinstance(each, Publish)]
    assert packet.packet_id is not None
    first.send(Puback(packet.packet_id))
    first.cut()
    world.settle()
    one.die()

    assert second.receive() == []


def test_c37_a_message_that_a_member_refuses_is_settled(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    first, second = member(one, "m1"), member(two, "m2")
    world.client("p", expiry=0).publish("a", b"m", qos=1)
    for each in (first, second):
        for packet in each.receive():
            assert isinstance(packet, Publish)
            assert packet.packet_id is not None
            each.send(Puback(packet.packet_id, 0x83))
    world.settle()
    first.cut()

    assert second.receive() == []


def test_a_slow_member_does_not_hold_messages_up(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    slow = member(one, "slow", receive_maximum=2)
    fast = member(two, "fast")
    publisher = world.client("p", expiry=0)
    for number in range(20):
        publisher.publish("a", b"%d" % number, qos=1)

    held = payloads(slow.receive())
    got = payloads(fast.acknowledge_all())

    assert len(held) == 2
    assert sorted(held + got) == sorted(numbered(0, 20))


def test_messages_wait_for_a_member_that_takes_few_at_a_time(world: ClusterWorld) -> None:
    one = world.replicant("one")
    slow = member(one, "slow", receive_maximum=2)
    publisher = one.client("p", expiry=0)
    for number in range(20):
        publisher.publish("a", b"%d" % number, qos=1)

    assert payloads(slow.acknowledge_all()) == numbered(0, 20)


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_wait_for_a_durable_member_that_is_away(world: ClusterWorld, qos: int) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    durable = member(one, "m", qos, expiry=1000)
    publisher = two.client("p", expiry=0)
    publisher.publish("a", b"0", qos=qos)
    assert payloads(durable.acknowledge_all()) == [b"0"]
    durable.cut()
    world.settle()
    publisher.publish("a", b"1", qos=qos)
    publisher.publish("a", b"2", qos=qos)

    back = two.client("m")
    publisher.publish("a", b"3", qos=qos)

    assert payloads(back.acknowledge_all()) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("places", [["one", "two"], ["one", "core"], ["core", "one"], ["one", "one"]])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_durable_member_moves_with_what_it_did_not_acknowledge(world: ClusterWorld, places: list[str], qos: int) -> None:
    nodes: dict[str, Replicant | ClusterWorld] = {"one": world.replicant("one"), "two": world.replicant("two"), "core": world}
    start, end = (nodes[place] for place in places)
    publisher = world.client("p", expiry=0)
    client = member(start, "m", qos, expiry=1000)
    publisher.publish("a", b"0", qos=qos)
    assert payloads(client.receive()) == [b"0"]
    client.cut()
    world.settle()
    publisher.publish("a", b"1", qos=qos)

    back = end.client("m")
    publisher.publish("a", b"2", qos=qos)

    assert payloads(back.acknowledge_all()) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("expiry", [0, 1000], ids=["memory", "durable"])
@pytest.mark.parametrize("ends", ["cut", "die"])
def test_a_message_of_qos_2_that_was_sent_is_given_to_no_other_member(world: ClusterWorld, expiry: int, ends: str) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    first = member(one, "m1", 2, expiry=expiry)
    world.client("p", expiry=0).publish("a", b"m", qos=2)
    assert payloads(first.receive()) == [b"m"]
    second = member(two, "m2", 2)

    if ends == "cut":
        first.cut()
    else:
        one.die()
    world.settle()

    assert second.receive() == []
    back = two.client("m1", expiry=expiry)
    assert payloads(back.acknowledge_all()) == ([b"m"] if expiry else [])


def test_a_released_packet_id_moves_with_its_session(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    client = member(one, "m", 2, expiry=1000)
    world.client("p", expiry=0).publish("a", b"m", qos=2)
    (packet,) = [each for each in client.receive() if isinstance(each, Publish)]
    assert packet.packet_id is not None
    client.send(Pubrec(packet.packet_id))
    client.expect(Pubrel)
    client.cut()
    world.settle()

    back = two.client("m")

    assert back.take() == [Pubrel(packet.packet_id)]


def test_a_member_that_unsubscribes_gets_no_more(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    first, second = member(one, "m1"), member(two, "m2")
    first.unsubscribe(SHARED)
    publisher = world.client("p", expiry=0)
    for number in range(4):
        publisher.publish("a", b"%d" % number, qos=1)

    assert first.receive() == []
    assert payloads(second.acknowledge_all()) == numbered(0, 4)


def test_a_group_whose_last_member_has_left_is_gone_everywhere(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    client = member(one, "m")
    assert len(world.broker.groups) == 1
    client.cut()
    world.settle()

    assert len(world.broker.groups) == 0
    for broker in (world.broker, one.broker, two.broker):
        route = broker.routes.resolve(b"a")
        assert route is not None
        assert not route.targets


def test_a_lost_connection_between_nodes_neither_loses_nor_repeats_messages(world: ClusterWorld) -> None:
    one = world.replicant("one")
    client = member(one, "m")
    publisher = world.client("p", expiry=0)
    publisher.publish("a", b"0", qos=1)
    publisher.publish("a", b"1", qos=1)
    (first, second) = [packet.packet_id for packet in client.receive() if isinstance(packet, Publish)]
    assert first is not None
    assert second is not None

    one.cut()
    client.send(Puback(first))
    publisher.publish("a", b"2", qos=1)
    one.connect()
    client.send(Puback(second))

    assert payloads(client.acknowledge_all()) == [b"2"]
    other = member(world, "other")
    one.die()
    assert other.receive() == []


def test_a_message_that_was_lost_on_its_way_to_a_node_is_given_again(world: ClusterWorld) -> None:
    one = world.replicant("one")
    client = member(one, "m")
    wire = one.messages_wire
    receive = wire.on_frame
    assert receive is not None
    wire.on_frame = lambda kind, flags, number, body: None if kind is FrameKind.LEASES else receive(kind, flags, number, body)
    world.client("p", expiry=0).publish("a", b"m", qos=1)
    assert client.receive() == []

    one.cut()
    one.connect()

    assert payloads(client.acknowledge_all()) == [b"m"]


def test_a_member_on_a_disconnected_node_keeps_its_messages(world: ClusterWorld) -> None:
    one = world.replicant("one")
    client = member(one, "m")
    publisher = world.client("p", expiry=0)
    publisher.publish("a", b"0", qos=1)
    client.settle()
    one.cut()
    other = member(world, "other")
    publisher.publish("a", b"1", qos=1)

    assert payloads(other.acknowledge_all()) == [b"1"]
    one.connect()
    assert payloads(client.acknowledge_all()) == [b"0"]
    assert other.receive() == []


@pytest.mark.parametrize("qos", [0, 1])
def test_a_group_across_nodes_can_start_in_the_past(world: ClusterWorld, qos: int) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    publisher = one.client("p", expiry=0)
    for number in range(6):
        publisher.publish("a", b"%d" % number, qos=1)
    first = one.client("m1", expiry=0)
    early = first.subscribe("$share/g/$replay/earliest/a", qos=qos)
    second = member(two, "m2", qos)
    publisher.publish("a", b"6", qos=1)
    publisher.publish("a", b"7", qos=1)

    got = payloads(early) + payloads(first.acknowledge_all()) + payloads(second.acknowledge_all())

    assert sorted(got) == numbered(0, 8)


def test_a_subscription_identifier_is_the_members_own(world: ClusterWorld) -> None:
    one = world.replicant("one")
    client = one.client("m", expiry=0)
    client.subscribe(SHARED, qos=1, subscription_identifiers=(7,))
    world.client("p", expiry=0).publish("a", b"m", qos=1)

    (packet,) = client.acknowledge_all()

    assert packet.properties.subscription_identifiers == (7,)


@pytest.mark.parametrize("publishes_at", ["one", "two", "core"])
def test_qos_0_messages_go_to_connected_members_only(world: ClusterWorld, publishes_at: str) -> None:
    nodes: dict[str, Replicant | ClusterWorld] = {"one": world.replicant("one"), "two": world.replicant("two"), "core": world}
    away, here = member(nodes["one"], "away", expiry=1000), member(nodes["one"], "here", expiry=1000)
    away.disconnect()
    publisher = nodes[publishes_at].client("p", expiry=0)
    for number in range(4):
        publisher.publish("a", b"%d" % number, qos=0)

    assert payloads(here.acknowledge_all()) == numbered(0, 4)


def test_what_a_member_returns_keeps_its_order(world: ClusterWorld) -> None:
    one = world.replicant("one")
    idle, busy = member(one, "m1"), member(one, "m2")
    publisher = one.client("p", expiry=0)
    for number in range(6):
        publisher.publish("a", b"%d" % number, qos=1)
    assert payloads(idle.receive()) == [b"0", b"2", b"4"]
    assert payloads(busy.acknowledge_all()) == [b"1", b"3", b"5"]

    idle.cut()

    assert payloads(busy.acknowledge_all()) == [b"0", b"2", b"4"]


def test_a_client_cannot_make_very_many_groups_that_read_the_past(world: ClusterWorld) -> None:
    one = world.replicant("one")
    world.client("p", expiry=0).publish("a", b"m", qos=1)
    idle = one.client("m", expiry=0, receive_maximum=1)
    for number in range(REPLAYS_MAX + 2):  # the first one has read everything at once
        idle.send(Subscribe(1 + number, [SubscribeOption(f"$share/g{number}/$replay/earliest/a", 1)]))
        world.settle()

    assert idle.is_closed
    assert not world.broker.groups
