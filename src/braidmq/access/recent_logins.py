"""Recent successful logins by address, so that a neighbour's guesses do not lock them out.

What is kept is a keyed digest of the user name, the password and the address, and a second one with the client id in it; the key
lives and dies with the process. An entry opens nothing by itself: it only lets a login through to the check that an automatic
ban or the throttle of its address would have spared. A SCRAM login shows no password, so there the name at the address counts,
and the exchange still has to be won.
"""

from __future__ import annotations

from collections.abc import Callable

from braidmq.access.contract import Credentials
from braidmq.access.credential_cache import CredentialCache

# Nobody has these: what comes without an address of its own has no neighbours to be told from.
_NOWHERE = ("", "0.0.0.0", "::")


class RecentLogins:
    """A bounded set of logins, two entries each; those used longest ago go first."""

    def __init__(self, ttl_s: float, clock: Callable[[], float]) -> None:
        self._cache = CredentialCache(ttl_s, clock)

    def __len__(self) -> int:
        return len(self._cache)

    def set_ttl(self, ttl_s: float) -> None:
        """Remember for another time from now on."""
        self._cache.set_ttl(ttl_s)

    def add(self, credentials: Credentials, user_name: str | None) -> None:
        """Remember a login that has just succeeded, under the name that it claimed."""
        if credentials.peer_host in _NOWHERE:
            return
        self._cache.add(self._digest(credentials, user_name, ""))
        if credentials.client_id:
            self._cache.add(self._digest(credentials, user_name, credentials.client_id))

    def has(self, credentials: Credentials, user_name: str | None, *, with_client_id: bool) -> bool:
        """Did exactly this login get in from this address lately; if asked so, with this client id?"""
        if credentials.peer_host in _NOWHERE or (with_client_id and not credentials.client_id):
            return False
        return self._cache.has(self._digest(credentials, user_name, credentials.client_id if with_client_id else ""))

    def _digest(self, credentials: Credentials, user_name: str | None, client_id: str) -> bytes:
        password = credentials.password
        kind = ("scram" if password is None else "password") if user_name is not None else "token"
        # No kind and no address has a space in it, so the three parts cannot be mistaken for others.
        return self._cache.digest(user_name or "", f"{kind} {credentials.peer_host} {client_id}", password or b"")
