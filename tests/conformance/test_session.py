"""Sessions: how they start, what they keep, how they end, and takeover (chapters 3.1.2, 3.1.4 and 4.1)."""

from __future__ import annotations

import contextlib
import time

import pytest

from braidmq.mqtt.packets import Connack, Disconnect, Pingreq, Pingresp, Publish, SubscribeOption, Will
from braidmq.mqtt.properties import Properties
from tests.conformance.statements import shows
from tests.support.clients.wire import Closed, Wires, payloads, unique


@shows(
    "5.0: MQTT-3.1.2-4",
    "5.0: MQTT-3.1.4-4",
    "3.1.1: MQTT-3.1.2-6",
    "3.1.1: MQTT-3.1.4-3",
)
def test_clean_start_drops_the_old_session(connect: Wires, version: int, topic: str) -> None:
    publisher, client = connect(), connect(persistent=True)
    client.subscribe(topic, qos=1)
    client.disconnect()
    publisher.publish(topic, b"queued", 1)

    fresh = connect(client.client_id, clean_start=True)
    publisher.publish(topic, b"not subscribed any more", 1)

    assert not fresh.connack.session_present
    fresh.expect_silence()


@shows("3.1.1: MQTT-3.1.2-6")
def test_the_state_of_a_clean_session_is_never_used_again(connect: Wires, version: int, topic: str) -> None:
    client = connect(clean_start=True)
    client.subscribe(topic, qos=1)
    client.disconnect()

    later = connect(client.client_id, clean_start=False)
    connect().publish(topic, b"x", 1)

    assert not later.connack.session_present
    later.expect_silence()


@shows(
    "5.0: MQTT-3.1.2-5",
    "5.0: MQTT-3.1.2-23",
    "5.0: MQTT-3.1.3-2",
    "5.0: MQTT-4.5.0-1",
    "3.1.1: MQTT-3.1.2-4",
    "3.1.1: MQTT-3.1.2-5",
    "3.1.1: MQTT-3.1.3-2",
    "3.1.1: MQTT-4.1.0-1",
    "3.1.1: MQTT-4.5.0-1",
)
@pytest.mark.parametrize("farewell", ["DISCONNECT", "broken network"])
def test_a_session_keeps_subscriptions_and_messages(connect: Wires, version: int, topic: str, farewell: str) -> None:
    publisher, client = connect(), connect(persistent=True)
    client.subscribe(SubscribeOption(topic + "/+", 2))
    if farewell == "DISCONNECT":
        client.disconnect()
    else:
        client.close()
    publisher.publish(topic + "/one", b"1", 1)
    publisher.publish(topic + "/two", b"2", 2)

    back = connect(client.client_id, persistent=True)
    received = [back.receive_publish(), back.receive_publish()]
    publisher.publish(topic + "/three", b"3", 1)

    assert back.connack.session_present
    assert [(publish.payload, publish.qos) for publish in received] == [(b"1", 1), (b"2", 2)]
    assert back.receive_publish().payload == b"3"


@shows("5.0: MQTT-3.1.3-2", "3.1.1: MQTT-3.1.3-2")
def test_a_session_belongs_to_one_client_identifier(connect: Wires, version: int, topic: str) -> None:
    owner = connect(persistent=True)
    owner.subscribe(topic, qos=1)
    owner.disconnect()

    stranger = connect(owner.client_id + "x", persistent=True)
    connect().publish(topic, b"for the owner", 1)

    assert not stranger.connack.session_present
    stranger.expect_silence()
    assert connect(owner.client_id, persistent=True).receive_publish().payload == b"for the owner"


@shows("3.1.1: MQTT-3.1.2-7")
def test_retained_messages_outlive_the_session_that_sent_them(connect: Wires, version: int, topic: str) -> None:
    sender = connect(clean_start=True)
    sender.publish(topic, b"kept", 1, retain=True)
    sender.disconnect()
    connect(sender.client_id, clean_start=True).disconnect()

    subscriber = connect()
    subscriber.subscribe(topic)

    assert subscriber.receive_publish().payload == b"kept"


