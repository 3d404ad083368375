"""Data representation and packet format: UTF-8, lengths, flags, packet identifiers (chapters 1.5 and 2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from braidmq.mqtt.packets import (
    Connack,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeOption,
    Unsuback,
    Unsubscribe,
)
from tests.conformance.statements import shows
from tests.support.clients import raw
from tests.support.clients.wire import Wires

ILL_FORMED = {
    "lone surrogate": b"a\xed\xa0\x80b",
    "overlong form": b"a\xc0\xafb",
    "cut sequence": b"ab\xe2\x82",
    "beyond U+10FFFF": b"\xf4\x90\x80\x80",
}
WITH_NUL = b"a\x00b"

# Each builds a packet, after CONNECT, with the given bytes in a text field.
Build = Callable[[int, bytes], bytes]
FIELDS: dict[str, Build] = {
    "topic name": lambda version, text: raw.publish(version, text, b"x"),
    "topic filter": lambda version, text: raw.subscribe(version, (text, 0)),
    "filter to unsubscribe": lambda version, text: raw.unsubscribe(version, text),
}
FIELDS_OF_5: dict[str, Build] = {
    "content type": lambda version, text: raw.publish(version, "t", props=b"\x03" + raw.text(text)),
    "response topic": lambda version, text: raw.publish(version, "t", props=b"\x08" + raw.text(text)),
    "user property name": lambda version, text: raw.publish(version, "t", props=b"\x26" + raw.text(text) + raw.text("v")),
    "user property value": lambda version, text: raw.publish(version, "t", props=b"\x26" + raw.text("n") + raw.text(text)),
    "reason string": lambda version, text: raw.frame(0xE0, b"\x00", raw.properties(version, b"\x1f" + raw.text(text))),
}
FIELDS_OF_CONNECT: dict[str, Build] = {
    "client id": lambda version, text: raw.connect(version, client_id=text),
    "will topic": lambda version, text: raw.connect(version, flags=0x06, rest=raw.will(version, text, b"x")),
    "user name": lambda version, text: raw.connect(version, flags=0x82, rest=raw.text(text)),
}


@shows(
    "5.0: MQTT-1.5.4-1",
    "5.0: MQTT-3.3.2-1",
    "5.0: MQTT-3.8.3-1",
    "5.0: MQTT-3.10.3-1",
    "3.1.1: MQTT-1.5.3-1",
    "3.1.1: MQTT-3.3.2-1",
    "3.1.1: MQTT-3.8.3-1",
    "3.1.1: MQTT-3.10.3-1",
)
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("text", ILL_FORMED.values(), ids=ILL_FORMED)
def test_ill_formed_utf8_closes_the_connection(connect: Wires, version: int, field: str, text: bytes) -> None:
    client = connect()

    client.send(FIELDS[field](version, text))

    client.expect_disconnect(0x81)


@shows(
    "5.0: MQTT-1.5.4-1",
    "5.0: MQTT-1.5.4-2",
    "5.0: MQTT-1.5.7-1",
    "5.0: MQTT-3.3.2-13",
    "5.0: MQTT-3.3.2-19",
)
@pytest.mark.parametrize("field", FIELDS_OF_5)
@pytest.mark.parametrize("text", [*ILL_FORMED.values(), WITH_NUL], ids=[*ILL_FORMED, "U+0000"])
def test_invalid_text_in_a_property_closes_the_connection(connect: Wires, version: int, field: str, text: bytes) -> None:
    client = connect()

    client.send(FIELDS_OF_5[field](version, text))

    client.expect_disconnect(0x81)


@shows(
    "5.0: MQTT-1.5.4-2",
    "5.0: MQTT-4.7.3-2",
    "3.1.1: MQTT-1.5.3-2",
    "3.1.1: MQTT-4.7.3-2",
)
@pytest.mark.parametrize("field", FIELDS)
def test_nul_in_text_closes_the_connection(connect: Wires, version: int, field: str) -> None:
    client = connect()

    client.send(FIELDS[field](version, WITH_NUL))

    client.expect_disconnect(0x81)


@shows(
    "5.0: MQTT-1.5.4-1",
    "5.0: MQTT-1.5.4-2",
    "5.0: MQTT-3.1.3-4",
    "5.0: MQTT-3.1.3-11",
    "5.0: MQTT-3.1.3-12",
    "5.0: MQTT-3.1.4-1",
    "3.1.1: MQTT-1.5.3-1",
    "3.1.1: MQTT-1.5.3-2",
    "3.1.1: MQTT-3.1.3-4",
    "3.1.1: MQTT-3.1.3-10",
    "3.1.1: MQTT-3.1.3-11",
    "3.1.1: MQTT-3.1.4-1",
)
@pytest.mark.parametrize("field", FIELDS_OF_CONNECT)
@pytest.mark.parametrize("text", [*ILL_FORMED.values(), WITH_NUL], ids=[*ILL_FORMED, "U+0000"])
def test_invalid_text_in_connect_is_rejected(connect: Wires, version: int, field: str, text: bytes) -> None:
    client = connect.open()

    client.send(FIELDS_OF_CONNECT[field](version, text))

    client.expect_refusal(0x81)


@shows("5.0: MQTT-1.5.4-3", "5.0: MQTT-4.7.3-4", "3.1.1: MQTT-1.5.3-3", "3.1.1: MQTT-4.7.3-4")
def test_a_byte_order_mark_is_part_of_the_topic(connect: Wires, version: int, topic: str) -> None:
    subscriber, publisher = connect(), connect()
    marked = "\ufeff" + topic
    subscriber.subscribe(marked)

    publisher.publish(topic, b"bare")
    publisher.publish(marked, b"marked")

    assert subscriber.receive_frame().raw == raw.publish(version, b"\xef\xbb\xbf" + topic.encode(), b"marked")


@shows("5.0: MQTT-1.5.5-1")
@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(b"\xc0\x80\x00", id="PINGREQ with a length of two bytes"),
        pytest.param(b"\x30\xff\xff\xff\xff\x7f", id="length of five bytes"),
        pytest.param(b"\x30\x80\x80\x80\x80\x01", id="length of five bytes that is small"),
        pytest.param(raw.frame(0x30, raw.text("t"), b"\x80\x00", b"x"), id="property length of two bytes"),
        pytest.param(raw.frame(0x82, b"\x00\x01\x03\x0b\x81\x00", raw.text("t"), b"\x00"), id="subscription identifier"),
    ],
)
def test_a_length_not_in_its_shortest_form_is_malformed(connect: Wires, version: int, packet: bytes) -> None:
    client = connect()

    client.send(packet)

    client.expect_disconnect(0x81)


@shows("5.0: MQTT-1.5.5-1", "5.0: MQTT-2.2.1-2", "5.0: MQTT-2.2.2-1", "3.1.1: MQTT-2.3.1-5")
@pytest.mark.parametrize("length", [100, 127, 128, 16_383, 16_384, 70_000])
def test_a_forwarded_publish_has_the_shortest_remaining_length(connect: Wires, version: int, topic: str, length: int) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(topic)
    payload = b"x" * (length - len(raw.text(topic)) - len(raw.properties(version)))

    publisher.publish(topic, payload)

    # Built by hand: shortest length, no packet identifier at QoS 0, an empty property set as one zero byte.
    assert subscriber.receive_frame().raw == raw.publish(version, topic, payload)


@shows("5.0: MQTT-2.2.2-1", "3.1.1: MQTT-7.0.0-2")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_passes_between_protocol_versions(connect: Wires, version: int, topic: str, qos: int) -> None:
    subscriber, publisher = connect(), connect(version=9 - version)
    subscriber.subscribe(topic, qos=qos)
    properties: dict[str, Any] = {"content_type": "x", "user_properties": (("a", "b"),), "message_expiry_interval": 100}

    publisher.publish(topic, b"payload", qos, **(properties if publisher.version == 5 else {}))
    frame = subscriber.receive_frame()

    # 3.1.1 knows no properties; 5.0 has an empty set of them where there were none.
    place = len(raw.text(topic))
    packet_id = int.from_bytes(frame.body[place : place + 2], "big") if qos else None
    if qos:
        assert packet_id
    assert frame.raw == raw.publish(version, topic, b"payload", flags=qos << 1, packet_id=packet_id)


@shows("5.0: MQTT-1.5.5-1", "5.0: MQTT-3.3.2-17")
@pytest.mark.parametrize("length", [127, 128, 16_383, 16_384])
def test_a_property_length_has_its_shortest_form(connect: Wires, version: int, topic: str, length: int) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(topic)
    pair = b"\x26" + raw.text("n") + raw.text("v" * (length - 6))

    publisher.send(raw.publish(version, topic, b"x", props=pair))

    assert subscriber.receive_frame().raw == raw.publish(version, topic, b"x", props=pair)


@shows("5.0: MQTT-2.2.2-1")
def test_an_empty_property_set_is_sent_as_length_zero(connect: Wires, version: int, topic: str) -> None:
    client = connect()

    client.send(Subscribe(0x0102, [SubscribeOption(topic, 0)]), Unsubscribe(0x0103, [topic]))

    assert client.receive_frame().raw == b"\x90\x04\x01\x02\x00\x00"
    assert client.receive_frame().raw == b"\xb0\x04\x01\x03\x00\x00"


WRONG_FLAGS: dict[str, Callable[[int], bytes]] = {
    "PUBACK": lambda version: raw.frame(0x41, b"\x00\x01"),
    "PUBREC": lambda version: raw.frame(0x52, b"\x00\x01"),
    "PUBREL": lambda version: raw.frame(0x60, b"\x00\x01"),
    "PUBREL with DUP": lambda version: raw.frame(0x6A, b"\x00\x01"),
    "PUBCOMP": lambda version: raw.frame(0x71, b"\x00\x01"),
    "SUBSCRIBE": lambda version: raw.subscribe(version, ("t", 0), flags=0),
    "SUBSCRIBE with DUP": lambda version: raw.subscribe(version, ("t", 0), flags=0xA),
    "UNSUBSCRIBE": lambda version: raw.unsubscribe(version, "t", flags=0),
    "UNSUBSCRIBE with 0011": lambda version: raw.unsubscribe(version, "t", flags=3),
    "PINGREQ": lambda version: raw.frame(0xC1),
    "DISCONNECT": lambda version: raw.frame(0xE1),
}


@shows(
    "5.0: MQTT-2.1.3-1",
    "5.0: MQTT-3.6.1-1",
    "5.0: MQTT-3.8.1-1",
    "5.0: MQTT-3.10.1-1",
    "5.0: MQTT-3.14.1-1",
    "3.1.1: MQTT-2.2.2-1",
    "3.1.1: MQTT-2.2.2-2",
    "3.1.1: MQTT-3.6.1-1",
    "3.1.1: MQTT-3.8.1-1",
    "3.1.1: MQTT-3.10.1-1",
    "3.1.1: MQTT-3.14.1-1",
)
@pytest.mark.parametrize("packet", WRONG_FLAGS)
def test_wrong_flags_in_the_fixed_header_are_malformed(connect: Wires, version: int, packet: str) -> None:
    client = connect()

    client.send(WRONG_FLAGS[packet](version))

    client.expect_disconnect(0x81)


@shows("5.0: MQTT-2.1.3-1", "3.1.1: MQTT-2.2.2-2")
def test_connect_with_wrong_flags_is_refused(connect: Wires, version: int) -> None:
    client = connect.open()

    client.send(b"\x11" + raw.connect(version)[1:])

    # Nothing may be said (the version is not known yet), or the malformed packet named.
    assert raw.connack_code(client.read_to_end()) in {None, 0x81}


@shows("5.0: MQTT-2.2.1-3", "3.1.1: MQTT-2.3.1-1")
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda version: raw.publish(version, "t", b"x", flags=0x02, packet_id=0), id="PUBLISH QoS 1"),
        pytest.param(lambda version: raw.publish(version, "t", b"x", flags=0x04, packet_id=0), id="PUBLISH QoS 2"),
        pytest.param(lambda version: raw.subscribe(version, ("t", 0), packet_id=0), id="SUBSCRIBE"),
        pytest.param(lambda version: raw.unsubscribe(version, "t", packet_id=0), id="UNSUBSCRIBE"),
    ],
)
def test_packet_identifier_zero_is_malformed(connect: Wires, version: int, build: Callable[[int], bytes]) -> None:
    client = connect()

    client.send(build(version))

    client.expect_disconnect(0x81)


@shows(
    "5.0: MQTT-2.2.1-5",
    "5.0: MQTT-2.2.1-6",
    "5.0: MQTT-3.8.4-2",
    "5.0: MQTT-3.10.4-5",
    "3.1.1: MQTT-2.3.1-6",
    "3.1.1: MQTT-2.3.1-7",
    "3.1.1: MQTT-3.8.4-2",
    "3.1.1: MQTT-3.10.4-4",
)
@pytest.mark.parametrize("packet_id", [1, 0x1234, 0xFFFF])
def test_answers_repeat_the_packet_identifier(connect: Wires, version: int, topic: str, packet_id: int) -> None:
    client = connect()

    client.send(Subscribe(packet_id, [SubscribeOption(topic + "/other", 0)]))
    assert client.receive(Suback).packet_id == packet_id

    client.send(Unsubscribe(packet_id, [topic + "/other"]))
    assert client.receive(Unsuback).packet_id == packet_id

    client.send(Publish(topic, b"", 1, packet_id=packet_id))
    assert client.receive(Puback).packet_id == packet_id

    client.send(Publish(topic, b"", 2, packet_id=packet_id))
    assert client.receive(Pubrec).packet_id == packet_id

    client.send(Pubrel(packet_id))
    assert client.receive(Pubcomp).packet_id == packet_id


@shows("5.0: MQTT-2.2.1-4", "5.0: MQTT-4.3.2-1", "5.0: MQTT-4.3.3-1", "3.1.1: MQTT-2.3.1-4")
def test_each_delivery_in_flight_has_an_identifier_of_its_own(connect: Wires, version: int, topic: str) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(topic, qos=2)

    for number in range(16):
        publisher.publish(topic, qos=1 + number % 2)
    identifiers = [publish.packet_id for publish in subscriber.receive_publishes(16)]

    assert None not in identifiers
    assert 0 not in identifiers
    assert len(set(identifiers)) == 16


@shows("5.0: MQTT-4.2-1", "3.1.1: MQTT-7.1.1-1", "5.0: MQTT-2.1.3-1", "3.1.1: MQTT-2.2.2-1")
def test_packets_may_arrive_byte_by_byte_or_all_at_once(connect: Wires, version: int, topic: str) -> None:
    subscriber, sender = connect(), connect.open()
    subscriber.subscribe(topic)

    for byte in raw.connect(version, client_id=topic.replace("/", "")) + raw.publish(version, topic, b"slow"):
        sender.send(bytes([byte]))
    sender.send(*[raw.publish(version, topic, b"fast")] * 100)

    assert sender.receive(Connack).reason == 0
    assert [subscriber.receive(Publish).payload for _ in range(101)] == [b"slow"] + [b"fast"] * 100
