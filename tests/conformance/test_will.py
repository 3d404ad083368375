"""The Will Message: kept, published once, delayed, cancelled (chapters 3.1.2.5 to 3.1.2.7, 3.1.3.2 and 3.14.4)."""

from __future__ import annotations

import time

import pytest

from braidmq.mqtt.packets import Publish, SubscribeOption, Will
from braidmq.mqtt.properties import Properties
from tests.conformance.statements import shows
from tests.support.clients.wire import Wires


@shows("5.0: MQTT-3.1.2-7", "5.0: MQTT-3.1.2-8", "3.1.1: MQTT-3.1.2-8")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_will_is_published_when_the_connection_is_lost(connect: Wires, version: int, topic: str, qos: int) -> None:
    observer = connect()
    observer.subscribe(topic, qos=2)
    client = connect(will=Will(topic, b"gone", qos, False))

    client.close()

    will = observer.receive_publish()
    assert (will.topic, will.payload, will.qos, will.retain) == (topic, b"gone", qos, False)


@shows("5.0: MQTT-3.1.2-8", "5.0: MQTT-3.1.2-22", "3.1.1: MQTT-3.1.2-8", "3.1.1: MQTT-3.1.2-24")
def test_the_will_is_published_when_the_keep_alive_lapses(connect: Wires, version: int, topic: str) -> None:
    observer = connect()
    observer.subscribe(topic)
    client = connect(keep_alive=1, will=Will(topic, b"silent", 0, False))

    assert observer.receive(Publish, timeout_s=4).payload == b"silent"
    client.expect_disconnect(0x8D)


@shows("5.0: MQTT-3.1.2-8", "5.0: MQTT-4.13.1-1", "3.1.1: MQTT-3.1.2-8", "3.1.1: MQTT-4.8.0-1")
def test_the_will_is_published_when_the_broker_closes_for_a_violation(connect: Wires, version: int, topic: str) -> None:
    observer = connect()
    observer.subscribe(topic)
    client = connect(will=Will(topic, b"rude", 0, False))

    client.send(b"\x36\x05\x00\x01t\x00\x01")

    client.expect_disconnect(0x81)
    assert observer.receive(Publish).payload == b"rude"


@shows("5.0: MQTT-3.1.2-10", "5.0: MQTT-3.14.4-3", "3.1.1: MQTT-3.1.2-10", "3.1.1: MQTT-3.14.4-3")
def test_a_normal_disconnect_discards_the_will(connect: Wires, version: int, topic: str) -> None:
    observer = connect()
    observer.subscribe(topic)
    client = connect(persistent=True, will=Will(topic, b"will", 1, False))

    client.disconnect()
    # Another connection of the same session, lost without a will of its own, must not bring the old one back.
    connect(client.client_id, persistent=True).close()
    connect(client.client_id, persistent=True).disconnect()

    observer.expect_silence()


@shows("5.0: MQTT-3.1.2-10", "3.1.1: MQTT-3.1.2-10")
def test_a_published_will_is_not_published_again(connect: Wires, version: int, topic: str) -> None:
    observer = connect()
    observer.subscribe(topic)
    client = connect(persistent=True, will=Will(topic, b"once", 0, False))
    client.close()
    assert observer.receive(Publish).payload == b"once"

    connect(client.client_id, persistent=True).close()
    connect(client.client_id, persistent=True).disconnect()

    observer.expect_silence()


@shows("5.0: MQTT-3.1.2-8", "5.0: MQTT-3.1.4-3", "3.1.1: MQTT-3.1.2-8", "3.1.1: MQTT-3.1.4-2")
def test_the_will_of_a_connection_that_is_taken_over_is_published(connect: Wires, version: int, topic: str) -> None:
    observer = connect()
    observer.subscribe(topic)
    older = connect(persistent=True, will=Will(topic, b"of the older", 0, False))

    newer = connect(older.client_id, persistent=True, will=Will(topic, b"of the newer", 0, False))
    older.expect_disconnect(0x8E)

    assert newer.connack.session_present
    assert observer.receive(Publish).payload == b"of the older"
    newer.close()
    assert observer.receive(Publish).payload == b"of the newer"


@shows("3.1.1: MQTT-3.1.2-12")
def test_without_the_will_flag_nothing_is_published(connect: Wires, version: int, topic: str) -> None:
    observer = connect()
    observer.subscribe(topic)
    connect(observer.client_id + "x", will=Will(topic, b"of the first", 0, False)).disconnect()

    connect(observer.client_id + "x").close()
    connect(observer.client_id + "x").disconnect()

    observer.expect_silence()


