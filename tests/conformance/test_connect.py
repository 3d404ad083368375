"""CONNECT: what must come first, what is malformed, client identifiers (chapters 3.1 and 3.1.4)."""

from __future__ import annotations

import string
from collections.abc import Callable

import pytest

from braidmq.mqtt.packets import Connack, Publish, Subscribe, SubscribeOption, Will
from tests.conformance.statements import shows
from tests.support.clients import raw
from tests.support.clients.wire import Wires, unique

FIRST_PACKETS = {
    "PINGREQ": b"\xc0\x00",
    "PUBLISH": raw.publish(4, "t", b"x"),
    "SUBSCRIBE": raw.subscribe(4, ("t", 0)),
    "DISCONNECT": b"\xe0\x00",
    "AUTH": b"\xf0\x00",
    "CONNACK": b"\x20\x02\x00\x00",
    "HTTP": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@shows("5.0: MQTT-3.1.0-1", "5.0: MQTT-3.2.0-1", "5.0: MQTT-3.14.0-1", "3.1.1: MQTT-3.1.0-1", "3.1.1: MQTT-3.2.0-1")
@pytest.mark.parametrize("packet", FIRST_PACKETS.values(), ids=FIRST_PACKETS)
def test_a_first_packet_other_than_connect_closes_without_an_answer(connect: Wires, version: int, packet: bytes) -> None:
    client = connect.open()

    client.send(packet)

    client.expect_closed()


@shows("5.0: MQTT-3.1.0-2", "5.0: MQTT-3.2.0-2", "3.1.1: MQTT-3.1.0-2")
def test_a_second_connect_closes_the_connection_and_publishes_its_will(connect: Wires, version: int, topic: str) -> None:
    observer = connect()
    observer.subscribe(topic)
    client = connect(will=Will(topic, b"gone", 0, False))

    client.send_request(client_id=client.client_id)

    client.expect_disconnect(0x82)
    assert observer.receive(Publish).payload == b"gone"


@shows("5.0: MQTT-3.1.2-1", "3.1.1: MQTT-3.1.2-1")
@pytest.mark.parametrize("name", [b"MQTX", b"mqtt", b"MQTT5", b"", b"MQ\xed\xa0\x80"])
def test_an_unknown_protocol_name_is_rejected(connect: Wires, version: int, name: bytes) -> None:
    client = connect.open()

    client.send(raw.connect(version, name=name))

    # Silence, or "unsupported protocol version" in the form of either version.
    assert raw.connack_code(client.read_to_end()) in {None, 0x84, 0x01}


@shows("5.0: MQTT-3.1.2-2", "3.1.1: MQTT-3.1.2-2", "3.1.1: MQTT-3.2.2-4", "3.1.1: MQTT-3.2.2-5")
@pytest.mark.parametrize("level", [0, 1, 2, 6, 0x7F])
def test_an_unknown_protocol_level_is_refused_with_connack(connect: Wires, version: int, level: int) -> None:
    client = connect.open()

    client.send(raw.connect(version, level=level))

    # Who comes from the past is answered in the words of 3.1.1.
    assert raw.connack_code(client.read_to_end()) in ({0x01} if level < 5 else {0x84, 0x01})


@shows("5.0: MQTT-3.1.2-2", "3.1.1: MQTT-3.1.2-2")
def test_the_level_of_a_bridge_is_refused_unless_it_is_allowed(connect: Wires, version: int) -> None:
    client = connect.open()

    client.send(raw.connect(version, level=version | 0x80))

    assert raw.connack_code(client.read_to_end()) in {0x84, 0x01}


# Connect Flags: 0x80 user name, 0x40 password, 0x20 will retain, 0x18 will QoS, 0x04 will, 0x02 clean start, 0x01 reserved.
@shows(
    "5.0: MQTT-3.1.2-3",
    "5.0: MQTT-3.1.2-11",
    "5.0: MQTT-3.1.2-12",
    "5.0: MQTT-3.1.2-13",
    "5.0: MQTT-3.1.4-1",
    "5.0: MQTT-3.2.2-7",
    "5.0: MQTT-4.13.2-1",
    "3.1.1: MQTT-3.1.2-3",
    "3.1.1: MQTT-3.1.2-11",
    "3.1.1: MQTT-3.1.2-13",
    "3.1.1: MQTT-3.1.2-14",
    "3.1.1: MQTT-3.1.2-15",
    "3.1.1: MQTT-3.1.4-1",
    "3.1.1: MQTT-3.2.2-6",
)
@pytest.mark.parametrize(
    ("flags", "has_will"),
    [
        pytest.param(0x03, False, id="reserved bit"),
        pytest.param(0x0A, False, id="will QoS 1 without will"),
        pytest.param(0x12, False, id="will QoS 2 without will"),
        pytest.param(0x22, False, id="will retain without will"),
        pytest.param(0x1E, True, id="will QoS 3"),
    ],
)
def test_invalid_connect_flags_are_malformed(connect: Wires, version: int, flags: int, has_will: bool) -> None:
    client = connect.open()

    client.send(raw.connect(version, flags=flags, rest=raw.will(version, "w", b"x") if has_will else b""))

    client.expect_refusal(0x81)


@shows(
    "5.0: MQTT-3.1.2-9",
    "5.0: MQTT-3.1.2-16",
    "5.0: MQTT-3.1.2-17",
    "5.0: MQTT-3.1.2-18",
    "5.0: MQTT-3.1.2-19",
    "5.0: MQTT-3.1.3-1",
    "5.0: MQTT-3.1.3-3",
    "5.0: MQTT-3.1.4-1",
    "3.1.1: MQTT-3.1.2-9",
    "3.1.1: MQTT-3.1.2-18",
    "3.1.1: MQTT-3.1.2-19",
    "3.1.1: MQTT-3.1.2-20",
    "3.1.1: MQTT-3.1.2-21",
    "3.1.1: MQTT-3.1.3-1",
    "3.1.1: MQTT-3.1.3-3",
    "3.1.1: MQTT-3.1.4-1",
)
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda version: raw.connect(version, flags=0x06), id="will flag, no will"),
        pytest.param(lambda version: raw.connect(version, flags=0x06, rest=raw.text("w")), id="will flag, no payload"),
        pytest.param(lambda version: raw.connect(version, flags=0x82), id="user flag, no name"),
        pytest.param(lambda version: raw.connect(version, flags=0xC2, rest=raw.text("u")), id="password flag, no password"),
        pytest.param(lambda version: raw.connect(version, rest=raw.text("u")), id="name, no user flag"),
        pytest.param(lambda version: raw.connect(version, flags=0x82, rest=raw.text("u") + raw.text("p")), id="no password flag"),
        pytest.param(lambda version: raw.connect(version, rest=raw.will(version, "w", b"x")), id="will, no flag"),
        pytest.param(
            lambda version: raw.frame(0x10, raw.text("MQTT"), raw.u8(version), b"\x02\x00\x3c", raw.properties(version)),
            id="no client id",
        ),
        pytest.param(lambda version: raw.frame(0x10, raw.text("MQTT"), raw.u8(version)), id="no flags"),
    ],
)
def test_a_payload_that_the_flags_do_not_describe_is_malformed(
    connect: Wires, version: int, build: Callable[[int], bytes]
) -> None:
    client = connect.open()

    client.send(build(version))

    client.expect_refusal(0x81)


