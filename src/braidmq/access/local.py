"""Access control of one node from its own files: passwords, rules and bans behind one object.

    access = LocalAccess(settings)          reads the files, blocking; call it before serving
    tasks.create_task(access.watch())       rereads the files when they change
    await access.reload(settings)           on SIGHUP
    await access.close()

Invalid files never stop the node and never admit a client; ``problems`` names them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from braidmq.access import files
from braidmq.access.acl import AclTable, FileAuthorizer
from braidmq.access.authn import PasswordAuthenticator, RefusingExchange
from braidmq.access.bans import Ban, BanTable
from braidmq.access.contract import Credentials, Exchange, Granted, Refused, Rules, Verdict
from braidmq.access.passwords import Users
from braidmq.access.recent_logins import RecentLogins
from braidmq.access.scram import ScramExchange
from braidmq.access.watched_file import WatchedFile
from braidmq.base.config.settings import Settings
from braidmq.base.errors import Corruption
from braidmq.mqtt.reasons import Reason

log = logging.getLogger(__name__)

_WATCH_INTERVAL_S = 1.0
_BANS_NAME = "bans.json"

_THROTTLED = Refused(Reason.CONNECTION_RATE_EXCEEDED, "too many failed logins from this address")

# Only these are the client's fault; the others are failures of the broker.
_FAILED_LOGINS = (Reason.BAD_USER_NAME_OR_PASSWORD, Reason.NOT_AUTHORIZED)


def _nothing() -> None:
    pass


def read_bans(data_dir: str | os.PathLike[str]) -> list[Ban]:
    """The operators' bans in the data directory of a node that does not run. Blocks. Raises Corruption."""
    bans = BanTable(failures_max=0, window_s=0, duration_s=0)
    _restore_bans(bans, os.path.join(data_dir, _BANS_NAME))
    return list(bans.list())


class BanTables(Protocol):
    """The bans of a cluster; what is changed there comes back by `LocalAccess.take_bans`."""

    async def ban(self, ban: Ban) -> None:
        """Set a ban for the whole cluster. Raises Unavailable."""
        ...

    async def unban(self, ban: Ban) -> bool:
        """Lift the ban with the names of this one; False if there is none. Raises Unavailable."""
        ...


