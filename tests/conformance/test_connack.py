"""CONNACK: session present, what the server announces and what it leaves out (chapter 3.2)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from braidmq.mqtt.packets import Connack, Disconnect, Publish, Will
from tests.conformance.statements import shows
from tests.support.clients import raw
from tests.support.clients.wire import Closed, Wires, unique

# Table 3-1 of MQTT 5.0, as far as it concerns a CONNECT that was let in or turned away.
CONNECT_REASONS = {0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F}


@shows("5.0: MQTT-3.2.2-1", "5.0: MQTT-3.2.2-2", "3.1.1: MQTT-3.2.2-1")
def test_clean_start_gives_success_and_no_session(connect: Wires, version: int) -> None:
    name = unique()
    connect(name, persistent=True).disconnect()
    client = connect.open()

    client.send_request(client_id=name, clean_start=True)
    frame = client.receive_frame()

    assert frame.first_byte == 0x20
    assert frame.body[:2] == b"\x00\x00"


@shows("5.0: MQTT-3.2.2-1", "5.0: MQTT-3.2.2-3", "5.0: MQTT-3.1.2-5", "5.0: MQTT-3.1.4-4", "3.1.1: MQTT-3.2.2-2")
def test_a_stored_session_sets_only_the_session_present_bit(connect: Wires, version: int) -> None:
    name = unique()
    connect(name, persistent=True).disconnect()
    client = connect.open()

    client.send_request(client_id=name, persistent=True)

    assert client.receive_frame().body[:2] == b"\x01\x00"


@shows("5.0: MQTT-3.2.2-3", "5.0: MQTT-3.1.2-6", "3.1.1: MQTT-3.2.2-3", "3.1.1: MQTT-3.1.2-4")
def test_a_new_session_has_session_present_zero(connect: Wires, version: int) -> None:
    client = connect.open()

    client.send_request(persistent=True)

    assert client.receive_frame().body[:2] == b"\x00\x00"


@shows("5.0: MQTT-3.2.2-6", "3.1.1: MQTT-3.2.2-4")
def test_a_rejected_connect_has_session_present_zero_although_a_session_exists(connect_guarded: Wires, version: int) -> None:
    name = unique()
    connect_guarded(name, persistent=True, user_name="ada", password=b"lovelace").disconnect()
    client = connect_guarded.open()

    client.send_request(client_id=name, persistent=True, user_name="ada", password=b"wrong")
    flags, code = client.receive_frame().body[:2]

    assert code != 0
    assert flags == 0


@shows("5.0: MQTT-3.2.2-9", "5.0: MQTT-3.2.2-10")
def test_every_qos_is_supported(connect: Wires, version: int, topic: str) -> None:
    client = connect()

    # Absent means that QoS 2 is supported; a broker that says less must still grant something for each.
    assert client.connack.properties.maximum_qos is None
    assert client.request_subscribe(topic + "/0", qos=0).reasons == [0]
    assert client.request_subscribe(topic + "/1", qos=1).reasons == [1]
    assert client.request_subscribe(topic + "/2", qos=2).reasons == [2]


@shows("5.0: MQTT-3.2.2-12", "5.0: MQTT-3.2.2-13")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_retained_will_of_any_qos_is_supported(connect: Wires, version: int, topic: str, qos: int) -> None:
    client = connect(will=Will(topic, b"w", qos, True))

    assert client.connack.reason == 0
    assert client.connack.properties.retain_available in {None, True}


@shows("5.0: MQTT-3.1.2-28")
@pytest.mark.parametrize("asked", [{}, {"request_response_information": 0}], ids=["absent", "0"])
def test_response_information_is_sent_only_on_request(connect: Wires, version: int, asked: dict[str, Any]) -> None:
    client = connect(**asked)

    assert client.connack.properties.response_information is None


@shows("5.0: MQTT-4.12.0-6")
def test_connack_names_no_authentication_method_unless_connect_does(connect: Wires, version: int) -> None:
    client = connect()

    assert client.connack.properties.authentication_method is None
    assert client.connack.properties.authentication_data is None


@shows("5.0: MQTT-3.2.2-8", "5.0: MQTT-3.2.2-19", "5.0: MQTT-3.2.2-20", "5.0: MQTT-3.1.2-24")
def test_a_rejecting_connack_fits_the_clients_maximum_packet_size(connect: Wires, version: int) -> None:
    client = connect.open()

    # 5 bytes hold the reason code and an empty property set, and nothing else.
    client.send_request(client_id="x" * 20_000, maximum_packet_size=5)
    frame = client.receive_frame()

    assert len(frame.raw) == 5
    assert frame.body[1] in CONNECT_REASONS - {0}
    client.expect_closed()


@shows("5.0: MQTT-3.2.2-19", "5.0: MQTT-3.2.2-20", "5.0: MQTT-3.1.2-24")
def test_connack_fits_the_clients_maximum_packet_size(connect: Wires, version: int) -> None:
    client = connect.open()

    client.send_request(maximum_packet_size=40)

    assert len(client.receive_frame().raw) <= 40


@shows("5.0: MQTT-3.2.2-21", "5.0: MQTT-3.1.2-21")
def test_a_keep_alive_above_the_servers_maximum_is_lowered(connect_small: Wires, version: int) -> None:
    client = connect_small(keep_alive=600)

    assert client.connack.properties.server_keep_alive == 1
    client.expect_disconnect(0x8D, timeout_s=4)


@shows("5.0: MQTT-3.2.2-22", "5.0: MQTT-3.1.2-22", "3.1.1: MQTT-3.1.2-24")
def test_a_client_silent_beyond_its_keep_alive_is_closed(connect: Wires, version: int, topic: str) -> None:
    quiet, lively = connect(keep_alive=1), connect(keep_alive=1)
    assert quiet.connack.properties.server_keep_alive is None
    quiet.subscribe(topic)

    # What the broker sends is no sign of life from the client; a PUBLISH from it is as good as a PINGREQ.
    started = time.monotonic()
    while True:
        lively.send(Publish(topic, b"still there?"))
        try:
            packet = quiet.receive_any()
        except Closed:
            assert version == 4
            break
        if isinstance(packet, Disconnect):
            assert packet.reason == 0x8D
            quiet.expect_closed()
            break
        quiet.has_news(within_s=0.2)
        assert time.monotonic() - started < 3, "not closed in time"

    # Not before one and a half times the keep alive; a broker may look at its clocks once a second.
    assert time.monotonic() - started > 1.4
    lively.ping()


@shows("5.0: MQTT-3.2.2-15", "5.0: MQTT-4.13.1-1")
def test_a_packet_above_the_servers_maximum_closes_the_connection(connect_small: Wires, version: int) -> None:
    client = connect_small()
    limit = client.connack.properties.maximum_packet_size
    assert limit is not None
    largest = raw.publish(version, "t", b"x" * (limit - len(raw.publish(version, "t", b"x" * 200)) + 200))
    assert len(largest) == limit

    client.send(largest)
    client.ping()
    client.send(raw.publish(version, "t", b"x" * limit))

    client.expect_disconnect(0x95)


@shows("5.0: MQTT-3.2.2-15", "5.0: MQTT-4.13.1-1")
def test_a_length_above_the_maximum_is_refused_before_the_packet_is_read(connect: Wires, version: int) -> None:
    client = connect()

    client.send(b"\x30\xff\xff\xff\x7f")

    client.expect_disconnect(0x95)


@shows("5.0: MQTT-3.2.2-8", "5.0: MQTT-3.1.4-2", "3.1.1: MQTT-3.2.2-5")
def test_a_wrong_password_is_rejected_with_an_authentication_reason(connect_guarded: Wires, version: int) -> None:
    client = connect_guarded.open()

    client.send_request(user_name="ada", password=b"wrong")

    told = client.receive(Connack)
    assert told.reason in ({0x86, 0x87} if version == 5 else {0x04, 0x05})
    assert not told.session_present
    client.expect_closed()


@shows("5.0: MQTT-3.1.4-2", "5.0: MQTT-3.1.4-3", "3.1.1: MQTT-3.1.4-2")
def test_a_rejected_client_does_not_take_over_the_session(connect_guarded: Wires, version: int) -> None:
    owner = connect_guarded(user_name="ada", password=b"lovelace")
    intruder = connect_guarded.open()

    intruder.send_request(client_id=owner.client_id, user_name="ada", password=b"wrong")

    assert intruder.receive(Connack).reason != 0
    intruder.expect_closed()
    owner.ping()


@shows("5.0: MQTT-3.1.4-2", "5.0: MQTT-3.1.4-6", "3.1.1: MQTT-3.1.4-5")
def test_packets_of_a_rejected_client_have_no_effect(connect_guarded: Wires, version: int, topic: str) -> None:
    observer, intruder = connect_guarded(user_name="ada", password=b"lovelace"), connect_guarded.open()
    observer.subscribe("open/#")

    credentials = raw.text("ada") + raw.text("wrong")
    intruder.send(raw.connect(version, flags=0xC2, rest=credentials), raw.publish(version, "open/" + topic, b"x"))

    assert intruder.receive(Connack).reason != 0
    intruder.expect_closed()
    observer.expect_silence()
