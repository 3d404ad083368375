"""``$SYS``: statistics under Mosquitto's names, and presence events in the form of EMQX."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from braidmq import __version__
from braidmq.mqtt.packets import Will
from braidmq.mqtt.properties import NO_PROPERTIES
from tests.support.clients.wire import Wire, unique
from tests.support.stage import Stage, wait_until

Start = Callable[..., Stage]

# What people's dashboards read; from Mosquitto's manual page, section "Broker status".
MOSQUITTO_NAMES = [
    "bytes/received",
    "bytes/sent",
    "clients/connected",
    "clients/disconnected",
    "clients/expired",
    "clients/maximum",
    "clients/total",
    *(f"load/{what}/{span}" for what in ("bytes/received", "bytes/sent", "connections", "messages/received", "messages/sent",
      "publish/dropped", "publish/received", "publish/sent", "sockets") for span in ("1min", "5min", "15min")),
    "messages/received",
    "messages/sent",
    "publish/messages/dropped",
    "publish/messages/received",
    "publish/messages/sent",
    "retained messages/count",
    "store/messages/count",
    "subscriptions/count",
    "uptime",
    "version",
]  # fmt: skip


def collect(client: Wire, names: set[str]) -> dict[str, bytes]:
    """The first value of each of these topics."""
    found: dict[str, bytes] = {}
    while names - found.keys():
        came = client.receive_publish()
        found.setdefault(came.topic, came.payload)
    return found


def wait_for_value(client: Wire, topic: str, value: bytes) -> None:
    """Read on until the topic has this value."""
    while True:
        came = client.receive_publish()
        if (came.topic, came.payload) == (topic, value):
            return


def test_all_sys_topics_of_mosquitto_exist_and_are_retained(start: Start) -> None:
    stage = start(sys={"interval": "1h"})  # one round, at the start
    client = stage.connect()
    client.subscribe("$SYS/broker/#")

    found = collect(client, {f"$SYS/broker/{name}" for name in MOSQUITTO_NAMES})

    assert found["$SYS/broker/version"] == f"braidmq version {__version__}".encode()
    assert found["$SYS/broker/uptime"].endswith(b" seconds")
    assert found["$SYS/broker/clients/connected"] == b"0", "as of the start"


def test_sys_topics_reflect_traffic(start: Start) -> None:
    stage = start(sys={"interval": "100ms"})
    watcher = stage.connect()
    watcher.subscribe("$SYS/broker/clients/+", "$SYS/broker/subscriptions/count")
    wait_for_value(watcher, "$SYS/broker/clients/connected", b"1")

    other = stage.connect(persistent=True)
    other.subscribe("a", "b")
    wait_for_value(watcher, "$SYS/broker/subscriptions/count", b"4")
    other.disconnect()

    wait_for_value(watcher, "$SYS/broker/clients/disconnected", b"1")
    assert stage.look(lambda inside: inside.statistics.connections_max) == 2


def test_the_load_of_the_last_minute_rises_with_traffic(start: Start) -> None:
    stage = start(sys={"interval": "100ms"})
    client = stage.connect()
    client.subscribe("$SYS/broker/load/publish/received/1min")

    client.send(*[b"\x30\x05\x00\x01t\x00x"] * 500)

    values: list[float] = []
    while not values or values[-1] == 0.0:
        values.append(float(client.receive_publish().payload))
    assert values[-1] > 1.0, "messages a minute, averaged"


def test_a_leading_wildcard_does_not_match_sys_topics(start: Start) -> None:
    stage = start(sys={"interval": "100ms"})
    client, watcher = stage.connect(), stage.connect()
    client.subscribe("#", "+/broker/#")
    watcher.subscribe("$SYS/broker/bytes/sent")

    for _ in range(3):  # a round that changes nothing for the client has passed each time
        watcher.receive_publish()

    client.expect_silence()


def event(came: Any) -> dict[str, Any]:
    """The body of a presence event."""
    body = json.loads(came.payload)
    assert isinstance(body, dict)
    return body


def test_presence_reports_connects_and_disconnects_with_their_reason(stage: Stage) -> None:
    watcher = stage.connect()
    watcher.subscribe("$SYS/brokers/+/clients/#")
    before_ms = int(time.time() * 1000)

    client = stage.connect("sensor-7", keep_alive=33)
    came = watcher.receive_publish()
    client.disconnect()
    went = watcher.receive_publish()

    assert came.topic == "$SYS/brokers/core1/clients/sensor-7/connected"
    assert not came.retain
    body = event(came)
    assert (body["clientid"], body["username"], body["ipaddress"], body["keepalive"], body["proto_ver"]) == (
        "sensor-7",
        None,
        "127.0.0.1",
        33,
        5,
    )
    assert before_ms <= body["connected_at"] <= body["ts"] <= int(time.time() * 1000)
    assert body["clean_start"] is True
    assert went.topic == "$SYS/brokers/core1/clients/sensor-7/disconnected"
    assert event(went)["reason"] == "success"
    assert event(went)["disconnected_at"] >= body["connected_at"]


def test_presence_reports_a_takeover_in_order(stage: Stage) -> None:
    client_id = unique("twice")
    watcher = stage.connect()
    watcher.subscribe(f"$SYS/brokers/+/clients/{client_id}/+")

    stage.connect(client_id)
    stage.connect(client_id)

    told = [watcher.receive_publish() for _ in range(3)]
    assert [each.topic.rsplit("/", 1)[1] for each in told] == ["connected", "disconnected", "connected"]
    assert event(told[1])["reason"] == "session_taken_over"
    older, ended, newer = (event(each)["version"] for each in told)
    assert older == ended < newer


def test_wildcards_in_a_client_id_are_escaped_in_presence_topics(stage: Stage) -> None:
    watcher = stage.connect()
    watcher.subscribe("$SYS/brokers/core1/clients/+/connected")

    stage.connect("a/+/#")

    came = watcher.receive_publish()
    assert came.topic == "$SYS/brokers/core1/clients/a____/connected"
    assert event(came)["clientid"] == "a/+/#"


def test_presence_can_be_switched_off(start: Start) -> None:
    stage = start(sys={"interval": 0, "presence": False})
    watcher = stage.connect()
    watcher.subscribe("$SYS/#")

    stage.connect().disconnect()

    watcher.expect_silence()


@pytest.mark.parametrize("topic", ["$SYS/broker/version", "$SYS/brokers/core1/clients/x/connected"])
def test_clients_cannot_publish_to_sys_topics(stage: Stage, topic: str) -> None:
    watcher, liar = stage.connect(), stage.connect()
    watcher.subscribe(topic, qos=1)

    assert liar.publish(topic, b"lie", 1) == 0x87
    liar.publish(topic, b"lie", 0)

    watcher.expect_silence()
    doomed = stage.connect(will=Will(topic, b"lie", 1, False, NO_PROPERTIES))
    doomed.close()
    wait_until(lambda: stage.look(lambda inside: doomed.client_id not in {s.client_id for s in inside.sessions}), "it is gone")
    watcher.expect_silence()


def test_no_presence_is_published_for_a_client_id_too_long_for_a_topic(start: Start) -> None:
    stage = start(mqtt={"client_id_bytes_max": 65535}, limits={"preauth_packet_bytes": "70KiB"})
    watcher = stage.connect()
    watcher.subscribe("$SYS/brokers/+/clients/#")

    stage.connect("a" * 65535)
    stage.connect("b")

    assert event(watcher.receive_publish())["clientid"] == "b"


def test_sys_topics_can_be_switched_on_and_off_at_run_time(start: Start) -> None:
    stage = start(sys={"interval": 0})
    node = stage.broker.node
    assert node is not None
    watcher = stage.connect()
    watcher.subscribe("$SYS/broker/version")

    stage.broker.run(node.reload(node.config.with_overrides({"sys.interval": 1})))
    assert watcher.receive_publish().payload == f"braidmq version {__version__}".encode()

    stage.broker.run(node.reload(node.config.with_overrides({"sys.interval": 0})))
    before = stage.look(lambda inside: inside.statistics.own_messages)
    watcher.expect_silence()
    assert stage.look(lambda inside: inside.statistics.own_messages) == before
