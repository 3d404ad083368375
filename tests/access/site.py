"""A node's access files in a folder, and how tests log in there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from braidmq.access import hashes, passwords, scram
from braidmq.access.contract import Credentials, Refused, Verdict
from braidmq.access.local import LocalAccess
from braidmq.base.config.settings import AccessSettings, NodeSettings, Settings
from tests.access.scram_client import ScramClient
from tests.support.fakes.clock import FakeClock


def settings_of(data_dir: Path, **access: Any) -> Settings:
    return Settings(node=NodeSettings(data_dir=str(data_dir)), access=AccessSettings(**access))


class Site:
    """A folder with the files of one node."""

    def __init__(self, folder: Path) -> None:
        self.data_dir = folder / "data"
        self.password_file = folder / "passwd"
        self.acl_file = folder / "acl"
        self.clock = FakeClock()
        passwords.set_password(str(self.password_file), "alice", hashes.make(b"secret"), scram.make_keys("secret"))
        self.acl_file.write_text("user alice\ntopic a/#\n")

    def access(self, **others: Any) -> LocalAccess:
        return LocalAccess(self.settings(**others), self.clock, self.clock)

    def settings(self, **others: Any) -> Settings:
        files = {"password_file": str(self.password_file), "acl_file": str(self.acl_file)}
        return settings_of(self.data_dir, **{**files, "ban_failures": 3, **others})


def reason(verdict: Verdict | None) -> int:
    assert isinstance(verdict, Refused)
    return verdict.reason


async def scram_login(access: LocalAccess, client: ScramClient, credentials: Credentials) -> Verdict | None:
    exchange = access.begin("SCRAM-SHA-256", credentials)
    server_first, verdict = await exchange.step(client.first())
    if verdict is not None:
        return verdict
    return (await exchange.step(client.final(server_first)))[1]
