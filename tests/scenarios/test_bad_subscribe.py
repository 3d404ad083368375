"""Invalid and excessive SUBSCRIBE and UNSUBSCRIBE packets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from braidmq.mqtt.packets import MQTT5, MQTT311, Publish, Suback, SubscribeOption, Unsuback
from tests.support.clients import raw
from tests.support.clients.wire import Wire, unique
from tests.support.present import present
from tests.support.stage import Stage, wait_until

both_versions = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])


@pytest.mark.row(28)
@both_versions
@pytest.mark.parametrize("make", [raw.subscribe, raw.unsubscribe], ids=["subscribe", "unsubscribe"])
def test_a_subscribe_or_unsubscribe_without_filters_is_a_protocol_error(
    stage: Stage, version: int, make: Callable[..., bytes]
) -> None:
    wire = stage.connect(version=version)

    wire.send(make(version))

    wire.expect_disconnect(0x82)


@pytest.mark.row(28)
@both_versions
@pytest.mark.parametrize("flags", [0, 1, 3, 0x0A])
def test_subscribe_with_wrong_flags_is_malformed(stage: Stage, version: int, flags: int) -> None:
    wire = stage.connect(version=version)

    wire.send(raw.subscribe(version, ("t", 0), flags=flags))

    wire.expect_disconnect(0x81)


@pytest.mark.row(28)
@both_versions
@pytest.mark.parametrize("flags", [0, 1, 3, 0x0A])
def test_unsubscribe_with_wrong_flags_is_malformed(stage: Stage, version: int, flags: int) -> None:
    wire = stage.connect(version=version)

    wire.send(raw.unsubscribe(version, "t", flags=flags))

    wire.expect_disconnect(0x81)


BAD_FILTERS = ["a/#/b", "a+", "+a", "#x", "a/b#", "a/+b/c", "/" * 128, "a/" * 5000 + "#"]


@pytest.mark.row(29)
@both_versions
@pytest.mark.parametrize("bad", BAD_FILTERS, ids=[each[:8] for each in BAD_FILTERS])
def test_an_invalid_filter_is_rejected_and_the_others_are_granted(stage: Stage, version: int, bad: str) -> None:
    before, behind = unique("a/"), unique("b/")
    wire, publisher = stage.connect(version=version), stage.connect()

    answer = wire.request_subscribe(before, bad, behind, qos=1)
    publisher.publish(before, b"before", qos=1)
    publisher.publish(behind, b"behind", qos=1)

    assert answer.reasons == [1, 0x8F if version == MQTT5 else 0x80, 1]
    assert [wire.receive_publish().payload for _ in range(2)] == [b"before", b"behind"]


@pytest.mark.row(29)
@both_versions
@pytest.mark.parametrize("bad", [b"a\x00b", b"\xc0\xaf", b"\xed\xa0\x80"], ids=["NUL", "overlong", "surrogate"])
def test_a_filter_with_invalid_utf8_is_malformed(stage: Stage, version: int, bad: bytes) -> None:
    wire = stage.connect(version=version)

    wire.send(raw.subscribe(version, ("good", 0), (bad, 0)))

    wire.expect_disconnect(0x81)


@pytest.mark.row(29)
def test_an_invalid_filter_is_rejected_in_unsubscribe(stage: Stage) -> None:
    topic = unique("t/")
    wire = stage.connect()
    wire.subscribe(topic)

    answer = wire.unsubscribe("a/#/b", topic, "none")

    assert answer.reasons == [0x8F, 0, 0x11]


@pytest.mark.row(29)
@both_versions
def test_an_empty_filter_is_malformed_and_its_packet_has_no_effect(stage: Stage, version: int) -> None:
    topic = unique("t/")
    subscribes, unsubscribes = stage.connect(version=version), stage.connect(version=version, persistent=True)
    unsubscribes.subscribe(topic)

    subscribes.send(raw.subscribe(version, (topic, 0), ("", 0)))
    unsubscribes.send(raw.unsubscribe(version, topic, ""))

    subscribes.expect_disconnect(0x81)
    unsubscribes.expect_disconnect(0x81)
    assert stage.look(lambda inside: list(present(inside.sessions.get(unsubscribes.client_id)).subscriptions)) == [topic]


@pytest.mark.row(30)
@pytest.mark.parametrize("bad", ["$share//t", "$share/g", "$share/g/", "$share/", "$share/g+/t", "$share/#/t", "$share/g/a+"])
def test_an_incomplete_shared_filter_is_rejected(stage: Stage, bad: str) -> None:
    topic = unique("t/")
    wire = stage.connect()

    answer = wire.request_subscribe(bad, topic)

    assert answer.reasons == [0x8F, 0]
    assert stage.look(lambda inside: list(present(inside.sessions.get(wire.client_id)).subscriptions)) == [topic]


@pytest.mark.row(30)
def test_no_local_on_a_shared_subscription_is_a_protocol_error(stage: Stage) -> None:
    wire = stage.connect()

    wire.send(raw.subscribe(MQTT5, ("$share/g/t", 0x04)))

    wire.expect_disconnect(0x82)


@pytest.mark.row(31)
@pytest.mark.parametrize(
    ("options", "props", "reason"),
    [(0x00, b"\x0b\x00", 0x82), (0x40, b"", 0x81), (0x80, b"", 0x81), (0x30, b"", 0x82), (0x03, b"", 0x82)],
    ids=["identifier 0", "reserved bit 6", "reserved bit 7", "retain handling 3", "qos 3"],
)
def test_invalid_subscription_options_close_the_connection(stage: Stage, options: int, props: bytes, reason: int) -> None:
    wire = stage.connect()

    wire.send(raw.subscribe(MQTT5, ("t", options), props=props))

    wire.expect_disconnect(reason)


@pytest.mark.row(31)
@pytest.mark.parametrize("options", [0x03, 0x04, 0x08, 0x10, 0x80])
def test_mqtt_5_subscription_options_close_an_mqtt_3_connection(stage: Stage, options: int) -> None:
    wire = stage.connect(version=MQTT311)

    wire.send(raw.subscribe(MQTT311, ("t", options)))

    wire.expect_closed()


def subscribe_to_many(count: int, version: int = MQTT5, *, letter: str = "f", options: int = 0) -> bytes:
    """One SUBSCRIBE of so many different filters."""
    return raw.subscribe(version, *((f"{letter}/{number:x}", options) for number in range(count)))


def hammer(stage: Stage, wire: Wire, frame: bytes) -> tuple[Suback, int]:
    """The answer to a large request, and how many pings of another client were answered before it came."""
    other = stage.connect()
    pings = 0
    wire.send(frame)
    while not wire.has_arrived():
        other.ping()
        pings += 1
    return wire.receive(Suback), pings


@pytest.mark.row(32)
@both_versions
def test_each_filter_beyond_the_quota_is_rejected_with_its_own_reason(start: Callable[..., Stage], version: int) -> None:
    stage = start(session={"subscriptions_max": 10})
    wire = stage.connect(version=version)

    wire.send(subscribe_to_many(25, version))
    answer = wire.receive(Suback)
    again = wire.request_subscribe("f/0", "g", qos=1)

    over = 0x97 if version == MQTT5 else 0x80
    assert answer.reasons == [0] * 10 + [over] * 15
    assert again.reasons == [1, over], "what is there may be renewed"


@pytest.mark.row(32)
def test_a_hundred_thousand_filters_in_one_packet_do_not_stall_others(start: Callable[..., Stage]) -> None:
    stage = start(mqtt={"packet_bytes_max": "4MB"})
    wire = stage.connect()

    answer, pings = hammer(stage, wire, subscribe_to_many(100_000))

    assert answer.reasons == [0] * 10_000 + [0x97] * 90_000
    assert stage.look(lambda inside: inside.routes.count) == 10_000
    # The packet costs the broker some hundred milliseconds. Were it dealt with in one go, a second ping would be the last.
    assert pings >= 3


@pytest.mark.row(32)
def test_a_client_with_ten_thousand_subscriptions_disconnects_without_a_stall(start: Callable[..., Stage]) -> None:
    stage = start(mqtt={"packet_bytes_max": "4MB"})
    wire = stage.connect()
    other = stage.connect()
    for letter in "ab":
        wire.send(subscribe_to_many(5000, letter=letter, options=1))
        assert set(wire.receive(Suback).reasons) == {1}
    filters = [f"a/{number:x}" for number in range(5000)]

    wire.send(raw.unsubscribe(MQTT5, *filters))
    assert wire.receive(Unsuback).reasons == [0] * 5000
    wire.close()
    other.ping()

    wait_until(lambda: stage.look(lambda inside: inside.routes.count) == 0, "all of them are gone")


@pytest.mark.row(32)
def test_repeated_subscribes_do_not_pile_up_retained_messages(
    start: Callable[..., Stage],
) -> None:
    stage = start(mqtt={"inflight_max": 1}, session={"queue_messages_max": 2})
    publisher = stage.connect()
    for number in range(5):
        publisher.publish(f"kept/{number}", b"", qos=1)
        publisher.publish(f"kept/{number}", bytes([number]), qos=1, retain=True)
    greedy = stage.connect()

    # Nothing is acknowledged, so the first message blocks the way.
    for _ in range(1000):
        greedy.send(raw.subscribe(MQTT5, ("kept/#", 1)))
    subacks = 0
    while subacks < 1000:
        subacks += isinstance(greedy.receive_any(), Suback)

    assert stage.look(lambda inside: len(present(present(inside.sessions.get(greedy.client_id)).feeds))) <= 1


@pytest.mark.row(32)
def test_a_new_subscription_still_gets_its_retained_message(stage: Stage) -> None:
    topic = unique("t/")
    wire = stage.connect()
    wire.publish(topic, b"kept", qos=1, retain=True)

    wire.subscribe(SubscribeOption(topic, 1))
    first = wire.receive_publish()
    wire.subscribe(SubscribeOption(topic, 1))
    second = wire.receive_publish()

    assert isinstance(first, Publish)
    assert first.payload == second.payload == b"kept"
