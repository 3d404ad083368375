"""Password hashes: creating argon2id, and verifying other formats.

    argon2id     ``$argon2id$v=19$m=..,t=..,p=..$salt$hash``   what we write
    bcrypt       ``$2a$``, ``$2b$``, ``$2y$``                  checked, then replaced
    Mosquitto    ``$6$salt$hash``, ``$7$rounds$salt$hash``     checked, then replaced (SHA-512; PBKDF2 with SHA-512)

Slow work runs in the caller's thread: call ``verify`` and ``make`` from a worker, never from the event loop.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re

import argon2
import bcrypt

# After a power cut, many small devices reconnect at once. 16 MiB and two passes cost about 16 ms of one CPU and prevent cheap
# guessing on graphics cards; the library's default (64 MiB, four lanes) would cost fifteen times as much.
_HASHER = argon2.PasswordHasher(time_cost=2, memory_cost=16 * 1024, parallelism=1)

# The most that a line of the file may cost per login; more is a typing error or an attack on the broker's memory.
_ARGON2_KIB_MAX = 1024 * 1024
_ARGON2_TIME_MAX = 64
_ARGON2_LANES_MAX = 16
_BCRYPT_COST_MAX = 16
_PBKDF2_ROUNDS_MAX = 10_000_000

# bcrypt ignores the bytes after these; the library rejects longer input, where older ones truncated it.
_BCRYPT_PASSWORD_BYTES = 72

_BCRYPT = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}", re.ASCII)
_SHA512 = re.compile(r"\$6\$([^$]+)\$([^$]+)", re.ASCII)
_PBKDF2 = re.compile(r"\$7\$([1-9]\d{0,8})\$([^$]+)\$([^$]+)", re.ASCII)


def make(password: bytes) -> str:
    """A new argon2id hash."""
    return _HASHER.hash(password)


def check_form(text: str) -> None:
    """Raise ValueError with the reason unless ``text`` is a hash that ``verify`` can check."""
    if text.startswith("$argon2"):
        _check_argon2(text)
    elif text.startswith("$2"):
        found = _BCRYPT.fullmatch(text)
        if found is None:
            raise ValueError("incomplete bcrypt hash")
        if not 4 <= int(found[1]) <= _BCRYPT_COST_MAX:
            raise ValueError(f"bcrypt cost must be between 4 and {_BCRYPT_COST_MAX}")
    elif text.startswith("$6$"):
        _split_sha512(text)
    elif text.startswith("$7$"):
        _split_pbkdf2(text)
    else:
        raise ValueError("unknown hash format (plain-text passwords are not accepted)")


def verify(text: str, password: bytes) -> bool:
    """Whether the password matches this hash. Slow on purpose; the comparison takes constant time."""
    if text.startswith("$argon2"):
        try:
            return _HASHER.verify(text, password)
        except (argon2.exceptions.Argon2Error, argon2.exceptions.InvalidHashError):
            return False
    if text.startswith("$2"):
        try:
            return bcrypt.checkpw(password[:_BCRYPT_PASSWORD_BYTES], text.encode("ascii"))
        except ValueError:
            return False
    if text.startswith("$6$"):
        salt, digest = _split_sha512(text)
        return hmac.compare_digest(hashlib.sha512(password + salt).digest(), digest)
    rounds, salt, digest = _split_pbkdf2(text)
    return hmac.compare_digest(hashlib.pbkdf2_hmac("sha512", password, salt, rounds), digest)


def is_outdated(text: str) -> bool:
    """Whether the next successful login should replace this hash."""
    return not text.startswith("$argon2id$")


def _check_argon2(text: str) -> None:
    try:
        parameters = argon2.extract_parameters(text)
    except argon2.exceptions.InvalidHashError:
        raise ValueError("incomplete argon2 hash") from None
    if (
        parameters.memory_cost > _ARGON2_KIB_MAX
        or parameters.time_cost > _ARGON2_TIME_MAX
        or parameters.parallelism > _ARGON2_LANES_MAX
    ):
        raise ValueError("argon2 hash is too expensive for a login")


def _split_sha512(text: str) -> tuple[bytes, bytes]:
    found = _SHA512.fullmatch(text)
    if found is None:
        raise ValueError("incomplete $6$ hash")
    return _base64(found[1]), _digest(found[2])


def _split_pbkdf2(text: str) -> tuple[int, bytes, bytes]:
    found = _PBKDF2.fullmatch(text)
    if found is None:
        raise ValueError("incomplete $7$ hash")
    rounds = int(found[1])
    if rounds > _PBKDF2_ROUNDS_MAX:
        raise ValueError(f"$7$ hash has more than {_PBKDF2_ROUNDS_MAX} rounds")
    return rounds, _base64(found[2]), _digest(found[3])


def _digest(text: str) -> bytes:
    digest = _base64(text)
    if len(digest) != hashlib.sha512().digest_size:
        raise ValueError("hash does not have the length of a SHA-512 digest")
    return digest


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("hash is not valid base64") from None
