"""Wrong passwords, failing authenticators and invalid files: in every case the client is rejected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from braidmq.access import hashes
from braidmq.access.contract import Credentials, Granted, Refused, Verdict
from braidmq.base.errors import ConfigError
from braidmq.broker.messages.hooks import Hook
from braidmq.mqtt.packets import MQTT5, MQTT311, Connack
from tests.support.clients import raw
from tests.support.clients.wire import DEADLINE_S, Wire
from tests.support.stage import Stage, wait_until

both_versions = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])


@pytest.fixture(scope="module")
def password_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Knows ada, whose password is lovelace, and bob, whose password is marley."""
    file = tmp_path_factory.mktemp("access") / "passwords"
    file.write_text(f"ada:{hashes.make(b'lovelace')}\nbob:{hashes.make(b'marley')}\n")
    file.chmod(0o600)
    return str(file)


def login(stage: Stage, user_name: str, password: bytes, version: int = MQTT5) -> int:
    """The reason in the CONNACK; a client that got in leaves again."""
    with Wire(stage.broker.host, stage.broker.port, version) as wire:
        wire.send_request(user_name=user_name, password=password)
        return wire.receive(Connack).reason


@pytest.mark.row(39)
@both_versions
def test_repeated_wrong_passwords_ban_the_user_at_that_address(
    start: Callable[..., Stage], password_file: str, version: int
) -> None:
    stage = start(access={"password_file": password_file, "ban_failures": 3})
    wrong, banned = (0x86, 0x8A) if version == MQTT5 else (4, 5)

    answers = [login(stage, "ada", b"guess %d" % number, version) for number in range(3)]
    afterwards = login(stage, "ada", b"lovelace", version)
    neighbour = login(stage, "bob", b"marley", version)

    assert answers == [wrong] * 3
    assert afterwards == banned, "even the right password does not help now"
    assert neighbour == 0


@pytest.mark.row(39)
@both_versions
def test_an_address_that_tries_many_users_is_throttled_and_known_clients_are_not(
    start: Callable[..., Stage], password_file: str, version: int
) -> None:
    stage = start(access={"password_file": password_file, "ban_failures": 2})
    wrong, too_fast = (0x86, 0x9F) if version == MQTT5 else (4, 3)
    assert login(stage, "ada", b"lovelace", version) == 0

    answers = [login(stage, f"user{number}", b"guess", version) for number in range(20)]
    throttled = [login(stage, name, b"guess", version) for name in ("ada", "user0", "user21")]

    assert answers == [wrong] * 20
    assert throttled == [too_fast] * 3
    assert login(stage, "ada", b"lovelace", version) == 0, "remembered from before"


@pytest.mark.row(39)
def test_an_unknown_user_takes_as_long_as_a_wrong_password(start: Callable[..., Stage], password_file: str) -> None:
    stage = start(access={"password_file": password_file, "ban_failures": 0})

    def fastest(names: list[str]) -> float:
        times = []
        for number, name in enumerate(names):
            began = time.perf_counter()
            assert login(stage, name, b"guess %d" % number) == 0x86
            times.append(time.perf_counter() - began)
        return min(times)

    known = fastest(["ada"] * 8)
    unknown = fastest([f"nobody{number}" for number in range(8)])

    # A hash costs some 16 ms, everything else less than 1 ms: without it the difference would be tenfold.
    assert 1 / 3 < known / unknown < 3


@pytest.mark.row(39)
def test_a_storm_of_logins_does_not_delay_connected_clients(start: Callable[..., Stage], password_file: str) -> None:
    stage = start(access={"password_file": password_file, "ban_failures": 0})
    inside = stage.connect(user_name="ada", password=b"lovelace")
    guessers = [stage.open() for _ in range(25)]

    for number, wire in enumerate(guessers):
        wire.send_request(user_name=f"user{number}", password=b"guess")
    pings = 0
    while not guessers[-1].has_arrived():
        inside.ping()
        pings += 1

    # Hashing for all of them takes more than a quarter of a second of a core.
    assert pings >= 5
    for wire in guessers:
        wire.expect_refusal(0x86)


