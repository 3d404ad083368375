"""Guessed passwords lead to bans and to throttled addresses, which affect only guesses."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.access import bans, hashes, passwords, scram
from braidmq.access.contract import Credentials, Granted, Verdict
from braidmq.access.local import LocalAccess
from braidmq.mqtt.reasons import Reason
from tests.access.logins import login, run
from tests.access.scram_client import ScramClient
from tests.access.site import Site, reason, scram_login


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_wrong_passwords_lead_to_a_ban_at_that_address_only(site: Site) -> None:
    async def scenario() -> None:
        access = site.access()
        for _ in range(3):
            assert reason(await access.authenticate(login("alice", b"wrong"))) == Reason.BAD_USER_NAME_OR_PASSWORD

        assert reason(await access.authenticate(login("alice", b"secret"))) == Reason.BANNED
        assert await access.authenticate(login("alice", b"secret", peer_host="192.0.2.2")) == Granted("alice")
        site.clock.advance(300)
        assert await access.authenticate(login("alice", b"secret")) == Granted("alice")
        await access.close()

    run(scenario())


def test_under_attack_from_one_address_a_recent_user_still_gets_in(site: Site) -> None:
    async def scenario() -> None:
        access = site.access()
        assert await access.authenticate(login("alice", b"secret")) == Granted("alice")
        for number in range(3 * bans.ADDRESS_FACTOR):
            access.bans.record_failure(login(f"user{number}"))

        assert reason(await access.authenticate(login("someone", b"guess"))) == Reason.CONNECTION_RATE_EXCEEDED
        assert await access.authenticate(login("alice", b"secret")) == Granted("alice")
        await access.close()

    run(scenario())


def test_wrong_passwords_do_not_lock_out_a_recent_user_of_the_same_address(site: Site) -> None:
    async def scenario() -> None:
        access = site.access(cache_ttl=600)
        assert await access.authenticate(login("alice", b"secret")) == Granted("alice")
        for _ in range(3):
            await access.authenticate(login("alice", b"wrong"))
        assert reason(await access.authenticate(login("alice", b"wrong"))) == Reason.BANNED

        # Its neighbours see the same client ids as everybody, and its next one may be another.
        assert await access.authenticate(login("alice", b"secret", client_id="c2")) == Granted("alice")
        site.clock.advance(600)
        for _ in range(3):
            await access.authenticate(login("alice", b"wrong"))
        assert reason(await access.authenticate(login("alice", b"secret"))) == Reason.BANNED, "it is too long ago now"
        await access.close()

    run(scenario())


def test_a_recent_login_from_another_address_does_not_bypass_a_ban(site: Site) -> None:
    async def scenario() -> None:
        access = site.access()
        assert await access.authenticate(login("alice", b"secret", peer_host="192.0.2.2")) == Granted("alice")
        for _ in range(3):
            await access.authenticate(login("alice", b"wrong"))

        # Else everybody could go on with guessing a password that is in use.
        assert reason(await access.authenticate(login("alice", b"secret"))) == Reason.BANNED
        await access.close()

    run(scenario())


def test_callers_without_their_own_address_do_not_bypass_a_ban_by_a_recent_login(site: Site) -> None:
    async def scenario() -> None:
        access = site.access()
        handshake = login("alice", b"secret", peer_host="0.0.0.0", client_id="")
        assert await access.authenticate(handshake) == Granted("alice")
        for _ in range(3):
            await access.authenticate(login("alice", b"wrong", peer_host="0.0.0.0", client_id=""))

        assert reason(await access.authenticate(handshake)) == Reason.BANNED
        await access.close()

    run(scenario())


def test_a_flood_of_guesses_does_not_lock_out_client_ids_that_logged_in_before(site: Site) -> None:
    async def scenario() -> None:
        access = site.access()
        assert await access.authenticate(login("alice", b"secret", client_id="device")) == Granted("alice")
        for _ in range(3 + 3 * bans.FLOOD_FACTOR):
            await access.authenticate(login("alice", b"wrong"))

        assert access.refused_banned == 3 * bans.FLOOD_FACTOR
        assert await access.authenticate(login("alice", b"secret", client_id="device")) == Granted("alice")
        assert reason(await access.authenticate(login("alice", b"secret", client_id="guess"))) == Reason.BANNED
        await access.close()

    run(scenario())


def test_a_changed_password_invalidates_the_old_one_despite_a_recent_login(site: Site) -> None:
    async def scenario() -> None:
        access = site.access()
        assert await access.authenticate(login("alice", b"secret")) == Granted("alice")
        passwords.set_password(str(site.password_file), "alice", hashes.make(b"changed"), None)
        await access.reload()
        for _ in range(3):
            await access.authenticate(login("alice", b"wrong"))

        assert reason(await access.authenticate(login("alice", b"secret"))) == Reason.BAD_USER_NAME_OR_PASSWORD
        await access.close()

    run(scenario())


NOTHING_TO_GUESS = {
    "nothing": (login(anonymous_allowed=True), Granted(None)),
    "a certificate": (login("alice", b"wrong", certificate_name="alice"), Granted("alice")),
}


@pytest.mark.parametrize(("shown", "verdict"), NOTHING_TO_GUESS.values(), ids=NOTHING_TO_GUESS)
def test_guesses_of_others_do_not_lock_out_clients_with_nothing_to_guess(
    site: Site, shown: Credentials, verdict: Verdict
) -> None:
    async def scenario() -> None:
        access = site.access()
        for number in range(3 * bans.ADDRESS_FACTOR):
            access.bans.record_failure(login(f"user{number}"))
        for _ in range(3):
            access.bans.record_failure(login("alice"))
            access.bans.record_failure(login())  # under the client id

        assert await access.authenticate(shown) == verdict
        await access.close()

    run(scenario())


@pytest.mark.parametrize("shown", [login(), login(None, b"token"), login("alice")], ids=["nothing", "no name", "no password"])
def test_a_login_rejected_without_a_check_does_not_count_as_a_guess(site: Site, shown: Credentials) -> None:
    async def scenario() -> None:
        access = site.access()
        for _ in range(3 * bans.ADDRESS_FACTOR):
            assert reason(await access.authenticate(shown)) in (Reason.NOT_AUTHORIZED, Reason.BAD_USER_NAME_OR_PASSWORD)

        assert len(access.bans) == 0
        assert await access.authenticate(login("alice", b"secret")) == Granted("alice")
        await access.close()

    run(scenario())


def test_scram_logs_in_and_its_failures_count_for_the_user_it_names(site: Site) -> None:
    async def scenario() -> None:
        access = site.access()
        elsewhere = login(peer_host="192.0.2.2")
        for _ in range(3):
            assert reason(await scram_login(access, ScramClient("alice", "wrong"), login())) == Reason.NOT_AUTHORIZED

        assert await scram_login(access, ScramClient("alice", "secret"), elsewhere) == Granted("alice")
        assert reason(await scram_login(access, ScramClient("alice", "secret"), login())) == Reason.BANNED
        assert reason(await access.authenticate(login("alice", b"secret"))) == Reason.BANNED
        await access.close()

    run(scenario())


def test_wrong_proofs_do_not_lock_out_a_recent_scram_user_of_the_same_address(site: Site) -> None:
    async def scenario() -> None:
        access = site.access()
        assert await scram_login(access, ScramClient("alice", "secret"), login()) == Granted("alice")
        for _ in range(3):
            assert reason(await scram_login(access, ScramClient("alice", "wrong"), login())) == Reason.NOT_AUTHORIZED
        assert len(access.bans) == 1

        assert await scram_login(access, ScramClient("alice", "secret"), login()) == Granted("alice")
        assert reason(await access.authenticate(login("alice", b"secret"))) == Reason.BANNED, "no password was seen"
        await access.close()

    run(scenario())


def test_a_flood_of_wrong_proofs_leaves_the_way_in_to_the_client_ids_that_got_in(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bans, "FLOOD_FACTOR", 2)

    async def scenario() -> None:
        access = site.access()
        right, wrong, guess = ScramClient("alice", "secret"), ScramClient("alice", "wrong"), login(client_id="guess")
        assert await scram_login(access, right, login(client_id="device")) == Granted("alice")
        for _ in range(3 + 3 * bans.FLOOD_FACTOR):
            assert reason(await scram_login(access, wrong, guess)) == Reason.NOT_AUTHORIZED

        assert reason(await scram_login(access, right, guess)) == Reason.BANNED
        assert await scram_login(access, right, login(client_id="device")) == Granted("alice")
        await access.close()

    run(scenario())


def test_a_first_scram_login_from_a_throttled_address_is_refused_and_a_recent_one_is_not(site: Site) -> None:
    async def scenario() -> None:
        passwords.set_password(str(site.password_file), "bob", hashes.make(b"marley"), scram.make_keys("marley"))
        access = site.access()
        assert await scram_login(access, ScramClient("alice", "secret"), login()) == Granted("alice")
        for number in range(3 * bans.ADDRESS_FACTOR):
            access.bans.record_failure(login(f"user{number}"))

        for name, password in (("bob", "marley"), ("unknown", "guess")):
            verdict = await scram_login(access, ScramClient(name, password), login())
            assert reason(verdict) == Reason.CONNECTION_RATE_EXCEEDED
        assert access.refused_throttled == 2
        assert await scram_login(access, ScramClient("alice", "secret"), login()) == Granted("alice")
        await access.close()

    run(scenario())


def test_exchanges_begun_before_a_ban_do_not_allow_more_guesses(site: Site) -> None:
    async def scenario() -> None:
        access = site.access()
        client = ScramClient("alice", "secret")
        exchange = access.begin("SCRAM-SHA-256", login())
        server_first, _ = await exchange.step(client.first())
        for _ in range(3):
            access.bans.record_failure(login("alice"))

        assert reason((await exchange.step(client.final(server_first)))[1]) == Reason.BANNED
        await access.close()

    run(scenario())


def test_a_re_authentication_is_refused_by_an_operators_ban_only(site: Site) -> None:
    async def again(access: LocalAccess) -> Verdict | None:
        client = ScramClient("alice", "secret")
        exchange = access.begin_again("SCRAM-SHA-256", login("alice"))
        server_first, verdict = await exchange.step(client.first())
        return verdict if verdict is not None else (await exchange.step(client.final(server_first)))[1]

    async def scenario() -> None:
        access = site.access()
        for number in range(3 * bans.ADDRESS_FACTOR):
            access.bans.record_failure(login(f"user{number}"))
        for _ in range(3):
            access.bans.record_failure(login("alice"))

        assert await again(access) == Granted("alice")
        await access.ban(user_name="alice")
        assert reason(await again(access)) == Reason.BANNED
        await access.close()

    run(scenario())
