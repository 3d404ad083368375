"""The password file: its users, and changes of single lines that do not lose concurrent edits.

    # a comment
    alice:$argon2id$v=19$m=16384,t=2,p=1$...      one password hash for each user, in any format that ``hashes`` supports
    alice:$scram-sha-256$i=4096$salt$stored$server  beside it, or alone: keys for SCRAM-SHA-256

One invalid line makes the whole file invalid. Edits reread the file under a lock, change the lines of one user and replace the
file atomically, so other lines, comments and their order stay as they were.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import msgspec

from braidmq.access import files, hashes
from braidmq.access.scram import PREFIX as SCRAM_PREFIX
from braidmq.access.scram import ScramKeys, format_keys, parse_keys
from braidmq.base.errors import ConfigError, Unavailable, UsageError

KEY = "access.password_file"

# How often an edit restarts because another program changed the file between its reading and its writing.
_EDIT_ATTEMPTS = 10


class UserKeys(msgspec.Struct, frozen=True):
    """The entries of one user; at least one of the two is set."""

    password_hash: str | None = None
    scram: ScramKeys | None = None

    def __repr__(self) -> str:
        return "UserKeys(...)"


class Users:
    """The users of a password file, as it was read."""

    def __init__(self, keys: dict[str, UserKeys]) -> None:
        self._keys = keys
        self._hashes = tuple(each.password_hash for each in keys.values() if each.password_hash is not None)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, user_name: str) -> bool:
        return user_name in self._keys

    def password_hash(self, user_name: str) -> str | None:
        """The user's hash, None when there is no such user or no password."""
        keys = self._keys.get(user_name)
        return None if keys is None else keys.password_hash

    def scram_keys(self, user_name: str) -> ScramKeys | None:
        """The user's SCRAM keys, None when there is no such user or no keys."""
        keys = self._keys.get(user_name)
        return None if keys is None else keys.scram

    def fingerprint(self, user_name: str) -> bytes | None:
        """A digest of the user's lines, which changes when any of them does; None if there is no such user."""
        keys = self._keys.get(user_name)
        if keys is None:
            return None
        scram = "" if keys.scram is None else format_keys(keys.scram)
        return hashlib.sha256(f"{keys.password_hash or ''}\n{scram}".encode()).digest()

    def upgrade(self, user_name: str, password_hash: str) -> None:
        """Use another hash of the same password from now on."""
        self._keys[user_name] = UserKeys(password_hash, self._keys[user_name].scram)

    def some_hash(self, choice: int) -> str | None:
        """One of the hashes in the file, the same for the same number; None if the file has no hashes."""
        return self._hashes[choice % len(self._hashes)] if self._hashes else None


def parse(text: str) -> Users:
    """Parse a password file; raises ConfigError with the line number if a line is invalid."""
    users: dict[str, UserKeys] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            _add_line(users, line.removesuffix("\r"))
        except ValueError as error:
            raise ConfigError(KEY, f"line {number}: {error}", "write it with `braidmq passwd`") from None
    return Users(users)


def check_user_name(user_name: str) -> None:
    """Raise ValueError with the reason unless this is a valid user name for a password file."""
    if not user_name:
        raise ValueError("the user name is empty")
    if user_name.startswith("#") or ":" in user_name or not user_name.isprintable():
        raise ValueError("a user name must not contain a colon or control characters, or begin with #")


def set_password(path: str, user_name: str, password_hash: str, scram: ScramKeys | None) -> None:
    """Write the user's password hash and SCRAM keys, replacing existing ones; creates the file if it is missing."""
    try:
        check_user_name(user_name)
    except ValueError as error:
        raise UsageError(str(error)) from None
    wanted = [f"{user_name}:{password_hash}"]
    if scram is not None:
        wanted.append(f"{user_name}:{format_keys(scram)}")

    def change(lines: list[str]) -> bool:
        at = next((index for index, line in enumerate(lines) if _owner(line) == user_name), len(lines))
        lines[:] = [*lines[:at], *wanted, *(line for line in lines[at:] if _owner(line) != user_name)]
        return True

    _edit(path, change, create=True)


def delete_user(path: str, user_name: str) -> bool:
    """Remove every line of the user; returns False if there was none."""

    def change(lines: list[str]) -> bool:
        kept = [line for line in lines if _owner(line) != user_name]
        is_changed = len(kept) != len(lines)
        lines[:] = kept
        return is_changed

    return _edit(path, change)


def replace_hashes(path: str, changes: Mapping[tuple[str, str], str]) -> bool:
    """For each ``(user, old hash) -> new hash``, change that line if it still exists; returns False if none did."""

    def change(lines: list[str]) -> bool:
        is_changed = False
        for index, line in enumerate(lines):
            user_name, _, old = line.removesuffix("\r").partition(":")
            new = changes.get((user_name, old))
            if new is not None:
                lines[index] = f"{user_name}:{new}"
                is_changed = True
        return is_changed

    return _edit(path, change)


def _add_line(users: dict[str, UserKeys], line: str) -> None:
    if not line.strip() or line.startswith("#"):
        return
    user_name, colon, secret = line.partition(":")
    if not colon:
        raise ValueError("no colon between user name and hash")
    check_user_name(user_name)
    known = users.get(user_name, UserKeys())
    if secret.startswith(SCRAM_PREFIX):
        if known.scram is not None:
            raise ValueError(f"user {user_name!r} already has SCRAM keys")
        users[user_name] = UserKeys(known.password_hash, parse_keys(secret))
    else:
        if known.password_hash is not None:
            raise ValueError(f"user {user_name!r} already has a password")
        hashes.check_form(secret)
        users[user_name] = UserKeys(secret, known.scram)


def _owner(line: str) -> str | None:
    """The user of a line; None for a comment or an empty line."""
    if line.startswith("#") or ":" not in line:
        return None
    return line.partition(":")[0]


def _edit(path: str, change: Callable[[list[str]], bool], *, create: bool = False) -> bool:
    """Let ``change`` alter the lines and write them back if it returns True; restarts if the file changes meanwhile."""
    with files.locked(path):
        for _ in range(_EDIT_ATTEMPTS):
            try:
                text, seen = files.read_text(path)
            except FileNotFoundError:
                if not create:
                    raise
                text, seen = "", None
            lines = text.split("\n")
            if lines[-1] == "":
                lines.pop()
            if not change(lines):
                return False
            data = "".join(f"{line}\n" for line in lines).encode()
            if files.replace(path, data, expected=seen):
                return True
    raise Unavailable(f"{path} keeps changing")