@shows("5.0: MQTT-4.7.0-1", "5.0: MQTT-4.7.3-1", "3.1.1: MQTT-4.7.1-1", "3.1.1: MQTT-4.7.3-1")
@pytest.mark.parametrize("topic_name", ["a/#", "+", ""])
def test_a_will_needs_a_topic_name(connect: Wires, version: int, topic_name: str) -> None:
    client = connect.open()

    client.send(raw.connect(version, flags=0x06, rest=raw.will(version, topic_name, b"x")))

    assert raw.connack_code(client.read_to_end()) in ({0x81, 0x82, 0x90} if version == 5 else {None})


@shows("3.1.1: MQTT-3.1.2-22")
def test_a_password_without_a_user_name_is_malformed_in_3_1_1(connect: Wires, version: int) -> None:
    client = connect.open()

    client.send(raw.connect(version, flags=0x42, rest=raw.text("secret")))

    client.expect_closed()


@shows("5.0: MQTT-3.1.2-19")
def test_a_password_without_a_user_name_is_well_formed_in_5(connect: Wires, version: int) -> None:
    client = connect.open()

    client.send(raw.connect(version, flags=0x42, client_id=unique(), rest=raw.text("secret")))

    assert client.receive(Connack).reason != 0x81


@shows("5.0: MQTT-4.13.1-1", "5.0: MQTT-3.2.2-7", "5.0: MQTT-3.1.4-1")
@pytest.mark.parametrize(
    ("props", "reason"),
    [
        pytest.param(b"\x21\x00\x00", 0x82, id="Receive Maximum 0"),
        pytest.param(b"\x27\x00\x00\x00\x00", 0x82, id="Maximum Packet Size 0"),
        pytest.param(b"\x11\x00\x00\x00\x01\x11\x00\x00\x00\x01", 0x82, id="Session Expiry twice"),
        pytest.param(b"\x19\x02", 0x82, id="Request Response Information 2"),
        pytest.param(b"\x17\x02", 0x82, id="Request Problem Information 2"),
        pytest.param(b"\x16" + raw.text("data"), 0x82, id="Authentication Data without a method"),
        pytest.param(b"\x24\x01", 0x81, id="Maximum QoS is not of CONNECT"),
        pytest.param(b"\x7f\x00", 0x81, id="unknown property"),
        pytest.param(b"\x26" + raw.text("n"), 0x81, id="half a user property"),
        pytest.param(b"\x11\x00\x00", 0x81, id="cut property"),
    ],
)
def test_bad_properties_of_connect_are_refused(connect: Wires, version: int, props: bytes, reason: int) -> None:
    client = connect.open()

    client.send(raw.connect(version, props=props))

    client.expect_refusal(reason)


