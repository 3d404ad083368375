"""QoS 0 and 1: the sender's and the receiver's half of the handshake (chapters 4.3.1, 4.3.2 and 4.4)."""

from __future__ import annotations

import pytest

from braidmq.mqtt.packets import Puback, Publish
from tests.conformance.statements import shows
from tests.support.clients import raw
from tests.support.clients.wire import Wires, payloads

PUBACK_REASONS = {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}


@shows("5.0: MQTT-4.3.1-1", "5.0: MQTT-2.2.1-2", "3.1.1: MQTT-4.3.1-1", "3.1.1: MQTT-2.3.1-5")
@pytest.mark.parametrize(("published", "granted"), [(0, 0), (0, 2), (2, 0), (1, 0)])
def test_a_qos_0_publish_has_neither_packet_identifier_nor_dup(
    connect: Wires, version: int, topic: str, published: int, granted: int
) -> None:
    publisher, subscriber = connect(), connect()
    subscriber.subscribe(topic, qos=granted)

    publisher.publish(topic, b"payload", published)

    # Flags all zero: QoS 0, DUP 0, RETAIN 0; and no packet identifier between topic and payload.
    assert subscriber.receive_frame().raw == raw.publish(version, topic, b"payload")


@shows("5.0: MQTT-4.3.2-1", "5.0: MQTT-4.3.2-2", "3.1.1: MQTT-4.3.2-1", "3.1.1: MQTT-2.3.1-1")
def test_the_first_qos_1_delivery_has_an_unused_packet_identifier(connect: Wires, version: int, topic: str) -> None:
    publisher, subscriber = connect(), connect()
    subscriber.subscribe(topic, qos=1)

    for _ in range(10):
        publisher.publish(topic, b"x", 1)
    received = subscriber.receive_publishes(10)

    assert all(publish.qos == 1 and not publish.dup and publish.packet_id for publish in received)
    assert len({publish.packet_id for publish in received}) == 10


@shows(
    "5.0: MQTT-4.3.2-3",
    "5.0: MQTT-4.4.0-1",
    "5.0: MQTT-3.3.1-1",
    "3.1.1: MQTT-4.3.2-1",
    "3.1.1: MQTT-4.4.0-1",
    "3.1.1: MQTT-2.3.1-4",
)
def test_only_unacknowledged_messages_are_resent(connect: Wires, version: int, topic: str) -> None:
    publisher, client = connect(), connect(persistent=True)
    client.subscribe(topic, qos=1)
    for number in range(5):
        publisher.publish(topic, b"%d" % number, 1)
    first = client.receive_publishes(5)
    client.send(Puback(first[1].packet_id or 0), Puback(first[3].packet_id or 0))
    client.ping()
    client.close()

    back = connect(client.client_id, persistent=True)
    again = back.receive_publishes(3)

    expected = [(first[index].packet_id, b"%d" % index, True) for index in (0, 2, 4)]
    assert [(publish.packet_id, publish.payload, publish.dup) for publish in again] == expected
    for publish in again:
        back.acknowledge(publish)
    back.ping()
    back.close()
    connect(client.client_id, persistent=True).expect_silence()


@shows("5.0: MQTT-4.4.0-1", "3.1.1: MQTT-4.4.0-1")
def test_nothing_is_resent_on_the_same_connection(connect: Wires, version: int, topic: str) -> None:
    publisher, subscriber = connect(), connect()
    subscriber.subscribe(topic, qos=2)
    for qos in (1, 2):
        publisher.publish(topic, b"x", qos)
    subscriber.receive_publishes(2)

    # The broker is given every reason to think of its unacknowledged messages, except a new connection.
    with pytest.raises(TimeoutError):
        subscriber.receive_any(timeout_s=0.5)
    subscriber.subscribe(topic + "/other")
    publisher.publish(topic, b"other")

    assert payloads(subscriber.drain()) == [b"other"]


@shows("5.0: MQTT-4.3.2-4", "5.0: MQTT-4.5.0-1", "3.1.1: MQTT-4.3.2-2")
def test_an_acknowledged_qos_1_message_is_delivered(connect: Wires, version: int, topic: str) -> None:
    publisher, client = connect(), connect(persistent=True)
    client.subscribe(topic, qos=1)
    client.disconnect()

    publisher.send(Publish(topic, b"owned", 1, packet_id=513))
    puback = publisher.receive(Puback)
    publisher.close()

    assert puback.packet_id == 513
    assert connect(client.client_id, persistent=True).receive_publish().payload == b"owned"


@shows("5.0: MQTT-4.3.2-5", "3.1.1: MQTT-4.3.2-2")
@pytest.mark.parametrize("dup", [False, True])
def test_after_puback_the_same_identifier_is_a_new_message(connect: Wires, version: int, topic: str, dup: bool) -> None:
    publisher, subscriber = connect(), connect()
    subscriber.subscribe(topic, qos=1)

    publisher.send(Publish(topic, b"first", 1, packet_id=9))
    publisher.receive(Puback)
    publisher.send(Publish(topic, b"second", 1, dup=dup, packet_id=9))
    publisher.receive(Puback)

    assert [subscriber.receive_publish().payload for _ in range(2)] == [b"first", b"second"]


