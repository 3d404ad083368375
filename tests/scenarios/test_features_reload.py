"""A reload withdraws access at once and everywhere, and affects no other client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from braidmq.mqtt.packets import MQTT5, MQTT311, Pubcomp, Publish, Pubrel, Will
from braidmq.mqtt.properties import NO_PROPERTIES
from braidmq.mqtt.reasons import Reason
from tests.support.clients.wire import unique
from tests.support.guarded import Guarded
from tests.support.present import present
from tests.support.stage import Stage, wait_until

Start = Callable[..., Stage]

ALL = "user ada\ntopic readwrite #\nuser bob\ntopic readwrite #\n"


@pytest.fixture
def guarded(start: Start, tmp_path: Path) -> Guarded:
    """Ada and bob may do everything, for now."""
    return Guarded(start, tmp_path, ["ada", "bob"], ALL)


def test_reload_disconnects_removed_users_and_keeps_the_others(guarded: Guarded) -> None:
    ada, bob = guarded.connect("ada"), guarded.connect("bob")
    old_bob = guarded.connect("bob", version=MQTT311)
    ada.subscribe("t", qos=1)

    guarded.write_users(["ada"])
    guarded.reload()

    bob.expect_disconnect(Reason.NOT_AUTHORIZED)
    old_bob.expect_closed()
    ada.publish("other", b"still here", 1)
    ada.ping()


def test_changed_files_take_effect_without_a_reload(guarded: Guarded) -> None:
    bob = guarded.connect("bob")

    guarded.write_users(["ada"])

    bob.expect_disconnect(Reason.NOT_AUTHORIZED)


def test_invalid_files_withdraw_all_access(guarded: Guarded) -> None:
    ada, bob = guarded.connect("ada"), guarded.connect("bob")
    ada.subscribe("t", qos=1)

    guarded.write_rules("user ada\ntopic sometimes t\n")
    guarded.reload()

    for client in (ada, bob):
        client.expect_disconnect(Reason.NOT_AUTHORIZED)
    assert any("line 2" in line for line in guarded.stage.errors.lines)
    guarded.stage.errors.lines.clear()


def test_withdrawn_subscribe_access_ends_only_that_subscription(guarded: Guarded) -> None:
    ada, bob = guarded.connect("ada"), guarded.connect("bob")
    ada.subscribe("secret/#", "open/#", "$share/g/secret/#", qos=1)
    bob.publish("secret/1", b"before", 1)
    assert {ada.receive_publish().payload, ada.receive_publish().payload} == {b"before"}

    guarded.write_rules("user ada\ntopic readwrite open/#\nuser bob\ntopic readwrite #\n")
    guarded.reload()

    assert bob.publish("secret/1", b"after", 1) == Reason.NO_MATCHING_SUBSCRIBERS
    bob.publish("open/1", b"after", 1)
    assert ada.receive_publish().payload == b"after"
    ada.expect_silence()


def test_queued_messages_are_not_delivered_after_access_is_withdrawn(guarded: Guarded) -> None:
    ada, bob = guarded.connect("ada", persistent=True), guarded.connect("bob")
    ada.subscribe("secret/#", "open/#", qos=1)
    ada.disconnect()
    for topic in ("secret/1", "open/1", "secret/2"):
        bob.publish(topic, topic.encode(), 1)

    guarded.write_rules("user ada\ntopic readwrite open/#\nuser bob\ntopic readwrite #\n")
    guarded.reload()
    back = guarded.connect("ada", ada.client_id, persistent=True)

    assert back.connack.session_present
    assert back.receive_publish().payload == b"open/1"
    back.expect_silence()


def test_inflight_messages_are_not_resent_after_access_is_withdrawn(guarded: Guarded) -> None:
    ada, bob = guarded.connect("ada", persistent=True), guarded.connect("bob")
    ada.subscribe("secret/#", "open/#", qos=1)
    for topic in ("secret/1", "open/1"):
        bob.publish(topic, topic.encode(), 1)
    ada.receive_publishes(2)
    ada.close()

    guarded.write_rules("user ada\ntopic readwrite open/#\nuser bob\ntopic readwrite #\n")
    guarded.reload()
    back = guarded.connect("ada", ada.client_id, persistent=True)

    again = back.receive(Publish)
    assert (again.payload, again.dup) == (b"open/1", True)
    back.acknowledge(again)
    back.expect_silence()


def test_inflight_qos_2_messages_are_released_without_being_resent(guarded: Guarded) -> None:
    ada, bob = guarded.connect("ada", persistent=True), guarded.connect("bob")
    ada.subscribe("secret/#", qos=2)
    bob.publish("secret/1", b"x", 2)
    sent = ada.receive(Publish)
    ada.close()

    guarded.write_rules("user ada\ntopic readwrite open/#\nuser bob\ntopic readwrite #\n")
    guarded.reload()
    back = guarded.connect("ada", ada.client_id, persistent=True)

    assert sent.packet_id is not None
    assert back.receive(Pubrel).packet_id == sent.packet_id, "or the id could come back with another message"
    back.send(Pubcomp(sent.packet_id))
    back.expect_silence()
    assert guarded.stage.look(lambda inside: present(inside.sessions.get(ada.client_id)).flow.inflight_messages()) == 0


def test_withdrawn_messages_free_the_window_for_allowed_ones(guarded: Guarded) -> None:
    ada, bob = guarded.connect("ada", receive_maximum=1), guarded.connect("bob")
    ada.subscribe("secret/#", "open/#", qos=1)
    for topic in ("secret/1", "secret/2", "open/1"):
        bob.publish(topic, topic.encode(), 1)
    sent = ada.receive(Publish)  # the other two wait behind it

    guarded.write_rules("user ada\ntopic readwrite open/#\nuser bob\ntopic readwrite #\n")
    guarded.reload()
    ada.acknowledge(sent)

    assert ada.receive_publish().payload == b"open/1"
    ada.expect_silence()


def test_retained_delivery_stops_when_access_is_withdrawn(guarded: Guarded) -> None:
    bob = guarded.connect("bob")
    for number in range(50):
        bob.publish(f"secret/{number}", b"x", 1, retain=True)
    ada = guarded.connect("ada", receive_maximum=1)
    ada.subscribe("secret/#", qos=1)
    first = ada.receive(Publish)

    guarded.write_rules("user ada\ntopic readwrite open/#\nuser bob\ntopic readwrite #\n")
    guarded.reload()
    ada.acknowledge(first)

    ada.expect_silence()


@pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["v3.1.1", "v5.0"])
def test_withdrawn_publish_access_rejects_the_next_message(guarded: Guarded, version: int) -> None:
    ada, bob = guarded.connect("ada"), guarded.connect("bob", version=version)
    ada.subscribe("t", qos=1)
    bob.publish("t", b"before", 1)  # the verdict is remembered from now on
    assert ada.receive_publish().payload == b"before"

    guarded.write_rules("user ada\ntopic readwrite #\nuser bob\ntopic read #\n")
    guarded.reload()

    told = bob.publish("t", b"after", 1)
    assert told == (Reason.NOT_AUTHORIZED if version == MQTT5 else 0)
    bob.publish("t", b"after", 0)
    ada.expect_silence()
    assert guarded.stage.drops("not_authorized") == 2


def test_an_mqtt_3_client_without_publish_access_is_closed_if_configured(start: Start, tmp_path: Path) -> None:
    rules = "user ada\ntopic read #\n"
    guarded = Guarded(start, tmp_path, ["ada"], rules, mqtt={"deny_action": "disconnect"})
    old, new = guarded.connect("ada", version=MQTT311), guarded.connect("ada")

    old.send(Publish("t", b"x", 1, packet_id=1))

    old.expect_closed()
    assert new.publish("t", b"x", 1) == Reason.NOT_AUTHORIZED, "MQTT 5 has words for it"


@pytest.mark.parametrize("recheck", [True, False], ids=["rechecked", "as-they-are"])
def test_retained_messages_of_a_revoked_publisher_follow_the_configured_policy(
    start: Start, tmp_path: Path, recheck: bool
) -> None:
    guarded = Guarded(start, tmp_path, ["ada", "bob"], ALL, retained={"recheck_publisher": recheck})
    guarded.connect("bob").publish("news", b"by bob", 1, retain=True)

    guarded.write_rules("user ada\ntopic readwrite #\nuser bob\ntopic read #\n")
    guarded.reload()
    ada = guarded.connect("ada")
    ada.subscribe("news", qos=1)

    assert [packet.payload for packet in ada.drain() if isinstance(packet, Publish)] == ([] if recheck else [b"by bob"])


def test_a_will_is_authorised_when_it_is_published(guarded: Guarded) -> None:
    ada = guarded.connect("ada")
    ada.subscribe("wills/+", qos=1)
    mortal = guarded.connect("bob", unique("m"), will=Will("wills/bob", b"gone", 1, False, NO_PROPERTIES))

    guarded.write_rules("user ada\ntopic readwrite #\nuser bob\ntopic read #\n")
    guarded.reload()
    mortal.close()

    wait_until(lambda: guarded.stage.drops("not_authorized") == 1, "the will is dropped")
    ada.expect_silence()


def test_a_reload_that_changes_nothing_keeps_sessions_and_messages(guarded: Guarded) -> None:
    ada, bob = guarded.connect("ada", receive_maximum=1), guarded.connect("bob")
    ada.subscribe("t", qos=1)
    for number in range(5):
        bob.publish("t", str(number).encode(), 1)

    assert guarded.reload() == []

    assert [ada.receive_publish().payload for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


def test_changed_limits_apply_to_existing_sessions(guarded: Guarded) -> None:
    ada, bob = guarded.connect("ada", persistent=True), guarded.connect("bob")
    ada.subscribe("t")
    ada.disconnect()

    guarded.reload(session__queue_messages_max=2, session__queue_qos0=True)
    for number in range(4):
        bob.publish("t", str(number).encode(), 0)
    bob.ping()

    back = guarded.connect("ada", ada.client_id, persistent=True)
    assert [back.receive_publish().payload for _ in range(2)] == [b"0", b"1"]
    back.expect_silence()
    assert guarded.stage.drops("queue_full") == 2


def test_keys_that_need_a_restart_are_named(guarded: Guarded) -> None:
    restart = guarded.reload(api__bind="127.0.0.1:1", mqtt__receive_maximum=77)

    assert restart == ["api.bind"]
    assert guarded.connect("ada").connack.properties.receive_maximum == 77


def test_limits_of_delayed_messages_can_be_changed_at_run_time(guarded: Guarded) -> None:
    ada = guarded.connect("ada")
    assert ada.publish("$delayed/60/t", b"", 1) == 0

    guarded.reload(delayed__delay_max=30)

    assert ada.publish("$delayed/60/t", b"", 1) == Reason.QUOTA_EXCEEDED


def test_the_limit_of_topic_levels_can_be_raised_and_lowered_at_run_time(guarded: Guarded) -> None:
    ada = guarded.connect("ada")
    ada.subscribe("#")
    deep = "/".join("abc")

    guarded.reload(mqtt__topic_levels_max=2)
    bob = guarded.connect("bob")
    bob.send(Publish(deep, b"refused"))
    bob.expect_disconnect(Reason.TOPIC_NAME_INVALID)

    guarded.reload(mqtt__topic_levels_max=3)
    guarded.connect("bob").publish(deep, b"taken", 1)
    assert ada.receive_publish().payload == b"taken"
