"""PUBLISH: flags, topic name, and overlapping subscriptions (chapters 3.3.1, 3.3.2.1 and 3.3.4)."""

from __future__ import annotations

import pytest

from braidmq.mqtt.packets import Puback, Publish, Pubrec, Pubrel, SubscribeOption
from tests.conformance.statements import shows
from tests.support.clients import raw
from tests.support.clients.wire import Wires


@shows("5.0: MQTT-3.3.1-1", "5.0: MQTT-3.3.1-2", "3.1.1: MQTT-3.3.1-1", "3.1.1: MQTT-3.3.1-2")
def test_dup_is_set_on_redelivery_only(connect: Wires, version: int, topic: str) -> None:
    publisher, client = connect(), connect(persistent=True)
    client.subscribe(topic, qos=2)
    for qos in (0, 1, 2):
        publisher.publish(topic, b"%d" % qos, qos)
    first = client.receive_publishes(3)
    client.close()

    back = connect(client.client_id, persistent=True)
    again = back.receive_publishes(2)

    assert [(publish.qos, publish.dup) for publish in first] == [(0, False), (1, False), (2, False)]
    assert [(publish.qos, publish.dup) for publish in again] == [(1, True), (2, True)]


@shows("5.0: MQTT-3.3.1-3", "3.1.1: MQTT-3.3.1-3")
@pytest.mark.parametrize("qos", [1, 2])
def test_dup_is_not_passed_on(connect: Wires, version: int, topic: str, qos: int) -> None:
    publisher, subscriber = connect(), connect()
    subscriber.subscribe(topic, qos=2)

    publisher.send(Publish(topic, b"x", qos, dup=True, packet_id=7))
    publisher.finish_publish(qos, 7)

    assert not subscriber.receive_publish().dup


@shows("5.0: MQTT-3.3.1-2", "3.1.1: MQTT-3.3.1-2")
def test_dup_at_qos_0_is_malformed(connect: Wires, version: int, topic: str) -> None:
    client = connect()

    client.send(raw.publish(version, topic, b"x", flags=0x08))

    client.expect_disconnect(0x81)


@shows("5.0: MQTT-3.3.1-4", "3.1.1: MQTT-3.3.1-4", "3.1.1: MQTT-4.8.0-1", "5.0: MQTT-4.13.1-1")
@pytest.mark.parametrize("flags", [0x06, 0x07, 0x0E])
def test_qos_3_is_malformed(connect: Wires, version: int, topic: str, flags: int) -> None:
    observer, client = connect(), connect()
    observer.subscribe(topic)

    client.send(raw.publish(version, topic, b"x", flags=flags, packet_id=1))

    client.expect_disconnect(0x81)
    observer.expect_silence()


@shows("5.0: MQTT-3.3.2-2", "5.0: MQTT-4.7.0-1", "3.1.1: MQTT-3.3.2-2", "3.1.1: MQTT-4.7.1-1")
@pytest.mark.parametrize("name", ["#", "+", "a/#", "a/+/b", "a+", "a#b"])
def test_a_wildcard_in_a_topic_name_closes_the_connection(connect: Wires, version: int, name: str) -> None:
    client = connect()

    client.send(raw.publish(version, name, b"x"))

    client.expect_disconnect(0x90)


@shows("3.1.1: MQTT-4.7.3-1")
def test_an_empty_topic_name_closes_the_connection(connect: Wires, version: int) -> None:
    client = connect()

    client.send(raw.publish(version, "", b"x"))

    client.expect_closed()


@shows("5.0: MQTT-4.7.3-1")
def test_an_empty_topic_name_needs_an_alias(connect: Wires, version: int) -> None:
    client = connect()

    client.send(raw.publish(version, "", b"x"))

    client.expect_disconnect(0x82)


@shows("5.0: MQTT-3.3.2-3", "3.1.1: MQTT-3.3.2-3")
def test_the_topic_name_arrives_as_it_was_sent(connect: Wires, version: int, topic: str) -> None:
    publisher, subscriber = connect(), connect()
    subscriber.subscribe(topic + "/+/x/#")
    names = [topic + "/a/x", topic + "//x/", topic + "/ä ö/x/Y/z", topic + "/\U0001f600/x"]

    for name in names:
        publisher.publish(name)

    assert [subscriber.receive(Publish).topic for _ in names] == names


