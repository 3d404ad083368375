"""Expiry of sessions and messages, keep-alive, and the stop of the node."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from braidmq.mqtt.packets import MQTT5, MQTT311, Will
from braidmq.mqtt.properties import NO_PROPERTIES
from braidmq.mqtt.reasons import Reason
from braidmq.testing import Broker
from tests.support.clients.wire import DEADLINE_S, Wire, unique
from tests.support.hooks import Recorder
from tests.support.stage import Stage, wait_until

Start = Callable[..., Stage]


def record(stage: Stage) -> Recorder:
    """Be told of the broker's events."""
    recorder = Recorder()
    stage.look(lambda inside: inside.hooks.add(recorder))
    return recorder


def await_end(recorder: Recorder, client_id: str) -> None:
    """Wait until this session is over."""
    while recorder.events.get(timeout=DEADLINE_S) != ("ended", client_id):
        pass


def pass_time(stage: Stage, seconds: int) -> None:
    """Let this much time pass on the broker's own clock."""
    clock, topic = stage.connect(), unique("clock/")
    clock.subscribe(topic)
    clock.publish(f"$delayed/{seconds}/{topic}", b"tick", 1)
    clock.receive_publish()


# Sessions


def test_connack_reports_a_capped_session_expiry(start: Start) -> None:
    stage = start(session={"expiry_max": "1m"})

    assert stage.connect(session_expiry_interval=3600).connack.properties.session_expiry_interval == 60
    assert stage.connect(session_expiry_interval=0xFFFFFFFF).connack.properties.session_expiry_interval == 60
    assert stage.connect(session_expiry_interval=30).connack.properties.session_expiry_interval is None, "as asked"


def test_a_session_ends_when_its_expiry_has_passed(start: Start) -> None:
    stage = start(session={"expiry_max": "1s"})
    recorder = record(stage)
    client = stage.connect(persistent=True, session_expiry_interval=3600)
    client.subscribe("t", qos=1)
    client.disconnect()
    began = time.monotonic()

    await_end(recorder, client.client_id)

    assert time.monotonic() - began > 0.9
    assert stage.connect().publish("t", b"x", 1) == Reason.NO_MATCHING_SUBSCRIBERS
    assert not stage.connect(client.client_id, persistent=True).connack.session_present


def test_sessions_of_mqtt_3_expire_by_configuration(start: Start) -> None:
    stage = start(session={"expiry_mqtt3": "1s"})
    recorder = record(stage)
    client = stage.connect(version=MQTT311, persistent=True)
    client.disconnect()

    await_end(recorder, client.client_id)

    assert not stage.connect(client.client_id, version=MQTT311, persistent=True).connack.session_present


def test_reconnecting_in_time_restarts_the_session_expiry(start: Start) -> None:
    stage = start(session={"expiry_mqtt3": "2s"})
    client = stage.connect(version=MQTT311, persistent=True)
    client.disconnect()
    pass_time(stage, 1)
    stage.connect(client.client_id, version=MQTT311, persistent=True).disconnect()
    pass_time(stage, 1)

    assert stage.connect(client.client_id, version=MQTT311, persistent=True).connack.session_present


def test_disconnect_can_shorten_the_session_expiry(stage: Stage) -> None:
    client = stage.connect(persistent=True, session_expiry_interval=3600)
    client.disconnect(session_expiry_interval=0)

    assert not stage.connect(client.client_id, persistent=True).connack.session_present


def test_disconnect_cannot_raise_the_session_expiry_above_the_cap(start: Start) -> None:
    stage = start(session={"expiry_max": "1s"})
    recorder = record(stage)
    client = stage.connect(persistent=True, session_expiry_interval=1)
    client.disconnect(session_expiry_interval=3600)

    await_end(recorder, client.client_id)


def test_the_session_limit_rejects_new_sessions_but_not_existing_ones(start: Start) -> None:
    stage = start(session={"sessions_max": 2})
    first, _ = stage.connect(persistent=True), stage.connect()
    refused = stage.open()
    refused.send_request()

    refused.expect_refusal(Reason.QUOTA_EXCEEDED)
    first.disconnect()
    assert stage.connect(first.client_id, persistent=True).connack.session_present


# Messages


def test_a_queued_message_is_sent_with_its_remaining_expiry(stage: Stage) -> None:
    topic = unique("t/")
    client = stage.connect(persistent=True)
    client.subscribe(topic, qos=1)
    client.disconnect()
    stage.connect().publish(topic, b"x", 1, message_expiry_interval=100)
    pass_time(stage, 1)

    came = stage.connect(client.client_id, persistent=True).receive_publish()

    left = came.properties.message_expiry_interval
    assert left is not None
    assert 95 <= left < 100


def test_a_message_that_expires_in_the_queue_is_dropped_and_counted(start: Start) -> None:
    stage = start()
    client = stage.connect(persistent=True)
    client.subscribe("t", qos=1)
    client.disconnect()
    sender = stage.connect()
    sender.publish("t", b"short-lived", 1, message_expiry_interval=1)
    sender.publish("t", b"lasting", 1)
    pass_time(stage, 1)

    back = stage.connect(client.client_id, persistent=True)

    assert back.receive_publish().payload == b"lasting"
    back.expect_silence()
    assert stage.drops("expired") == 1


