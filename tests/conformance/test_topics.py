"""Topic names and topic filters: wildcards, ``$``, matching (chapter 4.7)."""

from __future__ import annotations

import pytest

from braidmq.mqtt.packets import Publish, Suback
from tests.conformance.statements import shows
from tests.support.clients import raw
from tests.support.clients.wire import Wires

# Filter and topic below a common prefix, and whether they match: the specification's own examples and their neighbours.
MATCHES = [
    ("sport/tennis/player1/#", "sport/tennis/player1", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
    ("sport/#", "sport", True),
    ("sport/#", "sports", False),
    ("#", "sport/tennis", True),
    ("sport/tennis/+", "sport/tennis/player1", True),
    ("sport/tennis/+", "sport/tennis/player1/ranking", False),
    ("sport/+", "sport", False),
    ("sport/+", "sport/", True),
    ("+", "finance", True),
    ("+/+", "/finance", True),
    ("/+", "/finance", True),
    ("+", "/finance", False),
    ("+/tennis/#", "sport/tennis/x", True),
    ("+/tennis/#", "sport/golf/x", False),
    ("sport/+/player1", "sport/tennis/player1", True),
    ("sport/+/player1", "sport//player1", True),
    ("sport/+/player1", "sport/player1", False),
    ("+/+/#", "a", False),
    ("+/+/#", "a/b", True),
]


@shows("5.0: MQTT-4.7.1-1", "5.0: MQTT-4.7.1-2", "5.0: MQTT-3.3.2-3", "3.1.1: MQTT-4.7.1-2", "3.1.1: MQTT-4.7.1-3")
def test_wildcards_match_as_the_specification_says(connect: Wires, version: int, topic: str) -> None:
    publisher = connect()

    for topic_filter, name, expected in MATCHES:
        subscriber = connect()
        subscriber.subscribe(f"{topic}/{topic_filter}")
        publisher.publish(f"{topic}/{name}", b"x")
        received = subscriber.drain()
        assert len(received) == int(expected), f"{topic_filter} against {name}"
        subscriber.close()


@shows("5.0: MQTT-4.7.2-1", "3.1.1: MQTT-4.7.2-1")
def test_a_leading_wildcard_does_not_match_dollar_topics(connect: Wires, version: int, topic: str) -> None:
    exact, wild, name = connect(), connect(), topic.replace("/", "")
    exact.subscribe("$SYS/#")
    wild.subscribe("#", "+/#", "+/+/+/#")

    # What the broker tells of itself changes within a second or with each client that comes.
    told = exact.receive(Publish)
    connect().publish(f"plain/{name}", b"plain")
    received = [packet.topic for packet in wild.drain() if isinstance(packet, Publish)]

    assert told.topic.startswith("$SYS/")
    assert f"plain/{name}" in received
    assert [found for found in received if found.startswith("$")] == []


@shows("5.0: MQTT-4.7.2-1", "3.1.1: MQTT-4.7.2-1")
@pytest.mark.parametrize("topic_filter", ["#", "+/#", "+/broker/#", "+/+/+"])
def test_a_leading_wildcard_does_not_match_retained_dollar_topics(
    connect: Wires, version: int, topic: str, topic_filter: str
) -> None:
    publisher, exact, wild = connect(), connect(), connect()
    plain = f"plain/broker/{topic.replace('/', '')}"
    publisher.publish(plain, b"plain", 1, retain=True)

    exact.subscribe("$SYS/broker/version")
    assert exact.receive(Publish).retain
    wild.subscribe(topic_filter)
    found = [wild.receive(Publish).topic]
    while found[-1] != plain:
        found.append(wild.receive(Publish).topic)
    found += [packet.topic for packet in wild.drain() if isinstance(packet, Publish)]

    assert [name for name in found if name.startswith("$")] == []


@shows("5.0: MQTT-4.7.3-4", "3.1.1: MQTT-4.7.3-4")
def test_topics_are_compared_byte_by_byte(connect: Wires, version: int, topic: str) -> None:
    publisher = connect()
    # Alike to the eye, to a normaliser or to a path cleaner, but not the same.
    names = ["\u00c5", "A\u030a", "\u212b", "\u00e5", "a//b", "a/b", "/a/b", "a/b/", "a/./b", "A/B", "a b", "a%20b", " a"]

    for wanted in names:
        subscriber = connect()
        subscriber.subscribe(f"{topic}/{wanted}")
        for name in names:
            publisher.send(Publish(f"{topic}/{name}", b""))
        publisher.ping()
        received = subscriber.drain()
        assert [packet.topic for packet in received if isinstance(packet, Publish)] == [f"{topic}/{wanted}"]
        subscriber.close()


@shows("5.0: MQTT-4.7.3-3", "3.1.1: MQTT-4.7.3-3", "5.0: MQTT-4.7.3-1", "3.1.1: MQTT-4.7.3-1")
@pytest.mark.parametrize("name", ["x", "/", "long"])
def test_the_shortest_and_the_longest_topic_are_delivered(connect: Wires, version: int, topic: str, name: str) -> None:
    publisher, subscriber = connect(), connect()
    if name == "long":
        name = topic + "y" * (65_535 - len(topic))
    subscriber.subscribe(name)

    publisher.publish(name, b"payload")

    assert subscriber.receive_frame().raw == raw.publish(version, name, b"payload")


@shows("5.0: MQTT-4.7.1-1", "5.0: MQTT-4.7.1-2")
@pytest.mark.parametrize("topic_filter", ["a#", "a/#/b", "#/a", "a+", "+a", "a/b+/c", "##", "++", "a/+#"])
def test_a_misplaced_wildcard_makes_the_filter_invalid(connect: Wires, version: int, topic_filter: str) -> None:
    client = connect()

    client.send(raw.subscribe(version, (topic_filter, 0)))

    assert client.receive(Suback).reasons == [0x8F]
    client.ping()


@shows("5.0: MQTT-4.7.3-1", "3.1.1: MQTT-4.7.3-1")
@pytest.mark.parametrize("kind", ["subscribe", "unsubscribe"])
def test_an_empty_filter_is_malformed(connect: Wires, version: int, kind: str) -> None:
    client = connect()

    client.send(raw.subscribe(version, ("", 0)) if kind == "subscribe" else raw.unsubscribe(version, ""))

    client.expect_disconnect(0x81)
