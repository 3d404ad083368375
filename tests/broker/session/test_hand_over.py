"""A session that is handed over leaves nothing behind, and is the same on the next node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.broker.broker import Broker
from braidmq.broker.session.local import LocalRegistry
from braidmq.broker.session.ports import Grant, GrantEnding, NodePorts
from braidmq.mqtt.packets import Disconnect, Puback, Pubcomp, Publish, Pubrec, Pubrel, Will
from braidmq.mqtt.properties import Properties
from braidmq.storage.fences import FenceTable
from tests.broker.session.moving import give_away, move, stored_session, take_in
from tests.support.simulator.peer import Peer, payloads
from tests.support.simulator.world import World

TAKEN_OVER = 0x8E


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


def will(delay_s: int) -> Will:
    return Will("will", b"gone", 1, False, Properties(will_delay_interval=delay_s or None))


def publish(world: World, topic: str, *bodies: bytes, qos: int = 1) -> None:
    publisher = world.connect("p", expiry=0)
    for body in bodies:
        publisher.publish(topic, body, qos)
    publisher.disconnect()


def in_flight(client: Peer) -> dict[bytes, int | None]:
    """What has arrived and is not acknowledged, by payload, with the packet ids."""
    return {each.payload: each.packet_id for each in client.receive() if isinstance(each, Publish)}


def leaves_nothing(world: World) -> bool:
    """Whether the first node has nothing of any session any more."""
    broker = world.broker
    state = broker.state
    counts = (len(broker.sessions), broker.sessions.durable, broker.sessions.will_bytes, broker.subscriptions.count())
    return not any((*counts, len(broker.exclusive), len(broker.groups), state.held_bytes, state.queued_messages))


def test_the_client_of_a_session_that_moves_is_told_and_no_will_is_published(world: World) -> None:
    watcher = world.connect("w", expiry=0)
    watcher.subscribe("will", qos=0)
    client = world.connect("c", will=will(0))

    returned = give_away(world, "c")

    (goodbye,) = [packet for packet in client.take() if isinstance(packet, Disconnect)]
    assert goodbye.reason == TAKEN_OVER
    assert client.is_closed
    assert returned == will(0), "the caller decides what becomes of it"
    world.wait(10_000)
    assert payloads(watcher.receive()) == []
    stored = stored_session(world, "c")
    assert stored is not None
    assert stored.will == will(0)
    assert stored.session.ended_at > 0


def test_messages_in_flight_are_sent_again_with_their_packet_ids_and_in_their_order(world: World) -> None:
    client = world.connect("c")
    client.subscribe("a", qos=2)
    publish(world, "a", b"1", b"2", qos=1)
    publish(world, "a", b"3", b"4", qos=2)
    publish(world, "a", b"5", qos=1)
    ids = in_flight(client)
    assert list(ids) == [b"1", b"2", b"3", b"4", b"5"]
    client.send(Puback(ids[b"2"] or 0), Pubrec(ids[b"3"] or 0))
    client.settle()

    node = move(world, "c")
    again = world.connect("c", node=node)
    packets = again.receive()

    assert again.connack.session_present
    assert [(each.payload, each.packet_id, each.dup) for each in packets if isinstance(each, Publish)] == [
        (b"1", ids[b"1"], True),
        (b"4", ids[b"4"], True),
        (b"5", ids[b"5"], True),
    ]
    assert [each for each in packets if isinstance(each, Pubrel)] == [Pubrel(ids[b"3"] or 0)]
    assert leaves_nothing(world)


def test_a_qos_2_message_from_the_client_is_recorded_once_however_it_moves(world: World) -> None:
    client = world.connect("c")
    client.send(Publish("a", b"once", 2, packet_id=7))
    assert client.expect(Pubrec).packet_id == 7

    node = move(world, "c")
    again = world.connect("c", node=node)
    again.send(Publish("a", b"once", 2, dup=True, packet_id=7))
    assert again.expect(Pubrec).packet_id == 7
    again.send(Pubrel(7))
    assert again.expect(Pubcomp).packet_id == 7

    give_away(world, "c", node)
    stored = stored_session(world, "c")
    assert stored is not None
    assert stored.received == []


def test_a_qos_2_message_that_is_not_recorded_is_published_once_however_its_publisher_moves() -> None:
    with World(history={"topics": []}) as world:
        subscriber = world.connect("s", expiry=0)
        subscriber.subscribe("a", qos=0)
        client = world.connect("c")
        client.send(Publish("a", b"once", 2, packet_id=7))
        assert client.expect(Pubrec).packet_id == 7
        assert payloads(subscriber.receive()) == [b"once"]

        node = move(world, "c")
        other = world.connect("s", node=node, expiry=0)
        other.subscribe("a", qos=0)
        again = world.connect("c", node=node)
        again.send(Publish("a", b"once", 2, dup=True, packet_id=7))

        assert again.expect(Pubrec).packet_id == 7
        assert payloads(other.receive()) == []


def test_what_was_published_meanwhile_is_read_from_the_log(world: World) -> None:
    client = world.connect("c", receive_maximum=1)
    client.subscribe("a", qos=1)
    publish(world, "a", b"1", b"2", b"3")
    assert list(in_flight(client)) == [b"1"], "the rest waits in the log: the session is catching up"

    give_away(world, "c")
    node = world.add_node()
    take_in(world, node, "c")
    again = world.connect("c", node=node)

    assert payloads(again.acknowledge_all()) == [b"1", b"2", b"3"]
    assert leaves_nothing(world)


def test_a_session_that_moves_while_it_catches_up_gets_every_message_once(world: World) -> None:
    client = world.connect("c", receive_maximum=2)
    client.subscribe("a", qos=2)
    client.cut()
    world.settle()
    bodies = [b"%d" % number for number in range(20)]
    publish(world, "a", *bodies, qos=2)
    client = world.connect("c", receive_maximum=2)
    got: list[bytes] = []
    for packet in client.receive():
        assert isinstance(packet, Publish)
        got.append(packet.payload)
        client.send(Pubrec(packet.packet_id or 0))
    client.settle()
    for packet in client.take():
        assert isinstance(packet, Pubrel)

    node = move(world, "c")
    again = world.connect("c", node=node)

    assert got + payloads(again.acknowledge_all()) == bodies
    assert leaves_nothing(world)


def test_a_replay_goes_on_where_it_was() -> None:
    with World(history={"topics": ["#"]}) as world:
        bodies = [b"%d" % number for number in range(10)]
        publish(world, "a", *bodies)
        client = world.connect("c", receive_maximum=3)
        packets = client.subscribe("$replay/earliest/a", qos=1)
        got = payloads(packets)
        for packet in packets:
            assert isinstance(packet, Publish)
            client.send(Puback(packet.packet_id or 0))
        repeated = payloads(client.receive())  # sent and not acknowledged

        node = move(world, "c")
        again = world.connect("c", node=node, receive_maximum=3)

        assert got + payloads(again.acknowledge_all()) == bodies
        assert repeated
        assert leaves_nothing(world)


def test_a_session_that_waits_moves_with_the_rest_of_its_will_delay(world: World) -> None:
    world.connect("c", expiry=100, will=will(50)).cut()
    world.settle()
    world.wait(30)

    give_away(world, "c")
    session = world.broker.sessions.get("c")
    node = world.add_node()
    watcher = world.connect("w", node=node, expiry=0)
    watcher.subscribe("will", qos=0)
    moved = take_in(world, node, "c")

    assert session is None
    assert moved.will == will(50)
    world.wait(51)  # the wall clock, by which rows tell the time, has not moved in this world
    assert payloads(watcher.receive()) == [b"gone"]
    world.wait(100)
    assert node.sessions.get("c") is None, "it expires where it waits"
    assert stored_session(world, "c") is None


def test_a_member_of_a_shared_group_takes_the_groups_place_with_it(world: World) -> None:
    member = world.connect("c", receive_maximum=2)
    member.subscribe("$share/g/a", qos=1)
    publish(world, "a", b"1", b"2", b"3")
    ids = in_flight(member)
    assert list(ids) == [b"1", b"2"]
    member.send(Puback(ids[b"1"] or 0))
    member.settle()

    node = move(world, "c")

    assert leaves_nothing(world)
    again = world.connect("c", node=node)
    assert sorted(payloads(again.acknowledge_all())) == [b"2", b"3"]
    assert len(node.groups) == 1


def test_qos_2_of_a_shared_group_stays_with_its_session(world: World) -> None:
    member = world.connect("c", receive_maximum=1)
    member.subscribe("$share/g/a", qos=2)
    publish(world, "a", b"1", b"2", qos=2)
    ids = in_flight(member)
    assert list(ids) == [b"1"]

    node = move(world, "c")
    again = world.connect("c", node=node, receive_maximum=1)

    got = again.acknowledge_all()
    assert [(each.payload, each.dup) for each in got] == [(b"1", True), (b"2", False)]
    assert got[0].packet_id == ids[b"1"]


def test_other_members_get_what_a_member_that_moves_had_not_acknowledged(world: World) -> None:
    member = world.connect("c")
    member.subscribe("$share/g/a", qos=1)
    publish(world, "a", b"1")
    assert payloads(member.receive()) == [b"1"]
    other = world.connect("d")
    other.subscribe("$share/g/a", qos=1)

    give_away(world, "c")

    assert payloads(other.acknowledge_all()) == [b"1"]


def test_an_exclusive_topic_moves_with_its_session(world: World) -> None:
    world.connect("c").subscribe("$exclusive/t")

    give_away(world, "c")
    assert world.broker.exclusive.is_free(b"t", "other")
    node = world.add_node()
    take_in(world, node, "c")

    assert not node.exclusive.is_free(b"t", "other")


def test_a_session_with_many_subscriptions_leaves_the_routes_in_slices(world: World) -> None:
    client = world.connect("c")
    client.subscribe(*(f"t/{number}" for number in range(250)), qos=1)

    node = move(world, "c")

    assert leaves_nothing(world)
    moved = node.sessions.get("c")
    assert moved is not None
    assert set(moved.subscriptions) == {f"t/{number}" for number in range(250)}


def test_a_session_that_a_newcomer_only_holds_moves_with_its_own_terms(world: World) -> None:
    world.connect("c", expiry=100, will=will(50)).cut()
    world.settle()
    newcomer = world.open()
    newcomer.request_connect("c", expiry=7, will=will(3))

    returned = give_away(world, "c")

    assert returned == will(50)
    assert newcomer.is_closed
    stored = stored_session(world, "c")
    assert stored is not None
    assert (stored.session.expiry_s, stored.will) == (100, will(50))
    assert leaves_nothing(world)


def test_a_memory_session_that_is_handed_over_is_over(world: World) -> None:
    client = world.connect("c", expiry=0, will=will(0))
    client.subscribe("a", "$exclusive/t", "$share/g/b", qos=1)

    returned = give_away(world, "c")

    assert client.is_closed
    assert returned == will(0)
    assert leaves_nothing(world)
    assert stored_session(world, "c") is None


def test_a_session_comes_back_to_a_node_that_it_has_left(world: World) -> None:
    client = world.connect("c")
    client.subscribe("a", qos=1)
    publish(world, "a", b"1")
    assert payloads(client.receive()) == [b"1"]

    give_away(world, "c")
    publish(world, "a", b"2")
    take_in(world, world.broker, "c")
    publish(world, "a", b"3")
    again = world.connect("c")

    assert payloads(again.acknowledge_all()) == [b"1", b"2", b"3"]


class GreedyRegistry(LocalRegistry):
    """Lets another node have the session as soon as its connection has ended."""

    broker: Broker | None = None

    def end(self, grant: Grant, *, keeps_session: bool, ending: GrantEnding) -> None:
        super().end(grant, keeps_session=keeps_session, ending=ending)
        session = self.broker.sessions.get(grant.client_id) if self.broker is not None else None
        if self.broker is not None and session is not None and session.connection is None:
            self.broker.lifecycle.hand_over(session)


@pytest.mark.parametrize("is_told", [True, False])
def test_a_session_may_be_handed_over_as_soon_as_its_connection_has_ended(is_told: bool) -> None:
    registry = GreedyRegistry(FenceTable())
    with World(ports=NodePorts(registry=registry)) as world:
        watcher = world.connect("w", expiry=0)
        watcher.subscribe("will", qos=0)
        world.connect("c", expiry=100, will=will(50)).cut()
        world.settle()
        registry.broker = world.broker
        client = world.open()
        client.request_connect("c", expiry=100, will=will(50))
        if is_told:
            world.settle()

        client.cut()
        world.wait(10_000)

        assert world.broker.sessions.get("c") is None
        assert payloads(watcher.receive()) == [], "no timer was left behind"
        stored = stored_session(world, "c")
        assert stored is not None
        assert stored.will == will(50)


def test_subscriptions_that_are_no_longer_allowed_are_removed_when_a_session_arrives(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = world.connect("c")
    client.subscribe("public", "secret", qos=1)
    give_away(world, "c")
    node = world.add_node()

    class Rules:
        unrestricted = False

        def may_subscribe(self, topic_filter: str) -> bool:
            return topic_filter == "public"

    monkeypatch.setattr(node.access, "rules_for", lambda *_: Rules())
    session = take_in(world, node, "c")
    world.settle()

    assert set(session.subscriptions) == {"public"}
    stored = stored_session(world, "c")
    assert stored is not None
    assert [each.written for each in stored.subscriptions] == ["public"]
