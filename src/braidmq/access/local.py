"""Access control of one node from its own files: passwords, rules and bans behind one object.

    access = LocalAccess(settings)          reads the files, blocking; call it before serving
    tasks.create_task(access.watch())       takes edits of the files as they come
    await access.reload(settings)           on SIGHUP
    await access.close()

Broken files never stop the node and never let anybody in; ``problems`` names them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable

import msgspec

from braidmq.access import files
from braidmq.access.authn import PasswordAuthenticator, RefusingExchange
from braidmq.access.authz import AclTable, FileAuthorizer
from braidmq.access.bans import Ban, BanTable
from braidmq.access.contract import Credentials, Exchange, Refused, Rules, Verdict
from braidmq.access.passwords import Users
from braidmq.access.scram import ScramExchange
from braidmq.access.watched import WatchedFile
from braidmq.base.errors import Corruption
from braidmq.base.settings import Settings
from braidmq.mqtt.reasons import Reason

log = logging.getLogger(__name__)

_WATCH_INTERVAL_S = 1.0

_THROTTLED = Refused(Reason.CONNECTION_RATE_EXCEEDED, "too many failed logins from this address")

# Only these say something about the client; the others are about us.
_FAILED_LOGINS = (Reason.BAD_USER_NAME_OR_PASSWORD, Reason.NOT_AUTHORIZED)


def _nothing() -> None:
    pass


class LocalAccess:
    """An ``Authenticator`` and ``Authorizer`` with bans; ``on_change`` is called on the loop when answers may have changed."""

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        on_change: Callable[[], None] = _nothing,
    ) -> None:
        """Read every file; Corruption if the stored bans cannot be read, since forgetting them would let somebody in."""
        access = settings.access
        self.on_change = on_change
        self.bans = BanTable(
            failures_max=access.ban_failures,
            window_s=access.ban_window,
            duration_s=access.ban_duration,
            clock=clock,
            wall_clock=wall_clock,
        )
        self._bans_path = os.path.join(settings.node.data_dir, "bans.json")
        self._bans_lock = asyncio.Lock()
        self._restore_bans()
        self._authenticator = PasswordAuthenticator(
            access.password_file,
            cache_ttl_s=access.cache_ttl,
            waiting_max=settings.limits.authentications_max,
            timeout_s=settings.limits.connect_timeout,
            clock=clock,
        )
        self._authorizer = FileAuthorizer(access.acl_file, grants_unmatched=access.acl_no_match == "allow")
        if access.password_file and files.is_readable_by_all(access.password_file):
            log.warning("%s can be read by everybody on this machine; chmod 600 mends it", access.password_file)

    @property
    def methods(self) -> frozenset[str]:
        """The methods of enhanced authentication."""
        return self._authenticator.methods

    @property
    def epoch(self) -> int:
        """Rises whenever the rules may have changed."""
        return self._authorizer.epoch

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the files now, one sentence each; empty when all is well."""
        return tuple(file.problem for file in self._files if file.problem)

    async def authenticate(self, credentials: Credentials) -> Verdict:
        """Check bans, then the credentials; a failure counts towards a ban."""
        if (ban := self.bans.check(credentials)) is not None:
            return _banned(ban)
        if self.bans.is_throttled(credentials) and not self._authenticator.remembers(credentials):
            return _THROTTLED
        verdict = await self._authenticator.authenticate(credentials)
        self.note_verdict(credentials, verdict)
        return verdict

    def begin(self, method: str, credentials: Credentials) -> Exchange:
        """Start an enhanced authentication, or a re-authentication; bans count for it as for a plain login."""
        if (ban := self.bans.check(credentials)) is not None:
            return RefusingExchange(_banned(ban))
        # Never throttled: SCRAM costs us next to nothing, and a neighbour's attack must not end a re-authentication.
        exchange = self._authenticator.begin(method, credentials)
        return _CountedExchange(self, credentials, exchange) if isinstance(exchange, ScramExchange) else exchange

    @property
    def has_rules(self) -> bool:
        """False while the ACL file cannot be used: then everything is denied, but nothing is so for good."""
        return self._authorizer.has_rules

    def rules_for(self, client_id: str, user_name: str | None) -> Rules:
        """The rules in force now for this client."""
        return self._authorizer.rules_for(client_id, user_name)

    def is_still_allowed(self, credentials: Credentials, user_name: str | None) -> bool:
        """May a client that was let in as ``user_name`` stay, after files or bans have changed?"""
        if self.bans.check(msgspec.structs.replace(credentials, user_name=user_name)) is not None:
            return False
        file = self._authenticator.file
        if file is not None and file.value is None:
            return False
        if user_name is None:
            return credentials.anonymous_allowed
        return credentials.certificate_name is not None or self._authenticator.knows(user_name)

    def knows(self, user_name: str) -> bool:
        """Whether the password file has this user."""
        return self._authenticator.knows(user_name)

    async def ban(
        self,
        *,
        client_id: str | None = None,
        user_name: str | None = None,
        address: str | None = None,
        duration_s: float | None = None,
        reason: str = "",
    ) -> Ban:
        """Set a ban and keep it over restarts; clients that it fits are for the owner of ``on_change`` to end."""
        ban = self.bans.add(client_id=client_id, user_name=user_name, address=address, duration_s=duration_s, reason=reason)
        self.on_change()
        await self._store_bans()
        return ban

    async def unban(self, *, client_id: str | None = None, user_name: str | None = None, address: str | None = None) -> bool:
        """Lift the ban with exactly these names; False when there is none."""
        is_lifted = self.bans.remove(client_id=client_id, user_name=user_name, address=address)
        if is_lifted:
            await self._store_bans()
        return is_lifted

    async def reload(self, settings: Settings | None = None) -> None:
        """Read every file again now, as ``settings`` say if they are given; the data directory stays the one of the start."""
        if settings is not None:
            had_rules = self.has_rules
            await self._reconfigure(settings)
            if self.has_rules != had_rules:
                self._tell_change()  # at once: nobody may come in between
        for file in self._files:
            await file.reload()
        self._tell_change()

    async def watch(self) -> None:
        """Take changes of the files within two or three seconds, until cancelled; a task of the node's."""
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            await self.reload_if_changed()

    async def reload_if_changed(self) -> bool:
        """Read those files again that have changed and come to rest since the last call; True when there was one."""
        changed = [file.path for file in self._files if await file.reload_if_changed()]
        if changed:
            log.info("read again: %s", ", ".join(changed))
            self._tell_change()
        return bool(changed)

    async def close(self) -> None:
        """Finish writing and end the threads."""
        await self._authenticator.close()

    async def _reconfigure(self, settings: Settings) -> None:
        access = settings.access
        self.bans.reconfigure(failures_max=access.ban_failures, window_s=access.ban_window, duration_s=access.ban_duration)
        await self._authenticator.reconfigure(
            access.password_file,
            cache_ttl_s=access.cache_ttl,
            waiting_max=settings.limits.authentications_max,
            timeout_s=settings.limits.connect_timeout,
        )
        await self._authorizer.reconfigure(access.acl_file, grants_unmatched=access.acl_no_match == "allow")

    @property
    def _files(self) -> tuple[WatchedFile[Users] | WatchedFile[AclTable], ...]:
        return tuple(file for file in (self._authenticator.file, self._authorizer.file) if file is not None)

    def _tell_change(self) -> None:
        self._authorizer.epoch += 1
        self.on_change()

    def note_verdict(self, credentials: Credentials, verdict: Verdict, user_name: str | None = None) -> None:
        """Count a failed login towards a ban, whoever judged it; ``user_name`` if an exchange named another."""
        if isinstance(verdict, Refused) and verdict.reason in _FAILED_LOGINS:
            ban = self.bans.record_failure(credentials, user_name)
            if ban is not None:
                log.warning("banned %s after %s", _describe(ban), ban.reason)

    def _restore_bans(self) -> None:
        try:
            with open(self._bans_path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise Corruption(f"{self._bans_path} cannot be read: {error.strerror}") from None
        try:
            self.bans.restore(data)
        except Corruption as error:
            raise Corruption(f"{self._bans_path}: {error}") from None

    async def _store_bans(self) -> None:
        async with self._bans_lock:
            await asyncio.to_thread(_write_bans, self._bans_path, self.bans.snapshot())


class _CountedExchange:
    """A SCRAM exchange whose user may be banned, and whose failure counts."""

    def __init__(self, access: LocalAccess, credentials: Credentials, exchange: ScramExchange) -> None:
        self._access = access
        self._credentials = credentials
        self._exchange = exchange

    async def step(self, data: bytes) -> tuple[bytes, Verdict | None]:
        answer, verdict = await self._exchange.step(data)
        claimed = self._exchange.user_name
        if claimed is not None and not isinstance(verdict, Refused):
            ban = self._access.bans.check(msgspec.structs.replace(self._credentials, user_name=claimed))
            if ban is not None:
                return b"", _banned(ban)
        if verdict is not None:
            self._access.note_verdict(self._credentials, verdict, claimed)
        return answer, verdict


def _banned(ban: Ban) -> Refused:
    return Refused(Reason.BANNED, f"banned: {ban.reason}" if ban.reason else "banned")


def _describe(ban: Ban) -> str:
    names = {"client id": ban.client_id, "user": ban.user_name, "address": ban.address}
    return ", ".join(f"{kind} {name!r}" for kind, name in names.items() if name is not None)


def _write_bans(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    files.replace(path, data)
