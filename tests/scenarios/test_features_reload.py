"""A reload takes away what is no longer allowed, at once and everywhere, and leaves everybody else alone."""

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


def test_those_still_allowed_stay_and_those_removed_go(guarded: Guarded) -> None:
    ada, bob = guarded.connect("ada"), guarded.connect("bob")
    old_bob = guarded.connect("bob", version=MQTT311)
    ada.subscribe("t", qos=1)

    guarded.write_users(["ada"])
    guarded.reload()

    bob.expect_disconnect(Reason.NOT_AUTHORIZED)
    old_bob.expect_closed()
    ada.publish("other", b"still here", 1)
    ada.ping()


def test_a_change_of_the_files_is_noticed_without_a_reload(guarded: Guarded) -> None:
    bob = guarded.connect("bob")

    guarded.write_users(["ada"])

    bob.expect_disconnect(Reason.NOT_AUTHORIZED)


def test_broken_files_take_every_right_away(guarded: Guarded) -> None:
    ada, bob = guarded.connect("ada"), guarded.connect("bob")
    ada.subscribe("t", qos=1)

    guarded.write_rules("user ada\ntopic sometimes t\n")
    guarded.reload()

    for client in (ada, bob):
        client.expect_disconnect(Reason.NOT_AUTHORIZED)
    assert any("line 2" in line for line in guarded.stage.errors.lines)
    guarded.stage.errors.lines.clear()


def test_a_right_to_subscribe_that_is_gone_ends_the_subscription_and_no_other(guarded: Guarded) -> None:
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


def test_what_waits_in_the_queue_is_not_delivered_after_the_change(guarded: Guarded) -> None:
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


def test_what_is_in_flight_is_not_sent_again_after_the_change(guarded: Guarded) -> None:
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


def test_what_the_client_may_have_at_qos_2_is_released_without_showing_it_again(guarded: Guarded) -> None:
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


def test_the_window_of_a_connected_client_opens_for_what_is_still_allowed(guarded: Guarded) -> None:
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


def test_retained_messages_on_their_way_stop_with_the_right_to_have_them(guarded: Guarded) -> None:
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
def test_a_right_to_publish_that_is_gone_refuses_the_next_message(guarded: Guarded, version: int) -> None:
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


def test_an_mqtt_3_client_without_the_right_is_cut_off_if_that_is_asked_for(start: Start, tmp_path: Path) -> None:
    rules = "user ada\ntopic read #\n"
    guarded = Guarded(start, tmp_path, ["ada"], rules, mqtt={"deny_action": "disconnect"})
    old, new = guarded.connect("ada", version=MQTT311), guarded.connect("ada")

    old.send(Publish("t", b"x", 1, packet_id=1))

    old.expect_closed()
    assert new.publish("t", b"x", 1) == Reason.NOT_AUTHORIZED, "MQTT 5 has words for it"


@pytest.mark.parametrize("recheck", [True, False], ids=["rechecked", "as-they-are"])
def test_retained_messages_of_a_publisher_without_rights_are_served_by_policy(
    start: Start, tmp_path: Path, recheck: bool
) -> None:
    guarded = Guarded(start, tmp_path, ["ada", "bob"], ALL, retained={"recheck_publisher": recheck})
    guarded.connect("bob").publish("news", b"by bob", 1, retain=True)

    guarded.write_rules("user ada\ntopic readwrite #\nuser bob\ntopic read #\n")
    guarded.reload()
    ada = guarded.connect("ada")
    ada.subscribe("news", qos=1)

    assert [packet.payload for packet in ada.drain() if isinstance(packet, Publish)] == ([] if recheck else [b"by bob"])


def test_a_will_needs_its_right_when_it_is_published(guarded: Guarded) -> None:
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


def test_limits_change_for_sessions_that_are_there(guarded: Guarded) -> None:
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


def test_bounds_of_delayed_messages_change_while_the_node_runs(guarded: Guarded) -> None:
    ada = guarded.connect("ada")
    assert ada.publish("$delayed/60/t", b"", 1) == 0

    guarded.reload(delayed__delay_max=30)

    assert ada.publish("$delayed/60/t", b"", 1) == Reason.QUOTA_EXCEEDED


def test_the_bound_of_topic_levels_changes_both_ways_while_the_node_runs(guarded: Guarded) -> None:
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
