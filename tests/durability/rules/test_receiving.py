"""QoS 2 from returning clients: how many messages may be in flight, and which are answered while old ones are read again."""

from __future__ import annotations

import pytest

from braidmq.broker.reading.recall import Recall
from braidmq.mqtt.packets import Connack, Disconnect, Pubcomp, Publish, Pubrec, Pubrel, Suback, Subscribe, SubscribeOption
from tests.support.simulator.peer import Peer
from tests.support.simulator.world import World


def leave_two_unreleased(world: World) -> None:
    """A durable client has two messages at PUBREC when its connection is lost."""
    client = world.connect("c")
    client.send(*(Publish("t", b"old", 2, packet_id=packet_id) for packet_id in (1, 2)))
    assert [type(packet) for packet in client.receive()] == [Pubrec, Pubrec]
    client.cut()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_receive_maximum_begins_anew_with_each_connection(is_restarted: bool) -> None:
    with World(mqtt={"receive_maximum": 2}) as world:
        leave_two_unreleased(world)
        if is_restarted:
            world.crash()

        # One that has lost its state, and so will never release them.
        client = world.connect("c")
        client.send(*(Publish("t", b"new", 2, packet_id=packet_id) for packet_id in (3, 4)))

        assert client.receive() == [Pubrec(3, 0x10), Pubrec(4, 0x10)]


def test_a_released_message_makes_room_when_pubrel_is_read_not_when_it_is_on_disk() -> None:
    with World(mqtt={"receive_maximum": 2}) as world:
        client = world.connect("c")
        client.send(*(Publish("t", b"old", 2, packet_id=packet_id) for packet_id in (1, 2)))
        client.receive()

        client.send(Pubrel(1), Publish("t", b"new", 2, packet_id=3))

        assert sorted(client.receive(), key=repr) == [Pubcomp(1), Pubrec(3, 0x10)]


def test_messages_that_cannot_be_stored_do_not_count_as_in_flight() -> None:
    with World(mqtt={"receive_maximum": 2}) as world:
        client = world.connect("c")
        world.fill_disk()
        for packet_id in range(1, 5):
            client.send(Publish("t", b"", 2, packet_id=packet_id))
            assert client.receive() == [Pubrec(packet_id, 0x97)]


@pytest.mark.parametrize("expiry", [0, 1000])
def test_more_in_flight_than_the_receive_maximum_is_still_refused(expiry: int) -> None:
    with World(mqtt={"receive_maximum": 2}) as world:
        client = world.connect("c", expiry=expiry)
        client.send(*(Publish("t", b"", 2, packet_id=packet_id) for packet_id in (1, 2, 1, 3)))

        last = client.receive()[-1]
        assert isinstance(last, Disconnect)
        assert last.reason == 0x93


def come_back_during_recall(world: World, monkeypatch: pytest.MonkeyPatch) -> tuple[Peer, list[bool]]:
    """A subscriber with a message in flight is back after a crash; what it had is not read before the list is emptied."""
    world.connect("p").publish("r/1", b"kept", 0, retain=True)
    subscriber = world.connect("s")
    subscriber.subscribe("t", qos=1)
    world.connect("p").publish("t", b"in flight", 1)
    subscriber.receive()
    world.tick(2)
    world.crash()
    waits = [True]
    real = Recall.run

    def run(recall: Recall) -> bool:
        return not waits and real(recall)

    monkeypatch.setattr(Recall, "run", run)
    subscriber = world.open()
    subscriber.request_connect("s")
    go_on(world)
    assert [type(packet) for packet in subscriber.take()] == [Connack]
    return subscriber, waits


def go_on(world: World) -> None:
    """For a while, as a broker that reads does not come to rest."""
    for _ in range(10):
        world.turn(5)
        world.sync()


def test_a_client_that_publishes_while_old_messages_are_read_again_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    with World() as world:
        subscriber, waits = come_back_during_recall(world, monkeypatch)

        subscriber.send(Publish("other", b"", 2, packet_id=77))
        go_on(world)

        assert [packet for packet in subscriber.take() if isinstance(packet, Pubrec)] == [Pubrec(77, 0x10)]
        waits.clear()
        assert [packet.payload for packet in subscriber.receive() if isinstance(packet, Publish)] == [b"in flight"]


def test_retained_messages_wait_while_old_messages_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with World() as world:
        subscriber, waits = come_back_during_recall(world, monkeypatch)

        subscriber.send(Subscribe(5, [SubscribeOption("r/#", 0)]))
        go_on(world)
        assert [type(packet) for packet in subscriber.take()] == [Suback]
        waits.clear()

        assert [packet.payload for packet in subscriber.receive() if isinstance(packet, Publish)] == [b"in flight", b"kept"]
