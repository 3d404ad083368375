"""Topic aliases in both directions (chapter 3.3.2.3.4)."""

from __future__ import annotations

from typing import Any

import pytest

from braidmq.mqtt.packets import Puback, Publish
from braidmq.mqtt.properties import Properties
from tests.conformance.statements import shows
from tests.support.clients import raw
from tests.support.clients.wire import Wire, Wires


def aliased(topic: str, alias: int, payload: bytes = b"x") -> Publish:
    """A QoS 0 PUBLISH with a topic alias."""
    return Publish(topic, payload, properties=Properties(topic_alias=alias))


def alias_maximum(client: Wire) -> int:
    """How many aliases the broker takes."""
    return client.connack.properties.topic_alias_maximum or 0


@shows("5.0: MQTT-3.3.2-12")
def test_every_topic_alias_up_to_the_maximum_is_accepted(connect: Wires, version: int, topic: str) -> None:
    publisher, subscriber = connect(), connect()
    subscriber.subscribe(topic + "/#")
    highest = alias_maximum(publisher)
    assert highest > 0

    publisher.send(*[aliased(f"{topic}/{alias}", alias) for alias in range(1, highest + 1)])
    publisher.send(*[aliased("", alias) for alias in range(1, highest + 1)])

    expected = [f"{topic}/{alias}" for alias in range(1, highest + 1)]
    assert [publish.topic for publish in subscriber.receive_publishes(2 * highest)] == expected * 2


@shows("5.0: MQTT-3.3.2-12")
def test_a_topic_alias_can_be_set_to_another_topic(connect: Wires, version: int, topic: str) -> None:
    publisher, subscriber = connect(), connect()
    subscriber.subscribe(topic + "/#")

    publisher.send(aliased(topic + "/a", 1), aliased(topic + "/b", 1), aliased("", 1))

    assert [publish.topic for publish in subscriber.receive_publishes(3)] == [topic + "/a", topic + "/b", topic + "/b"]


@shows("5.0: MQTT-3.3.2-8")
def test_alias_zero_closes_the_connection(connect: Wires, version: int, topic: str) -> None:
    client = connect()

    client.send(raw.publish(version, topic, b"x", props=b"\x23\x00\x00"))

    client.expect_disconnect(0x94)


@shows("5.0: MQTT-3.3.2-9", "5.0: MQTT-3.2.2-17")
def test_an_alias_above_the_maximum_closes_the_connection(connect: Wires, version: int, topic: str) -> None:
    client = connect()

    client.send(aliased(topic, alias_maximum(client) + 1))

    client.expect_disconnect(0x94)


@shows("5.0: MQTT-3.2.2-18")
def test_a_server_without_topic_aliases_rejects_them(connect_small: Wires, version: int, topic: str) -> None:
    client = connect_small()
    assert alias_maximum(client) == 0

    client.send(aliased(topic, 1))

    client.expect_disconnect(0x94)


@shows("5.0: MQTT-4.13.1-1")
def test_an_unknown_topic_alias_closes_the_connection(connect: Wires, version: int) -> None:
    client = connect()

    client.send(aliased("", 1))

    client.expect_disconnect(0x82)


@shows("5.0: MQTT-3.3.2-7")
def test_a_topic_alias_ends_with_its_connection(connect: Wires, version: int, topic: str) -> None:
    client = connect(persistent=True)
    client.send(aliased(topic, 1))
    client.disconnect()

    back = connect(client.client_id, persistent=True)
    back.send(aliased("", 1))

    assert back.connack.session_present
    back.expect_disconnect(0x82)


@shows("5.0: MQTT-3.3.2-7")
def test_an_alias_belongs_to_one_connection(connect: Wires, version: int, topic: str) -> None:
    first, second, subscriber = connect(), connect(), connect()
    subscriber.subscribe(topic + "/#")

    first.send(aliased(topic + "/first", 1))
    first.ping()
    second.send(aliased(topic + "/second", 1))
    second.ping()
    first.send(aliased("", 1))

    topics = [publish.topic for publish in subscriber.receive_publishes(3)]
    assert topics == [topic + "/first", topic + "/second", topic + "/first"]


