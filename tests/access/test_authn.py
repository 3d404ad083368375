"""Logins against a password file: who gets in, what a login costs, and what happens when the file is not in order."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from braidmq.access import hashes, passwords
from braidmq.access.authn import PasswordAuthenticator
from braidmq.access.contract import Credentials, Granted, Refused, Verdict
from braidmq.mqtt.reasons import Reason
from tests.access.logins import login, run
from tests.support.fakes.clock import FakeClock
from tests.support.present import present

ARGON2 = hashes.make(b"secret")
BCRYPT = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()


class CountingVerify:
    """The real check, with a record of the hashes it worked on."""

    def __init__(self) -> None:
        self.worked_on: list[str] = []

    def __call__(self, text: str, password: bytes) -> bool:
        self.worked_on.append(text)
        return hashes.verify(text, password)


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "passwd"
    path.write_text(f"alice:{ARGON2}\n")
    path.chmod(0o600)
    return path


def authenticator(path: Path | str, **others: Any) -> PasswordAuthenticator:
    values: dict[str, Any] = {"cache_ttl_s": 600, "waiting_max": 100, "timeout_s": 10, "clock": FakeClock(), **others}
    return PasswordAuthenticator(str(path), **values)


def rewrite(path: Path, text: str) -> None:
    path.write_text(text)


def ask(path: Path | str, *logins: Credentials, **others: Any) -> list[Verdict]:
    async def scenario() -> list[Verdict]:
        tested = authenticator(path, **others)
        try:
            return [await tested.authenticate(each) for each in logins]
        finally:
            await tested.close()

    return run(scenario())


def reason(verdict: Verdict) -> int:
    assert isinstance(verdict, Refused)
    return verdict.reason


# -- who gets in -------------------------------------------------------------------------------------------------------


def test_a_correct_password_is_accepted_and_a_wrong_one_is_rejected(password_file: Path) -> None:
    right, wrong, unknown, none, empty = ask(
        password_file,
        login("alice", b"secret"),
        login("alice", b"Secret"),
        login("bob", b"secret"),
        login("alice"),
        login("", b"secret"),
    )

    assert right == Granted("alice")
    assert [reason(each) for each in (wrong, unknown, none, empty)] == [Reason.BAD_USER_NAME_OR_PASSWORD] * 4


def test_a_wrong_password_is_refused_even_where_anonymous_clients_are_allowed(password_file: Path) -> None:
    wrong, unknown, anonymous = ask(
        password_file,
        login("alice", b"wrong", anonymous_allowed=True),
        login("bob", b"x", anonymous_allowed=True),
        login(anonymous_allowed=True),
    )

    assert reason(wrong) == reason(unknown) == Reason.BAD_USER_NAME_OR_PASSWORD
    assert anonymous == Granted(None)


def test_without_a_password_file_a_user_name_gives_no_identity() -> None:
    anonymous, named, remote, remote_named = ask(
        "",
        login(anonymous_allowed=True),
        login("admin", b"x", anonymous_allowed=True),
        login(),
        login("admin", b"x"),
    )

    assert anonymous == named == Granted(None)
    assert reason(remote) == Reason.NOT_AUTHORIZED
    assert reason(remote_named) == Reason.BAD_USER_NAME_OR_PASSWORD


def test_a_password_without_a_user_name_is_not_anonymous(password_file: Path) -> None:
    (verdict,) = ask(password_file, login(None, b"token", anonymous_allowed=True))

    assert reason(verdict) == Reason.NOT_AUTHORIZED


def test_a_certificate_name_stands_for_the_user_name(password_file: Path) -> None:
    alone, with_other_name, nameless = ask(
        password_file,
        login(certificate_name="device-1"),
        login("alice", b"wrong", certificate_name="device-1"),
        login("alice", b"secret", certificate_name=""),
    )

    assert alone == with_other_name == Granted("device-1")
    assert reason(nameless) == Reason.NOT_AUTHORIZED


@pytest.mark.parametrize("content", [None, b"rubbish\n", b"alice:secret\n", b"\xff\xff\n", b"ok\n" * 3])
def test_a_missing_or_broken_file_rejects_all_logins(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "passwd"
    if content is not None:
        path.write_bytes(content)

    verdicts = ask(
        path,
        login("alice", b"secret"),
        login(anonymous_allowed=True),
        login(certificate_name="device-1"),
        login("x", b"y", anonymous_allowed=True),
    )

    assert [reason(each) for each in verdicts] == [Reason.SERVER_UNAVAILABLE] * 4


def test_an_empty_file_has_no_users(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.touch()

    (verdict,) = ask(path, login("alice", b"secret"))

    assert reason(verdict) == Reason.BAD_USER_NAME_OR_PASSWORD


def test_a_directory_or_pipe_in_place_of_the_file_rejects_all_logins(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    for path in (tmp_path, tmp_path / "pipe"):
        assert reason(ask(path, login("alice", b"secret"))[0]) == Reason.SERVER_UNAVAILABLE


def test_a_broken_file_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "passwd"
    path.write_text("alice:plain\n")

    async def scenario() -> None:
        tested = authenticator(path)
        for _ in range(3):
            await tested.authenticate(login("alice", b"plain"))
            await present(tested.file).reload()
        await tested.close()

    run(scenario())

    assert sum("line 1" in record.getMessage() for record in caplog.records) == 1
    assert "plain\n" not in caplog.text


# -- what a login costs ------------------------------------------------------------------------------------------------


def test_a_verified_login_is_cached_until_it_expires(password_file: Path) -> None:
    async def scenario() -> None:
        clock, verify = FakeClock(), CountingVerify()
        tested = authenticator(password_file, clock=clock, cache_ttl_s=60, verify=verify)
        for _ in range(5):
            assert await tested.authenticate(login("alice", b"secret")) == Granted("alice")
        assert len(verify.worked_on) == 1

        clock.advance(60)
        assert await tested.authenticate(login("alice", b"secret")) == Granted("alice")
        assert len(verify.worked_on) == 2
        await tested.close()

    run(scenario())


def test_a_wrong_password_is_never_cached_and_does_not_use_the_cache(password_file: Path) -> None:
    verify = CountingVerify()

    verdicts = ask(password_file, login("alice", b"secret"), *[login("alice", b"wrong")] * 3, verify=verify)

    assert [reason(each) for each in verdicts[1:]] == [Reason.BAD_USER_NAME_OR_PASSWORD] * 3
    assert len(verify.worked_on) == 4


def test_an_unknown_user_costs_the_work_of_a_wrong_password(password_file: Path) -> None:
    verify = CountingVerify()

    ask(password_file, login("alice", b"wrong"), login("nobody", b"wrong"), verify=verify)

    assert verify.worked_on == [ARGON2, ARGON2]


def test_unknown_users_are_spread_over_the_kinds_of_hashes_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text(f"alice:{ARGON2}\nbob:{BCRYPT}\n")
    verify = CountingVerify()

    ask(path, *(login(f"nobody{number}", b"x") for number in range(40)), login("nobody0", b"y"), verify=verify)

    assert set(verify.worked_on) == {ARGON2, BCRYPT}
    assert verify.worked_on[40] == verify.worked_on[0]


def test_an_unknown_user_with_the_password_of_another_is_refused(password_file: Path) -> None:
    (verdict,) = ask(password_file, login("nobody", b"secret"))

    assert reason(verdict) == Reason.BAD_USER_NAME_OR_PASSWORD


def test_equal_logins_that_wait_together_cost_one_check(password_file: Path) -> None:
    async def scenario() -> None:
        verify = CountingVerify()
        tested = authenticator(password_file, waiting_max=1, verify=verify)

        logins = (tested.authenticate(login("alice", b"secret", client_id=f"c{number}")) for number in range(50))
        verdicts = await asyncio.gather(*logins)

        assert verdicts == [Granted("alice")] * 50
        assert len(verify.worked_on) == 1
        await tested.close()

    run(scenario())


def test_checks_run_beside_the_loop_and_too_many_waiting_are_refused(password_file: Path) -> None:
    async def scenario() -> None:
        gate = threading.Event()
        loop_thread = threading.current_thread()
        threads: list[threading.Thread] = []

        def slow(text: str, password: bytes) -> bool:
            threads.append(threading.current_thread())
            gate.wait(10)
            return hashes.verify(text, password)

        tested = authenticator(password_file, waiting_max=2, verify=slow)
        waiting = [asyncio.create_task(tested.authenticate(login("alice", password))) for password in (b"secret", b"wrong")]
        await asyncio.sleep(0)
        late = await tested.authenticate(login("alice", b"third"))
        gate.set()
        right, wrong = await asyncio.gather(*waiting)

        assert reason(late) == Reason.CONNECTION_RATE_EXCEEDED
        assert right == Granted("alice")
        assert reason(wrong) == Reason.BAD_USER_NAME_OR_PASSWORD
        assert loop_thread not in threads
        await tested.close()

    run(scenario())


def test_a_check_that_takes_too_long_is_a_refusal_and_its_result_is_not_lost(password_file: Path) -> None:
    async def scenario() -> None:
        gate = threading.Event()

        def slow(text: str, password: bytes) -> bool:
            gate.wait(10)
            return hashes.verify(text, password)

        tested = authenticator(password_file, timeout_s=0.02, verify=slow)
        verdict = await tested.authenticate(login("alice", b"secret"))
        assert reason(verdict) == Reason.SERVER_UNAVAILABLE

        check = next(iter(tested._checks.values()))
        gate.set()
        await check
        assert len(tested._cache) == 1
        await tested.close()

    run(scenario())


def test_a_client_that_leaves_does_not_take_the_check_from_others(password_file: Path) -> None:
    async def scenario() -> None:
        gate = threading.Event()

        def slow(text: str, password: bytes) -> bool:
            gate.wait(10)
            return hashes.verify(text, password)

        tested = authenticator(password_file, verify=slow)
        leaving, staying = (asyncio.create_task(tested.authenticate(login("alice", b"secret"))) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        gate.set()

        assert await staying == Granted("alice")
        await tested.close()

    run(scenario())


def test_a_check_that_fails_is_a_refusal(password_file: Path) -> None:
    def fail(text: str, password: bytes) -> bool:
        raise MemoryError

    (verdict,) = ask(password_file, login("alice", b"secret"), verify=fail)

    assert reason(verdict) == Reason.SERVER_UNAVAILABLE


# -- changes of the file -----------------------------------------------------------------------------------------------


def test_a_changed_password_clears_remembered_logins(password_file: Path) -> None:
    async def scenario() -> None:
        tested = authenticator(password_file)
        assert await tested.authenticate(login("alice", b"secret")) == Granted("alice")

        rewrite(password_file, f"alice:{hashes.make(b'new')}\n")
        await present(tested.file).reload()

        assert reason(await tested.authenticate(login("alice", b"secret"))) == Reason.BAD_USER_NAME_OR_PASSWORD
        assert await tested.authenticate(login("alice", b"new")) == Granted("alice")
        await tested.close()

    run(scenario())


def test_a_user_deleted_while_the_check_runs_is_not_let_in(password_file: Path) -> None:
    async def scenario() -> None:
        gate, started = threading.Event(), threading.Event()

        def slow(text: str, password: bytes) -> bool:
            started.set()
            gate.wait(10)
            return hashes.verify(text, password)

        tested = authenticator(password_file, verify=slow)
        waiting = asyncio.create_task(tested.authenticate(login("alice", b"secret")))
        await asyncio.to_thread(started.wait, 10)
        rewrite(password_file, "")
        await present(tested.file).reload()
        gate.set()

        assert reason(await waiting) == Reason.BAD_USER_NAME_OR_PASSWORD
        assert len(tested._cache) == 0
        await tested.close()

    run(scenario())


def old_hash_makers() -> list[Callable[[], str]]:
    def sha512() -> str:
        digest = hashlib.sha512(b"secret" + b"saltsaltsalt").digest()
        return f"$6${base64.b64encode(b'saltsaltsalt').decode()}${base64.b64encode(digest).decode()}"

    def pbkdf2() -> str:
        digest = hashlib.pbkdf2_hmac("sha512", b"secret", b"saltsaltsalt", 101)
        return f"$7$101${base64.b64encode(b'saltsaltsalt').decode()}${base64.b64encode(digest).decode()}"

    return [lambda: BCRYPT, sha512, pbkdf2]


@pytest.mark.parametrize("make_old", old_hash_makers())
def test_an_old_hash_becomes_argon2id_at_the_next_login_and_other_lines_stay(tmp_path: Path, make_old: Callable[[], str]) -> None:
    path = tmp_path / "passwd"
    old = make_old()
    path.write_text(f"# people\nalice:{ARGON2}\nbob:{old}\ncarol:{old}\n")
    path.chmod(0o600)

    right, wrong = ask(path, login("bob", b"secret"), login("carol", b"wrong"))

    assert right == Granted("bob")
    assert reason(wrong) == Reason.BAD_USER_NAME_OR_PASSWORD
    comment, alice, bob, carol, rest = path.read_text().split("\n")
    assert (comment, alice, carol, rest) == ("# people", f"alice:{ARGON2}", f"carol:{old}", "")
    assert bob.startswith("bob:$argon2id$")
    assert hashes.verify(bob.removeprefix("bob:"), b"secret")
    assert path.stat().st_mode & 0o777 == 0o600


def test_many_upgrades_are_written_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "passwd"
    path.write_text("".join(f"user{number}:{BCRYPT}\n" for number in range(5)))
    written = []
    real = passwords.replace_hashes

    def record(name: str, changes: dict[tuple[str, str], str]) -> bool:
        written.append(len(changes))
        return real(name, changes)

    monkeypatch.setattr(passwords, "replace_hashes", record)
    verdicts = ask(path, *(login(f"user{number}", b"secret") for number in range(5)))

    assert verdicts == [Granted(f"user{number}") for number in range(5)]
    assert written == [5]
    assert path.read_text().count("$argon2id$") == 5


def test_an_upgraded_user_logs_in_again_without_a_second_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text(f"bob:{BCRYPT}\n")
    verify = CountingVerify()

    verdicts = ask(path, *[login("bob", b"secret")] * 3, verify=verify, cache_ttl_s=0)

    assert verdicts == [Granted("bob")] * 3
    assert verify.worked_on[0] == BCRYPT
    assert all(text.startswith("$argon2id$") for text in verify.worked_on[1:])
    assert len(set(verify.worked_on[1:])) == 1


def test_a_file_that_cannot_be_written_still_lets_its_users_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "passwd"
    path.write_text(f"bob:{BCRYPT}\n")

    def refuse(name: str, changes: object) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(passwords, "replace_hashes", refuse)
    verdicts = ask(path, login("bob", b"secret"), login("bob", b"secret"))

    assert verdicts == [Granted("bob")] * 2
    assert path.read_text() == f"bob:{BCRYPT}\n"


# -- enhanced authentication -------------------------------------------------------------------------------------------


def test_only_scram_and_only_with_a_password_file(password_file: Path) -> None:
    async def scenario() -> None:
        tested, without = authenticator(password_file), authenticator("")
        assert tested.methods == {"SCRAM-SHA-256"}
        assert without.methods == frozenset()
        for each, method in ((tested, "GS2-KRB5"), (without, "SCRAM-SHA-256")):
            _, verdict = await each.begin(method, login()).step(b"")
            assert verdict is not None
            assert reason(verdict) == Reason.BAD_AUTHENTICATION_METHOD
            await each.close()

    run(scenario())
