"""SUBSCRIBE and SUBACK (chapters 3.8 and 3.9)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from braidmq.mqtt.packets import Publish, Suback, Subscribe, SubscribeOption
from tests.conformance.statements import shows
from tests.support.clients import raw
from tests.support.clients.wire import Wires, payloads

SUBACK_REASONS = {0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}


@shows(
    "5.0: MQTT-3.8.4-1",
    "5.0: MQTT-3.8.4-2",
    "5.0: MQTT-3.8.4-5",
    "5.0: MQTT-3.8.4-6",
    "5.0: MQTT-3.8.4-7",
    "5.0: MQTT-3.9.3-1",
    "3.1.1: MQTT-3.8.4-1",
    "3.1.1: MQTT-3.8.4-2",
    "3.1.1: MQTT-3.8.4-4",
    "3.1.1: MQTT-3.8.4-5",
    "3.1.1: MQTT-3.9.3-1",
    "3.1.1: MQTT-2.3.1-7",
)
def test_many_filters_are_answered_by_one_suback_in_order(connect: Wires, version: int, topic: str) -> None:
    client, publisher = connect(), connect()
    qos = [2, 0, 1, 1, 0, 2, 2]

    client.send(Subscribe(4660, [SubscribeOption(f"{topic}/{index}", value) for index, value in enumerate(qos)]))

    assert client.receive(Suback) == Suback(4660, qos)
    for index, granted in enumerate(qos):
        publisher.publish(f"{topic}/{index}", b"x", 2)
        publish = client.receive_publish()
        assert (publish.topic, publish.qos) == (f"{topic}/{index}", granted)
    client.expect_silence()


@shows("5.0: MQTT-3.8.4-7", "5.0: MQTT-3.9.3-1", "5.0: MQTT-3.9.3-2", "5.0: MQTT-3.8.4-6", "5.0: MQTT-4.7.1-1")
def test_an_invalid_filter_does_not_affect_the_others(connect: Wires, version: int, topic: str) -> None:
    client, publisher = connect(), connect()
    filters = [f"{topic}/a", f"{topic}/#/b", f"{topic}/b", "a+", "#x", f"{topic}/c"]

    client.send(raw.subscribe(version, *[(topic_filter, 1) for topic_filter in filters]))
    suback = client.receive(Suback)
    for name in "abc":
        publisher.publish(f"{topic}/{name}", name.encode(), 1)

    assert suback.reasons == [1, 0x8F, 1, 0x8F, 0x8F, 1]
    assert set(suback.reasons) <= SUBACK_REASONS
    assert [client.receive_publish().payload for _ in range(3)] == [b"a", b"b", b"c"]


@shows("3.1.1: MQTT-3.9.3-2", "3.1.1: MQTT-4.7.1-2", "3.1.1: MQTT-4.7.1-3", "3.1.1: MQTT-4.7.3-1")
@pytest.mark.parametrize("bad", ["a/#/b", "a+", "#x", "a/b#", "+a/b", ""])
def test_an_invalid_filter_fails_or_closes_the_connection_in_3_1_1(connect: Wires, version: int, topic: str, bad: str) -> None:
    client = connect()

    client.send(raw.subscribe(version, (topic, 2), (bad, 1), (topic + "/+", 1)))
    answers = client.drain_or_closed()

    assert answers in ([Suback(1, [2, 0x80, 1])], [])


@shows("5.0: MQTT-3.9.3-2", "3.1.1: MQTT-3.9.3-2", "5.0: MQTT-3.8.4-7")
def test_a_filter_that_is_not_allowed_is_refused(connect_guarded: Wires, version: int) -> None:
    client = connect_guarded(user_name="ada", password=b"lovelace")

    suback = client.request_subscribe("open/a", "closed/a", "open/b", qos=1)

    assert suback.reasons == ([1, 0x87, 1] if version == 5 else [1, 0x80, 1])


@shows("5.0: MQTT-3.8.4-8", "3.1.1: MQTT-3.8.4-6")
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
def test_a_message_is_delivered_with_the_lower_of_both_qos(
    connect: Wires, version: int, topic: str, granted: int, published: int
) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(topic, qos=granted)

    publisher.publish(topic, b"x", published)

    assert subscriber.receive_publish().qos == min(granted, published)
    subscriber.expect_silence()


@shows("5.0: MQTT-3.8.4-3", "3.1.1: MQTT-3.8.4-3")
def test_the_same_filter_again_replaces_the_subscription(connect: Wires, version: int, topic: str) -> None:
    subscriber, publisher = connect(), connect()

    for qos in (2, 0, 1):
        subscriber.subscribe(topic + "/+", qos=qos)
        publisher.publish(topic + "/a", b"x", 2)
        assert subscriber.receive_publish().qos == qos
        subscriber.expect_silence()


@shows("5.0: MQTT-3.8.4-4", "3.1.1: MQTT-3.8.4-3")
def test_replacing_a_subscription_loses_no_message(connect: Wires, version: int, topic: str) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(topic, qos=1)
    sent = [b"%d" % number for number in range(200)]

    for index, payload in enumerate(sent):
        publisher.send(Publish(topic, payload))
        subscriber.send(Subscribe(1 + index, [SubscribeOption(topic, index % 2)]))
    publisher.ping()

    packets = subscriber.drain()
    assert payloads(packets) == sent
    assert sum(isinstance(packet, Suback) for packet in packets) == len(sent)


@shows("5.0: MQTT-3.8.3-3")
def test_no_local_excludes_the_clients_own_messages(connect: Wires, version: int, topic: str) -> None:
    client, other = connect(), connect()
    client.subscribe(SubscribeOption(topic, 1, no_local=True))
    client.subscribe(SubscribeOption(topic + "/echo", 1))

    client.send(Publish(topic, b"own"), Publish(topic + "/echo", b"echo"))
    echo = client.receive_publish()
    other.publish(topic, b"foreign", 1)

    assert echo.payload == b"echo"
    assert client.receive_publish().payload == b"foreign"
    client.expect_silence()


@shows("5.0: MQTT-3.8.3-3")
def test_no_local_applies_to_the_client_on_later_connections_too(connect: Wires, version: int, topic: str) -> None:
    client, marker = connect(persistent=True), connect()
    client.subscribe(SubscribeOption(topic, 1, no_local=True))
    client.disconnect()

    back = connect(client.client_id, persistent=True)
    back.publish(topic, b"own", 1)
    marker.publish(topic, b"foreign", 1)

    assert back.receive_publish().payload == b"foreign"


@shows("5.0: MQTT-3.8.3-3")
def test_no_local_excludes_the_clients_own_retained_message(connect: Wires, version: int, topic: str) -> None:
    client, other = connect(), connect()
    client.publish(topic + "/own", b"own", 1, retain=True)
    other.publish(topic + "/foreign", b"foreign", 1, retain=True)

    client.subscribe(SubscribeOption(topic + "/+", 1, no_local=True))

    assert client.receive_publish().payload == b"foreign"
    client.expect_silence()


@shows("5.0: MQTT-3.8.3-3", "5.0: MQTT-3.3.4-4")
def test_no_local_does_not_affect_an_overlapping_subscription(connect: Wires, version: int, topic: str) -> None:
    client = connect()
    client.subscribe(SubscribeOption(topic + "/#", 2, no_local=True), subscription_identifiers=(1,))
    client.subscribe(SubscribeOption(topic + "/a", 0), subscription_identifiers=(2,))

    client.send(Publish(topic + "/a", b"own", 1, packet_id=1))
    _, publish = client.receive_until(Publish)

    # It comes by the second subscription: with that one's QoS and identifier.
    assert (publish.qos, publish.properties.subscription_identifiers) == (0, (2,))


MALFORMED: dict[str, tuple[Callable[[int], bytes], int]] = {
    "no filter": (lambda version: raw.subscribe(version), 0x82),
    "options bit 7": (lambda version: raw.subscribe(version, ("t", 0x80)), 0x81),
    "options bit 6": (lambda version: raw.subscribe(version, ("t", 0x40)), 0x81),
    "filter without options": (lambda version: raw.frame(0x82, b"\x00\x01", raw.properties(version), raw.text("t")), 0x81),
    "cut filter": (lambda version: raw.frame(0x82, b"\x00\x01", raw.properties(version), b"\x00\x09ab"), 0x81),
    "no identifier": (lambda version: raw.frame(0x82, b"\x00"), 0x81),
}


@shows(
    "5.0: MQTT-3.8.3-2",
    "5.0: MQTT-3.8.3-5",
    "5.0: MQTT-4.13.1-1",
    "3.1.1: MQTT-3.8.3-3",
    "3.1.1: MQTT-3.8.3-4",
    "3.1.1: MQTT-4.8.0-1",
)
@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_subscribe_closes_the_connection(connect: Wires, version: int, case: str) -> None:
    client = connect()
    build, reason = MALFORMED[case]

    client.send(build(version))

    client.expect_disconnect(reason)


@shows("3.1.1: MQTT-3.8.3-4")
@pytest.mark.parametrize("options", [0x03, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80])
def test_mqtt_5_subscription_options_are_malformed_in_3_1_1(connect: Wires, version: int, options: int) -> None:
    client = connect()

    client.send(raw.subscribe(version, ("t", options)))

    client.expect_closed()


@shows("5.0: MQTT-3.8.3-5", "5.0: MQTT-4.13.1-1")
@pytest.mark.parametrize(
    ("options", "props", "reasons"),
    [
        pytest.param(0x03, b"", (0x81, 0x82), id="QoS 3"),
        pytest.param(0x30, b"", (0x82,), id="retain handling 3"),
        pytest.param(0x00, b"\x0b\x00", (0x82,), id="subscription identifier 0"),
        pytest.param(0x00, b"\x0b\x01\x0b\x02", (0x82,), id="two subscription identifiers"),
        pytest.param(0x00, b"\x23\x00\x01", (0x81,), id="topic alias"),
    ],
)
def test_invalid_subscription_options_close_the_connection(
    connect: Wires, version: int, options: int, props: bytes, reasons: tuple[int, ...]
) -> None:
    client = connect()

    client.send(raw.subscribe(version, ("t", options), props=props))

    client.expect_disconnect(*reasons)


@shows("3.1.1: MQTT-3.8.3-2")
@pytest.mark.parametrize("topic_filter", ["#", "+", "+/a/#"])
def test_wildcards_are_supported(connect: Wires, version: int, topic_filter: str) -> None:
    client = connect()

    assert client.request_subscribe(topic_filter, qos=1).reasons == [1]