@shows("5.0: MQTT-3.3.4-2", "3.1.1: MQTT-3.3.5-1")
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_overlapping_subscriptions_get_the_highest_qos(connect: Wires, version: int, topic: str, order: tuple[int, ...]) -> None:
    publisher, subscriber = connect(), connect()
    for topic_filter, qos in zip((topic + "/#", topic + "/+", topic + "/a"), order, strict=True):
        subscriber.subscribe(topic_filter, qos=qos)

    publisher.publish(topic + "/a", b"x", 2)
    publisher.publish(topic + "/end", b"end")
    copies = []
    while (publish := subscriber.receive_publish()).payload != b"end":
        copies.append(publish.qos)

    # One copy, or several: either way the best of them has the highest QoS, and none may exceed its subscription.
    assert max(copies) == 2
    assert len(copies) in {1, 3}
    if len(copies) == 3:
        assert sorted(copies) == [0, 1, 2]


@shows("5.0: MQTT-3.3.4-3", "5.0: MQTT-3.3.4-4", "5.0: MQTT-3.3.4-5")
def test_a_message_has_the_identifiers_of_all_overlapping_subscriptions(connect: Wires, version: int, topic: str) -> None:
    publisher, subscriber = connect(), connect()
    subscriber.subscribe(topic + "/#", subscription_identifiers=(1,))
    subscriber.subscribe(topic + "/+", subscription_identifiers=(268_435_455,))
    subscriber.subscribe(topic + "/a")

    publisher.publish(topic + "/a", b"x")
    publisher.ping()
    copies = [packet for packet in subscriber.drain() if isinstance(packet, Publish)]

    found = [copy.properties.subscription_identifiers for copy in copies]
    assert sorted(identifier for identifiers in found for identifier in identifiers) == [1, 268_435_455]
    assert len(copies) == 1 or all(len(identifiers) <= 1 for identifiers in found)


@shows("5.0: MQTT-3.3.4-3", "5.0: MQTT-3.8.4-3")
def test_a_changed_subscription_has_its_new_identifier(connect: Wires, version: int, topic: str) -> None:
    publisher, subscriber = connect(), connect()
    identifiers = []

    for properties in ({"subscription_identifiers": (5,)}, {"subscription_identifiers": (200,)}, {}):
        subscriber.subscribe(topic, qos=0, **properties)
        publisher.publish(topic)
        identifiers.append(subscriber.receive(Publish).properties.subscription_identifiers)

    assert identifiers == [(5,), (200,), ()]


@shows("5.0: MQTT-3.3.4-6")
def test_a_client_must_not_send_a_subscription_identifier(connect: Wires, version: int, topic: str) -> None:
    client = connect()

    client.send(raw.publish(version, topic, b"x", props=b"\x0b\x01"))

    client.expect_disconnect(0x82)


@shows("3.1.1: MQTT-3.3.5-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_publish_without_access_is_acknowledged_or_closes_the_connection(connect: Wires, version: int, qos: int) -> None:
    observer, client = connect(), connect()
    observer.subscribe("$SYS/forged/#")

    client.send(Publish("$SYS/forged/by/a/client", b"x", qos, packet_id=1))
    packets = client.drain_or_closed()

    # MQTT 3.1.1 has no word for "not authorised": an ordinary acknowledgement, or the end.
    assert [type(packet).__name__ for packet in packets] in (["Puback"] if qos == 1 else ["Pubrec"], [])
    observer.expect_silence()


@shows("5.0: MQTT-3.3.4-1", "3.1.1: MQTT-3.3.4-1")
def test_each_qos_has_its_acknowledgement(connect: Wires, version: int, topic: str) -> None:
    client = connect()

    client.send(Publish(topic, b"x"))
    client.send(Publish(topic, b"x", 1, packet_id=1))
    client.send(Publish(topic, b"x", 2, packet_id=2))

    assert client.receive(Puback).packet_id == 1
    assert client.receive(Pubrec).packet_id == 2
    client.expect_silence()


@shows("5.0: MQTT-3.3.4-1", "3.1.1: MQTT-3.3.4-1")
def test_a_message_of_each_qos_is_delivered_once(connect: Wires, version: int, topic: str) -> None:
    publisher, subscriber = connect(), connect()
    subscriber.subscribe(SubscribeOption(topic, 2))

    for qos in (0, 1, 2):
        publisher.publish(topic, b"%d" % qos, qos)
        publish = subscriber.receive(Publish)
        assert (publish.payload, publish.qos) == (b"%d" % qos, qos)
        if qos == 2:
            assert publish.packet_id is not None
            subscriber.send(Pubrec(publish.packet_id))
            assert subscriber.receive(Pubrel).packet_id == publish.packet_id
        subscriber.expect_silence()
