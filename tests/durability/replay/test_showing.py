"""What of the log a replay shows, and how the messages look."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from braidmq.mqtt.packets import MQTT5, MQTT311, SubscribeOption
from tests.durability.replay.asking import ask, bodies, read, read_to_end, record, replay
from tests.support.clients.wire import Wire, unique
from tests.support.present import present
from tests.support.stage import Stage, resident_bytes, wait_until

Start = Callable[..., Stage]


@pytest.mark.parametrize("granted", [0, 1, 2])
def test_each_message_has_its_own_qos_limited_by_the_subscription(stage: Stage, granted: int) -> None:
    topic = unique()
    record(stage, topic, 1, qos=1)
    record(stage, topic, 1, qos=2)
    client = stage.connect()

    replay(client, topic, qos=granted)

    assert [each.qos for each in read(client, 2)] == [min(granted, 1), min(granted, 2)]


def test_replayed_messages_have_properties_and_subscription_identifiers(stage: Stage) -> None:
    topic = unique()
    publisher, client = stage.connect(), stage.connect()
    publisher.publish(
        topic, b"x", 1, content_type="text/plain", user_properties=(("a", "b"),), correlation_data=b"c", response_topic="r"
    )

    client.subscribe(topic, qos=1, subscription_identifiers=(77,), user_properties=ask("earliest"))

    found = client.receive_publish().properties
    assert (found.content_type, found.user_properties, found.correlation_data) == ("text/plain", (("a", "b"),), b"c")
    assert found.response_topic == "r"
    assert found.subscription_identifiers == (77,)


def test_expired_messages_are_not_replayed_and_others_have_their_remaining_expiry(stage: Stage) -> None:
    topic = unique()
    publisher, client = stage.connect(), stage.connect()
    publisher.publish(topic, b"short", 1, message_expiry_interval=1)
    publisher.publish(topic, b"long", 1, message_expiry_interval=1000)
    time.sleep(1.1)  # an expiry is whole seconds

    replay(client, topic, end=True)

    (shown,) = read_to_end(client, topic)
    assert shown.payload == b"long"
    assert shown.properties.message_expiry_interval is not None
    assert 990 < shown.properties.message_expiry_interval < 1000


def test_no_local_hides_the_clients_own_messages(stage: Stage) -> None:
    topic = unique()
    client = stage.connect()
    client.publish(topic, b"mine", 1)
    sent = record(stage, topic, 1)

    client.subscribe(SubscribeOption(topic, 1, no_local=True), user_properties=ask("earliest", end=True))

    assert bodies(read_to_end(client, topic)) == sent


@pytest.mark.parametrize("as_published", [True, False])
def test_replayed_messages_keep_retain_only_with_retain_as_published(stage: Stage, as_published: bool) -> None:
    topic = unique()
    publisher, client = stage.connect(), stage.connect()
    publisher.publish(topic, b"kept", 1, retain=True)
    publisher.publish(topic, b"plain", 1)

    option = SubscribeOption(topic, 1, retain_as_published=as_published, retain_handling=2)
    client.subscribe(option, user_properties=ask("earliest"))

    assert [each.retain for each in read(client, 2)] == [as_published, False]


def test_retained_messages_follow_retain_handling_and_never_a_replay_filter(stage: Stage) -> None:
    topic = unique()
    stage.connect().publish(topic, b"kept", 1, retain=True)
    client, old = stage.connect(), stage.connect(version=MQTT311)

    client.subscribe(topic, qos=1, user_properties=ask("latest"))
    assert client.receive_publish().retain

    written = replay(old, topic, end=True)
    assert [(each.payload, each.retain) for each in read_to_end(old, written)] == [(b"kept", False)]
    old.expect_silence()


def test_session_only_records_are_not_replayed_but_delivered_after_subscribe(start: Start) -> None:
    stage = start(history={"topics": ["other/#"]})
    stage.connect(persistent=True).subscribe("t", qos=1)
    record(stage, "t", 3, stem=b"before")
    client = stage.connect(receive_maximum=5)

    # Its replay lasts until the messages of the other topic are acknowledged.
    history = record(stage, "other/x", 20)
    client.subscribe("$replay/earliest/#", qos=1)
    first = client.receive_publishes(5)
    after = record(stage, "t", 3, stem=b"after")
    for each in first:
        client.acknowledge(each)

    assert bodies(first) + bodies(read(client, 18)) == history + after
    client.expect_silence()


def test_unrecorded_messages_are_delivered_live_during_a_replay(start: Start) -> None:
    stage = start(history={"topics": ["kept/#"]})
    history = record(stage, "kept/x", 20)
    client = stage.connect(receive_maximum=5)
    client.subscribe("#", qos=1, user_properties=ask("earliest"))
    first = client.receive_publishes(5)

    stage.connect().publish("free", b"now", 0)

    assert client.receive_publish().payload == b"now"
    for each in first:
        client.acknowledge(each)
    assert bodies(first + read(client, 15)) == history


def test_an_overlapping_subscription_stays_live_during_a_replay(stage: Stage) -> None:
    topic = unique()
    history = record(stage, f"{topic}/x", 20)
    client = stage.connect(receive_maximum=5)
    client.subscribe(f"{topic}/#", qos=0, subscription_identifiers=(1,))
    client.subscribe(f"{topic}/x", qos=1, subscription_identifiers=(2,), user_properties=ask("earliest"))
    first = client.receive_publishes(5)

    (new,) = record(stage, f"{topic}/x", 1, stem=b"new")
    live = client.receive_publish()
    for each in first:
        client.acknowledge(each)
    rest = read(client, 16)

    assert (live.payload, live.qos, live.properties.subscription_identifiers) == (new, 0, (1,))
    assert bodies(first + rest) == [*history, new], "the replay shows everything, what is new too"
    assert {each.properties.subscription_identifiers for each in first + rest} == {(2,)}


def test_a_deliver_hook_is_called_for_replayed_messages(start: Start) -> None:
    stage = start(hooks={"load": ["tests.durability.replay.asking:Censor"]})
    record(stage, "t", 20)
    client = stage.connect(receive_maximum=2)

    replay(client, "t", end=True)
    record(stage, "t", 1)  # while it is behind

    assert bodies(read_to_end(client, "t")) == [b"%05d" % number for number in range(0, 20, 2)] + [b"00000"]


def test_replaying_clients_that_do_not_read_use_little_memory_and_lose_nothing(start: Start) -> None:
    stage = start()
    publisher = stage.connect()
    for _ in range(500):
        publisher.publish("t", bytes(20_000), 1)
    before = resident_bytes()

    lazy = [stage.connect() for _ in range(40)]
    for each in lazy:
        replay(each, "t", qos=0)
    for each in lazy:
        wait_until(lambda client=each: not has_room(stage, client), "the client's outbox is full")  # type: ignore[misc]
    publisher.ping()

    assert resident_bytes() - before < 150_000_000, "40 copies of the history would be 400 MB"
    assert stage.look(lambda inside: inside.state.queued_messages) == 0
    for each in lazy[:3]:
        assert len(each.receive_publishes(500)) == 500, "QoS 0, but nothing is dropped"


def has_room(stage: Stage, client: Wire) -> bool:
    return bool(stage.look(lambda inside: present(present(inside.sessions.get(client.client_id)).connection).has_room()))


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
def test_other_clients_are_served_during_a_long_replay(stage: Stage, version: int) -> None:
    topic = unique()
    record(stage, topic, 300, clients=3)
    readers = [stage.connect(version=version) for _ in range(5)]
    for each in readers:
        replay(each, topic)

    live, publisher = stage.connect(), stage.connect()
    live.subscribe(f"{topic}/live", qos=1)
    publisher.publish(f"{topic}/live", b"x", 1)

    assert live.receive_publish().payload == b"x"
    for each in readers:
        assert len(read(each, 300)) == 300
