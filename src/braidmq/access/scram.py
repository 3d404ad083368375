"""SCRAM-SHA-256 (RFC 5802, RFC 7677) as MQTT 5 enhanced authentication: the keys of a user, and the server's side.

The server never sees the password and does no slow work. An unknown user gets a salt as well, so the exchange reveals nothing
before it fails.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
from collections.abc import Callable

import msgspec
import scramp

from braidmq.access.contract import Credentials, Granted, Refused, Verdict
from braidmq.mqtt.reasons import Reason

METHOD = "SCRAM-SHA-256"
PREFIX = "$scram-sha-256$"

ROUNDS_MIN = 4096  # RFC 7677 requires at least this many; the client, often a small device, computes them
ROUNDS_MAX = 10_000_000
_SALT_BYTES = 16
_DIGEST_BYTES = 32

# Names and nonces are short; normalising a name costs time for each character.
_MESSAGE_BYTES_MAX = 2048

_LINE = re.compile(r"\$scram-sha-256\$i=([1-9]\d{0,8})\$([^$]+)\$([^$]+)\$([^$]+)", re.ASCII)


class ScramKeys(msgspec.Struct, frozen=True):
    """The server's part of a password: enough to verify a proof, not enough to create one."""

    rounds: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"ScramKeys(rounds={self.rounds})"


def make_keys(password: str, rounds: int = ROUNDS_MIN) -> ScramKeys:
    """New keys for a password; slow like any password hash. Raises ValueError if the text cannot be a SCRAM password."""
    try:
        salt, stored_key, server_key, rounds = scramp.ScramMechanism(METHOD).make_auth_info(
            password, iteration_count=rounds, salt=secrets.token_bytes(_SALT_BYTES)
        )
    except scramp.ScramException as error:
        raise ValueError(str(error)) from None
    return ScramKeys(rounds, salt, stored_key, server_key)


def format_keys(keys: ScramKeys) -> str:
    """The form of the keys in a password file."""
    salt, stored, server = (base64.b64encode(part).decode() for part in (keys.salt, keys.stored_key, keys.server_key))
    return f"{PREFIX}i={keys.rounds}${salt}${stored}${server}"


def parse_keys(text: str) -> ScramKeys:
    """Parse the keys of a password file; raises ValueError with the reason if they are invalid."""
    found = _LINE.fullmatch(text)
    if found is None:
        raise ValueError("incomplete SCRAM keys")
    try:
        salt, stored_key, server_key = (base64.b64decode(found[part], validate=True) for part in (2, 3, 4))
    except (binascii.Error, ValueError):
        raise ValueError("SCRAM keys are not valid base64") from None
    rounds = int(found[1])
    if not ROUNDS_MIN <= rounds <= ROUNDS_MAX:
        raise ValueError(f"SCRAM rounds must be between {ROUNDS_MIN} and {ROUNDS_MAX}")
    if len(salt) < 12 or len(stored_key) != _DIGEST_BYTES or len(server_key) != _DIGEST_BYTES:
        raise ValueError("SCRAM keys have the wrong length")
    return ScramKeys(rounds, salt, stored_key, server_key)


class ScramExchange:
    """One exchange with one client; ``find`` returns the keys of a user, or None.

    ``user_name`` is the name that the client claims, after its first step; it is proven only if the verdict is ``Granted``.
    """

    def __init__(self, credentials: Credentials, find: Callable[[str], ScramKeys | None], decoy_key: bytes) -> None:
        self.user_name: str | None = None
        self._credentials = credentials
        self._find = find
        self._decoy_key = decoy_key
        self._server = scramp.ScramMechanism(METHOD).make_server(self._keys_for)
        self._is_first = True

    async def step(self, data: bytes) -> tuple[bytes, Verdict | None]:
        """Process client-first, then client-final; the second call returns the verdict."""
        try:
            if len(data) > _MESSAGE_BYTES_MAX:
                raise ValueError("SCRAM message is too long")
            message = data.decode("utf-8")
            if self._is_first:
                self._is_first = False
                return self._first(message)
            return self._final(message)
        except (scramp.ScramException, ValueError, LookupError) as error:
            return b"", Refused(Reason.NOT_AUTHORIZED, f"SCRAM: {error}")

    def _first(self, message: str) -> tuple[bytes, Verdict | None]:
        self._server.set_client_first(message)
        claimed = self._credentials.claimed_name
        if claimed is not None and claimed != self.user_name:
            return b"", Refused(Reason.NOT_AUTHORIZED, "SCRAM: user name differs from the connection's")
        return self._server.get_server_first().encode(), None

    def _final(self, message: str) -> tuple[bytes, Verdict | None]:
        try:
            self._server.set_client_final(message)
        except scramp.ScramException as error:
            return self._server.get_server_final().encode(), Refused(Reason.NOT_AUTHORIZED, f"SCRAM: {error}")
        return self._server.get_server_final().encode(), Granted(self.user_name)

    def _keys_for(self, user_name: str) -> tuple[bytes, bytes, bytes, int]:
        self.user_name = user_name
        keys = self._find(user_name) or self._decoy(user_name)
        return keys.salt, keys.stored_key, keys.server_key, keys.rounds

    def _decoy(self, user_name: str) -> ScramKeys:
        # The salt must be the same whenever this name is tried; the keys match no password.
        salt = hmac.digest(self._decoy_key, user_name.encode(), "sha256")[:_SALT_BYTES]
        return ScramKeys(ROUNDS_MIN, salt, secrets.token_bytes(_DIGEST_BYTES), secrets.token_bytes(_DIGEST_BYTES))
