"""The one object that the node builds: files, rules and bans together, and what happens when they change."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from braidmq.access import hashes, passwords
from braidmq.access.contract import Authenticator, Authorizer, Granted, Refused
from braidmq.access.files import Signature
from braidmq.access.local import LocalAccess
from braidmq.base.config.settings import NodeSettings, Settings
from braidmq.base.errors import Corruption
from braidmq.mqtt.reasons import Reason
from tests.access.logins import login, run
from tests.access.scram_client import ScramClient
from tests.access.site import Site, reason, settings_of


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_local_access_is_an_authenticator_and_an_authorizer(site: Site) -> None:
    access = site.access()

    authenticator: Authenticator = access
    authorizer: Authorizer = access

    assert authenticator.methods == {"SCRAM-SHA-256"}
    assert authorizer.rules_for("c1", "alice").may_publish("a/b")
    assert not authorizer.rules_for("c1", "bob").may_publish("a/b")
    assert access.problems == ()


def test_defaults_need_no_files_and_restrict_nothing(tmp_path: Path) -> None:
    access = LocalAccess(Settings(node=NodeSettings(data_dir=str(tmp_path / "data"))))

    assert access.methods == frozenset()
    assert access.rules_for("c1", None).unrestricted
    assert run(access.authenticate(login(anonymous_allowed=True))) == Granted(None)
    assert isinstance(run(access.authenticate(login())), Refused)


def test_a_broken_file_on_the_server_bans_no_client(site: Site) -> None:
    async def scenario() -> None:
        site.password_file.write_text("rubbish\n")
        access = site.access()
        for _ in range(10):
            assert reason(await access.authenticate(login("alice", b"secret"))) == Reason.SERVER_UNAVAILABLE
        assert access.bans.list() == ()
        assert len(access.problems) == 1
        await access.close()

    run(scenario())


def test_a_banned_client_gets_no_exchange(site: Site) -> None:
    async def scenario() -> None:
        access = site.access()
        await access.ban(client_id="c1")
        _, verdict = await access.begin("SCRAM-SHA-256", login()).step(ScramClient("alice", "secret").first())
        assert reason(verdict) == Reason.BANNED

    run(scenario())


def test_reload_takes_changes_at_once_raises_the_epoch_and_tells(site: Site) -> None:
    async def scenario() -> None:
        told = []
        access = site.access()
        access.on_change = lambda: told.append(access.epoch)
        before = access.epoch
        site.acl_file.write_text("user alice\ntopic b/#\n")

        assert access.rules_for("c1", "alice").may_publish("a/x")
        await access.reload()

        assert access.epoch > before
        assert told == [access.epoch]
        assert not access.rules_for("c1", "alice").may_publish("a/x")
        assert access.rules_for("c1", "alice").may_publish("b/x")

    run(scenario())


def test_reload_takes_other_files_and_numbers_from_the_configuration(site: Site, tmp_path: Path) -> None:
    async def scenario() -> None:
        access = site.access()
        assert await access.authenticate(login("alice", b"secret")) == Granted("alice")
        passwords.set_password(str(tmp_path / "other"), "bob", hashes.make(b"secret"), None)

        await access.reload(site.settings(password_file=str(tmp_path / "other"), acl_file="", ban_failures=1, cache_ttl=0))

        assert access.rules_for("c1", "bob").unrestricted
        assert await access.authenticate(login("bob", b"secret")) == Granted("bob")
        assert reason(await access.authenticate(login("alice", b"secret"))) == Reason.BAD_USER_NAME_OR_PASSWORD
        assert reason(await access.authenticate(login("alice", b"secret"))) == Reason.BANNED

        await access.reload(settings_of(site.data_dir))
        assert access.methods == frozenset()
        await access.reload(site.settings(acl_no_match="allow"))
        assert access.methods == {"SCRAM-SHA-256"}
        assert access.rules_for("c1", "bob").may_publish("anything")
        assert await access.authenticate(login("alice", b"secret", peer_host="192.0.2.9")) == Granted("alice")
        await access.close()

    run(scenario())


def test_a_change_is_noticed_once_the_file_has_come_to_rest(site: Site) -> None:
    async def scenario() -> None:
        access = site.access()
        assert not await access.reload_if_changed()

        site.acl_file.write_text("")  # an editor that empties the file before it writes
        assert not await access.reload_if_changed()
        site.acl_file.write_text("user alice\ntopic b/#\n")
        assert not await access.reload_if_changed()
        assert access.rules_for("c1", "alice").may_publish("a/x")

        assert await access.reload_if_changed()
        assert access.rules_for("c1", "alice").may_publish("b/x")
        assert not await access.reload_if_changed()

    run(scenario())


def test_a_file_that_breaks_while_running_denies_and_recovers(site: Site) -> None:
    async def scenario() -> None:
        access = site.access()
        site.acl_file.unlink()
        await access.reload()
        assert (access.rules_for("c1", "alice").may_publish("a/x"), access.has_rules) == (False, False)
        assert "acl" in access.problems[0]

        site.acl_file.write_text("user alice\ntopic a/#\n")
        await access.reload()
        assert access.rules_for("c1", "alice").may_publish("a/x")
        assert access.has_rules
        assert access.problems == ()

    run(scenario())


def test_a_reload_reports_changed_rules_before_anything_else_happens(site: Site) -> None:
    async def scenario() -> None:
        access = site.access()
        broken = site.acl_file.with_name("broken")
        broken.write_text("rubbish\n")
        for path in (broken, site.acl_file):
            told = asyncio.Event()
            access.on_change = told.set

            change = asyncio.ensure_future(access.reload(site.settings(acl_file=str(path))))
            had_rules = access.has_rules
            while access.has_rules == had_rules:  # noqa: ASYNC110  # every turn of the loop counts
                await asyncio.sleep(0)

            assert told.is_set()
            await change
        await access.close()

    run(scenario())


def test_a_file_without_rights_denies_until_the_rights_come_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        with monkeypatch.context() as patched:
            # As root even a file of mode 0 can be read.
            patched.setattr("braidmq.access.files.read_text", refuse_to_read)
            access = site.access()
        assert not access.rules_for("c1", "alice").may_publish("a/x")
        assert len(access.problems) == 2

        site.acl_file.chmod(0o640)
        assert not await access.reload_if_changed()
        assert await access.reload_if_changed()
        assert access.rules_for("c1", "alice").may_publish("a/x")

    def refuse_to_read(path: str) -> tuple[str, Signature]:
        raise PermissionError(13, "Permission denied", path)

    run(scenario())


def test_watch_applies_changes_without_being_asked(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidmq.access.local._WATCH_INTERVAL_S", 0.01)

    async def scenario() -> None:
        access = site.access()
        changed = asyncio.Event()
        access.on_change = changed.set
        watching = asyncio.create_task(access.watch())
        site.acl_file.write_text("user alice\ntopic b/#\n")

        await asyncio.wait_for(changed.wait(), 10)

        assert access.rules_for("c1", "alice").may_publish("b/x")
        watching.cancel()

    run(scenario())


def test_clients_stay_after_a_change_if_they_are_still_allowed(site: Site) -> None:
    async def scenario() -> None:
        access = site.access()
        alice, certificate = login("alice"), login(certificate_name="device-1")
        anonymous = login(anonymous_allowed=True)
        assert access.is_still_allowed(alice, "alice")
        assert access.is_still_allowed(certificate, "device-1")
        assert access.is_still_allowed(anonymous, None)

        passwords.delete_user(str(site.password_file), "alice")
        await access.reload()
        assert not access.is_still_allowed(alice, "alice")
        assert access.is_still_allowed(certificate, "device-1")

        await access.ban(user_name="device-1")
        assert not access.is_still_allowed(certificate, "device-1")
        assert access.is_still_allowed(anonymous, None)

        site.password_file.write_text("rubbish\n")
        await access.reload()
        assert not access.is_still_allowed(anonymous, None)

    run(scenario())


def test_operators_bans_outlive_a_restart(site: Site) -> None:
    async def scenario() -> None:
        access = site.access()
        await access.ban(user_name="alice", reason="noise")
        await access.ban(address="198.51.100.0/24")
        assert await access.unban(address="198.51.100.0/24")
        assert not await access.unban(address="198.51.100.0/24")

        again = site.access()

        assert [(ban.user_name, ban.reason) for ban in again.bans.list()] == [("alice", "noise")]
        assert reason(await again.authenticate(login("alice", b"secret"))) == Reason.BANNED

    run(scenario())
    assert (site.data_dir / "bans.json").stat().st_mode & 0o777 == 0o600


def test_a_node_does_not_start_if_its_bans_cannot_be_read(site: Site) -> None:
    site.data_dir.mkdir()
    (site.data_dir / "bans.json").write_text("{")

    with pytest.raises(Corruption, match=r"bans\.json"):
        site.access()


def test_a_password_file_open_to_all_is_reported(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.password_file.chmod(0o644)

    site.access()

    assert "chmod 600" in caplog.text


def test_no_password_appears_in_any_log_line(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        access = site.access()
        for _ in range(4):
            await access.authenticate(login("alice", b"hunter2hunter2"))
        await access.close()

    with caplog.at_level("DEBUG"):
        run(scenario())

    assert "banned" in caplog.text
    assert "hunter2" not in caplog.text
