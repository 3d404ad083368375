"""``$exclusive/topic``: one subscriber at a time; a second one is rejected."""

from __future__ import annotations

import pytest

from braidmq.mqtt.packets import MQTT5, MQTT311
from braidmq.mqtt.reasons import Reason
from tests.support.clients.wire import unique
from tests.support.stage import Stage


@pytest.mark.parametrize(("version", "refusal"), [(MQTT311, 0x80), (MQTT5, Reason.QUOTA_EXCEEDED)], ids=["v3.1.1", "v5.0"])
def test_a_second_exclusive_subscriber_is_rejected_and_the_first_is_served(stage: Stage, version: int, refusal: int) -> None:
    topic = unique("t/")
    first, second, sender = (stage.connect(version=version) for _ in range(3))
    first.subscribe(f"$exclusive/{topic}", qos=1)

    assert second.request_subscribe(f"$exclusive/{topic}", qos=1).reasons == [refusal]

    sender.publish(topic, b"x", 1)
    assert first.receive_publish().topic == topic
    second.expect_silence()


def test_plain_subscribers_of_an_exclusive_topic_are_unaffected(stage: Stage) -> None:
    topic = unique("t/")
    owner, plain, sender = stage.connect(), stage.connect(), stage.connect()
    owner.subscribe(f"$exclusive/{topic}")

    plain.subscribe(topic)
    sender.publish(topic, b"x")

    assert plain.receive_publish().payload == owner.receive_publish().payload == b"x"


def test_the_owner_may_resubscribe_and_release_the_topic_by_unsubscribing(stage: Stage) -> None:
    topic = unique("t/")
    first, second, sender = stage.connect(), stage.connect(), stage.connect()
    first.subscribe(f"$exclusive/{topic}", qos=0)
    first.subscribe(f"$exclusive/{topic}", qos=1)

    assert first.unsubscribe(f"$exclusive/{topic}").reasons == [0]
    second.subscribe(f"$exclusive/{topic}", qos=1)
    sender.publish(topic, b"x", 1)

    assert second.receive_publish().payload == b"x"
    first.expect_silence()


def test_an_exclusive_topic_stays_with_the_session_until_it_ends(stage: Stage) -> None:
    topic = unique("t/")
    owner, other = stage.connect(persistent=True), stage.connect()
    owner.subscribe(f"$exclusive/{topic}", qos=1)
    owner.disconnect()
    assert other.request_subscribe(f"$exclusive/{topic}").reasons == [Reason.QUOTA_EXCEEDED]

    back = stage.connect(owner.client_id, persistent=True)
    assert back.connack.session_present
    back.disconnect(session_expiry_interval=0)

    other.subscribe(f"$exclusive/{topic}")


def test_unsubscribing_the_exclusive_form_keeps_the_plain_subscription(stage: Stage) -> None:
    topic = unique("t/")
    client, sender = stage.connect(), stage.connect()
    client.subscribe(topic, qos=1)
    client.subscribe(f"$exclusive/{topic}", qos=1)
    sender.publish(topic, b"once", 1)
    assert client.receive_publish().payload == b"once"

    client.unsubscribe(f"$exclusive/{topic}")
    sender.publish(topic, b"again", 1)

    assert client.receive_publish().payload == b"again"
    client.expect_silence()
    stage.connect().subscribe(f"$exclusive/{topic}")


@pytest.mark.parametrize("form", ["$exclusive/", "$exclusive/a/#/b", "$exclusive/a+"])
def test_an_invalid_exclusive_filter_is_rejected(stage: Stage, form: str) -> None:
    client = stage.connect()

    assert client.request_subscribe(form).reasons == [Reason.TOPIC_FILTER_INVALID]


@pytest.mark.parametrize("form", ["{}", "$share/g/{}"], ids=["plain", "shared"])
def test_unsubscribing_another_form_keeps_the_exclusive_subscription(stage: Stage, form: str) -> None:
    topic = unique("t/")
    client, other = stage.connect(), stage.connect()
    client.subscribe(f"$exclusive/{topic}")
    client.subscribe(form.format(topic))

    client.unsubscribe(form.format(topic))

    assert other.request_subscribe(f"$exclusive/{topic}").reasons == [Reason.QUOTA_EXCEEDED]
