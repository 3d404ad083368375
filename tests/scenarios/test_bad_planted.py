"""A client without credentials can neither plant a session for a user nor take one, while there are users."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from braidmq.access.contract import Credentials, Granted, Verdict
from braidmq.broker.messages.hooks import Hook
from braidmq.mqtt.packets import MQTT5, MQTT311, Will
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.reasons import Reason
from tests.support.clients.wire import Wire
from tests.support.guarded import PASSWORD, Guarded, running
from tests.support.stage import Stage

both_versions = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])

USERS = ["alice", "writer"]
RULES = "topic readwrite #\nuser alice\ntopic readwrite #\nuser writer\ntopic readwrite #\n"
LONG_S = 300  # no test waits as long
NOT_AUTHORIZED_3 = 5


@pytest.fixture
def guarded(start: Callable[..., Stage], tmp_path: Path) -> Guarded:
    """Everybody may read everything, so that nothing but the owner of a session decides who gets it."""
    return Guarded(start, tmp_path, USERS, RULES)


def as_alice(guarded: Guarded, version: int = MQTT5, **fields: object) -> Wire:
    """Alice's device."""
    return guarded.connect("alice", "device", version=version, **{"persistent": True, **fields})


def as_nobody(guarded: Guarded, version: int = MQTT5, **fields: object) -> Wire:
    """A client without credentials that uses the client id of alice's device."""
    return guarded.stage.connect("device", version=version, **{"persistent": True, **fields})


def plant(guarded: Guarded, version: int = MQTT5) -> None:
    """Leave a session with a subscription under the client id of alice's device."""
    attacker = as_nobody(guarded, version)
    attacker.subscribe("planted/#", qos=1)
    attacker.disconnect()


@pytest.mark.row(55)
@both_versions
def test_a_session_created_without_a_user_is_not_handed_to_a_user(guarded: Guarded, version: int) -> None:
    plant(guarded, version)

    owner = as_alice(guarded, version)

    assert not owner.connack.session_present
    assert guarded.connect("writer").publish("planted/a", b"", qos=1) == Reason.NO_MATCHING_SUBSCRIBERS


@pytest.mark.row(55)
@both_versions
@pytest.mark.parametrize("is_connected", [True, False], ids=["connected", "absent"])
@pytest.mark.parametrize("clean_start", [True, False], ids=["clean start", "resume"])
def test_a_client_without_credentials_cannot_resume_or_end_a_users_session(
    guarded: Guarded, version: int, is_connected: bool, clean_start: bool
) -> None:
    owner = as_alice(guarded, version)
    owner.subscribe("mine/#", qos=1)
    if not is_connected:
        owner.disconnect()
    attacker = guarded.stage.open(version)

    attacker.send_request(client_id="device", clean_start=clean_start)
    attacker.expect_refusal(Reason.NOT_AUTHORIZED, NOT_AUTHORIZED_3)
    guarded.connect("writer").publish("mine/a", b"kept", qos=1)

    if not is_connected:
        owner = as_alice(guarded, version)
        assert owner.connack.session_present
    assert owner.receive_publish().payload == b"kept"
    assert guarded.stage.look(lambda inside: inside.statistics.owners_protected) == 1


@pytest.mark.row(55)
def test_a_client_without_credentials_cannot_disconnect_a_user_with_a_memory_session(guarded: Guarded) -> None:
    owner = as_alice(guarded, persistent=False)
    attacker = guarded.stage.open()

    attacker.send_request(client_id="device")

    attacker.expect_refusal(Reason.NOT_AUTHORIZED)
    owner.ping()


@pytest.mark.row(55)
def test_a_client_without_credentials_cannot_trigger_a_users_will(guarded: Guarded) -> None:
    watcher = guarded.connect("writer")
    watcher.subscribe("will/#", qos=1)
    owner = as_alice(guarded, will=Will("will/alice", b"gone", 1, False, Properties()))
    attacker = guarded.stage.open()

    attacker.send_request(client_id="device")

    attacker.expect_refusal(Reason.NOT_AUTHORIZED)
    watcher.expect_silence()
    owner.ping()


@pytest.mark.row(55)
def test_a_user_takes_over_an_anonymous_client_whose_will_is_published(guarded: Guarded) -> None:
    watcher = guarded.connect("writer")
    watcher.subscribe("will/#", qos=1)
    will = Will("will/nobody", b"gone", 1, False, Properties(will_delay_interval=LONG_S))
    attacker = as_nobody(guarded, session_expiry_interval=LONG_S, will=will)
    attacker.subscribe("planted/#", qos=1)

    owner = as_alice(guarded)

    assert not owner.connack.session_present
    attacker.expect_disconnect(Reason.SESSION_TAKEN_OVER)
    assert watcher.receive_publish().payload == b"gone"


@pytest.mark.row(55)
def test_a_client_without_credentials_can_resume_its_own_session(guarded: Guarded) -> None:
    plant(guarded)

    assert as_nobody(guarded).connack.session_present


@pytest.mark.row(55)
def test_a_planted_session_is_not_handed_to_a_user_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path, USERS, RULES) as guarded:
        plant(guarded)

    with running(tmp_path, USERS, RULES) as guarded:
        assert not as_alice(guarded).connack.session_present
        assert guarded.connect("writer").publish("planted/a", b"", qos=1) == Reason.NO_MATCHING_SUBSCRIBERS


@pytest.mark.row(55)
def test_an_old_session_counts_as_planted_once_an_anonymous_client_has_used_it(
    guarded: Guarded,
) -> None:
    guarded.have_users(False)
    plant(guarded)
    guarded.have_users(True)

    as_nobody(guarded).disconnect()

    assert not as_alice(guarded).connack.session_present


@pytest.mark.row(55)
def test_a_session_that_replaced_a_users_session_is_not_handed_to_a_user(guarded: Guarded) -> None:
    as_alice(guarded).disconnect()
    guarded.have_users(False)
    plant(guarded)
    guarded.have_users(True)

    assert not as_alice(guarded).connack.session_present


class Vouching(Hook):
    """Knows alice by her password and leaves everybody else to the node."""

    async def authenticate(self, credentials: Credentials) -> Verdict | None:
        """A verdict about alice only."""
        return Granted("alice") if credentials.password == PASSWORD else None


@pytest.mark.row(55)
def test_users_authenticated_by_a_hook_are_safe_from_planted_sessions(start: Callable[..., Stage]) -> None:
    stage = start()
    stage.look(lambda inside: inside.hooks.add(Vouching()))
    attacker = stage.connect("device", persistent=True)
    attacker.subscribe("planted/#", qos=1)
    attacker.disconnect()

    owner = stage.connect("device", persistent=True, user_name="alice", password=PASSWORD)

    assert not owner.connack.session_present
