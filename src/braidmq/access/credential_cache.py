"""A cache of recently verified passwords, so that a reconnect does not cost a hash.

It holds keyed digests, whose key never leaves the process: neither the passwords nor anything that could be tested against a
password list elsewhere. A digest covers the hash in the file as well, so an entry becomes invalid with the line it came from.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable

ENTRIES_MAX = 50_000  # about 10 MB


class CredentialCache:
    """A bounded set of digests of verified credentials; evicts the least recently used."""

    def __init__(self, ttl_s: float, clock: Callable[[], float], entries_max: int = ENTRIES_MAX) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._entries_max = entries_max
        self._key = secrets.token_bytes(32)
        self._expires: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._expires)

    def set_ttl(self, ttl_s: float) -> None:
        """Change the time to live; existing entries are removed."""
        if ttl_s != self._ttl_s:
            self._ttl_s = ttl_s
            self._expires.clear()

    def digest(self, user_name: str, password_hash: str, password: bytes) -> bytes:
        """The digest under which these credentials are cached."""
        # With the lengths in front, different triples never give the same bytes.
        user, known = user_name.encode(), password_hash.encode()
        head = b"%d:%d:" % (len(user), len(known))
        return hmac.digest(self._key, head + user + known + password, "sha256")

    def has(self, digest: bytes) -> bool:
        """Whether these credentials were verified within the last ``ttl_s``."""
        expires = self._expires.get(digest)
        if expires is None:
            return False
        if expires <= self._clock():
            del self._expires[digest]
            return False
        self._expires.move_to_end(digest)
        return True

    def add(self, digest: bytes) -> None:
        """Cache credentials that have just been verified."""
        if self._ttl_s <= 0:
            return
        self._expires[digest] = self._clock() + self._ttl_s
        self._expires.move_to_end(digest)
        if len(self._expires) > self._entries_max:
            self._expires.popitem(last=False)
