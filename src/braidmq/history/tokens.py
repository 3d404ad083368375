"""Tokens that stand for a user name until they run out: what a long-running reader shows in place of a password.

    base64url(version (1) | expires at, in seconds (8) | user name) "." base64url(HMAC-SHA256 of that)

The key is a file of the data directory. A token says who, never what they may do: rules are asked at every use, and a user who
is no longer in the password file is refused.
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
_VERSION: Final = 1


class Tokens:
    """Makes tokens and reads them, with one key."""

    def __init__(self, key: bytes, now: Callable[[], float] = time) -> None:
        self._key = key
        self._now = now

    @classmethod
    def load(cls, data_dir: Path) -> Tokens:
        """With the key in the data directory, which is made if it is not there. Raises Corruption if the file is not one."""
        path = data_dir / KEY_NAME
        try:
            key = path.read_bytes()
        except FileNotFoundError:
            key = secrets.token_bytes(_KEY_BYTES)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(key)
        if len(key) != _KEY_BYTES:
            raise Corruption(f"{path} is not a key; remove it, and tokens made so far are no longer taken")
        return cls(key)

    def make(self, user_name: str, valid_s: float) -> str:
        """A token for this user."""
        expires_at = int(self._now() + valid_s)
        body = bytes([_VERSION]) + expires_at.to_bytes(8, "big") + user_name.encode()
        return f"{_encode(body)}.{_encode(self._sign(body))}"

    def read(self, token: str) -> str | None:
        """The user name in a token; None if it is not ours or has run out."""
        try:
            head, _, tail = token.partition(".")
            body, signature = _decode(head), _decode(tail)
        except (binascii.Error, ValueError):
            return None
        if not hmac.compare_digest(signature, self._sign(body)) or body[0] != _VERSION:
            return None
        if int.from_bytes(body[1:9], "big") < self._now():
            return None
        return body[9:].decode()

    def _sign(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256")


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
