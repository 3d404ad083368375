"""``$delayed/SECONDS/topic``: published later, under the inner topic, by the rules of the inner topic."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from braidmq.mqtt.packets import MQTT5, MQTT311, SubscribeOption
from braidmq.mqtt.reasons import Reason
from tests.support.clients.wire import unique
from tests.support.guarded import Guarded
from tests.support.stage import Stage

Start = Callable[..., Stage]


@pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["v3.1.1", "v5.0"])
def test_a_delayed_message_is_published_to_its_inner_topic_after_the_delay(stage: Stage, version: int) -> None:
    topic = unique("t/")
    receiver, sender = stage.connect(version=version), stage.connect(version=version)
    receiver.subscribe(topic, qos=1)
    began = time.monotonic()

    sender.publish(f"$delayed/1/{topic}", b"later", 1)
    sender.publish(topic, b"now", 1)

    assert receiver.receive_publish().payload == b"now"
    late = receiver.receive_publish()
    assert (late.topic, late.payload, late.qos) == (topic, b"later", 1)
    assert time.monotonic() - began > 0.99  # the event loop's clock counts milliseconds


def test_a_message_with_delay_0_is_published_at_once(stage: Stage) -> None:
    topic = unique("t/")
    receiver, sender = stage.connect(), stage.connect()
    receiver.subscribe(topic)

    sender.publish(f"$delayed/0/{topic}", b"at once")

    assert receiver.receive_publish().payload == b"at once"


def test_a_delayed_message_keeps_its_properties_and_is_retained_when_due(stage: Stage) -> None:
    topic = unique("t/")
    receiver, sender = stage.connect(), stage.connect()
    receiver.subscribe(topic, qos=2)

    sender.publish(
        f"$delayed/1/{topic}", b"x", 2, retain=True, user_properties=(("a", "b"),), message_expiry_interval=60, content_type="t"
    )
    early = stage.connect()
    early.subscribe(topic)
    early.expect_silence()
    came = receiver.receive_publish()
    late = stage.connect()
    late.subscribe(topic)
    retained = late.receive_publish()

    assert came.qos == 2
    assert came.properties.user_properties == (("a", "b"),)
    assert came.properties.content_type == "t"
    assert came.properties.message_expiry_interval == 60, "the time of waiting does not count"
    assert (retained.payload, retained.retain) == (b"x", True)


def test_a_delayed_message_outlives_its_publisher(stage: Stage) -> None:
    topic = unique("t/")
    receiver, sender = stage.connect(), stage.connect()
    receiver.subscribe(topic)

    sender.publish(f"$delayed/1/{topic}", b"posthumous", 1)
    sender.disconnect()

    assert receiver.receive_publish().payload == b"posthumous"


@pytest.mark.parametrize(
    "form",
    ["$delayed/1", "$delayed/1/", "$delayed/soon/t", "$delayed/-1/t", "$delayed/1.5/t", "$delayed//t", "$delayed/1/$SYS/t"],
)
def test_an_invalid_delayed_topic_is_rejected(stage: Stage, form: str) -> None:
    sender = stage.connect()

    assert sender.publish(form, b"x", 1) == Reason.TOPIC_NAME_INVALID


def test_the_number_and_delay_of_delayed_messages_are_limited(start: Start) -> None:
    stage = start(delayed={"messages_max": 2, "delay_max": "1m"})
    sender = stage.connect()

    assert sender.publish("$delayed/61/t", b"too long", 1) == Reason.QUOTA_EXCEEDED
    assert [sender.publish("$delayed/60/t", b"x", 1) for _ in range(3)] == [0, 0, Reason.QUOTA_EXCEEDED]
    assert stage.drops("delayed_full") == 2


def test_access_to_a_delayed_topic_is_decided_on_its_inner_topic(start: Start, tmp_path: Path) -> None:
    ada = Guarded(start, tmp_path, ["ada"], "user ada\ntopic readwrite open/#\n").connect("ada")
    ada.subscribe("open/t", qos=1)

    assert ada.publish("$delayed/0/closed/t", b"x", 1) == Reason.NOT_AUTHORIZED
    assert ada.publish("$delayed/1/open/t", b"x", 1) == Reason.SUCCESS
    assert ada.receive_publish().topic == "open/t"


def test_a_delayed_message_is_dropped_if_access_is_withdrawn_before_it_is_due(start: Start, tmp_path: Path) -> None:
    guarded = Guarded(start, tmp_path, ["ada"], "user ada\ntopic readwrite #\n")
    ada = guarded.connect("ada")
    ada.subscribe("t/a", "t/b", qos=1)
    ada.publish("$delayed/1/t/a", b"withdrawn", 1)
    ada.publish("$delayed/1/t/b", b"still allowed", 1)

    guarded.write_rules("user ada\ntopic read #\ntopic write t/b\n")
    guarded.reload()

    assert ada.receive_publish().payload == b"still allowed"
    ada.expect_silence()
    assert guarded.stage.drops("not_authorized") == 1


def test_no_local_applies_to_a_clients_own_delayed_message(stage: Stage) -> None:
    topic = unique("t/")
    client, witness = stage.connect(), stage.connect()
    client.subscribe(SubscribeOption(topic, 0, no_local=True))
    witness.subscribe(topic)

    client.publish(f"$delayed/0/{topic}", b"own", 1)

    assert witness.receive_publish().payload == b"own"
    client.expect_silence()