@shows("5.0: MQTT-4.1.0-2", "5.0: MQTT-3.1.2-23")
def test_a_session_ends_when_its_expiry_has_passed(connect: Wires, version: int, topic: str) -> None:
    brief = connect(clean_start=False, session_expiry_interval=1)
    brief.subscribe(topic, qos=1)
    instant = connect(clean_start=False, session_expiry_interval=0)
    instant.subscribe(topic, qos=1)
    extended = connect(clean_start=False, session_expiry_interval=1)
    extended.subscribe(topic, qos=1)
    shortened = connect(clean_start=False, session_expiry_interval=60)
    shortened.subscribe(topic, qos=1)
    brief.disconnect()
    instant.disconnect()
    shortened.disconnect(session_expiry_interval=0)
    extended.disconnect(session_expiry_interval=60)

    gone_at_once = [connect(client.client_id, clean_start=False) for client in (instant, shortened)]
    # Nothing tells that a session has ended; its time has to pass.
    time.sleep(1.3)
    gone, kept = connect(brief.client_id, clean_start=False), connect(extended.client_id, clean_start=False)
    connect().publish(topic, b"x", 1)

    assert not any(client.connack.session_present for client in gone_at_once)
    assert not gone.connack.session_present
    gone.expect_silence()
    assert kept.connack.session_present


@shows("5.0: MQTT-4.1.0-1")
def test_a_session_that_is_resumed_in_time_does_not_end(connect: Wires, version: int, topic: str) -> None:
    publisher, client = connect(), connect(clean_start=False, session_expiry_interval=1)
    client.subscribe(topic, qos=1)
    client.close()

    back = connect(client.client_id, clean_start=False, session_expiry_interval=1)
    # The expiry that began with the first connection runs out during the second.
    time.sleep(1.3)
    publisher.publish(topic, b"still subscribed", 1)

    assert back.connack.session_present
    assert back.receive_publish().payload == b"still subscribed"
    back.disconnect()
    assert connect(client.client_id, clean_start=False).connack.session_present


@shows("5.0: MQTT-3.1.2-23")
def test_connack_reports_a_shortened_session_expiry(connect_small: Wires, version: int) -> None:
    client = connect_small(session_expiry_interval=600)

    assert client.connack.properties.session_expiry_interval == 30


@shows("5.0: MQTT-4.1.0-1", "3.1.1: MQTT-4.1.0-1", "3.1.1: MQTT-4.1.0-2")
def test_a_session_lasts_at_least_as_long_as_its_connection(connect: Wires, version: int, topic: str) -> None:
    # MQTT 5 counts the expiry from the end of the connection; here it is 0 and the connection stays.
    client, publisher = connect(clean_start=True), connect()
    client.subscribe(topic, qos=2)

    for number in range(3):
        publisher.publish(topic, b"%d" % number, 2)
        assert client.receive_publish().payload == b"%d" % number
    client.ping()


@shows("5.0: MQTT-3.14.2-2", "5.0: MQTT-4.13.1-1")
def test_disconnect_cannot_raise_an_expiry_of_zero(connect: Wires, version: int, topic: str) -> None:
    observer = connect()
    observer.subscribe(topic)
    client = connect(session_expiry_interval=0, will=Will(topic, b"will", 0, False))

    client.send(b"\xe0\x07\x00\x05\x11\x00\x00\x00\x3c")

    told = client.expect_disconnect(0x82)
    assert told is not None
    assert told.properties.session_expiry_interval is None
    assert observer.receive(Publish).payload == b"will"
    assert not connect(client.client_id, clean_start=False).connack.session_present


@shows(
    "5.0: MQTT-3.1.4-3",
    "5.0: MQTT-3.14.2-2",
    "5.0: MQTT-3.14.4-2",
    "3.1.1: MQTT-3.1.4-2",
)
@pytest.mark.parametrize("clean_start", [True, False])
def test_a_second_connection_takes_the_client_identifier_over(connect: Wires, version: int, clean_start: bool) -> None:
    older = connect()

    newer = connect(older.client_id, clean_start=clean_start)

    told = older.expect_disconnect(0x8E)
    if told is not None:
        assert told.properties.session_expiry_interval is None
    newer.ping()


