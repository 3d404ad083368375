"""Wrong passwords from a shared address must not lock out known users or anonymous clients there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from braidmq.access import hashes, passwords, scram
from braidmq.access.contract import Credentials, Granted, Refused, Verdict
from braidmq.broker.messages.hooks import Hook
from braidmq.mqtt.packets import MQTT5, MQTT311, Auth, Connack, Connect
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.reasons import Reason
from tests.access.scram_client import ScramClient
from tests.support.clients.wire import Wire
from tests.support.stage import Stage

both_versions = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])

GUESSES = 4  # one more than set a ban here
ACCESS = {"ban_failures": GUESSES - 1}
GUESSES_OF_NAMES = 10 * ACCESS["ban_failures"]  # as many as throttle an address
METHOD = "SCRAM-SHA-256"


@pytest.fixture(scope="module")
def password_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Knows alice and bob, with plain passwords and for SCRAM."""
    path = str(tmp_path_factory.mktemp("access") / "passwords")
    for name in ("alice", "bob"):
        passwords.set_password(path, name, hashes.make(name.encode()), scram.make_keys(name))
    return path


@pytest.fixture
def stage(start: Callable[..., Stage], password_file: str) -> Stage:
    """A broker that bans soon, to which all clients come from one address."""
    return start(access={"password_file": password_file, **ACCESS})


def answer_to(stage: Stage, version: int = MQTT5, **shown: object) -> int:
    """The reason in the CONNACK; a client that got in leaves again."""
    with Wire(stage.broker.host, stage.broker.port, version) as wire:
        wire.send_request(**shown)
        return wire.receive(Connack).reason


def guess(stage: Stage, version: int = MQTT5) -> None:
    """Wrong passwords for alice, until they are answered with a ban."""
    answers = [answer_to(stage, version, user_name="alice", password=b"guess %d" % number) for number in range(GUESSES)]
    assert answers[-1] == (Reason.BANNED if version == MQTT5 else 5)


def guess_names(stage: Stage) -> None:
    """Ever new names, until the address is throttled."""
    for number in range(GUESSES_OF_NAMES):
        answer_to(stage, user_name=f"user {number}", password=b"guess")
    assert answer_to(stage, user_name="one more", password=b"guess") == Reason.CONNECTION_RATE_EXCEEDED


def reload(stage: Stage) -> None:
    """What SIGHUP does."""
    node = stage.broker.node
    assert node is not None
    stage.broker.run(node.reload(node.config))


@pytest.mark.row(56)
@both_versions
def test_wrong_passwords_do_not_lock_out_a_recent_user_of_the_same_address(stage: Stage, version: int) -> None:
    known = {"user_name": "alice", "password": b"alice"}
    assert answer_to(stage, version, **known) == 0

    guess(stage, version)

    assert answer_to(stage, version, **known) == 0
    assert answer_to(stage, version, user_name="bob", password=b"bob") == 0


@pytest.mark.row(56)
@both_versions
def test_an_automatic_ban_does_not_close_open_connections(stage: Stage, version: int) -> None:
    member = stage.connect(version=version, user_name="alice", password=b"alice")

    guess(stage, version)
    reload(stage)

    member.ping()


@pytest.mark.row(56)
def test_an_operators_ban_closes_open_connections(stage: Stage) -> None:
    node = stage.broker.node
    assert node is not None
    member = stage.connect(user_name="alice", password=b"alice")

    stage.broker.run(node.access.ban(user_name="alice"))
    reload(stage)

    member.expect_disconnect(Reason.NOT_AUTHORIZED)
    assert answer_to(stage, user_name="alice", password=b"alice") == Reason.BANNED, "a recent login does not help"


@pytest.mark.row(56)
def test_failed_logins_without_a_user_name_do_not_affect_anonymous_clients(stage: Stage) -> None:
    for _ in range(GUESSES):
        assert answer_to(stage, client_id="sensor", password=b"guess") == Reason.NOT_AUTHORIZED

    member = stage.connect("sensor")
    answer_to(stage, client_id="sensor", password=b"guess")
    reload(stage)

    member.ping()


