"""A session belongs to the user that created it; another user with its client id gets a new session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from braidmq.mqtt.packets import MQTT5, MQTT311, Will
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.reasons import Reason
from tests.support.clients.wire import Wire
from tests.support.guarded import Guarded, running
from tests.support.stage import Stage

both_versions = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])

USERS = ["ada", "eve", "writer"]
RULES = "user ada\ntopic readwrite secret/#\nuser eve\ntopic readwrite open/#\nuser writer\ntopic readwrite #\n"
NOBODY = None  # who comes without a name
LONG_S = 300  # no test waits as long


@pytest.fixture
def guarded(start: Callable[..., Stage], tmp_path: Path) -> Guarded:
    """Ada may read secrets, eve may not."""
    return Guarded(start, tmp_path, USERS, RULES)


def connect_as(guarded: Guarded, user: str | None, version: int) -> Wire:
    """The client called device, of this user, with whatever session it finds."""
    if user is None:
        return guarded.stage.connect("device", version=version, persistent=True)
    return guarded.connect(user, "device", version=version, persistent=True)


@pytest.mark.row(47)
@both_versions
def test_another_user_cannot_resume_a_session(guarded: Guarded, version: int) -> None:
    writer, owner = guarded.connect("writer"), guarded.connect("ada", "device", version=version, persistent=True)
    owner.subscribe("secret/#", qos=1)
    writer.publish("secret/a", b"in flight", qos=1)
    owner.receive_publishes(1)
    owner.disconnect()
    writer.publish("secret/a", b"backlog", qos=1)

    thief = connect_as(guarded, "eve", version)
    answer = writer.publish("secret/a", b"live", qos=1)

    assert not thief.connack.session_present
    assert answer == Reason.NO_MATCHING_SUBSCRIBERS
    thief.expect_silence()


def leave_session_of_nobody(guarded: Guarded, version: int) -> Wire:
    """Before there are users, a client leaves with a message in flight and a backlog of secrets; their writer, who is one."""
    guarded.write_rules("topic readwrite secret/#\n" + RULES)
    guarded.have_users(False)
    nobody = connect_as(guarded, NOBODY, version)
    guarded.have_users(True)
    writer = guarded.connect("writer")
    nobody.subscribe("secret/#", qos=1)
    writer.publish("secret/a", b"in flight", qos=1)
    nobody.receive_publishes(1)
    nobody.disconnect()
    writer.publish("secret/a", b"backlog", qos=1)
    return writer


@pytest.mark.row(47)
@both_versions
def test_a_session_created_without_a_user_gives_a_user_only_permitted_messages(guarded: Guarded, version: int) -> None:
    writer = leave_session_of_nobody(guarded, version)

    thief = connect_as(guarded, "eve", version)
    answer = writer.publish("secret/a", b"live", qos=1)

    assert answer == Reason.NO_MATCHING_SUBSCRIBERS
    thief.expect_silence()


@pytest.mark.row(47)
@both_versions
def test_a_session_created_without_a_user_belongs_to_the_first_user_that_resumes_it(guarded: Guarded, version: int) -> None:
    leave_session_of_nobody(guarded, version)

    owner = connect_as(guarded, "ada", version)

    assert owner.connack.session_present
    assert [each.payload for each in owner.receive_publishes(2)] == [b"in flight", b"backlog"]
    owner.disconnect()
    assert not connect_as(guarded, "eve", version).connack.session_present


@pytest.mark.row(47)
@both_versions
def test_another_user_takes_over_the_client_id_without_the_session(guarded: Guarded, version: int) -> None:
    writer, owner = guarded.connect("writer"), guarded.connect("ada", "device", version=version, persistent=True)
    owner.subscribe("secret/#", qos=1)

    thief = connect_as(guarded, "eve", version)
    writer.publish("secret/a", b"live", qos=1)

    owner.expect_disconnect(Reason.SESSION_TAKEN_OVER)
    assert not thief.connack.session_present
    thief.expect_silence()


@pytest.mark.row(47)
@pytest.mark.parametrize("is_connected", [True, False], ids=["taken over", "absent"])
def test_the_will_of_a_session_that_another_user_ends_is_published(guarded: Guarded, is_connected: bool) -> None:
    watcher = guarded.connect("writer")
    watcher.subscribe("secret/#", qos=1)
    will = Will("secret/will", b"gone", 1, False, Properties(will_delay_interval=LONG_S))
    owner = guarded.connect("ada", "device", session_expiry_interval=LONG_S, will=will)
    if not is_connected:
        owner.disconnect(Reason.DISCONNECT_WITH_WILL_MESSAGE)

    connect_as(guarded, "eve", MQTT5)

    assert watcher.receive_publish().payload == b"gone"


@pytest.mark.row(47)
@both_versions
def test_the_user_that_created_a_session_can_resume_it(guarded: Guarded, version: int) -> None:
    writer = guarded.connect("writer")
    for user, topic in (("ada", "secret/a"), ("eve", "open/a")):
        first = guarded.connect(user, user, version=version, persistent=True)
        first.subscribe(topic, qos=1)
        first.disconnect()
        writer.publish(topic, b"backlog", qos=1)

        again = guarded.connect(user, user, version=version, persistent=True)

        assert again.connack.session_present
        assert again.receive_publish().payload == b"backlog"


@pytest.mark.row(47)
def test_a_session_keeps_its_user_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path, USERS, RULES) as guarded:
        for name in ("stolen", "kept"):
            owner = guarded.connect("ada", name, persistent=True)
            owner.subscribe("secret/#", qos=1)
            owner.disconnect()
        guarded.connect("writer").publish("secret/a", b"backlog", qos=1)

    with running(tmp_path, USERS, RULES) as guarded:
        thief = guarded.connect("eve", "stolen", persistent=True)
        owner = guarded.connect("ada", "kept", persistent=True)

        assert (thief.connack.session_present, owner.connack.session_present) == (False, True)
        assert owner.receive_publish().payload == b"backlog"
        thief.expect_silence()

    with running(tmp_path, USERS, RULES) as guarded:
        assert not guarded.connect("ada", "stolen", persistent=True).connack.session_present, "it is eve's now"
