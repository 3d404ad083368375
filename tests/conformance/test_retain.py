"""Retained messages and the RETAIN flag (chapters 3.3.1.3 and 3.8.3.1)."""

from __future__ import annotations

import pytest

from braidmq.mqtt.packets import Publish, Subscribe, SubscribeOption
from tests.conformance.statements import shows
from tests.support.clients.wire import Wire, Wires, payloads


@pytest.fixture
def marker(connect: Wires, topic: str) -> str:
    """A topic with a retained message: once it has come, those asked for before it have come too."""
    connect().publish(topic + "-marker", b"marker", 1, retain=True)
    return topic + "-marker"


def subscribe_and_collect(client: Wire, marker: str, *options: SubscribeOption) -> list[Publish]:
    """Subscribe, and give the retained messages that this brings, acknowledged."""
    packet_id = client.next_packet_id()
    client.send(Subscribe(packet_id, [*options, SubscribeOption(marker, 0)]))
    found: list[Publish] = []
    while True:
        packet = client.receive_any()
        if not isinstance(packet, Publish):
            continue
        if packet.topic == marker:
            break
        found.append(packet)
        if packet.qos:
            client.acknowledge(packet)
    return found + [packet for packet in client.drain() if isinstance(packet, Publish)]


@shows("5.0: MQTT-3.3.1-5", "3.1.1: MQTT-3.3.1-5", "3.1.1: MQTT-3.3.1-6", "3.1.1: MQTT-3.3.1-8")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_new_subscriber_gets_the_last_retained_message(connect: Wires, version: int, topic: str, marker: str, qos: int) -> None:
    publisher = connect()
    publisher.publish(topic, b"older", 1, retain=True)
    publisher.publish(topic, b"newer", qos, retain=True)

    found = subscribe_and_collect(connect(), marker, SubscribeOption(topic, 2))

    assert [(publish.payload, publish.qos, publish.retain) for publish in found] == [(b"newer", qos, True)]


@shows("5.0: MQTT-3.8.4-8", "3.1.1: MQTT-3.8.4-6")
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_a_retained_message_comes_with_the_lower_qos(connect: Wires, version: int, topic: str, marker: str, granted: int) -> None:
    publisher = connect()
    for qos in (0, 1, 2):
        publisher.publish(f"{topic}/{qos}", b"x", qos, retain=True)

    found = subscribe_and_collect(connect(), marker, SubscribeOption(topic + "/+", granted))

    assert {publish.topic[-1]: publish.qos for publish in found} == {str(qos): min(qos, granted) for qos in (0, 1, 2)}


@shows("3.1.1: MQTT-3.3.1-7")
def test_a_retained_qos_0_message_replaces_the_previous_one(connect: Wires, version: int, topic: str, marker: str) -> None:
    publisher = connect()
    publisher.publish(topic, b"older", 2, retain=True)
    publisher.publish(topic, b"newer", 0, retain=True)

    found = subscribe_and_collect(connect(), marker, SubscribeOption(topic, 2))

    # The new one may be kept or not; the old one must be gone.
    assert payloads(found) in ([b"newer"], [])


@shows("5.0: MQTT-3.3.1-9", "3.1.1: MQTT-3.3.1-6", "3.1.1: MQTT-3.3.1-8")
def test_a_wildcard_subscription_gets_the_retained_message_of_each_topic(
    connect: Wires, version: int, topic: str, marker: str
) -> None:
    publisher = connect()
    for name in ("a", "b", "b/c", "c"):
        publisher.publish(f"{topic}/{name}", name.encode(), 1, retain=True)

    all_found = subscribe_and_collect(connect(), marker, SubscribeOption(topic + "/#", 1))
    level_found = subscribe_and_collect(connect(), marker, SubscribeOption(topic + "/+", 1))

    assert sorted(payloads(all_found)) == [b"a", b"b", b"b/c", b"c"]
    assert sorted(payloads(level_found)) == [b"a", b"b", b"c"]
    assert all(publish.retain for publish in all_found + level_found)


@shows("5.0: MQTT-3.3.1-6", "5.0: MQTT-3.3.1-7", "3.1.1: MQTT-3.3.1-10", "3.1.1: MQTT-3.3.1-11")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_empty_retained_payload_clears_the_topic_and_is_not_stored(
    connect: Wires, version: int, topic: str, marker: str, qos: int
) -> None:
    publisher, subscriber = connect(), connect()
    publisher.publish(topic, b"kept", 1, retain=True)
    subscriber.subscribe(topic + "/#", qos=2)
    assert subscriber.receive_publish().payload == b"kept"

    publisher.publish(topic, b"", qos, retain=True)

    # It is delivered like any other message to those who are subscribed already.
    passed_on = subscriber.receive_publish()
    assert (passed_on.payload, passed_on.qos, passed_on.retain) == (b"", qos, False)
    assert subscribe_and_collect(connect(), marker, SubscribeOption(topic, 0)) == []


