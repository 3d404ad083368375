"""Silent clients, and clients that compete for one client id."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from braidmq.mqtt.packets import MQTT5, MQTT311, Connack, Disconnect, Publish, Will
from braidmq.mqtt.properties import NO_PROPERTIES, Properties
from tests.support.clients.wire import unique
from tests.support.present import present
from tests.support.stage import Stage, wait_until

both_versions = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])


@pytest.mark.row(33)
def test_a_client_silent_for_one_and_a_half_keep_alives_is_closed_with_its_will(stage: Stage) -> None:
    topic = unique("w/")
    witness = stage.connect()
    witness.subscribe(topic)
    will = Will(topic, b"gone", 0, False, Properties(will_delay_interval=1))
    client = stage.connect(keep_alive=1, will=will, session_expiry_interval=60)
    began = time.monotonic()

    client.expect_disconnect(0x8D)
    closed = time.monotonic()
    witness.expect_silence()
    gone = witness.receive(Publish)

    assert gone.payload == b"gone"
    assert closed - began >= 1.4
    assert time.monotonic() - closed >= 0.9


@pytest.mark.row(33)
def test_an_mqtt_3_client_that_stops_pinging_is_closed_without_a_disconnect(stage: Stage) -> None:
    topic = unique("w/")
    witness = stage.connect()
    witness.subscribe(topic)
    client = stage.connect(version=MQTT311, keep_alive=1, will=Will(topic, b"gone", 0, False))
    lived_until = time.monotonic() + 2.5

    while time.monotonic() < lived_until:
        client.ping()
        time.sleep(0.25)
    witness.expect_silence()

    client.expect_closed()
    assert witness.receive(Publish).payload == b"gone"


@pytest.mark.row(34)
@both_versions
def test_of_a_hundred_connections_with_one_client_id_one_survives(stage: Stage, version: int) -> None:
    name = unique()
    wires = [stage.open(version) for _ in range(100)]

    for wire in wires:
        wire.send_request(client_id=name, persistent=True)
    left = lambda inside: (inside.statistics.live, len(inside.connections))  # noqa: E731
    wait_until(lambda: stage.look(left) == (1, 1), "one is left")
    # Whoever was overtaken while its session was written down is closed without a word.
    connacks = [packet for wire in wires for packet in wire.drain_or_closed() if isinstance(packet, Connack)]

    assert {connack.reason for connack in connacks} == {0}
    assert sum(not connack.session_present for connack in connacks) <= 1, "the first one began the session"
    assert stage.look(left) == (1, 1)
    assert stage.look(lambda inside: sum(session.client_id == name for session in inside.sessions)) == 1


@pytest.mark.row(34)
def test_every_connection_that_is_taken_over_gets_a_disconnect(stage: Stage) -> None:
    name = unique()
    wires = [stage.connect(name, persistent=True) for _ in range(20)]

    told = [wire.receive(Disconnect).reason for wire in wires[:-1]]

    assert told == [0x8E] * 19
    wires[-1].ping()
    assert [wire.connack.session_present for wire in wires] == [False] + [True] * 19


@pytest.mark.row(35)
@pytest.mark.parametrize("clean_start", [False, True], ids=["clean start 0", "clean start 1"])
@pytest.mark.parametrize("delay_s", [0, 30], ids=["no delay", "delay"])
def test_takeover_of_a_session_without_expiry_publishes_its_will_and_starts_a_new_one(
    stage: Stage, clean_start: bool, delay_s: int
) -> None:
    topic = unique("w/")
    witness = stage.connect()
    witness.subscribe(topic)
    properties = Properties(will_delay_interval=delay_s) if delay_s else NO_PROPERTIES
    old = stage.connect(will=Will(topic, b"gone", 0, False, properties))
    old.subscribe(unique("t/"))

    new = stage.connect(old.client_id, clean_start=clean_start)

    old.expect_disconnect(0x8E)
    # The session ended with its connection, so a delay of the will ends too.
    assert witness.receive(Publish).payload == b"gone"
    assert not new.connack.session_present
    assert stage.look(lambda inside: len(present(inside.sessions.get(new.client_id)).subscriptions)) == 0


@pytest.mark.row(35)
@both_versions
def test_clean_start_takeover_of_a_durable_session_publishes_its_will(stage: Stage, version: int) -> None:
    topic = unique("w/")
    witness = stage.connect()
    witness.subscribe(topic)
    old = stage.connect(version=version, persistent=True, will=Will(topic, b"gone", 0, False))
    old.subscribe(unique("t/"))

    new = stage.connect(old.client_id, version=version, clean_start=True)

    old.expect_disconnect(0x8E)
    assert witness.receive(Publish).payload == b"gone"
    assert not new.connack.session_present
    assert stage.look(lambda inside: len(present(inside.sessions.get(new.client_id)).subscriptions)) == 0


@pytest.mark.row(35)
def test_takeover_that_resumes_the_session_cancels_a_delayed_will(stage: Stage) -> None:
    topic, kept = unique("w/"), unique("t/")
    witness = stage.connect()
    witness.subscribe(topic)
    will = Will(topic, b"gone", 0, False, Properties(will_delay_interval=30))
    old = stage.connect(persistent=True, will=will)
    old.subscribe(kept)

    new = stage.connect(old.client_id, persistent=True)

    old.expect_disconnect(0x8E)
    assert new.connack.session_present
    witness.expect_silence()
    witness.publish(kept, b"still there")
    assert new.receive(Publish).payload == b"still there"


@pytest.mark.row(34)
def test_constant_takeovers_of_one_client_id_leak_nothing(start: Callable[..., Stage]) -> None:
    stage = start()
    name = unique()

    for number in range(300):
        wire = stage.open(MQTT5 if number % 2 else MQTT311)
        wire.send_request(client_id=name, clean_start=number % 3 == 0)
        if number % 5 == 0:
            wire.close()  # gone before its CONNACK
    last = stage.connect(name, clean_start=True)

    last.ping()
    last.disconnect()
    stage.wires.close()
    stage.wait_empty()
    assert stage.look(lambda inside: (len(inside.sessions), inside.routes.count)) == (0, 0)