@shows("5.0: MQTT-3.1.2-26", "5.0: MQTT-3.3.2-11", "5.0: MQTT-3.3.2-8", "5.0: MQTT-3.3.2-7")
@pytest.mark.parametrize("maximum", [1, 3])
def test_the_broker_uses_no_alias_above_the_clients_maximum(connect: Wires, version: int, topic: str, maximum: int) -> None:
    publisher, name = connect(), topic.replace("/", "")
    topics = [f"{topic}/{number % 6}" for number in range(24)]

    # Twice, for the aliases of the first connection must not live on in the second.
    for _ in range(2):
        subscriber = connect(name, topic_alias_maximum=maximum, clean_start=False, session_expiry_interval=60)
        subscriber.subscribe(topic + "/#")
        meanings: dict[int, str] = {}
        understood = []
        for sent in topics:
            publisher.publish(sent)
            publish = subscriber.receive(Publish)
            alias = publish.properties.topic_alias
            assert alias is None or 1 <= alias <= maximum
            if alias is not None and publish.topic:
                meanings[alias] = publish.topic
            understood.append(publish.topic or meanings[alias or 0])
        assert understood == topics
        subscriber.disconnect()


@shows("5.0: MQTT-3.3.2-7", "5.0: MQTT-4.4.0-1")
def test_resent_messages_do_not_use_aliases_of_an_earlier_connection(connect: Wires, version: int, topic: str) -> None:
    publisher, client = connect(), connect(clean_start=False, session_expiry_interval=60, topic_alias_maximum=5)
    client.subscribe(topic, qos=2)
    for number in range(6):
        publisher.publish(topic, b"%d" % number, 1 + number % 2)
    client.receive_publishes(6)
    client.close()

    back = connect(client.client_id, clean_start=False, session_expiry_interval=60)
    again = back.receive_publishes(6)

    assert [(publish.topic, publish.payload) for publish in again] == [(topic, b"%d" % number) for number in range(6)]


@shows("5.0: MQTT-3.3.2-12", "5.0: MQTT-3.3.2-7")
def test_a_stored_message_has_its_topic_instead_of_an_alias(connect: Wires, version: int, topic: str) -> None:
    publisher, client = connect(), connect(persistent=True)
    client.subscribe(topic, qos=1)
    client.disconnect()

    publisher.send(aliased(topic, 3))
    alias = Properties(topic_alias=3)
    publisher.send(Publish("", b"queued", 1, packet_id=1, properties=alias))
    publisher.send(Publish("", b"kept", 1, retain=True, packet_id=2, properties=alias))
    publisher.receive(Puback)
    publisher.receive(Puback)
    publisher.close()
    back, newcomer = connect(client.client_id, persistent=True), connect()
    newcomer.subscribe(topic)

    received = [back.receive_publish(), back.receive_publish(), newcomer.receive(Publish)]
    assert [(publish.topic, publish.payload) for publish in received] == [(topic, b"queued"), (topic, b"kept"), (topic, b"kept")]
    assert {publish.properties.topic_alias for publish in received} == {None}


@shows("5.0: MQTT-3.1.2-27")
@pytest.mark.parametrize("asked", [{}, {"topic_alias_maximum": 0}], ids=["absent", "0"])
def test_a_client_without_topic_aliases_gets_none(connect: Wires, version: int, topic: str, asked: dict[str, Any]) -> None:
    publisher, subscriber = connect(), connect(**asked)
    subscriber.subscribe(topic)

    for _ in range(5):
        publisher.send(aliased(topic, 1))
    received = subscriber.receive_publishes(5)

    assert [publish.topic for publish in received] == [topic] * 5
    assert {publish.properties.topic_alias for publish in received} == {None}