@shows("5.0: MQTT-3.3.1-8", "3.1.1: MQTT-3.3.1-12")
@pytest.mark.parametrize("payload", [b"other", b""])
def test_a_message_without_retain_does_not_replace_the_retained_one(
    connect: Wires, version: int, topic: str, marker: str, payload: bytes
) -> None:
    publisher = connect()
    publisher.publish(topic, b"kept", 1, retain=True)
    publisher.publish(topic, payload, 1)
    publisher.publish(topic + "/never", payload, 1)

    found = subscribe_and_collect(connect(), marker, SubscribeOption(topic + "/#", 0))

    assert payloads(found) == [b"kept"]


@shows("5.0: MQTT-3.3.1-12", "3.1.1: MQTT-3.3.1-9")
@pytest.mark.parametrize("retain", [False, True])
def test_retain_is_cleared_for_an_established_subscription(connect: Wires, version: int, topic: str, retain: bool) -> None:
    publisher, subscriber = connect(), connect()
    subscriber.subscribe(topic, qos=1)

    publisher.publish(topic, b"0", 0, retain=retain)
    publisher.publish(topic, b"1", 1, retain=retain)

    assert [subscriber.receive_publish().retain for _ in range(2)] == [False, False]


@shows("5.0: MQTT-3.3.1-13")
def test_retain_as_published_passes_the_flag_on(connect: Wires, version: int, topic: str) -> None:
    publisher, subscriber = connect(), connect()
    subscriber.subscribe(SubscribeOption(topic, 1, retain_as_published=True))

    for retain in (True, False):
        for qos in (0, 1):
            publisher.publish(topic, b"x", qos, retain=retain)

    assert [subscriber.receive_publish().retain for _ in range(4)] == [True, True, False, False]


@shows("5.0: MQTT-3.3.1-9", "5.0: MQTT-3.8.4-4")
def test_retain_handling_0_sends_at_every_subscribe(connect: Wires, version: int, topic: str, marker: str) -> None:
    connect().publish(topic, b"kept", 1, retain=True)
    subscriber = connect()

    found = [payloads(subscribe_and_collect(subscriber, marker, SubscribeOption(topic, 1))) for _ in range(2)]

    assert found == [[b"kept"], [b"kept"]]


@shows("5.0: MQTT-3.3.1-10")
def test_retain_handling_1_sends_for_new_subscriptions_only(connect: Wires, version: int, topic: str, marker: str) -> None:
    connect().publish(topic, b"kept", 1, retain=True)
    subscriber, option = connect(), SubscribeOption(topic, 1, retain_handling=1)

    first = subscribe_and_collect(subscriber, marker, option)
    second = subscribe_and_collect(subscriber, marker, option)
    subscriber.unsubscribe(topic)
    third = subscribe_and_collect(subscriber, marker, option)

    assert [payloads(found) for found in (first, second, third)] == [[b"kept"], [], [b"kept"]]


@shows("5.0: MQTT-3.3.1-11")
def test_retain_handling_2_sends_nothing(connect: Wires, version: int, topic: str, marker: str) -> None:
    publisher, subscriber = connect(), connect()
    publisher.publish(topic, b"kept", 1, retain=True)

    found = subscribe_and_collect(subscriber, marker, SubscribeOption(topic, 1, retain_handling=2))
    publisher.publish(topic, b"live", 1)

    assert found == []
    assert subscriber.receive_publish().payload == b"live"


@shows("3.1.1: MQTT-3.8.4-3")
def test_subscribing_again_sends_the_retained_message_again(connect: Wires, version: int, topic: str, marker: str) -> None:
    publisher, subscriber = connect(), connect()
    publisher.publish(topic, b"kept", 1, retain=True)

    found = [subscribe_and_collect(subscriber, marker, SubscribeOption(topic, qos)) for qos in (0, 1)]
    publisher.publish(topic, b"live", 1)

    assert [[(publish.payload, publish.qos) for publish in turn] for turn in found] == [[(b"kept", 0)], [(b"kept", 1)]]
    # Replaced and not doubled: the message comes once, with the QoS of the second SUBSCRIBE.
    live = subscriber.receive_publish()
    assert (live.payload, live.qos, live.retain) == (b"live", 1, False)
    subscriber.expect_silence()


@shows("5.0: MQTT-3.3.4-3", "5.0: MQTT-3.3.1-9")
def test_a_retained_message_carries_the_subscription_identifier(connect: Wires, version: int, topic: str) -> None:
    connect().publish(topic, b"kept", 1, retain=True)
    subscriber = connect()

    subscriber.subscribe(topic, subscription_identifiers=(77,))

    assert subscriber.receive(Publish).properties.subscription_identifiers == (77,)


@shows("5.0: MQTT-3.3.1-5", "5.0: MQTT-3.3.2-4", "5.0: MQTT-3.3.2-18")
def test_a_retained_message_keeps_its_properties(connect: Wires, version: int, topic: str) -> None:
    pairs = (("z", "1"), ("a", "2"), ("z", "1"))
    connect().publish(
        topic,
        b"kept",
        1,
        retain=True,
        content_type="t/x",
        user_properties=pairs,
        payload_format_indicator=1,
        correlation_data=b"c",
    )
    subscriber = connect()

    subscriber.subscribe(topic)
    properties = subscriber.receive(Publish).properties

    assert properties.user_properties == pairs
    assert (properties.content_type, properties.payload_format_indicator, properties.correlation_data) == ("t/x", 1, b"c")
