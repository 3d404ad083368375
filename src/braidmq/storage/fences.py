"""The publisher fence (S5): of several connections of one client id, the log accepts writes from the newest only.

Each connection of a client id has a version, higher than that of the one before it. Whoever brings a write of a lower version is
late: the client has gone on elsewhere and may have sent the same message again, and a copy behind it would be out of order.

A version is checked once, when a connection begins or when a write comes in from outside, and never for each message of a
connection: on one node the older connection is ended in the same turn of the loop in which the newer one raises the fence, and
whatever it had appended before is before it in the log as well. Hence blocks carry no versions.

Versions of durable sessions are in their rows, whose owner raises the fences again at start; all others need not outlive the
process, because neither do the connections that they tell apart. The owner forgets a client id that has neither connection nor
session, which bounds what is kept here.
"""

from __future__ import annotations

from typing import NamedTuple


class Guard(NamedTuple):
    """The writer of a change: a client id and the version of its connection."""

    client_id: str
    version: int


class Fences:
    """The highest version of each client id."""

    def __init__(self) -> None:
        self._versions: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._versions)

    def version(self, client_id: str) -> int:
        """The highest version; 0 if none is known."""
        return self._versions.get(client_id, 0)

    def fence(self, client_id: str, version: int) -> bool:
        """Reject lower versions from now on; returns False without a change if a higher one is known."""
        if version < self._versions.get(client_id, 0):
            return False
        self._versions[client_id] = version
        return True

    def admits(self, guard: Guard) -> bool:
        """Whether no higher version is known."""
        return guard.version >= self._versions.get(guard.client_id, 0)

    def forget(self, client_id: str) -> None:
        """The client id has neither a connection nor a session any more."""
        self._versions.pop(client_id, None)
