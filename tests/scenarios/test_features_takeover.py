"""Takeover: which session the new connection gets, what happens to the will, and that no message is lost."""

from __future__ import annotations

import pytest

from braidmq.mqtt.packets import MQTT5, MQTT311, Publish, Will
from braidmq.mqtt.properties import NO_PROPERTIES, Properties
from braidmq.mqtt.reasons import Reason
from tests.support.clients.wire import unique
from tests.support.stage import Stage

LONG_S = 300  # no test waits as long


@pytest.mark.parametrize("will_delay_s", [0, LONG_S], ids=["will-at-once", "will-delayed"])
@pytest.mark.parametrize("clean_start", [False, True], ids=["resuming", "clean"])
@pytest.mark.parametrize("expiry_s", [0, LONG_S], ids=["expiry-0", "expiry-later"])
def test_takeover_sets_will_and_session_present_as_specified(
    stage: Stage, expiry_s: int, clean_start: bool, will_delay_s: int
) -> None:
    client_id, will_topic = unique("twice"), unique("will/")
    watcher = stage.connect()
    watcher.subscribe(will_topic, qos=1)
    will = Will(will_topic, b"gone", 1, False, Properties(will_delay_interval=will_delay_s))
    old = stage.connect(client_id, clean_start=True, session_expiry_interval=expiry_s, will=will)

    new = stage.connect(client_id, clean_start=clean_start, session_expiry_interval=expiry_s)

    old.expect_disconnect(Reason.SESSION_TAKEN_OVER)
    lives_on = expiry_s > 0 and not clean_start
    assert new.connack.session_present is lives_on
    # The network connection has ended, so a will without delay is due. One with a delay waits for that or for the end of
    # the session, whichever is first; and a client that is back in time has it forgotten.
    is_due = will_delay_s == 0 or not lives_on
    if is_due:
        assert watcher.receive_publish().payload == b"gone"
    new.disconnect()
    watcher.expect_silence()


@pytest.mark.parametrize("old_clean", [False, True], ids=["old-persistent", "old-clean"])
@pytest.mark.parametrize("new_clean", [False, True], ids=["resuming", "clean"])
def test_takeover_in_mqtt_3_sets_will_and_session_present_as_specified(stage: Stage, old_clean: bool, new_clean: bool) -> None:
    client_id, will_topic = unique("twice"), unique("will/")
    watcher = stage.connect()
    watcher.subscribe(will_topic, qos=1)
    will = Will(will_topic, b"gone", 1, False, NO_PROPERTIES)
    old = stage.connect(client_id, version=MQTT311, clean_start=old_clean, will=will)

    new = stage.connect(client_id, version=MQTT311, clean_start=new_clean)

    old.expect_closed()
    assert new.connack.session_present is (not old_clean and not new_clean)
    assert watcher.receive_publish().payload == b"gone"


@pytest.mark.parametrize("versions", [(MQTT311, MQTT5), (MQTT5, MQTT311)], ids=["3.1.1-to-5.0", "5.0-to-3.1.1"])
def test_a_session_can_be_resumed_with_another_protocol_version(stage: Stage, versions: tuple[int, int]) -> None:
    client_id, topic = unique("twice"), unique("t/")
    old = stage.connect(client_id, version=versions[0], persistent=True)
    old.subscribe(topic, qos=1)

    new = stage.connect(client_id, version=versions[1], persistent=True)

    assert new.connack.session_present
    stage.connect().publish(topic, b"x", 1)
    assert new.receive_publish().payload == b"x"


@pytest.mark.parametrize("qos", [1, 2])
def test_takeover_keeps_inflight_messages_in_order(stage: Stage, qos: int) -> None:
    client_id, topic = unique("twice"), unique("t/")
    sender = stage.connect()
    old = stage.connect(client_id, persistent=True, receive_maximum=3)
    old.subscribe(topic, qos=qos)
    for number in range(6):
        sender.publish(topic, str(number).encode(), qos)
    first = old.receive_publishes(3)  # the other three wait behind the window

    new = stage.connect(client_id, persistent=True)

    came = [new.receive(Publish) for _ in range(6)]
    assert [each.payload for each in came] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert [each.dup for each in came] == [True] * 3 + [False] * 3
    assert [each.packet_id for each in came[:3]] == [each.packet_id for each in first]
    for each in came:
        new.acknowledge(each)
    new.expect_silence()


def test_subscriptions_survive_a_takeover_but_not_a_clean_start(stage: Stage) -> None:
    client_id, topic = unique("twice"), unique("t/")
    sender = stage.connect()
    old = stage.connect(client_id, persistent=True)
    old.subscribe(topic, qos=1)

    stage.connect(client_id, persistent=True)
    assert sender.publish(topic, b"x", 1) == Reason.SUCCESS

    stage.connect(client_id, clean_start=True)
    assert sender.publish(topic, b"x", 1) == Reason.NO_MATCHING_SUBSCRIBERS


def test_a_will_is_published_after_its_delay_if_the_client_does_not_return(stage: Stage) -> None:
    will_topic = unique("will/")
    watcher = stage.connect()
    watcher.subscribe(will_topic, f"{will_topic}/clock", qos=1)
    will = Will(will_topic, b"gone", 1, False, Properties(will_delay_interval=1))
    mortal = stage.connect(session_expiry_interval=LONG_S, will=will)
    watcher.publish(f"$delayed/0/{will_topic}/clock", b"before", 1)

    mortal.close()

    assert watcher.receive_publish().payload == b"before"
    assert watcher.receive_publish().payload == b"gone"


def test_the_end_of_the_session_publishes_a_delayed_will(stage: Stage) -> None:
    will_topic = unique("will/")
    watcher = stage.connect()
    watcher.subscribe(will_topic, qos=1)
    will = Will(will_topic, b"gone", 1, False, Properties(will_delay_interval=LONG_S))
    mortal = stage.connect(session_expiry_interval=1, will=will)

    mortal.close()

    assert watcher.receive_publish().payload == b"gone"


def test_a_delayed_will_is_discarded_when_the_client_reconnects(stage: Stage) -> None:
    client_id, will_topic = unique("back"), unique("will/")
    watcher = stage.connect()
    watcher.subscribe(will_topic, f"$SYS/brokers/+/clients/{client_id}/disconnected", qos=1)
    will = Will(will_topic, b"gone", 1, False, Properties(will_delay_interval=1))
    stage.connect(client_id, session_expiry_interval=LONG_S, will=will).close()
    assert watcher.receive_publish().topic.endswith("/disconnected")

    stage.connect(client_id, clean_start=False, session_expiry_interval=LONG_S)
    watcher.subscribe(f"{will_topic}/clock", qos=1)
    watcher.publish(f"$delayed/2/{will_topic}/clock", b"well after the delay", 1)

    assert watcher.receive_publish().payload == b"well after the delay"