class LocalAccess:
    """An ``Authenticator`` and ``Authorizer`` with bans; ``on_change`` is called on the loop when answers may have changed."""

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        on_change: Callable[[], None] = _nothing,
    ) -> None:
        """Read every file; raises Corruption if the stored bans are invalid, since losing them would admit banned clients."""
        access = settings.access
        self.on_change = on_change
        self.cluster: BanTables | None = None  # where bans are set, if they are those of a cluster
        self.on_ban: Callable[[Ban, bool], None] | None = None  # told of bans of the cluster; False: it was lifted
        self.bans = BanTable(
            failures_max=access.ban_failures,
            window_s=access.ban_window,
            duration_s=access.ban_duration,
            clock=clock,
            wall_clock=wall_clock,
        )
        self.refused_banned = self.refused_throttled = 0  # logins that were rejected without a check, by reason
        self.recent_logins = RecentLogins(access.cache_ttl, clock)
        self._bans_path = os.path.join(settings.node.data_dir, _BANS_NAME)
        self._bans_lock = asyncio.Lock()
        _restore_bans(self.bans, self._bans_path)
        self._authenticator = PasswordAuthenticator(
            access.password_file,
            cache_ttl_s=access.cache_ttl,
            waiting_max=settings.limits.authentications_max,
            timeout_s=settings.limits.connect_timeout,
            clock=clock,
        )
        self._authorizer = FileAuthorizer(access.acl_file, grants_unmatched=access.acl_no_match == "allow")
        if access.password_file and files.is_readable_by_all(access.password_file):
            log.warning("%s is readable by every user of this machine; run chmod 600 on it", access.password_file)

    @property
    def methods(self) -> frozenset[str]:
        """The methods of enhanced authentication."""
        return self._authenticator.methods

    @property
    def has_users(self) -> bool:
        """Whether there is a password file, even an empty or invalid one."""
        return self._authenticator.file is not None

    @property
    def epoch(self) -> int:
        """Rises whenever the rules may have changed."""
        return self._authorizer.epoch

    @property
    def problems(self) -> tuple[str, ...]:
        """The current problems of the files, one sentence each; empty if there are none."""
        return tuple(file.problem for file in self._files if file.problem)

    async def authenticate(self, credentials: Credentials) -> Verdict:
        """Check bans, then the credentials; a wrong password counts towards a ban."""
        verdict = self.judge(credentials)
        if verdict is None:
            verdict = await self._authenticator.authenticate(credentials)
            self.note_verdict(credentials, verdict)
        return verdict

    def judge(self, credentials: Credentials) -> Verdict | None:
        """The verdict of `authenticate` if it needs no computation; None if the caller has to await it."""
        if (ban := self.bans.check(credentials)) is not None:
            return self._banned(ban)
        if not self._authenticator.checks_password(credentials):
            # Without a password there is nothing to guess: the guesses of others do not block it, nor does it count as one.
            return self._authenticator.judge(credentials)
        refused = self.refusal_of_guess(credentials, credentials.user_name)
        if refused is not None:
            return refused
        verdict = self._authenticator.judge(credentials)
        if verdict is not None:
            self.note_verdict(credentials, verdict)
        return verdict

    def refusal(self, credentials: Credentials) -> Refused | None:
        """A rejection that needs no authenticator; None: ask the authenticator."""
        if (ban := self.bans.check(credentials)) is not None:
            return self._banned(ban)
        if credentials.password is None or credentials.certificate_name is not None:
            return None
        return self.refusal_of_guess(credentials, credentials.user_name)

    def refusal_of_guess(self, credentials: Credentials, user_name: str | None) -> Refused | None:
        """The rejection, without a check, of a login from an address with failed guesses, unless it succeeded there recently."""
        ban = self.bans.check_login(credentials, user_name)
        if ban is None and not self.bans.is_throttled(credentials):
            return None
        if self.recent_logins.has(credentials, user_name, with_client_id=self.bans.is_flooded(credentials)):
            return None
        self.bans.record_refusal(credentials)
        if ban is not None:
            return self._banned(ban)
        self.refused_throttled += 1
        return _THROTTLED

    def refusal_of_exchange(self, credentials: Credentials, user_name: str, *, is_login: bool) -> Refused | None:
        """The rejection of an exchange for this user regardless of its proof, if there is a reason for one."""
        ban = self.bans.check(msgspec.structs.replace(credentials, user_name=user_name))
        if ban is not None:
            return self._banned(ban)
        return self.refusal_of_guess(credentials, user_name) if is_login else None

    def begin(self, method: str, credentials: Credentials) -> Exchange:
        """Start an enhanced authentication at CONNECT; bans and the throttle of an address apply as for a plain login."""
        return self._begin(method, credentials, is_login=True)

    def begin_again(self, method: str, credentials: Credentials) -> Exchange:
        """Start a re-authentication on an open connection, which only an operator's ban ends."""
        return self._begin(method, credentials, is_login=False)

    def _begin(self, method: str, credentials: Credentials, *, is_login: bool) -> Exchange:
        if (ban := self.bans.check(credentials)) is not None:
            return RefusingExchange(self._banned(ban))
        exchange = self._authenticator.begin(method, credentials)
        return _CountedExchange(self, credentials, exchange, is_login) if isinstance(exchange, ScramExchange) else exchange

    @property
    def has_rules(self) -> bool:
        """False while the ACL file is unusable: then everything is denied, but no denial is final."""
        return self._authorizer.has_rules

    def rules_for(self, client_id: str, user_name: str | None) -> Rules:
        """The current rules for this client."""
        return self._authorizer.rules_for(client_id, user_name)

    def is_still_allowed(self, credentials: Credentials, user_name: str | None) -> bool:
        """Whether a client accepted as ``user_name`` may stay after files or operators' bans have changed."""
        if self.bans.check(msgspec.structs.replace(credentials, user_name=user_name)) is not None:
            return False
        file = self._authenticator.file
        if file is not None and file.value is None:
            return False
        if user_name is None:
            return credentials.anonymous_allowed
        return credentials.certificate_name is not None or self._authenticator.knows(user_name)

    def is_banned(self, credentials: Credentials) -> bool:
        """Whether an operator's ban applies to the client, regardless of which authenticator accepted it."""
        return self.bans.check(credentials) is not None

    def fingerprint(self, user_name: str) -> bytes | None:
        """A digest of the user's lines in the password file; None for an unknown user."""
        return self._authenticator.fingerprint(user_name)

    def is_rehashed_at_login(self, user_name: str) -> bool:
        """Whether the user's hash has an outdated format, which the next login replaces."""
        return self._authenticator.is_rehashed_at_login(user_name)

    async def ban(
        self,
        *,
        client_id: str | None = None,
        user_name: str | None = None,
        address: str | None = None,
        duration_s: float | None = None,
        reason: str = "",
    ) -> Ban:
        """Set a ban and store it; the owner of ``on_change`` disconnects the clients that it applies to.

        In a cluster also raises Unavailable, if its tables cannot be changed.
        """
        if self.cluster is not None:
            ban = self.bans.make(client_id=client_id, user_name=user_name, address=address, duration_s=duration_s, reason=reason)
            await self.cluster.ban(ban)
            return ban
        ban = self.bans.add(client_id=client_id, user_name=user_name, address=address, duration_s=duration_s, reason=reason)
        self.on_change()
        await self.store_bans()
        return ban

    async def unban(self, *, client_id: str | None = None, user_name: str | None = None, address: str | None = None) -> bool:
        """Remove the ban with exactly these values; returns False if there is none."""
        found = self.bans.find(client_id=client_id, user_name=user_name, address=address)
        if found is None:
            return False
        if self.cluster is not None and not found.automatic:
            return await self.cluster.unban(found)
        self.bans.remove(client_id=client_id, user_name=user_name, address=address)
        await self.store_bans()
        return True

    def take_bans(self, put: Sequence[Ban], lifted: Sequence[Ban]) -> None:
        """These bans were set and lifted for the whole cluster; `store_bans` follows."""
        for ban in put:
            self.bans.put(ban)
        for ban in lifted:
            self.bans.lift(ban)
        if put:
            self.on_change()
        if self.on_ban is not None:
            for ban in put:
                self.on_ban(ban, True)
            for ban in lifted:
                self.on_ban(ban, False)

    def replace_bans(self, bans: Sequence[Ban]) -> None:
        """These are all operators' bans of the cluster; `store_bans` follows."""
        self.bans.replace(bans)
        self.on_change()

    async def store_bans(self) -> None:
        """Write the file of operators' bans."""
        async with self._bans_lock:
            await asyncio.to_thread(_write_bans, self._bans_path, self.bans.snapshot())

    async def reload(self, settings: Settings | None = None) -> None:
        """Reread every file now, with ``settings`` if they are given; the data directory stays the same."""
        if settings is not None:
            had_rules = self.has_rules
            await self._reconfigure(settings)
            if self.has_rules != had_rules:
                self._tell_change()  # before the next await: no client may connect in between
        for file in self._files:
            await file.reload()
        self._tell_change()

    async def watch(self) -> None:
        """Apply changes of the files within two or three seconds, until cancelled; runs as a task of the node."""
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            await self.reload_if_changed()

    async def reload_if_changed(self) -> bool:
        """Reread the files that have changed and settled since the last call; returns whether there was one."""
        changed = [file.path for file in self._files if await file.reload_if_changed()]
        if changed:
            log.info("reread: %s", ", ".join(changed))
            self._tell_change()
        return bool(changed)

    async def close(self) -> None:
        """Finish writing and end the threads."""
        await self._authenticator.close()

    async def _reconfigure(self, settings: Settings) -> None:
        access = settings.access
        self.bans.reconfigure(failures_max=access.ban_failures, window_s=access.ban_window, duration_s=access.ban_duration)
        self.recent_logins.set_ttl(access.cache_ttl)
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
        """Record a login, or count a failed one towards a ban, for any authenticator; ``user_name`` if an exchange named it.

        A login without a password does not count, since nothing was guessed.
        """
        is_guess = user_name is not None or (credentials.password is not None and credentials.certificate_name is None)
        if not is_guess or not self.bans.counts_failures:
            return
        if isinstance(verdict, Granted):
            self.recent_logins.add(credentials, user_name if user_name is not None else credentials.user_name)
        elif verdict.reason in _FAILED_LOGINS:
            if self.bans.check_login(credentials, user_name) is not None or self.bans.is_throttled(credentials):
                self.bans.record_refusal(credentials)  # it passed as a recent login, but was a guess after all
            ban = self.bans.record_failure(credentials, user_name)
            if ban is not None:
                log.warning("banned %s after %s", _describe(ban), ban.reason)

    def _banned(self, ban: Ban) -> Refused:
        self.refused_banned += 1
        return Refused(Reason.BANNED, f"banned: {ban.reason}" if ban.reason else "banned")


