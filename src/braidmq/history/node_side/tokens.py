"""Tokens that identify a user until they expire, for long-running readers that should not know the password.

    base64url(version (1) = 2 | expires at, in seconds (8) | seal (16) | user name) "." base64url(HMAC-SHA256 of that)

The key is a file in the data directory. Several cores of a cluster derive one key from the cluster's secret instead, so that all
of them accept a token of any one. A token identifies a user and grants no rights: rules are checked at every use. The seal
is a keyed digest of the user's entry in the password file: when the entry changes, or the user is deleted and created again, the
token becomes invalid. Version 1 had no seal and is rejected.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from time import time
from typing import Final

from braidmq.base.errors import Corruption

KEY_NAME: Final = "history.key"
_KEY_BYTES: Final = 32
# The secret is also what nodes prove themselves with: nothing else is signed with a key made of this text.
_SHARED_KEY: Final = b"braidmq: tokens of history readers\0"
_VERSION: Final = 2
_SEAL_AT: Final = 9
_SEAL_BYTES: Final = 16
_NAME_AT: Final = _SEAL_AT + _SEAL_BYTES


class Tokens:
    """Creates and verifies tokens with one key."""

    def __init__(self, key: bytes, now: Callable[[], float] = time) -> None:
        self._key = key
        self._now = now

    @classmethod
    def load(cls, data_dir: Path) -> Tokens:
        """Use the key in the data directory; creates it if it is missing. Raises Corruption if the file is invalid."""
        path = data_dir / KEY_NAME
        try:
            key = path.read_bytes()
        except FileNotFoundError:
            key = secrets.token_bytes(_KEY_BYTES)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(key)
        if len(key) != _KEY_BYTES:
            raise Corruption(f"{path} is not a valid key; remove it, which makes all existing tokens invalid")
        return cls(key)

    @classmethod
    def shared(cls, secret: str, cluster: str) -> Tokens:
        """Use the key that all cores of a cluster have; the secret must not be empty."""
        assert secret, "a key of no secret is no secret"
        return cls(hmac.digest(secret.encode(), _SHARED_KEY + cluster.encode(), "sha256"))

    def make(self, user_name: str, fingerprint: bytes, valid_s: float) -> str:
        """Create a token for this user, valid as long as the user has this fingerprint."""
        expires_at = int(self._now() + valid_s)
        name = user_name.encode()
        return self._sealed(bytes([_VERSION]) + expires_at.to_bytes(8, "big") + self._seal(name, fingerprint) + name)

    def read(self, token: str, fingerprint_of: Callable[[str], bytes | None]) -> str | None:
        """The user name in a token; None if it is invalid, has expired, or the user's fingerprint has changed."""
        try:
            head, _, tail = token.partition(".")
            body, signature = _decode(head), _decode(tail)
        except (binascii.Error, ValueError):
            return None
        if token != f"{_encode(body)}.{_encode(signature)}":
            return None  # the same bytes in another spelling
        if not hmac.compare_digest(signature, self._sign(body)) or body[0] != _VERSION:
            return None
        if int.from_bytes(body[1:_SEAL_AT], "big") < self._now():
            return None
        name = body[_NAME_AT:]
        user_name = name.decode()
        fingerprint = fingerprint_of(user_name)
        if fingerprint is None or not hmac.compare_digest(body[_SEAL_AT:_NAME_AT], self._seal(name, fingerprint)):
            return None
        return user_name

    def _sealed(self, body: bytes) -> str:
        return f"{_encode(body)}.{_encode(self._sign(body))}"

    def _seal(self, name: bytes, fingerprint: bytes) -> bytes:
        # A token's body begins with its version, which is never 0, so this can never be the signature of a token.
        return hmac.digest(self._key, b"\0%d:" % len(name) + name + fingerprint, "sha256")[:_SEAL_BYTES]

    def _sign(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256")


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
