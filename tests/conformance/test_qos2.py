"""QoS 2: exactly once, in both directions (chapters 3.5 to 3.7, 4.3.3 and 4.4)."""

from __future__ import annotations

import time

import pytest

from braidmq.mqtt.packets import Pubcomp, Publish, Pubrec, Pubrel
from braidmq.mqtt.properties import Properties
from tests.conformance.statements import shows
from tests.support.clients.wire import Wires, payloads

PUBREC_REASONS = {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}


@shows(
    "5.0: MQTT-4.3.3-1",
    "5.0: MQTT-4.3.3-2",
    "5.0: MQTT-4.3.3-4",
    "5.0: MQTT-4.3.3-5",
    "5.0: MQTT-3.6.1-1",
    "5.0: MQTT-3.6.2-1",
    "3.1.1: MQTT-4.3.3-1",
    "3.1.1: MQTT-3.6.1-1",
)
def test_the_broker_sends_publish_and_then_pubrel(connect: Wires, version: int, topic: str) -> None:
    publisher, subscriber = connect(), connect()
    subscriber.subscribe(topic, qos=2)
    publisher.publish(topic, b"x", 2)

    publish = subscriber.receive(Publish)
    assert publish.packet_id
    assert (publish.qos, publish.dup) == (2, False)
    subscriber.send(Pubrec(publish.packet_id))
    pubrel = subscriber.receive_frame()
    subscriber.send(Pubcomp(publish.packet_id))

    assert pubrel.first_byte == 0x62
    assert pubrel.body[:2] == publish.packet_id.to_bytes(2, "big")
    assert pubrel.body[2:3] in {b"", b"\x00"}
    subscriber.expect_silence()


@shows("5.0: MQTT-4.3.3-3", "5.0: MQTT-4.4.0-1", "3.1.1: MQTT-4.3.3-1", "3.1.1: MQTT-4.4.0-1")
def test_a_publish_without_pubrec_is_resent(connect: Wires, version: int, topic: str) -> None:
    publisher, client = connect(), connect(persistent=True)
    client.subscribe(topic, qos=2)
    publisher.publish(topic, b"x", 2)
    first = client.receive(Publish)
    client.close()

    back = connect(client.client_id, persistent=True)
    again = back.receive(Publish)

    assert (again.packet_id, again.payload, again.qos, again.dup) == (first.packet_id, b"x", 2, True)
    back.acknowledge(again)
    back.expect_silence()


@shows(
    "5.0: MQTT-4.3.3-5",
    "5.0: MQTT-4.3.3-6",
    "5.0: MQTT-4.4.0-1",
    "3.1.1: MQTT-4.3.3-1",
    "3.1.1: MQTT-4.4.0-1",
)
def test_only_pubrel_is_resent_after_pubrec(connect: Wires, version: int, topic: str) -> None:
    publisher, client = connect(), connect(persistent=True)
    client.subscribe(topic, qos=2)
    publisher.publish(topic, b"x", 2)
    identifier = client.receive(Publish).packet_id or 0
    client.send(Pubrec(identifier))
    client.receive(Pubrel)
    client.close()

    for _ in range(2):
        back = connect(client.client_id, persistent=True)
        assert back.receive(Pubrel).packet_id == identifier
        back.expect_silence()
        back.close()
    last = connect(client.client_id, persistent=True)
    last.receive(Pubrel)
    last.send(Pubcomp(identifier))
    last.ping()
    last.close()

    connect(client.client_id, persistent=True).expect_silence()


@shows("5.0: MQTT-4.4.0-2", "5.0: MQTT-4.3.3-4", "5.0: MQTT-3.5.2-1")
def test_a_negative_pubrec_settles_the_message(connect: Wires, version: int, topic: str) -> None:
    publisher, client = connect(), connect(persistent=True)
    client.subscribe(topic, qos=2)
    publisher.publish(topic, b"unwanted", 2)
    identifier = client.receive(Publish).packet_id or 0

    client.send(Pubrec(identifier, 0x83))
    client.expect_silence()
    client.close()

    connect(client.client_id, persistent=True).expect_silence()


@shows("5.0: MQTT-4.3.3-7")
def test_an_inflight_message_is_resent_although_it_has_expired(connect: Wires, version: int, topic: str) -> None:
    publisher, client = connect(), connect(persistent=True)
    client.subscribe(topic, qos=2)
    publisher.publish(topic, b"begun", 2, message_expiry_interval=1)
    identifier = client.receive(Publish).packet_id
    client.close()

    # The message expires without a sign; its time has to pass.
    time.sleep(1.2)
    again = connect(client.client_id, persistent=True).receive_publish()

    assert (again.payload, again.packet_id, again.dup) == (b"begun", identifier, True)


@shows("5.0: MQTT-4.3.3-13", "5.0: MQTT-4.3.3-11")
def test_the_handshake_completes_after_the_message_expired(connect: Wires, version: int, topic: str) -> None:
    publisher = connect()
    publisher.send(Publish(topic, b"x", 2, packet_id=3, properties=Properties(message_expiry_interval=1)))
    publisher.receive(Pubrec)

    # As above, time has to pass.
    time.sleep(1.2)
    publisher.send(Pubrel(3))

    assert publisher.receive(Pubcomp) == Pubcomp(3)


