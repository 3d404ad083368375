"""What a failed call of etcd means, as a decision without I/O: by the status of gRPC and etcd's words.

- ELSEWHERE: this member does not answer, or cannot. Another one may; whether a write happened is unknown.
- LOGIN: the token is not valid (any more), and nothing was done: log in and repeat.
- COMPACTED, FUTURE: the revision asked for is no longer kept, or does not exist.
- LEASE_ENDED: a row was to be bound to a lease that has ended, and nothing was done.
- AUTH_OFF: etcd has no authentication, so there is nothing to log in to.
- BUSY: the member refused the call without doing it; it may do so later.
- REFUSED: etcd will refuse this call again; an operator has to act.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from msgspec import Struct

from braidmq.base.errors import BraidError, ConfigError, Unavailable, UsageError


class Meaning(Enum):
    """What to do about a failed call."""

    ELSEWHERE = auto()
    LOGIN = auto()
    COMPACTED = auto()
    FUTURE = auto()
    LEASE_ENDED = auto()
    AUTH_OFF = auto()
    BUSY = auto()
    REFUSED = auto()


class EtcdFailure(BraidError):
    """A call failed. ``status``: the name of gRPC's status; ``words``: etcd's or gRPC's explanation."""

    def __init__(self, status: str, words: str, address: str = "") -> None:
        super().__init__(status, words, address)
        self.status = status
        self.words = words
        self.address = address
        self.meaning = meaning_of(status, words)

    def __str__(self) -> str:
        where = f"etcd at {self.address}" if self.address else "etcd"
        if is_certificate_problem(self.words):
            return f"{where} has no certificate that cluster.etcd_ca_file verifies, or does not accept ours: {self.words[:300]}"
        return f"{where}: {self.words[:300] or self.status.lower()}"


def meaning_of(status: str, words: str) -> Meaning:
    """Judge a failure by the name of its status and its words."""
    match status:
        case "UNAUTHENTICATED":
            return Meaning.LOGIN
        case "OUT_OF_RANGE":
            return Meaning.FUTURE if "future revision" in words else Meaning.COMPACTED
        case "NOT_FOUND":
            return Meaning.LEASE_ENDED if "lease not found" in words else Meaning.REFUSED
        case "FAILED_PRECONDITION":
            return Meaning.AUTH_OFF if "authentication is not enabled" in words else Meaning.REFUSED
        case "INVALID_ARGUMENT":
            # The rights have changed since the token was made; etcd checks that before it does anything.
            return Meaning.LOGIN if "revision of auth store is old" in words else Meaning.REFUSED
        case "RESOURCE_EXHAUSTED":
            return Meaning.BUSY if "too many requests" in words else Meaning.REFUSED
        case "PERMISSION_DENIED" | "UNIMPLEMENTED":
            return Meaning.REFUSED
        case _:
            return Meaning.ELSEWHERE


def is_certificate_problem(words: str) -> bool:
    """Whether a connection failed because one side does not trust the other."""
    lowered = words.lower()
    return "ssl" in lowered or "certificate" in lowered or "tsi_" in lowered


class EtcdUser(Struct, frozen=True):
    """As whom the store logs in. ``name`` empty: without a login."""

    name: str = ""
    password: str = ""


NO_USER: Final = EtcdUser()


def refusal(failure: EtcdFailure, user: str) -> BraidError:
    """The error for a call that etcd refuses: it names the key of the configuration to look at, where there is one."""
    words = failure.words
    if "authentication failed" in words:
        hint = "check cluster.etcd_username and the content of cluster.etcd_password_file"
        return ConfigError("cluster.etcd_username", f"etcd at {failure.address} does not accept the password of {user!r}", hint)
    if "user name is empty" in words:
        hint = "set cluster.etcd_username and cluster.etcd_password_file"
        return ConfigError("cluster.etcd_username", f"etcd at {failure.address} requires a login", hint)
    if failure.status == "PERMISSION_DENIED":
        hint = "grant its role `readwrite` on the prefix braidmq/"
        return ConfigError("cluster.etcd_username", f"etcd does not let {user!r} use the tables of braidmq", hint)
    if failure.status == "RESOURCE_EXHAUSTED":
        return Unavailable(f"etcd has no space left ({words}); compact and defragment it, or raise its quota", 30.0)
    return UsageError(str(failure))
