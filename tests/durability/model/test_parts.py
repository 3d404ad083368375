"""Messages that are delivered in parts, over several turns: whatever clients do in between, each has each message once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.mqtt.packets import Packet, Publish, Pubrec, Subscribe, SubscribeOption
from tests.support.simulator.peer import Peer, payloads
from tests.support.simulator.world import World

SUBSCRIBERS = 4


def publish_some(publisher: Peer, first: int, count: int) -> None:
    publisher.send(*(Publish("t", b"%d" % number, 2, packet_id=number) for number in range(first, first + count)))


def ids(packets: list[Packet]) -> dict[int | None, bytes]:
    """The payloads among these by their packet ids."""
    return {packet.packet_id: packet.payload for packet in packets if isinstance(packet, Publish)}


class Crowd:
    """Durable sessions that never acknowledge: what they have stays in flight, and comes again under its packet id."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.peers: list[Peer | None] = [world.connect(f"s{number}") for number in range(SUBSCRIBERS)]
        for peer in self.peers:
            assert peer is not None
            peer.subscribe("t")
        self.inflight: list[dict[int | None, bytes]] = [{} for _ in self.peers]

    def take(self, number: int) -> None:
        peer = self.peers[number]
        if peer is not None:
            self.inflight[number].update(ids(peer.take()))

    def got(self, number: int) -> list[bytes]:
        """What it has, in the order of the messages."""
        self.take(number)
        return sorted(self.inflight[number].values(), key=int)

    def cut(self, number: int) -> None:
        self.take(number)
        peer = self.peers[number]
        if peer is not None:
            peer.cut()
            self.peers[number] = None

    def come_back(self, number: int) -> None:
        if self.peers[number] is None:
            peer = self.peers[number] = self.world.open()
            peer.request_connect(f"s{number}")


actions = st.lists(
    st.tuples(
        st.sampled_from(["publish", "publish", "turn", "sync", "cut", "cut", "back", "tick"]), st.integers(0, SUBSCRIBERS - 1)
    ),
    min_size=5,
    max_size=40,
)


@settings(max_examples=60)
@given(actions=actions)
def test_clients_that_reconnect_between_two_parts_get_each_message_once(actions: list[tuple[str, int]]) -> None:
    with World(work_max=1) as world:
        crowd = Crowd(world)
        publisher = world.connect("p")
        sent = 0
        for action, number in actions:
            if action == "publish" and sent < 30:
                publish_some(publisher, sent + 1, 2)
                sent += 2
                world.turn(2)
                world.sync()  # the first part of the first message is delivered
            elif action == "turn":
                world.turn()
            elif action == "sync":
                world.sync()
            elif action == "cut":
                crowd.cut(number)
            elif action == "back":
                crowd.come_back(number)
            elif action == "tick":
                world.tick()
        for number in range(SUBSCRIBERS):
            crowd.come_back(number)
        world.settle()

        numbers = [b"%d" % number for number in range(1, sent + 1)]
        for number in range(SUBSCRIBERS):
            assert crowd.got(number) == numbers
        answers = publisher.take()
        assert [each.packet_id for each in answers if isinstance(each, Pubrec)] == list(range(1, sent + 1))


def test_a_replay_that_ends_between_two_parts_misses_nothing() -> None:
    for turns in range(12):
        with World(work_max=1) as world:
            crowd = Crowd(world)
            publisher = world.connect("p")
            publish_some(publisher, 1, 3)
            world.settle()
            late = world.connect("late")
            publish_some(publisher, 4, 3)
            world.turn(3)
            world.sync()

            world.turn(turns)
            late.send(Subscribe(1, [SubscribeOption("$replay/earliest/t", 2)]))
            world.tick(2)  # a reader that meets a message in parts looks again after a moment

            assert payloads(late.receive()) == [b"%d" % number for number in range(1, 7)], f"after {turns} turns"
            assert crowd.got(0) == [b"%d" % number for number in range(1, 7)]


def test_a_group_delivers_each_message_once_with_others_between_the_parts() -> None:
    for turns in range(12):
        with World(work_max=1) as world:
            crowd = Crowd(world)
            member = world.connect("member")
            member.subscribe("$share/g/t")
            publisher = world.connect("p")
            publish_some(publisher, 1, 3)
            world.turn(3)
            world.sync()
            world.turn(turns)
            inflight = ids(member.take())
            member.cut()
            publish_some(publisher, 4, 2)

            member = world.connect("member")
            world.tick(2)

            inflight.update(ids(member.receive()))
            assert sorted(inflight.values()) == [b"1", b"2", b"3", b"4", b"5"], f"after {turns} turns"
            assert crowd.got(1) == [b"1", b"2", b"3", b"4", b"5"]


def test_a_publisher_that_reconnects_between_two_parts_gets_one_pubrec_for_each_publish() -> None:
    with World(work_max=1) as world:
        Crowd(world)
        publisher = world.connect("p")
        publish_some(publisher, 1, 3)
        world.turn()
        publisher.cut()

        publisher = world.connect("p")
        assert publisher.take() == [], "answered before it was sent on this connection"
        publisher.send(*(Publish("t", b"%d" % number, 2, dup=True, packet_id=number) for number in (1, 2, 3)))

        assert publisher.receive() == [Pubrec(1), Pubrec(2), Pubrec(3)]