@shows("5.0: MQTT-4.3.3-8", "3.1.1: MQTT-4.3.3-2", "5.0: MQTT-4.5.0-1")
def test_a_qos_2_message_is_delivered_once_pubrec_was_sent(connect: Wires, version: int, topic: str) -> None:
    publisher, subscriber = connect(persistent=True), connect()
    subscriber.subscribe(topic, qos=2)

    publisher.send(Publish(topic, b"owned", 2, packet_id=0x0302))
    assert publisher.receive(Pubrec).packet_id == 0x0302
    publisher.close()
    # A broker may wait for PUBREL before it delivers; the session lets us send it later.
    back = connect(publisher.client_id, persistent=True)
    back.send(Pubrel(0x0302))
    assert back.receive(Pubcomp) == Pubcomp(0x0302)

    assert subscriber.receive_publish().payload == b"owned"
    subscriber.expect_silence()


@shows("5.0: MQTT-4.3.3-10", "5.0: MQTT-4.3.3-11", "3.1.1: MQTT-4.3.3-2")
@pytest.mark.parametrize("reconnect", [False, True])
def test_a_repeated_publish_is_not_delivered_twice(connect: Wires, version: int, topic: str, reconnect: bool) -> None:
    publisher, subscriber = connect(persistent=True), connect()
    subscriber.subscribe(topic, qos=2)
    publisher.send(Publish(topic, b"once", 2, packet_id=5))
    publisher.receive(Pubrec)

    if reconnect:
        publisher.close()
        publisher = connect(publisher.client_id, persistent=True)
        assert publisher.connack.session_present
    for _ in range(3):
        publisher.send(Publish(topic, b"once", 2, dup=True, packet_id=5))
        pubrec = publisher.receive(Pubrec)
        assert pubrec.packet_id == 5
        assert pubrec.reason < 0x80
    publisher.send(Pubrel(5))
    assert publisher.receive(Pubcomp) == Pubcomp(5)

    assert subscriber.receive_publish().payload == b"once"
    subscriber.expect_silence()


@shows("5.0: MQTT-4.3.3-12", "3.1.1: MQTT-4.3.3-2")
@pytest.mark.parametrize("dup", [False, True])
def test_after_pubcomp_the_same_identifier_is_a_new_message(connect: Wires, version: int, topic: str, dup: bool) -> None:
    publisher, subscriber = connect(), connect()
    subscriber.subscribe(topic, qos=2)

    for number in range(3):
        publisher.send(Publish(topic, b"%d" % number, 2, dup=dup and number > 0, packet_id=8))
        publisher.finish_publish(2, 8)

    assert [subscriber.receive_publish().payload for _ in range(3)] == [b"0", b"1", b"2"]


@shows("5.0: MQTT-4.3.3-9", "5.0: MQTT-3.5.2-1")
def test_after_a_negative_pubrec_the_same_identifier_is_a_new_message(connect: Wires, version: int, topic: str) -> None:
    publisher, subscriber = connect(), connect()
    subscriber.subscribe(topic, qos=2)

    publisher.send(Publish("$SYS/" + topic, b"forbidden", 2, packet_id=6))
    refusal = publisher.receive(Pubrec)
    publisher.send(Publish(topic, b"allowed", 2, packet_id=6))
    publisher.finish_publish(2, 6)

    assert (refusal.packet_id, refusal.reason) == (6, 0x87)
    assert subscriber.receive_publish().payload == b"allowed"


@shows("5.0: MQTT-3.5.2-1")
@pytest.mark.parametrize("subscribed", [True, False])
def test_pubrec_has_a_reason_code_that_is_valid_for_it(connect: Wires, version: int, topic: str, subscribed: bool) -> None:
    publisher, subscriber = connect(), connect()
    if subscribed:
        subscriber.subscribe(topic)

    reason = publisher.publish(topic, b"x", 2)

    assert reason in ({0x00} if subscribed else {0x00, 0x10}) & PUBREC_REASONS


@shows("5.0: MQTT-3.7.2-1", "5.0: MQTT-4.3.3-11", "3.1.1: MQTT-4.3.3-2")
def test_pubrel_for_an_unknown_identifier_is_answered(connect: Wires, version: int) -> None:
    client = connect()

    client.send(Pubrel(777))

    assert client.receive(Pubcomp) == Pubcomp(777, 0x92 if version == 5 else 0)


@shows("5.0: MQTT-3.6.2-1")
def test_pubrec_for_an_unknown_identifier_is_answered(connect: Wires, version: int) -> None:
    client = connect()

    client.send(Pubrec(778))

    assert client.receive(Pubrel) == Pubrel(778, 0x92)


@shows(
    "5.0: MQTT-4.6.0-1",
    "5.0: MQTT-4.6.0-3",
    "5.0: MQTT-4.6.0-4",
    "3.1.1: MQTT-4.6.0-1",
    "3.1.1: MQTT-4.6.0-3",
    "3.1.1: MQTT-4.6.0-4",
    "3.1.1: MQTT-4.6.0-6",
)
def test_the_broker_keeps_order_at_qos_2(connect: Wires, version: int, topic: str) -> None:
    publisher, client = connect(), connect(persistent=True)
    client.subscribe(topic, qos=2)
    sent_ids = [100 - number for number in range(16)]

    publisher.send(*[Publish(topic, b"%d" % identifier, 2, packet_id=identifier) for identifier in sent_ids])
    assert [publisher.receive(Pubrec).packet_id for _ in sent_ids] == sent_ids
    publisher.send(*[Pubrel(identifier) for identifier in sent_ids])
    assert [publisher.receive(Pubcomp).packet_id for _ in sent_ids] == sent_ids

    first = client.receive_publishes(16)
    client.close()
    back = connect(client.client_id, persistent=True)
    again = back.receive_publishes(16)
    back.send(*[Pubrec(publish.packet_id or 0) for publish in again])
    released = [back.receive(Pubrel).packet_id for _ in again]

    assert payloads(first) == payloads(again) == [b"%d" % identifier for identifier in sent_ids]
    assert released == [publish.packet_id for publish in again]
