"""Recent successful logins by address, so that a neighbour's guesses do not lock them out.

An entry is a keyed digest of the user name, the password and the address; a second one includes the client id. The key never
leaves the process. An entry grants nothing by itself: it only lets a login reach the password check despite an automatic ban or
the throttle of its address. A SCRAM login shows no password, so there the name at the address counts, and the exchange must
still succeed.
"""

from __future__ import annotations

from collections.abc import Callable

from braidmq.access.contract import Credentials
from braidmq.access.credential_cache import CredentialCache

# No client has these: a peer without an address of its own cannot be told from its neighbours.
_NOWHERE = ("", "0.0.0.0", "::")


class RecentLogins:
    """A bounded set of logins, two entries each; evicts the least recently used."""

    def __init__(self, ttl_s: float, clock: Callable[[], float]) -> None:
        self._cache = CredentialCache(ttl_s, clock)

    def __len__(self) -> int:
        return len(self._cache)

    def set_ttl(self, ttl_s: float) -> None:
        """Change the time to live."""
        self._cache.set_ttl(ttl_s)

    def add(self, credentials: Credentials, user_name: str | None) -> None:
        """Add a login that has just succeeded, under the name that it claimed."""
        if credentials.peer_host in _NOWHERE:
            return
        self._cache.add(self._digest(credentials, user_name, ""))
        if credentials.client_id:
            self._cache.add(self._digest(credentials, user_name, credentials.client_id))

    def has(self, credentials: Credentials, user_name: str | None, *, with_client_id: bool) -> bool:
        """Whether exactly this login succeeded from this address recently; ``with_client_id``: with this client id too."""
        if credentials.peer_host in _NOWHERE or (with_client_id and not credentials.client_id):
            return False
        return self._cache.has(self._digest(credentials, user_name, credentials.client_id if with_client_id else ""))

    def _digest(self, credentials: Credentials, user_name: str | None, client_id: str) -> bytes:
        password = credentials.password
        kind = ("scram" if password is None else "password") if user_name is not None else "token"
        # Neither a kind nor an address contains a space, so the three parts are unambiguous.
        return self._cache.digest(user_name or "", f"{kind} {credentials.peer_host} {client_id}", password or b"")
