"""A core and its replicants: clients on different nodes are one broker's clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.access.contract import Refused
from braidmq.broker.broker import Broker
from braidmq.cluster.home.blocks.block_marks import BlockMarks
from braidmq.cluster.home.sessions.held_session import GivenSession, NodeClaim
from braidmq.cluster.registry.messages import ClaimRequest, Ending
from braidmq.mqtt.packets import Disconnect, Puback, Publish, Will
from braidmq.mqtt.properties import Properties
from tests.support.simulator.cluster_world import ClusterWorld, Replicant
from tests.support.simulator.peer import payloads


def destinations(broker: Broker, topic: bytes) -> int:
    """How many destinations a topic has on a node."""
    route = broker.routes.resolve(topic)
    assert route is not None
    return len(route.targets)


@pytest.fixture
def world() -> Iterator[ClusterWorld]:
    with ClusterWorld() as world:
        yield world


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("to", ["same", "other", "core"])
def test_a_message_reaches_a_subscriber_on_any_node(world: ClusterWorld, qos: int, to: str) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    places: dict[str, Replicant | ClusterWorld] = {"same": one, "other": two, "core": world}
    where = places[to]
    subscriber = where.client("s", expiry=0)
    subscriber.subscribe("a/+", qos=qos)

    publisher = one.client("p", expiry=0)
    publisher.publish("a/b", b"m", qos=qos)

    assert payloads(subscriber.acknowledge_all()) == [b"m"]


def test_a_node_is_answered_as_soon_as_its_block_is_on_disk(world: ClusterWorld) -> None:
    node = world.replicant("one")
    publisher = node.client("p", expiry=0)
    publisher.send(Publish("a", b"m", 1, False, packet_id=1))
    while not world.is_writing:
        world.turn()
    assert not node.messages_wire.has_arrivals

    world.sync()  # in the callback of the commit, before the core reads anything else

    assert node.messages_wire.has_arrivals


def test_a_node_that_stops_sends_what_it_has_gathered(world: ClusterWorld) -> None:
    node = world.replicant("one")
    publisher = node.client("p", expiry=0)
    for number in range(1, 4):
        publisher.send(Publish("a", b"m", 1, False, packet_id=number))
        world.turn(3)  # the core has it by then, and its disk has not
    assert not node.core_wire.has_arrivals

    node.node.log.flush_all()

    assert node.core_wire.has_arrivals


def test_messages_of_the_core_reach_subscribers_on_a_replicant(world: ClusterWorld) -> None:
    subscriber = world.replicant("one").client("s", expiry=0)
    subscriber.subscribe("a/#", qos=1)

    publisher = world.client("p", expiry=0)
    publisher.publish("a/0", b"0", qos=0)
    publisher.publish("a/1", b"1", qos=1)

    assert payloads(subscriber.acknowledge_all()) == [b"0", b"1"]


def test_unrecorded_messages_reach_every_node_before_they_are_acknowledged() -> None:
    with ClusterWorld(history={"topics": []}) as world:
        one, two = world.replicant("one"), world.replicant("two")
        near, far = one.client("near", expiry=0), two.client("far", expiry=0)
        near.subscribe("a", qos=1)
        far.subscribe("a", qos=1)
        publisher = one.client("p", expiry=0)

        publisher.publish("a", b"m", qos=1)

        assert payloads(near.acknowledge_all()) == [b"m"]
        assert payloads(far.acknowledge_all()) == [b"m"]
        assert world.log.stats().records == 0


def test_a_publisher_is_told_that_nobody_subscribes(world: ClusterWorld) -> None:
    publisher = world.replicant("one").client("p", expiry=0)
    publisher.send(Publish("a", b"m", 1, False, False, 7))

    assert publisher.expect(Puback).reason == 0x10


def test_a_durable_session_continues_on_another_node(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    client = one.client("c")
    client.subscribe("a/#", qos=1)
    client.cut()
    world.settle()
    publisher = two.client("p", expiry=0)
    publisher.publish("a/b", b"1", qos=1)
    publisher.publish("a/b", b"2", qos=1)

    back = two.client("c")

    assert back.connack.session_present
    assert payloads(back.acknowledge_all()) == [b"1", b"2"]
    publisher.publish("a/b", b"3", qos=1)
    assert payloads(back.acknowledge_all()) == [b"3"]


@pytest.mark.parametrize("to", ["core", "two", "one"])
def test_the_newer_of_two_clients_with_one_id_takes_the_session(world: ClusterWorld, to: str) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    old = one.client("c")
    old.subscribe("a", qos=1)
    places: dict[str, Replicant | ClusterWorld] = {"core": world, "two": two, "one": one}
    where = places[to]

    new = where.client("c")

    assert new.connack.session_present
    (left,) = [packet for packet in old.receive() if isinstance(packet, Disconnect)]
    assert left.reason == 0x8E
    assert old.is_closed
    two.client("p", expiry=0).publish("a", b"m", qos=1)
    assert payloads(new.acknowledge_all()) == [b"m"]


def test_a_replicant_takes_the_session_of_a_client_of_the_core(world: ClusterWorld) -> None:
    one = world.replicant("one")
    old = world.client("c")
    old.subscribe("a", qos=1)

    new = one.client("c")

    assert new.connack.session_present
    assert old.is_closed
    world.client("p", expiry=0).publish("a", b"m", qos=1)
    assert payloads(new.acknowledge_all()) == [b"m"]


def test_a_session_moves_with_what_is_in_flight(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    client = one.client("c")
    client.subscribe("a", qos=1)
    world.client("p", expiry=0).publish("a", b"m", qos=1)
    (first,) = [packet for packet in client.receive() if isinstance(packet, Publish)]
    client.cut()
    world.settle()

    back = two.client("c")
    (again,) = [packet for packet in back.receive() if isinstance(packet, Publish)]

    assert (again.payload, again.packet_id, again.dup) == (b"m", first.packet_id, True)


def test_a_clean_start_on_another_node_discards_the_session(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    client = one.client("c")
    client.subscribe("a", qos=1)
    client.cut()
    world.settle()

    clean = two.client("c", clean=True, expiry=0)
    assert not clean.connack.session_present
    clean.cut()
    world.settle()
    assert not one.client("c").connack.session_present


@pytest.mark.parametrize("expiry", [0, 100], ids=["memory", "durable"])
def test_the_will_of_a_lost_client_is_published_by_the_home(world: ClusterWorld, expiry: int) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    watcher = two.client("w", expiry=0)
    watcher.subscribe("will", qos=1)
    client = one.client("c", expiry=expiry, will=Will("will", b"gone", 1, False))

    client.cut()
    world.settle()

    assert payloads(watcher.acknowledge_all()) == [b"gone"]


@pytest.mark.parametrize("expiry", [0, 100], ids=["memory", "durable"])
def test_a_client_that_says_goodbye_leaves_no_will(world: ClusterWorld, expiry: int) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    watcher = two.client("w", expiry=0)
    watcher.subscribe("will", qos=1)
    client = one.client("c", expiry=expiry, will=Will("will", b"gone", 1, False))

    client.disconnect()
    world.settle()
    world.wait(1)

    assert watcher.receive() == []


@pytest.mark.parametrize("expiry", [0, 100], ids=["memory", "durable"])
def test_the_wills_of_a_dead_node_are_published(world: ClusterWorld, expiry: int) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    watcher = two.client("w", expiry=0)
    watcher.subscribe("will", qos=1)
    one.client("c", expiry=expiry, will=Will("will", b"gone", 1, False))

    one.die()

    assert payloads(watcher.acknowledge_all()) == [b"gone"]
    assert two.client("c", expiry=expiry).connack.session_present == (expiry > 0)


def test_routes_of_a_dead_node_are_gone(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    one.client("c", expiry=0).subscribe("a", qos=0)
    assert destinations(two.broker, b"a") == destinations(world.broker, b"a") == 1

    one.die()

    assert destinations(two.broker, b"a") == destinations(world.broker, b"a") == 0


@pytest.mark.parametrize("qos", [0, 1])
def test_retained_messages_of_any_node_reach_new_subscribers_on_any_node(world: ClusterWorld, qos: int) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    one.client("p", expiry=0).publish("a/b", b"kept", qos=qos, retain=True)

    for where in (one, two, world):
        subscriber = where.client("s", expiry=0)
        packets = subscriber.subscribe("a/+", qos=1)
        found = [packet for packet in [*packets, *subscriber.receive()] if isinstance(packet, Publish)]
        assert [(packet.payload, packet.retain) for packet in found] == [(b"kept", True)]
        subscriber.disconnect()
        world.settle()


def test_a_session_that_is_behind_reads_the_log_of_the_core(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    client = one.client("c", receive_maximum=2)
    client.subscribe("a", qos=1)
    publisher = two.client("p", expiry=0)
    for number in range(20):
        publisher.publish("a", b"%d" % number, qos=1)

    received: list[bytes] = []
    while some := client.acknowledge_all():
        received += payloads(some)

    assert received == [b"%d" % number for number in range(20)]


def test_a_replay_reads_the_log_of_the_core(world: ClusterWorld) -> None:
    one = world.replicant("one")
    publisher = one.client("p", expiry=0)
    for number in range(5):
        publisher.publish("a/b", b"%d" % number, qos=1)

    reader = one.client("r", expiry=0)
    packets = reader.subscribe("$replay/earliest/a/#", qos=0)

    found = [packet for packet in [*packets, *reader.receive()] if isinstance(packet, Publish)]
    assert payloads(found) == [b"%d" % number for number in range(5)]


def test_a_node_that_lost_its_connection_goes_on_where_it_was(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    subscriber = one.client("s", expiry=0)
    subscriber.subscribe("a", qos=1)
    publisher = two.client("p", expiry=0)
    publisher.publish("a", b"before", qos=1)
    assert payloads(subscriber.acknowledge_all()) == [b"before"]

    one.cut()
    publisher.publish("a", b"meanwhile", qos=1)
    one.connect()
    publisher.publish("a", b"after", qos=1)

    assert payloads(subscriber.acknowledge_all()) == [b"meanwhile", b"after"]


def test_a_durable_session_outlives_a_node_that_had_lost_its_connection_before(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    one.client("c").subscribe("a", qos=1)
    one.cut()
    one.connect()
    world.client("p", expiry=0).publish("a", b"m", qos=1)

    one.die()

    back = two.client("c")
    assert back.connack.session_present
    assert payloads(back.acknowledge_all()) == [b"m"]


def test_what_was_published_without_a_core_is_recorded_when_it_is_back(world: ClusterWorld) -> None:
    one, two = world.replicant("one"), world.replicant("two")
    subscriber = two.client("s", expiry=0)
    subscriber.subscribe("a", qos=1)
    publisher = one.client("p", expiry=0)
    one.cut()
    publisher.send(Publish("a", b"m", 1, False, False, 7))
    assert publisher.receive() == []

    one.connect()

    assert publisher.expect(Puback).reason == 0
    assert payloads(subscriber.acknowledge_all()) == [b"m"]


def test_what_a_client_sends_before_it_leaves_in_the_same_turn_is_published(world: ClusterWorld) -> None:
    one = world.replicant("one")
    subscriber = one.client("s", expiry=0)
    subscriber.subscribe("a", qos=1)
    publisher = one.client("p", expiry=0)

    publisher.send(Publish("a", b"m", 1, False, False, 7), Disconnect())

    assert payloads(subscriber.acknowledge_all()) == [b"m"]


def test_a_disconnect_can_shorten_the_expiry_of_a_session(world: ClusterWorld) -> None:
    one = world.replicant("one")
    client = one.client("c", expiry=100)
    client.send(Disconnect(0, Properties(session_expiry_interval=0)))

    assert not one.client("c", expiry=100).connack.session_present


def test_a_disconnect_can_change_the_expiry_of_a_session(world: ClusterWorld) -> None:
    one = world.replicant("one")
    client = one.client("c", expiry=100)
    client.send(Disconnect(0, Properties(session_expiry_interval=50)))
    world.settle()

    session = world.broker.sessions.get("c")
    assert session is not None
    assert session.expiry_s == 50


def test_the_rows_of_a_dead_nodes_blocks_are_removed(world: ClusterWorld) -> None:
    one = world.replicant("one")
    one.client("p", expiry=0).publish("a", b"m", qos=1)
    marks = BlockMarks(world.log)
    assert marks.load(one.member.incarnation, one.member.incarnation)

    one.die()

    assert not marks.load(one.member.incarnation, one.member.incarnation)


def test_a_session_learns_on_a_node_what_retention_has_taken(world: ClusterWorld) -> None:
    one = world.replicant("one")
    client = one.client("c")
    client.subscribe("a", qos=1)
    client.cut()
    world.settle()
    publisher = one.client("p", expiry=0)
    publisher.publish("a", b"m", qos=1)
    world.log.retain(world.log.now() + 8 * 86_400_000_000)
    world.settle()
    publisher.publish("b", b"the marks move", qos=1)

    back = one.client("c")

    assert "session-gap" in dict(back.connack.properties.user_properties)


class Unheard:
    """Answers to a claim that its node does not get."""

    def send(self, given: GivenSession) -> None: ...

    def refuse(self, refused: Refused) -> None: ...


def test_a_session_without_subscriptions_survives_a_node_that_dies_as_soon_as_it_has_it(world: ClusterWorld) -> None:
    client = world.client("c")
    client.cut()
    member = world.replicant("one").member
    sessions = world.home.sessions
    claim = NodeClaim(ClaimRequest(1, "c", 1), None, False, 100, None)

    sessions.hand_out(member, claim, 10**9, Unheard())
    sessions.come_back("c", 10**9, Ending.PUBLISH)
    world.settle()

    assert world.client("c").connack.session_present


@pytest.mark.parametrize("qos", [0, 1])
def test_messages_with_qos_0_are_recorded_if_history_wants_them(qos: int) -> None:
    with ClusterWorld(history={"min_qos": 0}) as world:
        one, two = world.replicant("one"), world.replicant("two")
        subscriber = two.client("s", expiry=0)
        subscriber.subscribe("a", qos=1)
        publisher = one.client("p", expiry=0)

        publisher.publish("a", b"m", qos=qos)
        world.settle()

        assert payloads(subscriber.acknowledge_all()) == [b"m"]
        assert world.log.stats().records == 1
        publisher.publish("a", b"and the connection stays", qos=1)
        assert payloads(subscriber.acknowledge_all()) == [b"and the connection stays"]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_client_of_the_core_publishes_for_other_nodes_is_on_disk_first(qos: int) -> None:
    with ClusterWorld(history={"topics": []}) as world:
        one = world.replicant("one")
        subscriber = one.client("s", expiry=0)
        subscriber.subscribe("a", qos=qos)
        publisher = world.client("p", expiry=0)

        publisher.publish("a", b"m", qos=qos)
        publisher.publish("nobody", b"m", qos=qos)

        assert payloads(subscriber.acknowledge_all()) == [b"m"]
        assert world.log.stats().records == 1
        assert payloads(world.client("r", expiry=0).subscribe("$replay/earliest/#")) == [], "history does not show it"