@shows("5.0: MQTT-3.1.4-3", "5.0: MQTT-3.1.2-5", "3.1.1: MQTT-3.1.4-2", "3.1.1: MQTT-3.1.2-4")
def test_takeover_moves_the_session_to_the_newer_connection(connect: Wires, version: int, topic: str) -> None:
    publisher, older = connect(), connect(persistent=True)
    older.subscribe(topic, qos=1)
    publisher.publish(topic, b"unacknowledged", 1)
    first = older.receive(Publish)

    newer = connect(older.client_id, persistent=True)
    older.expect_disconnect(0x8E)
    again = newer.receive_publish()
    publisher.publish(topic, b"next", 1)

    assert newer.connack.session_present
    assert (again.payload, again.packet_id, again.dup) == (b"unacknowledged", first.packet_id, True)
    assert newer.receive_publish().payload == b"next"


@shows("5.0: MQTT-3.1.4-3", "5.0: MQTT-3.1.2-8", "5.0: MQTT-3.2.2-2", "5.0: MQTT-3.2.2-3")
@pytest.mark.parametrize("clean_start", [True, False])
def test_takeover_of_a_session_that_ends_with_its_connection(connect: Wires, version: int, topic: str, clean_start: bool) -> None:
    observer = connect()
    observer.subscribe(topic)
    older = connect(session_expiry_interval=0, will=Will(topic, b"will", 0, False))

    newer = connect(older.client_id, clean_start=clean_start)

    assert not newer.connack.session_present
    assert observer.receive(Publish).payload == b"will"
    older.expect_disconnect(0x8E)


@shows("5.0: MQTT-3.1.3-9", "5.0: MQTT-3.1.4-3")
def test_takeover_within_the_will_delay_suppresses_the_will(connect: Wires, version: int, topic: str) -> None:
    observer = connect()
    observer.subscribe(topic)
    will = Will(topic, b"will", 0, False, Properties(will_delay_interval=1))
    older = connect(session_expiry_interval=60, will=will)

    newer = connect(older.client_id, clean_start=False, session_expiry_interval=60)
    older.expect_disconnect(0x8E)

    # The delay passes and nothing comes: that is the point.
    with pytest.raises(TimeoutError):
        observer.receive_any(timeout_s=1.3)
    newer.ping()


@shows("5.0: MQTT-3.1.4-3", "3.1.1: MQTT-3.1.4-2", "5.0: MQTT-3.2.0-2")
def test_of_many_connections_with_one_identifier_one_survives(connect: Wires, version: int) -> None:
    name = unique()
    crowd = [connect.open() for _ in range(20)]

    for wire in crowd:
        wire.send_request(client_id=name)
    for wire in crowd:
        assert wire.receive(Connack).reason == 0
    survivors = 0
    for wire in crowd:
        with contextlib.suppress(OSError):
            wire.send(Pingreq())
        try:
            packet = wire.receive_any()
        except Closed:
            assert version == 4
            continue
        if isinstance(packet, Pingresp):
            survivors += 1
        else:
            assert isinstance(packet, Disconnect)
            assert packet.reason == 0x8E

    assert survivors == 1


@shows("5.0: MQTT-4.5.0-1", "3.1.1: MQTT-4.5.0-1")
def test_a_message_goes_to_every_subscribed_session(connect: Wires, version: int, topic: str) -> None:
    online = [connect() for _ in range(5)]
    offline = [connect(persistent=True) for _ in range(3)]
    for client in online + offline:
        client.subscribe(topic, qos=1)
    for client in offline:
        client.disconnect()

    connect().publish(topic, b"for all", 1)

    returned = [connect(client.client_id, persistent=True) for client in offline]
    for client in online + returned:
        assert payloads([client.receive_publish()]) == [b"for all"]
        client.expect_silence()
