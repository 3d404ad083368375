"""When things are written: the first message of a turn of the event loop at once, everything else at its end."""

from __future__ import annotations

import pytest

from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.codec import encode
from braidmq.mqtt.packets import MQTT311, Puback, Publish
from tests.support.present import present
from tests.support.simulator.lane import Bench, FakeChannel


class Turns:
    """A bench whose event loop is the test."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.asked = 0
        self.bench.state.on_turn = self._ask
        self.subscriber = self.bench.channel(self.bench.flow("s"))
        self.publishers = [self.bench.channel(self.bench.flow(str(number))) for number in range(3)]
        self.bench.routes.add(Subscription(present(self.subscriber.flow), b"t", 1))
        self.end()

    def _ask(self) -> None:
        self.asked += 1

    def end(self) -> None:
        """All callbacks of the turn have run."""
        self.asked = 0
        self.bench.lane.end_turn()

    def publish(self, publisher: FakeChannel, qos: int = 0) -> None:
        self.send(publisher, Publish("t", b"x", qos, packet_id=1 if qos else None))

    def send(self, publisher: FakeChannel, *packets: Publish) -> None:
        """One read of a publisher."""
        publisher.read(b"".join(encode(packet, MQTT311) for packet in packets))


@pytest.fixture
def turns() -> Turns:
    return Turns()


def test_the_first_message_of_a_turn_is_written_at_once(turns: Turns) -> None:
    turns.publish(turns.publishers[0])

    assert len(turns.subscriber.sent()) == 1
    assert turns.asked == 1, "the end of the turn is asked for once"


def test_further_messages_of_a_turn_are_written_together_at_its_end(turns: Turns) -> None:
    for publisher in turns.publishers:
        turns.publish(publisher)

    assert len(turns.subscriber.sent()) == 1
    assert turns.asked == 1
    turns.end()
    assert len(turns.subscriber.sent()) == 2
    turns.publish(turns.publishers[0])
    assert len(turns.subscriber.sent()) == 1, "the next turn begins anew"


def test_acknowledgements_wait_for_the_end_of_the_turn_and_messages_do_not(turns: Turns) -> None:
    turns.publish(turns.publishers[0], qos=1)

    assert [type(packet) for packet in turns.subscriber.sent()] == [Publish]
    assert turns.publishers[0].sent() == []
    turns.end()
    assert turns.publishers[0].sent() == [Puback(1)]


def test_packets_that_waited_for_room_in_the_outbox_follow_at_the_end_of_the_turn() -> None:
    turns = Turns()
    turns.bench.state.outbox_bytes_max = 40
    flow = turns.subscriber.flow
    assert flow is not None

    for publisher in turns.publishers * 10:
        turns.publish(publisher, qos=1)
    while turns.asked:
        turns.end()

    assert len(turns.subscriber.sent()) == 30
    assert flow.queue_messages() == 0


@pytest.mark.parametrize("qos", [0, 1])
def test_many_publishers_in_one_turn_do_not_fill_the_outbox_of_a_client_that_reads(turns: Turns, qos: int) -> None:
    turns.bench.state.outbox_bytes_max = 10_000

    for publisher in turns.publishers * 3:
        turns.send(publisher, *(Publish("t", bytes(1000), qos, packet_id=number if qos else None) for number in range(1, 5)))
    turns.end()

    assert len(turns.subscriber.sent()) == 36
    assert turns.bench.drops == []


def test_after_a_flush_there_is_room_or_the_transport_is_paused(turns: Turns) -> None:
    turns.publish(turns.publishers[0])  # it has been written to in this turn
    turns.bench.state.outbox_bytes_max = 1000

    turns.send(turns.publishers[1], Publish("t", bytes(2000)))

    assert turns.subscriber.has_room(), "who feeds it goes on from here; nobody else would tell"