class TokenHook(Hook):
    """Knows one token, which is shown as the password without a user name."""

    def __init__(self) -> None:
        self.questions = 0

    async def authenticate(self, credentials: Credentials) -> Verdict | None:
        """A verdict about every client with a password."""
        self.questions += 1
        if credentials.password is None:
            return None
        return Granted("device") if credentials.password == b"token" else Refused(Reason.NOT_AUTHORIZED, "not our token")


@pytest.mark.row(56)
def test_guessed_tokens_lock_out_neither_the_valid_token_nor_anonymous_clients(start: Callable[..., Stage]) -> None:
    stage, hook = start(access=ACCESS), TokenHook()
    stage.look(lambda inside: inside.hooks.add(hook))
    member = stage.connect("sensor", password=b"token")
    member.disconnect()

    answers = [answer_to(stage, client_id="sensor", password=b"guess") for _ in range(GUESSES)]

    assert answers == [Reason.NOT_AUTHORIZED] * (GUESSES - 1) + [Reason.BANNED]
    assert hook.questions == 1 + GUESSES - 1, "a banned guess is not passed on"
    assert answer_to(stage, client_id="sensor", password=b"token") == 0
    assert answer_to(stage, client_id="sensor") == 0


@pytest.mark.row(58)
@both_versions
def test_an_anonymous_client_may_connect_from_a_throttled_address(stage: Stage, version: int) -> None:
    guess_names(stage)

    assert answer_to(stage, version) == 0


@pytest.mark.row(58)
def test_failed_logins_at_a_hook_are_throttled_by_address(start: Callable[..., Stage]) -> None:
    stage, hook = start(access=ACCESS), TokenHook()
    stage.look(lambda inside: inside.hooks.add(hook))

    answers = [answer_to(stage, client_id=f"c{number}", password=b"guess") for number in range(GUESSES_OF_NAMES + 1)]

    assert answers == [Reason.NOT_AUTHORIZED] * GUESSES_OF_NAMES + [Reason.CONNECTION_RATE_EXCEEDED]
    assert hook.questions == GUESSES_OF_NAMES


def begin_scram(stage: Stage, client: ScramClient) -> Wire:
    """A client that has sent the first message of its exchange with CONNECT."""
    wire = stage.open()
    properties = Properties(authentication_method=METHOD, authentication_data=client.first())
    wire.send(Connect(client_id="scram", version=MQTT5, clean_start=True, keep_alive=60, properties=properties))
    return wire


def finish_scram(wire: Wire, client: ScramClient) -> None:
    """Answer the challenge that comes next."""
    challenge = wire.receive(Auth).properties.authentication_data
    assert challenge is not None
    answer = Properties(authentication_method=METHOD, authentication_data=client.final(challenge))
    wire.send(Auth(Reason.CONTINUE_AUTHENTICATION, answer))


@pytest.mark.row(58)
def test_a_first_scram_login_is_throttled_and_a_recent_one_is_not(stage: Stage) -> None:
    alice = ScramClient("alice", "alice")
    member = begin_scram(stage, alice)
    finish_scram(member, alice)
    assert member.receive(Connack).reason == 0
    guess_names(stage)

    stranger = begin_scram(stage, ScramClient("bob", "bob"))
    again = ScramClient("alice", "alice")
    member.send(Auth(Reason.RE_AUTHENTICATE, Properties(authentication_method=METHOD, authentication_data=again.first())))
    finish_scram(member, again)

    stranger.expect_refusal(Reason.CONNECTION_RATE_EXCEEDED)
    assert member.receive(Auth).reason == Reason.SUCCESS
    member.disconnect()
    back = begin_scram(stage, again := ScramClient("alice", "alice"))
    finish_scram(back, again)
    assert back.receive(Connack).reason == 0
