"""Whether a node has users: every way to log in under a name counts."""

from __future__ import annotations

from typing import Any

import pytest

from braidmq.access.contract import Credentials, Verdict
from braidmq.access.local import LocalAccess
from braidmq.base.config import sources as config
from braidmq.base.config.settings import Settings
from braidmq.broker.messages.hooks import Hook, Hooks
from braidmq.broker.users import UserExistence


class Clerk(Hook):
    """Decides about logins."""

    async def authenticate(self, credentials: Credentials) -> Verdict | None:
        return None


def settings_with(**tables: Any) -> Settings:
    return config.from_tables(tables).settings


def users_of(settings: Settings, hooks: Hooks | None = None) -> UserExistence:
    return UserExistence(LocalAccess(settings), hooks or Hooks(), settings)


PROXIED = {
    "bind": "127.0.0.1:0",
    "proxy_protocol": True,
    "proxy_peers": ["127.0.0.1"],
    "allow_anonymous": True,
    "user_from_certificate": "cn",
}
NAMED = {"tcp": {"lb": PROXIED}}


def test_a_node_without_passwords_hooks_and_certificates_has_no_users() -> None:
    assert not users_of(settings_with()).exist()


def test_a_hook_that_authenticates_means_users_from_the_moment_it_is_added() -> None:
    hooks = Hooks()
    users = users_of(settings_with(), hooks)

    hooks.add(Clerk())

    assert users.exist()


def test_a_hook_that_does_not_authenticate_adds_no_users() -> None:
    hooks = Hooks()
    hooks.add(Hook())

    assert not users_of(settings_with(), hooks).exist()


@pytest.mark.parametrize(("before", "after", "exist"), [({}, NAMED, True), (NAMED, {}, False)])
def test_names_from_certificates_count_as_configured_now(before: Any, after: Any, exist: bool) -> None:
    users = users_of(settings_with(listeners=before))

    users.reconfigure(settings_with(listeners=after))

    assert users.exist() == exist