@shows("5.0: MQTT-3.1.2-8")
def test_disconnect_with_will_message_publishes_the_will(connect: Wires, version: int, topic: str) -> None:
    observer = connect()
    observer.subscribe(topic)
    client = connect(will=Will(topic, b"asked for", 0, False))

    client.disconnect(0x04)

    assert observer.receive(Publish).payload == b"asked for"


@shows("5.0: MQTT-3.1.2-14", "3.1.1: MQTT-3.1.2-16")
def test_a_will_without_retain_is_not_retained(connect: Wires, version: int, topic: str) -> None:
    observer = connect()
    observer.subscribe(topic)
    connect(will=Will(topic, b"passing", 0, False)).close()
    assert not observer.receive(Publish).retain

    late = connect()
    late.subscribe(topic)

    late.expect_silence()


@shows("5.0: MQTT-3.1.2-15", "3.1.1: MQTT-3.1.2-17")
def test_a_will_with_retain_is_retained(connect: Wires, version: int, topic: str) -> None:
    observer = connect()
    observer.subscribe(topic)
    connect(will=Will(topic, b"kept", 1, True)).close()
    # The subscription was there before: the flag is cleared on the way to it.
    assert not observer.receive(Publish).retain

    late = connect()
    late.subscribe(topic)

    kept = late.receive(Publish)
    assert (kept.payload, kept.retain) == (b"kept", True)


@shows("5.0: MQTT-3.1.3-10", "5.0: MQTT-3.3.2-17", "5.0: MQTT-3.3.2-18")
def test_the_will_keeps_its_properties_in_order(connect: Wires, version: int, topic: str) -> None:
    observer = connect()
    observer.subscribe(topic)
    pairs = (("b", "2"), ("a", "1"), ("b", "2"), ("", ""), ("a", "0"))
    properties = Properties(
        user_properties=pairs,
        content_type="text/plain",
        response_topic=topic + "/answer",
        correlation_data=b"\x00\xff",
        payload_format_indicator=1,
    )

    connect(will=Will(topic, b"gone", 0, False, properties)).close()

    assert observer.receive(Publish).properties == properties


@shows("5.0: MQTT-3.1.2-8", "5.0: MQTT-3.1.3-9", "5.0: MQTT-3.1.2-10")
def test_the_will_waits_for_its_delay(connect: Wires, version: int, topic: str) -> None:
    observer = connect()
    observer.subscribe(topic + "/#")
    delay = Properties(will_delay_interval=1)
    returning = connect(session_expiry_interval=60, will=Will(topic + "/returning", b"no", 0, False, delay))
    lost = connect(session_expiry_interval=60, will=Will(topic + "/lost", b"yes", 0, False, delay))

    left_at = time.monotonic()
    returning.close()
    lost.close()
    # Its new will must not be mistaken for the old one when the delay is over.
    second_will = Will(topic + "/returning", b"not yet", 0, False)
    back = connect(returning.client_id, clean_start=False, session_expiry_interval=60, will=second_will)
    will = observer.receive(Publish, timeout_s=4)

    # A clock tick of slack: the broker may round to its own timer.
    assert time.monotonic() - left_at > 0.9
    assert (will.topic, will.payload) == (topic + "/lost", b"yes")
    with pytest.raises(TimeoutError):
        observer.receive_any(timeout_s=0.3)
    back.ping()


@shows("5.0: MQTT-3.1.2-8", "5.0: MQTT-4.1.0-2")
def test_the_end_of_the_session_publishes_a_delayed_will(connect: Wires, version: int, topic: str) -> None:
    observer = connect()
    observer.subscribe(topic + "/#")
    delay = Properties(will_delay_interval=600)
    at_once = connect(session_expiry_interval=0, will=Will(topic + "/at-once", b"", 0, False, delay))
    expiring = connect(session_expiry_interval=1, will=Will(topic + "/expiring", b"", 0, False, delay))
    replaced = connect(session_expiry_interval=60, will=Will(topic + "/replaced", b"", 0, False, delay))

    at_once.close()
    assert observer.receive(Publish).topic == topic + "/at-once"

    replaced.close()
    connect(replaced.client_id, clean_start=True)
    assert observer.receive(Publish).topic == topic + "/replaced"

    expiring.close()
    assert observer.receive(Publish, timeout_s=4).topic == topic + "/expiring"


@shows("5.0: MQTT-3.1.2-8", "5.0: MQTT-3.1.2-7", "3.1.1: MQTT-3.1.2-8")
def test_the_will_is_queued_for_offline_sessions(connect: Wires, version: int, topic: str) -> None:
    away = connect(persistent=True)
    away.subscribe(SubscribeOption(topic, 1))
    away.disconnect()
    witness = connect()
    witness.subscribe(topic)

    connect(will=Will(topic, b"read later", 1, False)).close()
    witness.receive(Publish)

    assert connect(away.client_id, persistent=True).receive_publish().payload == b"read later"
