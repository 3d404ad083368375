"""What the client's limits keep out of the broker's packets: Maximum Packet Size, Request Problem Information."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from braidmq.mqtt.packets import Packet, Publish, Pubrec, Pubrel, Subscribe, SubscribeOption, Unsubscribe
from braidmq.mqtt.properties import Properties
from tests.conformance.statements import shows
from tests.support.clients import raw
from tests.support.clients.wire import Wire, Wires


@shows("5.0: MQTT-3.1.2-24", "5.0: MQTT-3.1.2-25")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_too_large_for_one_client_is_dropped_for_it_alone(connect: Wires, version: int, topic: str, qos: int) -> None:
    publisher, roomy = connect(), connect()
    narrow = connect(maximum_packet_size=100, receive_maximum=1)
    for subscriber in (roomy, narrow):
        subscriber.subscribe(topic, qos=qos)
    sent = [b"small", b"x" * 200, b"small again", b"y" * 100_000, b"last"]

    for payload in sent:
        publisher.publish(topic, payload, qos)

    # With a window of one, a dropped message that still counted as in flight would stop everything behind it.
    assert [narrow.receive_publish().payload for _ in range(3)] == [b"small", b"small again", b"last"]
    assert [roomy.receive_publish().payload for _ in range(5)] == sent


@shows("5.0: MQTT-3.1.2-24")
@pytest.mark.parametrize("qos", [0, 1])
def test_a_packet_of_exactly_the_maximum_size_is_sent(connect: Wires, version: int, topic: str, qos: int) -> None:
    publisher, narrow = connect(), connect(maximum_packet_size=100)
    narrow.subscribe(topic, qos=qos)
    overhead = len(raw.publish(version, topic, b"", packet_id=1 if qos else None))

    publisher.publish(topic, b"x" * (101 - overhead), qos)
    publisher.publish(topic, b"y" * (100 - overhead), qos)

    frame = narrow.receive_frame()
    assert len(frame.raw) == 100
    assert frame.raw.endswith(b"y")


@shows("5.0: MQTT-3.1.2-24", "5.0: MQTT-3.1.2-25")
def test_queued_and_retained_messages_obey_the_limit_too(connect: Wires, version: int, topic: str) -> None:
    publisher, client = connect(), connect(persistent=True)
    client.subscribe(topic + "/queued", qos=1)
    client.disconnect()
    for name in ("queued", "retained"):
        publisher.publish(f"{topic}/{name}", b"x" * 200, 1, retain=name == "retained")
        publisher.publish(f"{topic}/{name}", b"small", 1)
    publisher.publish(f"{topic}/retained/small", b"small", 1, retain=True)

    narrow = connect(client.client_id, persistent=True, maximum_packet_size=100)
    queued = narrow.receive_publish()
    narrow.subscribe(topic + "/retained/#", qos=1)
    retained = narrow.receive_publish()

    assert (queued.topic, queued.payload) == (topic + "/queued", b"small")
    assert (retained.topic, retained.payload) == (topic + "/retained/small", b"small")


# Each makes the broker answer with an error, where it might like to explain itself.
PROVOCATIONS: dict[str, Callable[[str], Packet]] = {
    "PUBACK": lambda topic: Publish("$SYS/" + topic, b"x", 1, packet_id=1),
    "PUBREC": lambda topic: Publish("$SYS/" + topic, b"x", 2, packet_id=1),
    "PUBREL": lambda topic: Pubrec(1),
    "PUBCOMP": lambda topic: Pubrel(1),
    "SUBACK": lambda topic: Subscribe(1, [SubscribeOption("a/#/b", 0)]),
    "UNSUBACK": lambda topic: Unsubscribe(1, [topic]),
    "DISCONNECT": lambda topic: Publish(topic, b"x", properties=Properties(topic_alias=0xFFFF)),
}
FIRST_BYTES = {
    "PUBACK": 0x40,
    "PUBREC": 0x50,
    "PUBREL": 0x62,
    "PUBCOMP": 0x70,
    "SUBACK": 0x90,
    "UNSUBACK": 0xB0,
    "DISCONNECT": 0xE0,
}


def provoke(client: Wire, answer: str, topic: str) -> bytes:
    """Provoke the answer and give it as it came."""
    client.send(PROVOCATIONS[answer](topic))
    frame = client.receive_frame()
    assert frame.first_byte == FIRST_BYTES[answer]
    return frame.raw


@shows(
    "5.0: MQTT-3.4.2-2",
    "5.0: MQTT-3.4.2-3",
    "5.0: MQTT-3.5.2-2",
    "5.0: MQTT-3.5.2-3",
    "5.0: MQTT-3.6.2-2",
    "5.0: MQTT-3.6.2-3",
    "5.0: MQTT-3.7.2-2",
    "5.0: MQTT-3.7.2-3",
    "5.0: MQTT-3.9.2-1",
    "5.0: MQTT-3.9.2-2",
    "5.0: MQTT-3.11.2-1",
    "5.0: MQTT-3.11.2-2",
    "5.0: MQTT-3.14.2-3",
    "5.0: MQTT-3.14.2-4",
    "5.0: MQTT-3.1.2-24",
)
@pytest.mark.parametrize("answer", PROVOCATIONS)
def test_a_reason_string_that_does_not_fit_is_omitted(connect: Wires, version: int, topic: str, answer: str) -> None:
    probe = connect.open()
    probe.send_request()
    # The least that a client can ask for and still be told that it is connected.
    limit = len(probe.receive_frame().raw)
    client = connect(maximum_packet_size=limit)

    answered = provoke(client, answer, topic)

    assert len(answered) <= limit


@shows("5.0: MQTT-3.1.2-29")
@pytest.mark.parametrize("answer", [answer for answer in PROVOCATIONS if answer != "DISCONNECT"])
def test_a_client_that_wants_no_problem_information_gets_none(connect: Wires, version: int, topic: str, answer: str) -> None:
    client = connect(request_problem_information=0)

    answered = provoke(client, answer, topic)

    # Packet identifier, one reason code and, if it is there at all, an empty property set.
    assert len(answered) <= 2 + 2 + 1 + 1
    if answer in {"SUBACK", "UNSUBACK"}:
        assert answered[4] == 0
    elif len(answered) == 6:
        assert answered[5] == 0


@shows("5.0: MQTT-3.1.2-29")
def test_messages_keep_user_properties_without_problem_information(connect: Wires, version: int, topic: str) -> None:
    publisher, client = connect(), connect(request_problem_information=0)
    client.subscribe(topic)

    publisher.publish(topic, b"x", user_properties=(("a", "b"),))

    assert client.receive(Publish).properties.user_properties == (("a", "b"),)