class Authenticator(Hook):
    """Stands behind the access port and answers as it is told."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer
        self.questions = 0

    async def authenticate(self, credentials: Credentials) -> Verdict | None:
        """Whatever the test gave, be it sound or not."""
        self.questions += 1
        answer = self._answer()
        if isinstance(answer, float):
            await asyncio.sleep(answer)
            return Granted("late")
        return answer  # type: ignore[no-any-return]


def stage_behind(start: Callable[..., Stage], answer: Callable[[], Any], **tables: Any) -> tuple[Stage, Authenticator]:
    """A broker that asks an authenticator which answers so."""
    stage = start(**tables)
    authenticator = Authenticator(answer)
    stage.look(lambda inside: inside.hooks.add(authenticator))
    return stage, authenticator


def fail() -> Any:
    """A backend that is down."""
    raise ConnectionRefusedError("the directory server is down")


RUBBISH = {"true": True, "text": "yes", "zero": 0, "a tuple": (True, "ada"), "a class": Granted, "no name": Granted(42)}  # type: ignore[arg-type]


@pytest.mark.row(40)
@pytest.mark.parametrize("answer", RUBBISH.values(), ids=RUBBISH)
def test_an_authenticator_that_returns_garbage_rejects_clients(start: Callable[..., Stage], answer: Any) -> None:
    stage, authenticator = stage_behind(start, lambda: answer)

    assert login(stage, "ada", b"") == 0x88
    assert authenticator.questions == 1


@pytest.mark.row(40)
def test_a_rejection_with_a_reason_not_valid_in_connack_is_still_a_rejection(start: Callable[..., Stage]) -> None:
    stage, _ = stage_behind(start, lambda: Refused(0x10, "no such reason"))

    assert login(stage, "ada", b"") == 0x88


@pytest.mark.row(40)
@both_versions
def test_a_failing_authenticator_rejects_clients_and_is_paused(start: Callable[..., Stage], version: int) -> None:
    stage, authenticator = stage_behind(start, fail)

    answers = [login(stage, "ada", b"", version) for _ in range(10)]

    assert answers == [0x88 if version == MQTT5 else 3] * 10
    assert authenticator.questions == 3, "then the refusal is remembered"
    assert "ALARM" in stage.errors.take()


@pytest.mark.row(40)
def test_a_recovered_authenticator_is_used_again(start: Callable[..., Stage]) -> None:
    answers: list[Callable[[], Any]] = [fail]
    stage, _ = stage_behind(start, lambda: answers[0]())
    for _ in range(3):
        assert login(stage, "ada", b"") == 0x88
    stage.errors.take()

    answers[0] = lambda: Granted("ada")

    wait_until(lambda: login(stage, "ada", b"") == 0, "it is asked again", DEADLINE_S)


@pytest.mark.row(40)
def test_a_slow_authenticator_delays_no_other_client_and_times_out_as_a_rejection(start: Callable[..., Stage]) -> None:
    stage = start(limits={"connect_timeout": "1s"})
    inside = stage.connect()
    stage.look(lambda within: within.hooks.add(Authenticator(lambda: 60.0)))
    waiting = stage.open()

    waiting.send_request(user_name="ada", password=b"")
    pings = 0
    while not waiting.has_arrived():
        inside.ping()
        pings += 1

    assert pings >= 5
    # The deadline of the question and that of the connection are the same: either may be the first.
    answer = waiting.read_to_end()
    assert answer[:1] in (b"", b"\x20")
    assert answer[3:4] in (b"", b"\x88")


@pytest.mark.row(40)
def test_a_banned_client_is_rejected_even_if_the_authenticator_accepts_it(start: Callable[..., Stage]) -> None:
    stage, authenticator = stage_behind(start, lambda: Granted("ada"))
    node = stage.broker.node
    assert node is not None
    assert login(stage, "ada", b"") == 0

    stage.broker.run(node.access.ban(user_name="ada"))

    assert login(stage, "ada", b"") == 0x8A
    assert authenticator.questions == 1


@pytest.mark.row(40)
def test_rejections_by_an_authenticator_count_towards_a_ban(start: Callable[..., Stage]) -> None:
    stage, authenticator = stage_behind(start, lambda: Refused(0x86, "wrong"), access={"ban_failures": 3})

    answers = [login(stage, "ada", b"guess") for _ in range(4)]

    assert answers == [0x86, 0x86, 0x86, 0x8A]
    assert authenticator.questions == 3


BROKEN = {
    "not UTF-8": b"\xff\xfe\x00",
    "garbage": b"#!/bin/sh\nrm -rf /\n",
    "half a line": b"ada:$argon2id$v=19$m=16384",
    "plain text": b"ada:lovelace\n",
    "an image": b"\x89PNG\r\n\x1a\n",
}


def refuses_everybody(stage: Stage) -> None:
    """Neither names nor the lack of one open the door."""
    for shown in ({}, {"user_name": "ada"}, {"user_name": "ada", "password": b"lovelace"}, {"user_name": "", "password": b""}):
        with Wire(stage.broker.host, stage.broker.port) as wire:
            wire.send_request(**shown)
            assert wire.receive(Connack).reason in (0x86, 0x87, 0x88)


@pytest.mark.row(41)
@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_an_invalid_password_file_rejects_all_logins(start: Callable[..., Stage], tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "passwords"
    file.write_bytes(content)

    stage = start(access={"password_file": str(file)})

    refuses_everybody(stage)
    assert str(file) in stage.errors.take()


@pytest.mark.row(41)
@pytest.mark.parametrize("key", ["password_file", "acl_file"])
@pytest.mark.parametrize("kind", ["missing", "directory"])
def test_a_node_does_not_start_with_an_unreadable_file(start: Callable[..., Stage], tmp_path: Path, kind: str, key: str) -> None:
    path = tmp_path / "none" if kind == "missing" else tmp_path

    with pytest.raises(ConfigError, match=key):
        start(access={key: str(path)})


@pytest.mark.row(41)
def test_an_empty_password_file_has_no_users(start: Callable[..., Stage], tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    file.write_text("")
    listeners = {"tcp": {"default": {"bind": "127.0.0.1:0", "allow_anonymous": False}}}

    refuses_everybody(start(access={"password_file": str(file)}, listeners=listeners))


@pytest.mark.row(41)
@pytest.mark.parametrize("is_removed", [False, True], ids=["broken", "removed"])
def test_a_password_file_that_becomes_invalid_rejects_all_logins(
    start: Callable[..., Stage], password_file: str, tmp_path: Path, is_removed: bool
) -> None:
    file = tmp_path / "passwords"
    file.write_text(Path(password_file).read_text())
    stage = start(access={"password_file": str(file)})
    node = stage.broker.node
    assert node is not None
    member = stage.connect(user_name="ada", password=b"lovelace")

    if is_removed:
        file.unlink()
    else:
        file.write_bytes(BROKEN["garbage"])
    stage.broker.run(node.access.reload())

    member.expect_disconnect(0x87)
    refuses_everybody(stage)
    assert str(file) in stage.errors.take()


def may_do_nothing(stage: Stage) -> None:
    """A client that is in may neither publish nor subscribe."""
    wire = stage.connect()

    assert wire.request_subscribe("t", "#", "$share/g/t", "$exclusive/t").reasons == [0x87] * 4
    assert [wire.publish(topic, b"", qos=1) for topic in ("t", "$delayed/1/t")] == [0x87] * 2
    wire.send(raw.publish(MQTT5, "t", b"quietly"))
    wire.ping()
    assert stage.drops("not_authorized") == 3


@pytest.mark.row(41)
@pytest.mark.parametrize("content", [b"\xff\xfe", b"topic\n", b"user\n", b"allow all\n", b"topic readwrite a/#/b\n", b"\x00"])
@pytest.mark.parametrize("unmatched", ["allow", "deny"])
def test_an_invalid_acl_file_rejects_all_logins(
    start: Callable[..., Stage], tmp_path: Path, content: bytes, unmatched: str
) -> None:
    file = tmp_path / "rules"
    file.write_bytes(b"topic readwrite t\n" + content)

    stage = start(access={"acl_file": str(file), "acl_no_match": unmatched})

    refuses_everybody(stage)
    assert str(file) in stage.errors.take()


@pytest.mark.row(41)
def test_an_empty_acl_file_forbids_everything(start: Callable[..., Stage], tmp_path: Path) -> None:
    file = tmp_path / "rules"
    file.write_text("")

    may_do_nothing(start(access={"acl_file": str(file)}))


@pytest.mark.row(41)
def test_a_deleted_acl_file_rejects_all_logins(start: Callable[..., Stage], tmp_path: Path) -> None:
    file = tmp_path / "rules"
    file.write_text("topic readwrite #\n")
    stage = start(access={"acl_file": str(file), "acl_no_match": "allow"})
    node = stage.broker.node
    assert node is not None
    member = stage.connect()

    file.unlink()
    stage.broker.run(node.access.reload())

    member.expect_disconnect(0x87)
    refuses_everybody(stage)
    assert "cannot be read" in stage.errors.take()
