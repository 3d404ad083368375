"""What tests of members share: a wall clock and requests."""

from __future__ import annotations

from braidmq.cluster.membership.members import RegistrationRequest

NOON = 1_700_000_000_000


class Clock:
    """A wall clock in milliseconds, moved by the test."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> int:
        return self.now


def ask(name: str = "r1", key: bytes = b"key", incarnation: int = 0) -> RegistrationRequest:
    return RegistrationRequest(name, key, "replicant", incarnation)
