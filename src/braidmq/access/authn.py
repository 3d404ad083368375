"""Authentication: identifies clients by a password file or a certificate's name, or accepts them as anonymous.

    certificate name        accepted as it is: TLS has verified it
    user name + password    must be in the password file; without a password file the name is ignored and the client counts
                            as anonymous
    neither                 anonymous, if the listener allows it

A few threads compute the hashes. Equal logins that wait at the same time share one computation, and verified passwords are
cached for a while. An unknown user costs the same work as a wrong password.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import logging
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from braidmq.access import hashes, passwords
from braidmq.access.contract import Credentials, Exchange, Granted, Refused, Verdict
from braidmq.access.credential_cache import CredentialCache
from braidmq.access.passwords import Users
from braidmq.access.scram import METHOD, ScramExchange, ScramKeys
from braidmq.access.watched_file import WatchedFile
from braidmq.base.deadline_clock import wait_fairly
from braidmq.base.errors import BraidError
from braidmq.mqtt.reasons import Reason

log = logging.getLogger(__name__)

# New hashes are written in groups: after an import every user's first login creates one, and each write rewrites the whole file.
_UPGRADE_DELAY_S = 1.0

# How often a login restarts because the user's line changed while its hash was computed.
_CHECK_ATTEMPTS = 3

_UNUSABLE = Refused(Reason.SERVER_UNAVAILABLE, "the password file cannot be used")


class RefusingExchange:
    """An enhanced authentication that is rejected at its first step."""

    def __init__(self, refused: Refused) -> None:
        self._refused = refused

    async def step(self, data: bytes) -> tuple[bytes, Verdict | None]:
        """Refuse."""
        return b"", self._refused


class PasswordAuthenticator:
    """Checks credentials against a password file (an empty ``path`` means none). Belongs to one event loop."""

    def __init__(
        self,
        path: str,
        *,
        cache_ttl_s: float,
        waiting_max: int,
        timeout_s: float,
        clock: Callable[[], float],
        verify: Callable[[str, bytes], bool] = hashes.verify,
    ) -> None:
        self.file = WatchedFile(passwords.KEY, path, passwords.parse) if path else None
        self._cache = CredentialCache(cache_ttl_s, clock)
        self._waiting_max = waiting_max
        self._timeout_s = timeout_s
        self._verify = verify
        # Half of the CPUs at most: the event loop needs one for itself when all clients reconnect at once.
        workers = max(1, (os.cpu_count() or 2) // 2)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="braidmq-hash")
        self._decoy_key = secrets.token_bytes(32)
        self._decoy_hash = hashes.make(self._decoy_key) if path else ""
        self._checks: dict[bytes, asyncio.Future[tuple[bool, str | None]]] = {}
        self._upgrades: dict[tuple[str, str], str] = {}
        self._upgrade_timer: asyncio.TimerHandle | None = None
        self._upgrade_task: asyncio.Task[None] | None = None

    async def reconfigure(self, path: str, *, cache_ttl_s: float, waiting_max: int, timeout_s: float) -> None:
        """Use another file or other limits; checks in progress continue unaffected."""
        self._cache.set_ttl(cache_ttl_s)
        self._waiting_max = waiting_max
        self._timeout_s = timeout_s
        if path != ("" if self.file is None else self.file.path):
            await self._finish_upgrades()
            if not self._decoy_hash:
                self._decoy_hash = await asyncio.to_thread(hashes.make, self._decoy_key)
            self.file = await asyncio.to_thread(WatchedFile, passwords.KEY, path, passwords.parse) if path else None

    @property
    def methods(self) -> frozenset[str]:
        """SCRAM-SHA-256 if there is a password file."""
        return frozenset() if self.file is None else frozenset({METHOD})

    async def authenticate(self, credentials: Credentials) -> Verdict:
        """Check plain credentials; a failure on the broker's side is a rejection with 0x88."""
        verdict = self.judge(credentials)
        if verdict is not None:
            return verdict
        assert credentials.user_name is not None  # else there was nothing to compute
        assert credentials.password is not None
        return await self._check(credentials.user_name, credentials.password)

    def judge(self, credentials: Credentials) -> Verdict | None:
        """The verdict if it needs no computation; None if a password must be hashed first."""
        if self.file is not None and self.file.value is None:
            return _UNUSABLE
        if credentials.certificate_name is not None:
            if not credentials.certificate_name:
                return Refused(Reason.NOT_AUTHORIZED, "the certificate has no name")
            return Granted(credentials.certificate_name)
        if credentials.user_name is None:
            if credentials.anonymous_allowed and credentials.password is None:
                return Granted(None)
            return Refused(Reason.NOT_AUTHORIZED, "no user name, and anonymous clients are not allowed here")
        if self.file is None:
            if credentials.anonymous_allowed:
                return Granted(None)
            return Refused(Reason.BAD_USER_NAME_OR_PASSWORD, "no password file is configured")
        if credentials.password is None:
            return Refused(Reason.BAD_USER_NAME_OR_PASSWORD, "a user name without a password")
        known = self._hash_of(credentials.user_name)
        if known is None or not self._cache.has(self._cache.digest(credentials.user_name, known, credentials.password)):
            return None
        return Granted(credentials.user_name)

    def begin(self, method: str, credentials: Credentials) -> Exchange:
        """Start a SCRAM-SHA-256 exchange; any other method is rejected with 0x8C at its first step."""
        if method not in self.methods:
            return RefusingExchange(Refused(Reason.BAD_AUTHENTICATION_METHOD, f"unknown authentication method: {method[:64]!r}"))
        if self._users is None:
            return RefusingExchange(_UNUSABLE)
        return ScramExchange(credentials, self._scram_keys_of, self._decoy_key)

    def checks_password(self, credentials: Credentials) -> bool:
        """Does the answer to these credentials depend on their password?"""
        return (
            credentials.password is not None
            and credentials.user_name is not None
            and credentials.certificate_name is None
            and self.file is not None
        )

    def knows(self, user_name: str) -> bool:
        """Is the user in the password file now?"""
        users = self._users
        return users is not None and user_name in users

    def fingerprint(self, user_name: str) -> bytes | None:
        """A digest of the user's current entry in the password file; None for an unknown user."""
        users = self._users
        return None if users is None else users.fingerprint(user_name)

    def is_rehashed_at_login(self, user_name: str) -> bool:
        """Will the user's next login replace the hash in the file?"""
        known = self._hash_of(user_name)
        return known is not None and hashes.is_outdated(known)

    async def close(self) -> None:
        """Write pending changes and end the threads."""
        await self._finish_upgrades()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _check(self, user_name: str, password: bytes) -> Verdict:
        for _ in range(_CHECK_ATTEMPTS):
            known = self._hash_of(user_name)
            against = known if known is not None else self._decoy_for(user_name)
            digest = self._cache.digest(user_name, against, password)
            if known is not None and self._cache.has(digest):
                return Granted(user_name)
            check = self._checks.get(digest)
            if check is None:
                if len(self._checks) >= self._waiting_max:
                    return Refused(Reason.CONNECTION_RATE_EXCEEDED, "too many logins are waiting for their password check")
                check = self._start_check(digest, user_name, against, password, is_known=known is not None)
            try:
                # Not cancelled: other clients may be waiting for the same result.
                if not await wait_fairly(check, self._timeout_s):
                    return Refused(Reason.SERVER_UNAVAILABLE, "the password check took too long")
                is_right, _ = check.result()
            except Exception:
                log.exception("a password check failed")
                return Refused(Reason.SERVER_UNAVAILABLE, "the password check failed")
            if known is None or not is_right:
                return Refused(Reason.BAD_USER_NAME_OR_PASSWORD, "wrong user name or password")
            if self._hash_of(user_name) == known:
                return Granted(user_name)
            # The line has changed meanwhile, by an edit or by the rehash above: only its current content counts.
        return Refused(Reason.SERVER_UNAVAILABLE, "the password file keeps changing")

    def _start_check(
        self, digest: bytes, user_name: str, against: str, password: bytes, *, is_known: bool
    ) -> asyncio.Future[tuple[bool, str | None]]:
        loop = asyncio.get_running_loop()
        check = loop.run_in_executor(self._pool, _compute, self._verify, against, password, is_known)
        self._checks[digest] = check
        check.add_done_callback(functools.partial(self._settle, digest, user_name, against, password))
        return check

    def _settle(
        self, digest: bytes, user_name: str, against: str, password: bytes, check: asyncio.Future[tuple[bool, str | None]]
    ) -> None:
        """Store the result of a finished check, once for all its waiters."""
        del self._checks[digest]
        if check.cancelled() or check.exception() is not None:
            return
        is_right, better_hash = check.result()
        if not is_right or self._hash_of(user_name) != against:
            return
        self._cache.add(digest)
        users = self._users
        if better_hash is not None and users is not None:
            users.upgrade(user_name, better_hash)
            self._cache.add(self._cache.digest(user_name, better_hash, password))
            self._upgrades[user_name, against] = better_hash
            if self._upgrade_timer is None:
                self._upgrade_timer = asyncio.get_running_loop().call_later(_UPGRADE_DELAY_S, self._start_upgrade)

    async def _finish_upgrades(self) -> None:
        if self._upgrade_timer is not None:
            self._upgrade_timer.cancel()
            self._start_upgrade()
        if self._upgrade_task is not None:
            await self._upgrade_task

    def _start_upgrade(self) -> None:
        self._upgrade_timer = None
        self._upgrade_task = asyncio.get_running_loop().create_task(self._write_upgrades(self._upgrade_task))

    async def _write_upgrades(self, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            await previous
        upgrades, self._upgrades = self._upgrades, {}
        if self.file is None or not upgrades:
            return
        try:
            await asyncio.to_thread(passwords.replace_hashes, self.file.path, upgrades)
        except (OSError, BraidError) as error:
            # Harmless: the old hashes stay in the file and remain valid.
            log.warning("%d new password hashes could not be written to %s: %s", len(upgrades), self.file.path, error)
        else:
            log.info("%d passwords in %s are now hashed with argon2id", len(upgrades), self.file.path)

    @property
    def _users(self) -> Users | None:
        return None if self.file is None else self.file.value

    def _hash_of(self, user_name: str) -> str | None:
        users = self._users
        return None if users is None else users.password_hash(user_name)

    def _scram_keys_of(self, user_name: str) -> ScramKeys | None:
        users = self._users
        return None if users is None else users.scram_keys(user_name)

    def _decoy_for(self, user_name: str) -> str:
        """The hash to verify against for an unknown user, so that timing reveals nothing."""
        # A file may mix cheap and expensive hashes. Taking one from the file, always the same for the same name, gives unknown
        # names the same distribution of times as known ones.
        choice = int.from_bytes(hmac.digest(self._decoy_key, user_name.encode(), "sha256")[:8], "big")
        users = self._users
        found = None if users is None else users.some_hash(choice)
        return self._decoy_hash if found is None else found


def _compute(verify: Callable[[str, bytes], bool], against: str, password: bytes, is_known: bool) -> tuple[bool, str | None]:
    """Runs in a worker: whether the password is right, and a new hash if the stored one has an outdated format."""
    if not verify(against, password):
        return False, None
    return True, hashes.make(password) if is_known and hashes.is_outdated(against) else None