def test_an_expired_retained_message_is_not_delivered(stage: Stage) -> None:
    topic = unique("t/")
    sender = stage.connect()
    sender.publish(f"{topic}/a", b"short-lived", 1, retain=True, message_expiry_interval=1)
    sender.publish(f"{topic}/b", b"lasting", 1, retain=True)
    pass_time(stage, 1)

    exact, wild = stage.connect(), stage.connect()
    exact.subscribe(f"{topic}/a")
    wild.subscribe(f"{topic}/+")

    exact.expect_silence()
    assert wild.receive_publish().payload == b"lasting"
    wild.expect_silence()


# Silence


@pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["v3.1.1", "v5.0"])
def test_a_silent_client_is_closed_after_one_and_a_half_keep_alives(stage: Stage, version: int) -> None:
    topic = unique("will/")
    watcher = stage.connect()
    watcher.subscribe(topic, qos=1)
    began = time.monotonic()
    silent = stage.connect(version=version, keep_alive=1, will=Will(topic, b"gone", 1, False, NO_PROPERTIES))

    assert watcher.receive_publish().payload == b"gone"

    assert 1.4 < time.monotonic() - began < 5.0
    silent.expect_disconnect(Reason.KEEP_ALIVE_TIMEOUT)


def test_a_pinging_client_stays_connected(stage: Stage) -> None:
    client, clock = stage.connect(keep_alive=1), stage.connect()
    clock.subscribe("clock", qos=1)

    for _ in range(3):
        clock.publish("$delayed/1/clock", b"", 1)
        clock.receive_publish()
        client.ping()


def test_the_server_keep_alive_is_reported_and_enforced(start: Start) -> None:
    stage = start(mqtt={"keep_alive_max": 1})
    never, long = stage.connect(keep_alive=0), stage.connect(keep_alive=600)

    assert (never.connack.properties.server_keep_alive, long.connack.properties.server_keep_alive) == (1, 1)
    assert stage.connect(keep_alive=1).connack.properties.server_keep_alive is None
    never.expect_disconnect(Reason.KEEP_ALIVE_TIMEOUT)
    long.expect_disconnect(Reason.KEEP_ALIVE_TIMEOUT)


# The end of the node


def test_a_stopping_node_sends_disconnect_and_publishes_no_wills() -> None:
    with Broker() as broker:
        watcher = Wire(broker.host, broker.port).connect()
        watcher.subscribe("wills", qos=1)
        mortal = Wire(broker.host, broker.port).connect(will=Will("wills", b"gone", 1, False, NO_PROPERTIES))
        old = Wire(broker.host, broker.port, MQTT311).connect()
        assert broker.node is not None
        broker.run(broker.node.stop())

        for client in (watcher, mortal):
            told = client.expect_disconnect(Reason.SERVER_SHUTTING_DOWN)
            assert told is not None
        old.expect_closed()
        with pytest.raises(OSError, match="refused"):
            Wire(broker.host, broker.port)


def test_a_client_that_does_not_read_does_not_delay_the_stop_of_the_node() -> None:
    with Broker(limits={"outbox_bytes_max": "1MiB"}) as broker:
        stuck, sender = Wire(broker.host, broker.port).connect(), Wire(broker.host, broker.port).connect()
        stuck.subscribe("t")
        for _ in range(60):
            sender.publish("t", b"x" * 100_000)
        assert broker.node is not None
        began = time.monotonic()

        broker.run(broker.node.stop())

        assert time.monotonic() - began < 8.0


# Addresses


@pytest.mark.row(66)
def test_an_ipv6_listener_serves_clients() -> None:
    listeners = {"tcp": {"six": {"bind": "[::1]:0"}, "four": {"bind": "127.0.0.1:0"}}}
    with Broker(listeners=listeners) as broker:
        six, four = Wire("::1", broker.ports["tcp:six"]).connect(), Wire("127.0.0.1", broker.ports["tcp:four"]).connect()
        watcher = Wire("127.0.0.1", broker.ports["tcp:four"]).connect()
        watcher.subscribe("$SYS/brokers/+/clients/+/connected")
        six.subscribe("t", qos=1)

        four.publish("t", b"across", 1)
        assert six.receive_publish().payload == b"across"
        Wire("::1", broker.ports["tcp:six"]).connect("sixth")
        assert b'"ipaddress":"::1"' in watcher.receive_publish().payload


def test_a_lost_connection_leaks_nothing(stage: Stage) -> None:
    before = stage.look(lambda inside: len(inside.sessions))
    client = stage.connect()
    client.subscribe("t")

    client.close()

    wait_until(lambda: stage.look(lambda inside: len(inside.sessions)) == before, "the session is gone")
    assert stage.connect().publish("t", b"", 1) == Reason.NO_MATCHING_SUBSCRIBERS
