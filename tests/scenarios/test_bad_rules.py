"""Invalid ACL and password files: all clients are disconnected until they are valid again, and nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from braidmq.access.contract import Credentials, Granted, Verdict
from braidmq.broker.messages.hooks import Hook
from braidmq.mqtt.packets import MQTT5, MQTT311, Will
from braidmq.mqtt.properties import NO_PROPERTIES
from tests.support.guarded import PASSWORD, Guarded, running
from tests.support.present import present
from tests.support.stage import Stage, wait_until

both_versions = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])
either_file = pytest.mark.parametrize("which", ["rules", "passwords"])

USERS = ["ada", "writer"]
RULES = "user ada\ntopic read secret/#\ntopic read open/#\nuser writer\ntopic readwrite #\n"
LESS = "user ada\ntopic read open/#\nuser writer\ntopic readwrite #\n"
BROKEN = RULES + "tpoic read secret/#\n"


@pytest.fixture
def guarded(start: Callable[..., Stage], tmp_path: Path) -> Guarded:
    """Ada may read what the writer writes."""
    return Guarded(start, tmp_path, USERS, RULES)


def break_file(guarded: Guarded, which: str) -> None:
    """One file breaks."""
    if which == "rules":
        guarded.write_rules(BROKEN)
    else:
        guarded.write_users([*USERS, "no\tname"])
    guarded.reload()
    assert guarded.stage.errors.take()


def mend(guarded: Guarded, rules: str = RULES) -> None:
    """Both files are in order."""
    guarded.write_users(USERS)
    guarded.write_rules(rules)
    guarded.reload()


def expect_nobody_gets_in(guarded: Guarded) -> None:
    """Neither by name nor without one, in any version."""
    for version in (MQTT311, MQTT5):
        for shown in ({}, {"user_name": "ada", "password": PASSWORD}):
            wire = guarded.stage.open(version)
            wire.send_request(**shown)
            wire.expect_refusal(0x88, 3)


@pytest.mark.row(41)
@both_versions
@either_file
def test_an_invalid_file_disconnects_all_clients_and_keeps_their_sessions(guarded: Guarded, version: int, which: str) -> None:
    writer = guarded.connect("writer")
    away, inside = (guarded.connect("ada", name, version=version, persistent=True) for name in ("away", "inside"))
    for reader in (away, inside):
        reader.subscribe("secret/#", "$share/g/open/#", "$exclusive/open/" + reader.client_id, qos=1)
    away.disconnect()
    writer.publish("secret/a", b"backlog", qos=1)
    inside.receive_publishes(1)

    break_file(guarded, which)

    inside.expect_disconnect(0x87)
    writer.expect_disconnect(0x87)
    expect_nobody_gets_in(guarded)
    mend(guarded)
    for name in ("away", "inside"):
        back = guarded.connect("ada", name, version=version, persistent=True)
        assert back.connack.session_present
        assert back.receive_publish().payload == b"backlog"
        guarded.connect("writer").publish("open/" + name, name.encode(), qos=1)
        assert back.receive_publish().payload == name.encode()


@pytest.mark.row(41)
def test_repaired_rules_withdraw_what_they_no_longer_allow(guarded: Guarded) -> None:
    writer, reader = guarded.connect("writer"), guarded.connect("ada", "reader", persistent=True)
    reader.subscribe("secret/#", "open/#", qos=1)
    reader.disconnect()
    for topic in ("secret/a", "open/a"):
        writer.publish(topic, topic.encode(), qos=1)

    break_file(guarded, "rules")
    mend(guarded, LESS)
    back = guarded.connect("ada", "reader", persistent=True)

    assert back.receive_publish().payload == b"open/a"
    back.expect_silence()
    assert guarded.stage.look(lambda inside: list(present(inside.sessions.get("reader")).subscriptions)) == ["open/#"]


@pytest.mark.row(41)
@pytest.mark.parametrize("afterwards", [RULES, LESS], ids=["as before", "less"])
def test_a_start_with_invalid_rules_keeps_all_sessions(tmp_path: Path, afterwards: str) -> None:
    with running(tmp_path, USERS, RULES, history={"topics": []}) as guarded:
        writer, reader = guarded.connect("writer"), guarded.connect("ada", "reader", persistent=True)
        reader.subscribe("secret/#", "open/#", qos=1)
        for topic in ("secret/a", "open/a"):
            writer.publish(topic, topic.encode(), qos=1)
        reader.receive_publishes(2)
        reader.disconnect()

    with running(tmp_path, USERS, BROKEN, history={"topics": []}) as guarded:
        assert guarded.stage.errors.take()
        expect_nobody_gets_in(guarded)

    with running(tmp_path, USERS, BROKEN, history={"topics": []}) as guarded:
        assert guarded.stage.errors.take()
        mend(guarded, afterwards)
        back = guarded.connect("ada", "reader", persistent=True)

        assert back.connack.session_present
        topics = ["secret/a", "open/a"] if afterwards == RULES else ["open/a"]
        assert [back.receive_publish().topic for _ in topics] == topics
        back.expect_silence()
        guarded.connect("writer").publish("open/b", b"live", qos=1)
        assert back.receive_publish().payload == b"live"


class LetIn(Hook):
    """Knows everybody."""

    async def authenticate(self, credentials: Credentials) -> Verdict | None:
        """Whoever comes is ada."""
        return Granted("ada")


@pytest.mark.row(41)
def test_invalid_rules_also_reject_clients_that_a_hook_accepts(guarded: Guarded) -> None:
    guarded.stage.look(lambda inside: inside.hooks.add(LetIn()))
    reader = guarded.connect("ada", "reader", persistent=True)
    reader.subscribe("secret/#", qos=1)

    break_file(guarded, "rules")

    reader.expect_disconnect(0x87)
    expect_nobody_gets_in(guarded)
    mend(guarded)
    assert guarded.stage.look(lambda inside: list(present(inside.sessions.get("reader")).subscriptions)) == ["secret/#"]


@pytest.mark.row(41)
@pytest.mark.parametrize("is_back", [True, False], ids=["returning", "new"])
def test_a_client_waiting_for_the_disk_is_rejected_when_the_rules_become_invalid(guarded: Guarded, is_back: bool) -> None:
    if is_back:
        guarded.connect("ada", "reader", persistent=True).disconnect()
    held: list[Callable[[], None]] = []
    guarded.stage.look(lambda inside: setattr(inside.turn_writer, "change", lambda *writing: held.append(writing[1])))
    joining = guarded.stage.open()
    joining.send_request(client_id="reader", user_name="ada", password=PASSWORD, persistent=True)
    wait_until(lambda: bool(held), "its session is about to be written")

    guarded.stage.look(lambda inside: delattr(inside.turn_writer, "change"))
    break_file(guarded, "rules")
    guarded.stage.broker.call(held[0])

    joining.expect_refusal(0x87)
    assert guarded.stage.look(lambda inside: inside.sessions.get("reader") is not None) is is_back


@pytest.mark.row(41)
@pytest.mark.parametrize("expiry_s", [0, 60], ids=["ends", "lives on"])
@pytest.mark.parametrize("may_write", [True, False], ids=["allowed", "withdrawn"])
def test_a_will_that_is_due_while_rules_are_invalid_waits_for_valid_rules(
    guarded: Guarded, expiry_s: int, may_write: bool
) -> None:
    reader = guarded.connect("ada", "reader", persistent=True)
    reader.subscribe("secret/#", qos=1)
    will = Will("secret/will", b"gone", 1, False, NO_PROPERTIES)
    writer = guarded.connect("writer", session_expiry_interval=expiry_s, will=will)

    break_file(guarded, "rules")
    writer.expect_disconnect(0x87)
    mend(guarded, RULES if may_write else RULES + "topic deny secret/will\n")
    back = guarded.connect("ada", "reader", persistent=True)

    if may_write:
        assert back.receive_publish().payload == b"gone"
    back.expect_silence()


@pytest.mark.row(41)
def test_a_delayed_message_that_is_due_while_rules_are_invalid_waits_for_valid_rules(guarded: Guarded) -> None:
    reader = guarded.connect("ada", "reader", persistent=True)
    reader.subscribe("secret/#", qos=1)
    guarded.connect("writer").publish("$delayed/1/secret/a", b"late", qos=1)
    due = time.monotonic() + 1

    break_file(guarded, "rules")
    wait_until(lambda: time.monotonic() > due, "its time has come")
    mend(guarded)
    back = guarded.connect("ada", "reader", persistent=True)

    assert back.receive_publish().payload == b"late"


@pytest.mark.row(41)
def test_a_will_that_waits_for_valid_rules_survives_a_restart(tmp_path: Path) -> None:
    with running(tmp_path, USERS, RULES) as guarded:
        guarded.connect("ada", "reader", persistent=True).subscribe("secret/#", qos=1)
        will = Will("secret/will", b"gone", 1, False, NO_PROPERTIES)
        writer = guarded.connect("writer", session_expiry_interval=60, will=will)
        break_file(guarded, "rules")
        writer.expect_disconnect(0x87)

    with running(tmp_path, USERS, BROKEN) as guarded:
        assert guarded.stage.errors.take()
        expect_nobody_gets_in(guarded)
        mend(guarded)

        assert guarded.connect("ada", "reader", persistent=True).receive_publish().payload == b"gone"
