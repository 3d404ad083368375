"""UNSUBSCRIBE and UNSUBACK (chapters 3.10 and 3.11)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from braidmq.mqtt.packets import Puback, Publish, Pubrec, Pubrel, Unsuback, Unsubscribe
from tests.conformance.statements import shows
from tests.support.clients import raw
from tests.support.clients.wire import Wires, payloads

UNSUBACK_REASONS = {0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91}


@shows("5.0: MQTT-3.10.4-1", "5.0: MQTT-4.7.3-4", "3.1.1: MQTT-3.10.4-1", "3.1.1: MQTT-4.7.3-4")
def test_unsubscribe_removes_only_the_identical_filter(connect: Wires, version: int, topic: str) -> None:
    client, publisher = connect(), connect()
    client.subscribe(topic + "/a", topic + "/B")

    for other in (topic + "/+", topic + "/#", topic + "/b", topic + "/a/", "/" + topic + "/a", topic + "/A"):
        client.unsubscribe(other)
    publisher.publish(topic + "/a", b"still a")
    publisher.publish(topic + "/B", b"still B")
    assert payloads(client.receive_publishes(2)) == [b"still a", b"still B"]

    client.unsubscribe(topic + "/a")
    publisher.publish(topic + "/a", b"gone")
    publisher.publish(topic + "/B", b"still B")
    assert client.receive(Publish).payload == b"still B"


@shows("5.0: MQTT-3.10.4-2", "3.1.1: MQTT-3.10.4-2")
def test_no_message_is_queued_after_unsubscribe(connect: Wires, version: int, topic: str) -> None:
    client, publisher = connect(persistent=True), connect()
    client.subscribe(topic, topic + "/#", qos=1)
    client.unsubscribe(topic, topic + "/#")
    publisher.publish(topic, b"while here", 1)
    client.expect_silence()
    client.disconnect()
    publisher.publish(topic, b"while away", 1)

    back = connect(client.client_id, persistent=True)

    assert back.connack.session_present
    back.expect_silence()


@shows("5.0: MQTT-3.10.4-3", "3.1.1: MQTT-3.10.4-3")
def test_inflight_deliveries_complete_after_unsubscribe(connect: Wires, version: int, topic: str) -> None:
    client, publisher = connect(persistent=True), connect()
    client.subscribe(topic, qos=2)
    publisher.publish(topic, b"one", 1)
    publisher.publish(topic, b"two", 2)
    one, two = client.receive_publishes(2)

    client.unsubscribe(topic)
    client.send(Pubrec(two.packet_id or 0))
    assert client.receive(Pubrel).packet_id == two.packet_id
    client.close()
    back = connect(client.client_id, persistent=True)
    # The PUBLISH of QoS 1 and the PUBREL of QoS 2 wait for their acknowledgements all the same.
    again, release = back.receive_any(), back.receive_any()

    assert isinstance(again, Publish)
    assert (again.packet_id, again.payload, again.dup) == (one.packet_id, b"one", True)
    assert isinstance(release, Pubrel)
    assert release.packet_id == two.packet_id
    back.send(Puback(one.packet_id or 0))
    back.expect_silence()


@shows(
    "5.0: MQTT-3.10.4-4",
    "5.0: MQTT-3.10.4-5",
    "5.0: MQTT-3.10.4-6",
    "5.0: MQTT-3.11.3-1",
    "5.0: MQTT-3.11.3-2",
    "5.0: MQTT-2.2.1-6",
)
def test_unsuback_has_a_code_for_each_filter_in_order(connect: Wires, version: int, topic: str) -> None:
    client, publisher = connect(), connect()
    client.subscribe(topic + "/a", topic + "/b", topic + "/c")

    filters = [topic + "/x", topic + "/a", topic + "/y", topic + "/c", topic + "/a"]
    client.send(Unsubscribe(4661, filters))
    unsuback = client.receive(Unsuback)
    for name in "abc":
        publisher.publish(f"{topic}/{name}", name.encode())

    assert (unsuback.packet_id, unsuback.reasons) == (4661, [0x11, 0x00, 0x11, 0x00, 0x11])
    assert set(unsuback.reasons) <= UNSUBACK_REASONS
    assert client.receive(Publish).payload == b"b"
    client.expect_silence()


@shows("3.1.1: MQTT-3.10.4-4", "3.1.1: MQTT-3.10.4-5", "3.1.1: MQTT-3.10.4-6", "3.1.1: MQTT-2.3.1-7")
def test_unsuback_has_only_a_packet_identifier_in_3_1_1(connect: Wires, version: int, topic: str) -> None:
    client, publisher = connect(), connect()
    client.subscribe(topic + "/a", topic + "/b")

    client.send(Unsubscribe(4661, [topic + "/x", topic + "/a"]), Unsubscribe(4662, [topic + "/never"]))
    answers = [client.receive_frame().raw for _ in range(2)]
    publisher.publish(topic + "/a", b"a")
    publisher.publish(topic + "/b", b"b")

    assert answers == [b"\xb0\x02\x12\x35", b"\xb0\x02\x12\x36"]
    assert client.receive(Publish).payload == b"b"


@shows(
    "5.0: MQTT-3.10.3-2",
    "5.0: MQTT-4.13.1-1",
    "3.1.1: MQTT-3.10.3-2",
    "3.1.1: MQTT-4.8.0-1",
)
@pytest.mark.parametrize(
    ("build", "reason"),
    [
        pytest.param(lambda version: raw.unsubscribe(version), 0x82, id="no filter"),
        pytest.param(lambda version: raw.frame(0xA2, b"\x00\x01", raw.properties(version), b"\x00\x09ab"), 0x81, id="cut filter"),
        pytest.param(lambda version: raw.frame(0xA2, b"\x00"), 0x81, id="no identifier"),
    ],
)
def test_a_malformed_unsubscribe_closes_the_connection(
    connect: Wires, version: int, build: Callable[[int], bytes], reason: int
) -> None:
    client = connect()

    client.send(build(version))

    client.expect_disconnect(reason)