@shows("5.0: MQTT-3.1.3-5", "5.0: MQTT-3.1.4-5", "3.1.1: MQTT-3.1.3-5", "3.1.1: MQTT-3.1.4-4")
@pytest.mark.parametrize(
    "client_id",
    ["a", string.ascii_lowercase[:23], string.ascii_uppercase[:23], string.digits + "xyzXYZ", "abcdefghijklmnopqrstuvw"[::-1]],
)
def test_client_identifiers_of_letters_and_digits_are_accepted(connect: Wires, version: int, client_id: str) -> None:
    client = connect(client_id)

    assert client.connack.reason == 0
    client.ping()


@shows("5.0: MQTT-3.1.3-6", "5.0: MQTT-3.2.2-16")
def test_an_empty_client_identifier_gets_a_unique_one(connect: Wires, version: int) -> None:
    clients = [connect("") for _ in range(5)]

    assigned = {client.connack.properties.assigned_client_identifier for client in clients}

    assert None not in assigned
    assert "" not in assigned
    assert len(assigned) == 5
    for client in clients:
        client.ping()


@shows("5.0: MQTT-3.1.3-6", "5.0: MQTT-3.1.3-7")
def test_an_assigned_client_identifier_can_be_used_to_resume_the_session(connect: Wires, version: int, topic: str) -> None:
    nameless = connect("", clean_start=False, session_expiry_interval=60)
    assigned = nameless.connack.properties.assigned_client_identifier
    nameless.subscribe(topic, qos=1)
    nameless.disconnect()

    again = connect(assigned, clean_start=False)

    assert again.connack.session_present
    assert again.connack.properties.assigned_client_identifier is None


@shows("3.1.1: MQTT-3.1.3-6")
def test_clients_with_an_empty_identifier_do_not_disturb_each_other(connect: Wires, version: int) -> None:
    clients = [connect("") for _ in range(3)]

    for client in clients:
        assert not client.connack.session_present
        client.ping()


@shows("3.1.1: MQTT-3.1.3-7", "3.1.1: MQTT-3.1.3-8", "3.1.1: MQTT-3.2.2-4", "3.1.1: MQTT-3.2.2-5")
def test_an_empty_client_identifier_needs_a_clean_session(connect: Wires, version: int) -> None:
    client = connect.open()

    client.send_request(client_id="", clean_start=False)

    client.expect_refusal(0x85, return_code=0x02)


@shows(
    "5.0: MQTT-3.1.3-8",
    "5.0: MQTT-3.2.2-6",
    "5.0: MQTT-3.2.2-7",
    "5.0: MQTT-3.2.2-8",
    "5.0: MQTT-3.14.0-1",
    "3.1.1: MQTT-3.1.3-9",
    "3.1.1: MQTT-3.2.2-4",
    "3.1.1: MQTT-3.2.2-5",
)
def test_a_client_identifier_that_is_too_long_is_refused(connect: Wires, version: int) -> None:
    client = connect.open()

    client.send_request(client_id="x" * 20_000)

    client.expect_refusal(0x85, return_code=0x02)


@shows("5.0: MQTT-3.1.4-6", "3.1.1: MQTT-3.1.4-5")
def test_what_follows_a_refused_connect_is_ignored(connect: Wires, version: int, topic: str) -> None:
    observer, refused = connect(), connect.open()
    observer.subscribe(topic)

    refused.send(raw.connect(version, client_id="x" * 20_000), raw.publish(version, topic, b"must not pass"))
    refused.expect_refusal(0x85, return_code=0x02)

    observer.expect_silence()


@shows("5.0: MQTT-3.2.0-1", "5.0: MQTT-3.2.0-2", "5.0: MQTT-3.1.4-5", "3.1.1: MQTT-3.2.0-1", "3.1.1: MQTT-3.1.4-4")
def test_connack_is_sent_once_and_before_any_other_packet(connect: Wires, version: int, topic: str) -> None:
    client = connect.open()

    client.send(
        raw.connect(version, client_id=unique()),
        Subscribe(1, [SubscribeOption(topic, 0)]),
        Publish(topic, b"early"),
    )
    first, *others = client.receive(Connack), *client.drain()

    assert first.reason == 0
    assert {type(packet).__name__ for packet in others} == {"Suback", "Publish"}
    assert len(others) == 2
