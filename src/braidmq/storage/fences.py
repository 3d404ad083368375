"""The publisher fence (S5): of several connections of one client id, the log accepts writes from the newest only.

Each connection of a client id has a version, higher than that of the connection before it. A write with a lower version is
late: the client has moved to another connection and may have resent the same message, and a later copy would be out of order.

A version is checked once, when a connection begins or when a write comes from outside, not for each message of a connection: on
one node the older connection ends in the same turn of the loop in which the newer one raises the fence, and everything it had
appended is earlier in the log. So blocks carry no versions.

Versions of durable sessions are in their rows, and their owner raises the fences again at start. Others end with the process, as
do the connections that they distinguish. The owner removes a client id without connection and session, which bounds the memory.
"""

from __future__ import annotations

from typing import NamedTuple


class Guard(NamedTuple):
    """The writer of a change: a client id and the version of its connection."""

    client_id: str
    version: int


class FenceTable:
    """The highest version of each client id."""

    def __init__(self) -> None:
        self._versions: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._versions)

    def version(self, client_id: str) -> int:
        """The highest known version; 0 for an unknown client id."""
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
        """Remove a client id that has neither a connection nor a session any more."""
        self._versions.pop(client_id, None)
