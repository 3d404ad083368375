"""What PUBLISH carries beside topic and payload: properties, message expiry (chapter 3.3.2.3)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from braidmq.mqtt.packets import Publish
from braidmq.mqtt.properties import Properties
from tests.conformance.statements import shows
from tests.support.clients import raw
from tests.support.clients.wire import Wires


@shows(
    "5.0: MQTT-3.3.2-4",
    "5.0: MQTT-3.3.2-15",
    "5.0: MQTT-3.3.2-16",
    "5.0: MQTT-3.3.2-17",
    "5.0: MQTT-3.3.2-18",
    "5.0: MQTT-3.3.2-20",
)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_are_passed_on_unchanged_and_in_order(connect: Wires, version: int, topic: str, qos: int) -> None:
    publisher, subscribers = connect(), [connect(), connect()]
    for subscriber in subscribers:
        subscriber.subscribe(topic, qos=qos)
    sent: dict[str, Any] = {
        "payload_format_indicator": 1,
        "content_type": "application/x-ä",
        "response_topic": topic + "/answer",
        "correlation_data": b"\x00\x01\xfe\xff",
        "user_properties": (("b", "2"), ("a", "1"), ("b", "2"), ("B", ""), ("", "x")),
    }

    publisher.publish(topic, b"payload", qos, **sent)

    for subscriber in subscribers:
        assert subscriber.receive_publish().properties == Properties(**sent)


@shows("5.0: MQTT-3.3.2-4")
@pytest.mark.parametrize("indicator", [0, 1])
def test_the_payload_format_indicator_is_passed_on(connect: Wires, version: int, topic: str, indicator: int) -> None:
    publisher, subscriber = connect(), connect()
    subscriber.subscribe(topic)

    publisher.publish(topic, b"text", payload_format_indicator=indicator)

    # 0 means the same as none.
    assert (subscriber.receive(Publish).properties.payload_format_indicator or 0) == indicator


@shows("5.0: MQTT-3.3.2-17", "5.0: MQTT-3.3.2-18")
def test_properties_survive_the_offline_queue(connect: Wires, version: int, topic: str) -> None:
    publisher, client = connect(), connect(persistent=True)
    client.subscribe(topic, qos=1)
    client.disconnect()
    pairs = (("2", "x"), ("1", "y"), ("2", "x"))

    publisher.publish(topic, b"x", 1, user_properties=pairs, response_topic="r", correlation_data=b"c", content_type="t")
    properties = connect(client.client_id, persistent=True).receive_publish().properties

    assert properties == Properties(user_properties=pairs, response_topic="r", correlation_data=b"c", content_type="t")


@shows("5.0: MQTT-3.3.2-14")
@pytest.mark.parametrize("response_topic", ["a/#", "+/b"])
def test_a_wildcard_in_the_response_topic_closes_the_connection(
    connect: Wires, version: int, topic: str, response_topic: str
) -> None:
    observer, client = connect(), connect()
    observer.subscribe(topic)

    client.send(raw.publish(version, topic, b"x", props=b"\x08" + raw.text(response_topic)))

    # The statement gives no code; each of these says what is wrong.
    client.expect_disconnect(0x81, 0x82, 0x90)
    observer.expect_silence()


@shows("5.0: MQTT-3.3.2-5", "5.0: MQTT-3.3.2-6")
def test_an_expired_message_is_dropped_and_others_have_their_remaining_expiry(connect: Wires, version: int, topic: str) -> None:
    publisher, client = connect(), connect(persistent=True)
    client.subscribe(topic, qos=2)
    client.disconnect()
    publisher.publish(topic, b"brief", 1, message_expiry_interval=1)
    publisher.publish(topic, b"brief too", 2, message_expiry_interval=1)
    publisher.publish(topic, b"long", 1, message_expiry_interval=100)
    publisher.publish(topic, b"for ever", 1)

    # A message tells nobody that it has expired; its time has to pass.
    time.sleep(2.1)
    back = connect(client.client_id, persistent=True)
    first, second = back.receive_publish(), back.receive_publish()

    assert (first.payload, second.payload) == (b"long", b"for ever")
    assert first.properties.message_expiry_interval in {97, 98}
    assert second.properties.message_expiry_interval is None
    back.expect_silence()


@shows("5.0: MQTT-3.3.2-5", "5.0: MQTT-3.3.2-6")
def test_a_message_can_expire_while_the_window_is_full(connect: Wires, version: int, topic: str) -> None:
    publisher, subscriber = connect(), connect(receive_maximum=1)
    subscriber.subscribe(topic, qos=1)
    publisher.publish(topic, b"in flight", 1)
    publisher.publish(topic, b"brief", 1, message_expiry_interval=1)
    publisher.publish(topic, b"long", 1, message_expiry_interval=100)
    blocking = subscriber.receive(Publish)

    # As above, time has to pass.
    time.sleep(1.2)
    subscriber.acknowledge(blocking)
    next_one = subscriber.receive_publish()

    assert next_one.payload == b"long"
    assert next_one.properties.message_expiry_interval in {98, 99}


@shows("5.0: MQTT-3.3.2-6")
def test_a_message_forwarded_at_once_keeps_its_expiry(connect: Wires, version: int, topic: str) -> None:
    publisher, subscriber = connect(), connect()
    subscriber.subscribe(topic)

    publisher.publish(topic, b"x", message_expiry_interval=100)

    assert subscriber.receive(Publish).properties.message_expiry_interval in {99, 100}


@shows("5.0: MQTT-3.3.2-5", "5.0: MQTT-3.3.2-6")
def test_a_retained_message_expires_and_has_its_remaining_expiry_until_then(connect: Wires, version: int, topic: str) -> None:
    publisher = connect()
    publisher.publish(topic + "/brief", b"x", 1, retain=True, message_expiry_interval=1)
    publisher.publish(topic + "/long", b"x", 1, retain=True, message_expiry_interval=100)

    # As above, time has to pass.
    time.sleep(1.2)
    subscriber = connect()
    subscriber.subscribe(topic + "/+")

    found = subscriber.receive(Publish)
    assert found.topic == topic + "/long"
    assert found.properties.message_expiry_interval in {98, 99}
    subscriber.expect_silence()


@shows("5.0: MQTT-3.3.2-6")
@pytest.mark.parametrize("qos", [0, 1])
def test_a_retained_message_for_a_slow_client_has_its_remaining_expiry(
    connect: Wires, version: int, topic: str, qos: int
) -> None:
    publisher, subscriber = connect(), connect(receive_maximum=1)
    publisher.publish(topic, b"kept", 1, retain=True, message_expiry_interval=100)
    subscriber.subscribe(topic + "/busy", qos=1)
    publisher.publish(topic + "/busy", b"fills the window", 1)
    blocking = subscriber.receive(Publish)

    # As above, time has to pass.
    time.sleep(1.2)
    subscriber.subscribe(topic, qos=qos)
    subscriber.acknowledge(blocking)

    assert subscriber.receive_publish().properties.message_expiry_interval in {98, 99}


BAD_PROPERTIES = {
    "payload format 2": (b"\x01\x02", 0x82),
    "payload format twice": (b"\x01\x01\x01\x01", 0x82),
    "message expiry twice": (b"\x02\x00\x00\x00\x01\x02\x00\x00\x00\x01", 0x82),
    "content type twice": (b"\x03\x00\x01a\x03\x00\x01a", 0x82),
    "response topic twice": (b"\x08\x00\x01a\x08\x00\x01a", 0x82),
    "correlation data twice": (b"\x09\x00\x01a\x09\x00\x01a", 0x82),
    "topic alias twice": (b"\x23\x00\x01\x23\x00\x01", 0x82),
    "property of CONNECT": (b"\x11\x00\x00\x00\x01", 0x81),
    "property of CONNACK": (b"\x24\x01", 0x81),
    "unknown property": (b"\x00", 0x81),
    "cut user property": (b"\x26\x00\x01a\x00\x05b", 0x81),
}


@shows("5.0: MQTT-4.13.1-1", "5.0: MQTT-4.13.2-1", "5.0: MQTT-3.14.4-2")
@pytest.mark.parametrize("case", BAD_PROPERTIES)
def test_bad_properties_of_publish_close_the_connection(connect: Wires, version: int, topic: str, case: str) -> None:
    client = connect()
    content, reason = BAD_PROPERTIES[case]

    client.send(raw.publish(version, topic, b"x", props=content))

    client.expect_disconnect(reason)


@shows("5.0: MQTT-4.13.1-1")
def test_a_property_length_past_the_packet_is_malformed(connect: Wires, version: int, topic: str) -> None:
    client = connect()

    client.send(raw.frame(0x30, raw.text(topic), b"\x7f", b"\x01\x01"))

    client.expect_disconnect(0x81)


@shows("5.0: MQTT-3.3.2-4")
def test_a_payload_that_is_not_the_declared_utf8_passes_unchanged(connect: Wires, version: int, topic: str) -> None:
    publisher, subscriber = connect(), connect()
    subscriber.subscribe(topic)

    publisher.publish(topic, b"\xff\xfe", payload_format_indicator=1)

    publish = subscriber.receive(Publish)
    assert (publish.payload, publish.properties.payload_format_indicator) == (b"\xff\xfe", 1)