@shows("5.0: MQTT-3.4.2-1", "5.0: MQTT-4.3.2-4")
@pytest.mark.parametrize(
    ("subscribed", "name", "reasons"),
    [
        pytest.param(True, "{topic}", {0x00}, id="somebody listens"),
        pytest.param(False, "{topic}", {0x00, 0x10}, id="nobody listens"),
        pytest.param(False, "$SYS/{topic}", {0x87}, id="forbidden"),
    ],
)
def test_puback_has_a_reason_code_that_is_valid_for_it(
    connect: Wires, version: int, topic: str, subscribed: bool, name: str, reasons: set[int]
) -> None:
    publisher, subscriber = connect(), connect()
    if subscribed:
        subscriber.subscribe(topic)

    reason = publisher.publish(name.format(topic=topic), b"x", 1)

    assert reason in reasons & PUBACK_REASONS


@shows("5.0: MQTT-4.4.0-2", "5.0: MQTT-3.4.2-1")
def test_a_negative_puback_settles_the_message(connect: Wires, version: int, topic: str) -> None:
    publisher, client = connect(), connect(persistent=True)
    client.subscribe(topic, qos=1)
    publisher.publish(topic, b"unwanted", 1)
    publish = client.receive(Publish)

    client.send(Puback(publish.packet_id or 0, 0x83))
    client.ping()
    client.close()

    connect(client.client_id, persistent=True).expect_silence()


@shows("5.0: MQTT-4.6.0-1", "5.0: MQTT-4.6.0-2", "3.1.1: MQTT-4.6.0-1", "3.1.1: MQTT-4.6.0-2", "3.1.1: MQTT-4.6.0-6")
def test_the_broker_keeps_order_at_qos_1(connect: Wires, version: int, topic: str) -> None:
    publisher, client = connect(), connect(persistent=True)
    client.subscribe(topic, qos=1)

    publisher.send(*[Publish(topic, b"%d" % number, 1, packet_id=100 - number) for number in range(16)])
    assert [publisher.receive(Puback).packet_id for _ in range(16)] == [100 - number for number in range(16)]
    first = client.receive_publishes(16)
    client.close()
    again = connect(client.client_id, persistent=True).receive_publishes(16)

    assert payloads(first) == payloads(again) == [b"%d" % number for number in range(16)]


@shows("5.0: MQTT-4.6.0-5", "5.0: MQTT-4.6.0-6", "3.1.1: MQTT-4.6.0-5", "3.1.1: MQTT-4.6.0-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_of_a_publisher_arrive_in_the_order_sent(connect: Wires, version: int, topic: str, qos: int) -> None:
    publisher = connect()
    exact, wild, away = connect(), connect(), connect(persistent=True)
    exact.subscribe(topic, qos=2)
    wild.subscribe(topic + "/#", qos=2)
    away.subscribe(topic, qos=2)
    away.disconnect()
    sent = [b"%d" % number for number in range(40)]

    for payload in sent:
        publisher.publish(topic, payload, qos)

    for subscriber in (exact, wild):
        assert [subscriber.receive_publish().payload for _ in sent] == sent
    if qos:
        back = connect(away.client_id, persistent=True)
        assert [back.receive_publish().payload for _ in sent] == sent


@shows("5.0: MQTT-2.2.1-4", "5.0: MQTT-4.3.2-1", "3.1.1: MQTT-2.3.1-4", "3.1.1: MQTT-4.3.2-1")
def test_a_packet_identifier_in_use_is_skipped(connect: Wires, version: int, topic: str) -> None:
    publisher, subscriber = connect(), connect()
    subscriber.subscribe(topic, qos=1)
    publisher.publish(topic, b"never acknowledged", 1)
    held = subscriber.receive_frame()
    place = len(raw.text(topic))
    held_id = held.body[place : place + 2]

    # 65 535 identifiers exist; one more round than that, in batches, as bytes for speed.
    batch = b"".join(raw.publish(version, topic, b"x", flags=2, packet_id=number) for number in range(1, 401))
    seen = set()
    for _ in range(65_536 // 400 + 1):
        publisher.send(batch)
        received = [subscriber.receive_frame().body[place : place + 2] for _ in range(400)]
        seen.update(received)
        subscriber.send(b"".join(b"\x40\x02" + identifier for identifier in received))
        for _ in range(400):
            publisher.receive_frame()

    assert len(seen) == 65_534
    assert held_id not in seen
    assert b"\x00\x00" not in seen


@shows("5.0: MQTT-4.3.2-4", "3.1.1: MQTT-4.3.2-2")
def test_a_stray_puback_is_ignored(connect: Wires, version: int, topic: str) -> None:
    client = connect()
    client.subscribe(topic, qos=1)

    client.send(Puback(4242))
    connect().publish(topic, b"x", 1)

    assert client.receive_publish().payload == b"x"
