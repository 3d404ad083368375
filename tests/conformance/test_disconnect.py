"""PINGREQ, DISCONNECT, and what a broker does about errors (chapters 3.12 to 3.14 and 4.13)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from braidmq.mqtt.packets import Disconnect, Publish, Will
from tests.conformance.statements import shows
from tests.support.clients import raw
from tests.support.clients.wire import Wires, unique


@shows("5.0: MQTT-3.12.4-1", "3.1.1: MQTT-3.12.4-1")
def test_every_pingreq_is_answered(connect: Wires, version: int) -> None:
    client = connect()

    client.send(b"\xc0\x00" * 50)

    assert [client.receive_frame().raw for _ in range(50)] == [b"\xd0\x00"] * 50


@shows("5.0: MQTT-3.14.4-1", "5.0: MQTT-3.14.4-2", "3.1.1: MQTT-3.14.4-1", "3.1.1: MQTT-3.14.4-2")
def test_packets_after_disconnect_are_ignored(connect: Wires, version: int, topic: str) -> None:
    observer, client = connect(), connect()
    observer.subscribe(topic)

    client.send(Disconnect(), Publish(topic, b"too late"), b"\xc0\x00")

    client.expect_closed()
    observer.expect_silence()


@shows("5.0: MQTT-3.14.4-1", "5.0: MQTT-3.14.4-2", "5.0: MQTT-4.13.2-1", "5.0: MQTT-3.14.2-2")
def test_the_broker_sends_nothing_after_its_disconnect(connect: Wires, version: int, topic: str) -> None:
    client = connect()
    client.subscribe(topic)

    client.send(raw.publish(version, topic, b"x", flags=0x06, packet_id=1), b"\xc0\x00", Publish(topic, b"y"))

    told = client.expect_disconnect(0x81)
    assert told is not None
    assert told.properties.session_expiry_interval is None


@shows("5.0: MQTT-3.14.2-1")
@pytest.mark.parametrize("reason", [0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99])
def test_every_disconnect_reason_of_a_client_is_accepted(connect: Wires, version: int, topic: str, reason: int) -> None:
    observer = connect()
    observer.subscribe(topic)
    client = connect(will=Will(topic, b"will", 0, False))

    client.disconnect(reason)

    # Only reason 0x00 takes the will back.
    if reason:
        assert observer.receive(Publish).payload == b"will"
    else:
        observer.expect_silence()


FROM_SERVERS: dict[str, Callable[[int], bytes]] = {
    "CONNACK": lambda version: raw.frame(0x20, b"\x00\x00", raw.properties(version)),
    "SUBACK": lambda version: raw.frame(0x90, b"\x00\x01", raw.properties(version), b"\x00"),
    "UNSUBACK": lambda version: raw.frame(0xB0, b"\x00\x01", raw.properties(version), b"\x00" if version == 5 else b""),
    "PINGRESP": lambda version: b"\xd0\x00",
}


@shows("5.0: MQTT-4.13.1-1", "3.1.1: MQTT-4.8.0-1")
@pytest.mark.parametrize("packet", FROM_SERVERS)
def test_a_packet_that_only_servers_send_closes_the_connection(connect: Wires, version: int, packet: str) -> None:
    client = connect()

    client.send(FROM_SERVERS[packet](version))

    client.expect_disconnect(0x82)


MALFORMED: dict[str, Callable[[int], bytes]] = {
    "reserved packet type 0": lambda version: b"\x00\x00",
    "PUBLISH without topic": lambda version: b"\x30\x00",
    "PUBLISH with half a length": lambda version: b"\x30\x01\x00",
    "PUBLISH with a cut topic": lambda version: b"\x30\x04\x00\x05ab",
    "PUBLISH with half an identifier": lambda version: b"\x32\x04\x00\x01t\x00",
    "PUBACK without identifier": lambda version: b"\x40\x00",
    "PUBREC with half an identifier": lambda version: b"\x50\x01\x00",
    "PUBREL without identifier": lambda version: b"\x62\x00",
    "PUBCOMP with half an identifier": lambda version: b"\x70\x01\x00",
    "PINGREQ with a body": lambda version: b"\xc0\x01\x00",
}


@shows("5.0: MQTT-4.13.1-1", "5.0: MQTT-4.13.2-1", "3.1.1: MQTT-4.8.0-1")
@pytest.mark.parametrize("packet", MALFORMED)
def test_a_malformed_packet_closes_the_connection(connect: Wires, version: int, packet: str) -> None:
    client = connect()

    client.send(MALFORMED[packet](version))

    client.expect_disconnect(0x81)


@shows("3.1.1: MQTT-4.8.0-1", "3.1.1: MQTT-2.2.2-2")
@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(b"\xf0\x00", id="packet type 15"),
        pytest.param(b"\x40\x03\x00\x01\x00", id="PUBACK with a reason code"),
        pytest.param(b"\xe0\x01\x00", id="DISCONNECT with a reason code"),
        pytest.param(b"\x62\x04\x00\x01\x00\x00", id="PUBREL with properties"),
    ],
)
def test_mqtt_5_forms_of_packets_are_malformed_in_3_1_1(connect: Wires, version: int, packet: bytes) -> None:
    client = connect()

    client.send(packet)

    client.expect_closed()


@shows(
    "5.0: MQTT-3.4.2-1",
    "5.0: MQTT-3.5.2-1",
    "5.0: MQTT-3.6.2-1",
    "5.0: MQTT-3.7.2-1",
    "5.0: MQTT-3.14.2-1",
    "5.0: MQTT-4.13.1-1",
)
@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(b"\x40\x03\x00\x01\x8e", id="PUBACK: session taken over"),
        pytest.param(b"\x50\x03\x00\x01\x92", id="PUBREC: identifier not found"),
        pytest.param(b"\x62\x03\x00\x01\x10", id="PUBREL: no subscribers"),
        pytest.param(b"\x70\x03\x00\x01\x87", id="PUBCOMP: not authorized"),
        pytest.param(b"\xe0\x01\x01", id="DISCONNECT: granted QoS 1"),
        pytest.param(b"\xe0\x01\x77", id="DISCONNECT: no such code"),
        pytest.param(b"\x40\x07\x00\x01\x00\x03\x1f\x00\x05", id="PUBACK with a cut reason string"),
        pytest.param(b"\x40\x05\x00\x01\x00\x01\x01", id="PUBACK with a property of PUBLISH"),
    ],
)
def test_a_reason_code_of_another_packet_closes_the_connection(connect: Wires, version: int, packet: bytes) -> None:
    client = connect()

    client.send(packet)

    client.expect_disconnect(0x81, 0x82)


@shows("3.1.1: MQTT-4.8.0-2")
def test_an_error_inside_the_broker_closes_that_connection_alone(connect_broken: Wires, version: int) -> None:
    bystander, unlucky = connect_broken(), connect_broken.open()

    unlucky.send_request(client_id=unique("unlucky"))

    # 3.1.1 may name it with return code 3, "server unavailable".
    assert unlucky.read_to_end() in {b"", b"\x20\x02\x00\x03"}
    bystander.ping()


@shows("3.1.1: MQTT-7.0.0-2")
def test_plain_3_1_1_is_enough_to_publish_and_subscribe(connect: Wires, version: int, topic: str) -> None:
    # Nothing here goes beyond the letter of MQTT 3.1.1: bytes in, bytes out.
    name = topic.encode()
    client = connect.open()

    client.send(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01" + b"p")
    assert client.receive_frame().raw == b"\x20\x02\x00\x00"
    client.send(raw.frame(0x82, b"\x00\x0a", raw.text(name), b"\x00"))
    assert client.receive_frame().raw == b"\x90\x03\x00\x0a\x00"
    client.send(raw.frame(0x30, raw.text(name), b"hello"))
    assert client.receive_frame().raw == raw.frame(0x30, raw.text(name), b"hello")
    client.send(b"\xe0\x00")

    client.expect_closed()