class _CountedExchange:
    """A SCRAM exchange whose user may be banned and whose failure counts. ``is_login``: it belongs to a CONNECT."""

    def __init__(self, access: LocalAccess, credentials: Credentials, exchange: ScramExchange, is_login: bool) -> None:
        self._access = access
        self._credentials = credentials
        self._exchange = exchange
        self._is_login = is_login

    async def step(self, data: bytes) -> tuple[bytes, Verdict | None]:
        answer, verdict = await self._exchange.step(data)
        claimed = self._exchange.user_name
        if claimed is not None and not isinstance(verdict, Refused):
            # At both steps: many exchanges may have made their first step before the failures of others set a ban.
            refused = self._access.refusal_of_exchange(self._credentials, claimed, is_login=self._is_login)
            if refused is not None:
                return b"", refused
        if verdict is not None:
            self._access.note_verdict(self._credentials, verdict, claimed)
        return answer, verdict


def _describe(ban: Ban) -> str:
    names = {"client id": ban.client_id, "user": ban.user_name, "address": ban.address}
    return ", ".join(f"{kind} {name!r}" for kind, name in names.items() if name is not None)


def _restore_bans(bans: BanTable, path: str) -> None:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return
    except OSError as error:
        raise Corruption(f"{path} cannot be read: {error.strerror}") from None
    try:
        bans.restore(data)
    except Corruption as error:
        raise Corruption(f"{path}: {error}") from None


def _write_bans(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    files.replace(path, data)
