"""Flow control: Receive Maximum in both directions (chapters 3.3.4 and 4.9)."""

from __future__ import annotations

import pytest

from braidmq.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.conformance.statements import shows
from tests.support.clients.wire import Wires, payloads


@shows("5.0: MQTT-3.3.4-9", "5.0: MQTT-4.9.0-1", "5.0: MQTT-4.9.0-2")
@pytest.mark.parametrize("maximum", [1, 4])
@pytest.mark.parametrize("qos", [1, 2])
def test_the_broker_keeps_within_the_clients_receive_maximum(
    connect: Wires, version: int, topic: str, qos: int, maximum: int
) -> None:
    publisher, subscriber = connect(), connect(receive_maximum=maximum)
    subscriber.subscribe(topic, qos=qos)
    sent = [b"%d" % number for number in range(maximum + 3)]
    for payload in sent:
        publisher.publish(topic, payload, qos)

    window = subscriber.receive_publishes(maximum)
    subscriber.expect_silence()
    # Each acknowledgement makes room for one more.
    while len(window) < len(sent):
        subscriber.acknowledge(window[len(window) - maximum])
        window.append(subscriber.receive(Publish))
        if len(window) < len(sent):
            subscriber.expect_silence()

    assert payloads(window) == sent


@shows("5.0: MQTT-4.9.0-2", "5.0: MQTT-3.3.4-9")
def test_a_qos_2_message_occupies_the_window_until_pubcomp(connect: Wires, version: int, topic: str) -> None:
    publisher, subscriber = connect(), connect(receive_maximum=1)
    subscriber.subscribe(topic, qos=2)
    publisher.publish(topic, b"first", 2)
    publisher.publish(topic, b"second", 2)

    identifier = subscriber.receive(Publish).packet_id or 0
    subscriber.send(Pubrec(identifier))
    subscriber.receive(Pubrel)
    subscriber.expect_silence()
    subscriber.send(Pubcomp(identifier))

    assert subscriber.receive(Publish).payload == b"second"


@shows("5.0: MQTT-4.9.0-2", "5.0: MQTT-4.4.0-2")
def test_a_negative_pubrec_frees_its_place_in_the_window(connect: Wires, version: int, topic: str) -> None:
    publisher, subscriber = connect(), connect(receive_maximum=1)
    subscriber.subscribe(topic, qos=2)
    publisher.publish(topic, b"first", 2)
    publisher.publish(topic, b"second", 2)

    subscriber.send(Pubrec(subscriber.receive(Publish).packet_id or 0, 0x80))

    assert subscriber.receive(Publish).payload == b"second"


@shows("5.0: MQTT-3.3.4-10", "5.0: MQTT-4.9.0-3", "5.0: MQTT-3.12.4-1", "5.0: MQTT-3.8.4-1")
def test_a_full_window_delays_only_publish_packets(connect: Wires, version: int, topic: str) -> None:
    publisher, subscriber = connect(), connect(receive_maximum=1)
    subscriber.subscribe(topic, qos=1)
    publisher.publish(topic, b"fills the window", 1)
    publisher.publish(topic, b"waits", 1)
    blocking = subscriber.receive(Publish)

    subscriber.ping()
    subscriber.subscribe(topic + "/other")
    subscriber.unsubscribe(topic + "/other")
    assert subscriber.publish(topic + "/elsewhere", b"x", 1) < 0x80
    assert subscriber.publish(topic + "/elsewhere", b"x", 2) < 0x80
    publisher.publish(topic, b"QoS 0 needs no quota", 0)

    assert subscriber.receive(Publish).payload == b"QoS 0 needs no quota"
    subscriber.send(Puback(blocking.packet_id or 0))
    assert subscriber.receive(Publish).payload == b"waits"


@shows("5.0: MQTT-3.3.4-9", "5.0: MQTT-4.9.0-1", "5.0: MQTT-4.4.0-1")
def test_a_resumed_session_keeps_within_the_receive_maximum(connect: Wires, version: int, topic: str) -> None:
    publisher, client = connect(), connect(persistent=True)
    client.subscribe(topic, qos=1)
    client.disconnect()
    sent = [b"%d" % number for number in range(6)]
    for payload in sent:
        publisher.publish(topic, payload, 1)

    back = connect(client.client_id, persistent=True, receive_maximum=2)
    first = back.receive_publishes(2)
    back.expect_silence()
    back.close()
    # Fewer than are in flight: the rest must wait even though they were sent before.
    again = connect(client.client_id, persistent=True, receive_maximum=1)
    repeated = again.receive(Publish)
    again.expect_silence()

    assert payloads(first) == sent[:2]
    assert (repeated.packet_id, repeated.payload, repeated.dup) == (first[0].packet_id, b"0", True)
    again.acknowledge(repeated)
    assert [again.receive_publish().payload for _ in range(5)] == sent[1:]


@shows("5.0: MQTT-3.3.4-10", "5.0: MQTT-4.9.0-3", "5.0: MQTT-4.4.0-1")
def test_pubrel_is_resent_although_the_window_is_full(connect: Wires, version: int, topic: str) -> None:
    publisher, client = connect(), connect(persistent=True)
    client.subscribe(topic, qos=2)
    for qos in (1, 2, 2):
        publisher.publish(topic, b"x", qos)
    unacknowledged, *received = client.receive_publishes(3)
    client.send(*[Pubrec(publish.packet_id or 0) for publish in received])
    for publish in received:
        assert client.receive(Pubrel).packet_id == publish.packet_id
    client.close()

    back = connect(client.client_id, persistent=True, receive_maximum=1)
    # A node of a cluster reads the PUBLISH from its core first, so it may come later than the others.
    packets = [*(back.receive_any() for _ in range(3)), *back.drain()]

    # The PUBLISH of QoS 1 fills the window; PUBREL is no part of it.
    assert [packet.packet_id for packet in packets if isinstance(packet, Publish)] == [unacknowledged.packet_id]
    assert [packet.packet_id for packet in packets if isinstance(packet, Pubrel)] == [publish.packet_id for publish in received]


@shows("5.0: MQTT-3.3.4-7", "5.0: MQTT-4.9.0-2", "5.0: MQTT-4.13.1-1")
def test_more_than_the_brokers_receive_maximum_closes_the_connection(connect_small: Wires, version: int, topic: str) -> None:
    client = connect_small()
    maximum = client.connack.properties.receive_maximum
    assert maximum == 5

    client.send(*[Publish(topic, b"x", 2, packet_id=number) for number in range(1, maximum + 1)])
    assert [client.receive(Pubrec).packet_id for _ in range(maximum)] == [1, 2, 3, 4, 5]
    client.send(Publish(topic, b"x", 2, packet_id=6))

    client.expect_disconnect(0x93)


@shows("5.0: MQTT-3.3.4-7", "5.0: MQTT-3.3.4-8")
def test_the_brokers_window_opens_again_with_pubcomp(connect_small: Wires, version: int, topic: str) -> None:
    client = connect_small()
    client.send(*[Publish(topic, b"x", 2, packet_id=number) for number in range(1, 6)])
    for _ in range(5):
        client.receive(Pubrec)

    # Other packets are no part of the window, nor is a repeated PUBLISH.
    client.ping()
    client.subscribe(topic + "/other")
    client.send(Publish(topic, b"x", 2, dup=True, packet_id=3))
    client.receive(Pubrec)
    client.send(Pubrel(3))
    client.receive(Pubcomp)
    client.send(Publish(topic, b"x", 2, packet_id=6))

    assert client.receive(Pubrec).packet_id == 6
