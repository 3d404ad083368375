"""Slow subscribers and fast publishers: queues, waiting publishers, and counted drops."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import pytest

from braidmq.broker.broker import Broker as Inside
from braidmq.broker.connection.connection import Connection
from braidmq.lane.path.channel_reader import HOLD_RATE
from braidmq.lane.path.message import Message
from braidmq.mqtt.packets import MQTT5, MQTT311, Disconnect, Pingreq, Pingresp, Puback, Publish, Will
from braidmq.mqtt.properties import NO_PROPERTIES
from braidmq.mqtt.reasons import Reason
from braidmq.testing import Broker
from tests.support.clients.wire import Wire, payloads, unique
from tests.support.present import present
from tests.support.stage import Stage, wait_until

Start = Callable[..., Stage]


def retain(stage: Stage, count: int, payload: bytes) -> None:
    """Fill the retained store from inside: the way in is not what is tested."""

    def fill(inside: object) -> None:
        for number in range(count):
            stage.inside.retained.put(Message(f"many/{number}".encode(), payload, 1, True, ""), None)

    stage.look(fill)


def acknowledge(client: Wire, came: list[Publish]) -> None:
    """One write for all."""
    client.send(b"".join(b"\x40\x02" + (each.packet_id or 0).to_bytes(2, "big") for each in came))


def test_many_retained_messages_are_sent_as_fast_as_they_are_acknowledged(start: Start) -> None:
    stage = start()
    count = 20_000
    retain(stage, count, b"0123456789")
    client, other = stage.connect(receive_maximum=10), stage.connect()
    client.subscribe("many/#", qos=1)

    seen: set[str] = set()
    while len(seen) < count:
        came = client.receive_publishes(10)
        assert all(each.retain and each.qos == 1 for each in came)
        seen.update(each.topic for each in came)
        if len(seen) == 10:
            client.expect_silence()  # ten are out and none is acknowledged
        if len(seen) % 5000 == 0:
            other.ping()  # nobody else waits for the end of this
            assert stage.look(lambda inside: inside.state.queued_messages) <= 1, "they are not copied into a queue"
        acknowledge(client, came)

    client.expect_silence()


def test_retained_messages_do_not_pile_up_for_a_client_that_stops_reading(start: Start) -> None:
    stage = start(limits={"outbox_bytes_max": "64KiB"})
    retain(stage, 2000, b"x" * 10_000)
    client, other = stage.connect(), stage.connect()
    client.send(b"\x82\x0c\x00\x01\x00\x00\x06many/#\x00")  # QoS 0: no acknowledgement would slow it down

    def waiting() -> int:
        connection = present(present(stage.inside.sessions.get(client.client_id)).connection)
        return int(connection.outbox.size) + int(connection.transport.get_write_buffer_size())

    wait_until(lambda: stage.broker.call(waiting) > 0, "the socket is full")
    for _ in range(20):
        other.ping()
        assert stage.broker.call(waiting) < 512 * 1024

    client.receive_any()  # SUBACK
    assert len({client.receive(Publish).topic for _ in range(2000)}) == 2000
    assert stage.drops("outbox_full") == 0, "paced, not dropped"


def test_retained_delivery_resumes_after_a_lost_connection(start: Start) -> None:
    stage = start()
    retain(stage, 100, b"x")
    client = stage.connect(persistent=True, receive_maximum=5)
    client.subscribe("many/#", qos=1)
    seen = {each.topic for each in client.receive_publishes(5)}
    client.close()

    back = stage.connect(client.client_id, persistent=True, receive_maximum=5)
    while len(seen) < 100:
        seen.add(back.receive_publish().topic)

    back.expect_silence()


@pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["v3.1.1", "v5.0"])
def test_recorded_messages_for_an_offline_client_wait_in_the_log_not_in_its_queue(start: Start, version: int) -> None:
    stage = start(session={"queue_messages_max": 5, "queue_bytes_max": 1024})
    client, sender = stage.connect(version=version, persistent=True), stage.connect(version=version)
    client.subscribe("t", qos=1)
    client.disconnect()

    for number in range(50):
        sender.publish("t", str(number).encode() * 100, 1)
    queued = stage.look(lambda inside: inside.state.queued_messages)
    back = stage.connect(client.client_id, version=version, persistent=True)

    assert [back.receive_publish().payload for _ in range(50)] == [str(number).encode() * 100 for number in range(50)]
    assert queued == 0
    back.expect_silence()
    assert stage.drops("queue_full") == 0


# Without history a message for a session in memory is not recorded, and waits in its queue.
NO_HISTORY: dict[str, list[str]] = {"topics": []}


@pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["v3.1.1", "v5.0"])
def test_the_queue_of_a_client_is_bounded_in_messages(start: Start, version: int) -> None:
    stage = start(history=NO_HISTORY, session={"queue_messages_max": 5, "queue_wait": 0}, mqtt={"inflight_max": 1})
    client, sender = stage.connect(version=version), stage.connect(version=version)
    client.subscribe("t", qos=1)

    for number in range(9):
        sender.publish("t", str(number).encode(), 1)

    assert [client.receive_publish().payload for _ in range(6)] == [str(n).encode() for n in range(6)], "the newest are dropped"
    client.expect_silence()
    assert stage.drops("queue_full") == 3


def test_the_queue_of_a_client_is_bounded_in_bytes(start: Start) -> None:
    stage = start(history=NO_HISTORY, session={"queue_bytes_max": 2048, "queue_wait": 0})
    client, sender = stage.connect(receive_maximum=1), stage.connect()
    client.subscribe("t", qos=1)
    sender.publish("t", b"in flight", 1)

    for number in range(4):
        sender.publish("t", bytes([number]) * 900, 1)
    sender.publish("t", b"small", 1)

    came = [client.receive_publish().payload[:1] for _ in range(4)]
    assert came == [b"i", b"\0", b"\1", b"s"], "what is small still fits"
    client.expect_silence()
    assert stage.drops("queue_full") == 2


@pytest.mark.parametrize("queue_qos0", [False, True])
def test_qos_0_messages_are_queued_for_offline_clients_only_if_configured(start: Start, queue_qos0: bool) -> None:
    stage = start(session={"queue_qos0": queue_qos0})
    client, sender = stage.connect(persistent=True), stage.connect()
    client.subscribe("t", qos=1)
    client.disconnect()

    sender.publish("t", b"x", 0)
    back = stage.connect(client.client_id, persistent=True)

    assert payloads(back.drain()) == ([b"x"] if queue_qos0 else [])
    assert stage.drops("absent") == (0 if queue_qos0 else 1)


def send_many(sender: Wire, count: int) -> None:
    """PUBLISH at QoS 1 without waiting."""
    sender.send(*(Publish("t", str(number).encode(), 1, packet_id=number + 1) for number in range(count)))


def test_a_slow_subscriber_of_recorded_messages_delays_no_publisher_and_loses_nothing(start: Start) -> None:
    stage = start(session={"queue_messages_max": 10, "queue_wait": "1m"})
    slow, sender = stage.connect(receive_maximum=1), stage.connect()
    slow.subscribe("t", qos=1)

    send_many(sender, 1000)
    acknowledged = [sender.receive(Puback).packet_id for _ in range(1000)]

    assert acknowledged == list(range(1, 1001))
    assert stage.look(lambda inside: inside.state.queued_messages) == 0
    assert [slow.receive_publish().payload for _ in range(1000)] == [str(number).encode() for number in range(1000)]
    slow.expect_silence()
    assert stage.drops("queue_full") == 0


def test_publishers_wait_for_a_slow_subscriber_and_nothing_is_lost(start: Start) -> None:
    stage = start(history=NO_HISTORY, session={"queue_messages_max": 100, "queue_wait": "1m"})
    slow, sender, other = stage.connect(receive_maximum=1), stage.connect(), stage.connect()
    slow.subscribe("t", qos=1)

    send_many(sender, 1000)
    wait_until(lambda: stage.look(lambda inside: inside.state.counters.publishers_held) > 0, "the publisher is held")
    queued = stage.look(lambda inside: inside.state.queued_messages)
    other.ping()

    assert queued <= 100
    assert [slow.receive_publish().payload for _ in range(1000)] == [str(number).encode() for number in range(1000)]
    assert [sender.receive(Puback).packet_id for _ in range(1000)] == list(range(1, 1001))
    assert stage.drops("queue_full") == 0


def test_publishers_wait_for_a_bounded_time(start: Start) -> None:
    stage = start(history=NO_HISTORY, session={"queue_messages_max": 10, "queue_wait": "300ms"})
    stuck, sender = stage.connect(receive_maximum=1), stage.connect()
    stuck.subscribe("t", qos=1)
    began = time.monotonic()

    send_many(sender, 50)
    acknowledged = [sender.receive(Puback).packet_id for _ in range(50)]

    assert acknowledged == list(range(1, 51))
    assert time.monotonic() - began > 0.29
    assert stage.drops("queue_full") == 50 - 1 - 10, "one in flight, ten in the queue, the newest dropped"
    assert [stuck.receive_publish().payload for _ in range(11)] == [str(number).encode() for number in range(11)]


def test_many_slow_subscribers_delay_a_publisher_no_longer_than_one(start: Start) -> None:
    stage = start(history=NO_HISTORY, session={"queue_messages_max": 10, "queue_wait": "1s"})
    sender = stage.connect()
    for _ in range(10):
        stage.connect(receive_maximum=1).subscribe("t", qos=1)
    began = time.monotonic()

    send_many(sender, 50)
    acknowledged = [sender.receive(Puback).packet_id for _ in range(50)]

    # One after another they would take ten seconds.
    assert acknowledged == list(range(1, 51))
    assert 0.9 < time.monotonic() - began < 5


def test_a_waiting_publisher_resumes_when_the_slow_subscriber_leaves(start: Start) -> None:
    stage = start(history=NO_HISTORY, session={"queue_messages_max": 10, "queue_wait": "1m"})
    stuck, sender = stage.connect(receive_maximum=1), stage.connect()
    stuck.subscribe("t", qos=1)
    send_many(sender, 50)
    wait_until(lambda: stage.look(lambda inside: inside.state.counters.publishers_held) > 0, "the publisher is held")

    stuck.close()

    assert [sender.receive(Puback).packet_id for _ in range(50)] == list(range(1, 51))


def test_messages_without_a_publisher_delay_no_client(start: Start) -> None:
    stage = start(history=NO_HISTORY, session={"queue_messages_max": 10, "queue_wait": "1m"})
    stuck, sender, bystander = stage.connect(receive_maximum=1), stage.connect(), stage.connect()
    stuck.subscribe("t", qos=1)
    for _ in range(6):
        sender.publish("t", b"", 1)  # one in flight, half of the queue full
    mortal = stage.connect("mortal", will=Will("t", b"one more", 1, False, NO_PROPERTIES))

    mortal.close()
    wait_until(lambda: stage.look(lambda inside: inside.state.queued_messages) == 6, "the will waits as well")

    for _ in range(3):
        bystander.publish("other", b"", 1)
    assert stage.look(lambda inside: inside.state.counters.publishers_held) == 0


def test_a_waiting_publisher_does_not_exceed_its_keep_alive(start: Start) -> None:
    stage = start(history=NO_HISTORY, session={"queue_messages_max": 10, "queue_wait": "3s"})
    stuck = stage.connect(receive_maximum=1)
    stuck.subscribe("t", qos=1)
    sender = stage.connect(keep_alive=1)

    send_many(sender, 50)
    sender.send(Pingreq())

    assert len(sender.receive_until(Pingresp)[0]) == 50, "it was the broker that did not read, for twice the keep alive"


def test_drops_for_a_slow_qos_0_subscriber_are_counted(start: Start) -> None:
    stage = start(limits={"outbox_bytes_max": "64KiB"})
    stuck, sender = stage.connect(), stage.connect()
    stuck.subscribe("t")

    sent = 0
    while stage.drops("outbox_full") == 0:
        sender.send(*[Publish("t", b"x" * 10_000)] * 50)
        sender.ping()
        sent += 50
    dropped = stage.drops("outbox_full")
    sender.publish("end", b"")

    assert len([packet for packet in stuck.drain() if isinstance(packet, Publish)]) == sent - dropped


@pytest.mark.parametrize(
    ("limits", "payload"),
    [({"messages_per_s": 50}, b"x"), ({"bytes_per_s": 5000}, b"x" * 91)],
    ids=["messages", "bytes"],
)
def test_a_rate_limit_slows_only_the_client_that_exceeds_it(start: Start, limits: dict[str, int], payload: bytes) -> None:
    stage = start(limits=limits)
    eager, other = stage.connect(), stage.connect()
    topic = unique("t")[:3]
    began = time.monotonic()

    # A burst of one second's worth is free; the next hundred take two seconds.
    for _ in range(15):
        eager.send(*[Publish(topic, payload)] * 10)
        other.ping()
    other_took_s = time.monotonic() - began
    eager.ping()  # what is read in one go is dealt with in one go, and paid for afterwards
    eager.ping()
    took_s = time.monotonic() - began

    assert 1.9 < took_s < 10.0
    assert other_took_s < took_s / 2
    assert stage.look(lambda inside: inside.state.counters.messages_received) == 150, "slowed down, not dropped"


def kick(stage: Stage, client: Wire) -> None:
    """Close the client's connection from the broker's side: it does not read, so it would not see the client leave."""

    def close(inside: Inside) -> None:
        session = inside.sessions.get(client.client_id)
        assert session is not None
        assert session.connection is not None
        session.connection.close(Reason.ADMINISTRATIVE_ACTION, "")

    stage.look(close)
    client.close()


def is_alive(client_id: str) -> bool:
    """Whether somebody still holds on to a connection of this client."""
    gc.collect()
    return any(isinstance(each, Connection) and each.client_id == client_id for each in gc.get_objects())


def test_a_closed_client_far_above_its_rate_is_released(start: Start) -> None:
    stage = start(limits={"messages_per_s": 1})
    eager = stage.connect()

    def is_held(inside: Inside) -> bool:
        return any(each.hold_bits & HOLD_RATE for each in inside.connections)

    eager.send(*[Publish("t", b"x")] * 1000)
    wait_until(lambda: stage.look(is_held), "it is held, for a quarter of an hour")

    kick(stage, eager)

    wait_until(lambda: not stage.look(lambda inside: is_alive(eager.client_id)), "nothing holds on to the connection")


def test_a_closed_waiting_publisher_is_released(start: Start) -> None:
    stage = start(history=NO_HISTORY, session={"queue_messages_max": 10, "queue_wait": "1m"})
    stuck, sender = stage.connect(receive_maximum=1), stage.connect()
    stuck.subscribe("t", qos=1)
    send_many(sender, 50)
    wait_until(lambda: stage.look(lambda inside: inside.state.counters.publishers_held) > 0, "the publisher is held")

    kick(stage, sender)

    wait_until(lambda: not stage.look(lambda inside: is_alive(sender.client_id)), "nothing holds on to the connection")


def test_a_client_that_is_behind_gets_a_disconnect_when_the_node_stops() -> None:
    broker = Broker().__enter__()
    stopping = threading.Thread(target=broker.__exit__, args=(None, None, None))
    assert broker.node is not None
    connections = broker.node.broker.connections
    Wire(broker.host, broker.port).connect().disconnect()
    wait_until(lambda: not broker.call(lambda: connections), "the first client is gone")
    slow, sender = Wire(broker.host, broker.port).connect(), Wire(broker.host, broker.port).connect()
    slow.subscribe("t")

    def is_behind() -> bool:
        sender.send(*[Publish("t", bytes(10_000))] * 50)
        sender.ping()
        return bool(broker.call(lambda: any(each.transport.get_write_buffer_size() for each in connections)))

    wait_until(is_behind, "the broker has more for the client than the network takes")
    stopping.start()

    assert sender.expect_disconnect(Reason.SERVER_SHUTTING_DOWN)
    goodbye = slow.receive_until(Disconnect)[1]
    stopping.join()
    assert goodbye.reason == Reason.SERVER_SHUTTING_DOWN
