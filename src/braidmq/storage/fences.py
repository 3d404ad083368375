"""Fences (S5): the highest guard of each client id, below which no connection takes its session any more.

Every connection of a client id has a guard, higher than that of the one before it. A connection with a lower guard is late: its
client has continued elsewhere and may have sent the same message again, and a copy behind it would be out of order.

A guard is checked once, when a connection takes its session, and not for each message: on one node the older connection is closed
in the same turn of the loop in which the newer one raises the fence, and everything that it had appended is before it in the log.
Hence neither blocks nor rows carry guards.

Guards of durable sessions are in their rows, from which the fences are raised again at start; the others need not outlive the
process, because their connections do not either. A client id that has neither connection nor session is forgotten, which bounds
the memory used here.
"""

from __future__ import annotations


class FenceTable:
    """The highest guard of each client id."""

    def __init__(self) -> None:
        self._guards: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._guards)

    def guard(self, client_id: str) -> int:
        """The highest guard; 0 if none is known."""
        return self._guards.get(client_id, 0)

    def fence(self, client_id: str, guard: int) -> bool:
        """Reject lower guards from now on; returns False without a change if a higher one is known."""
        if guard < self._guards.get(client_id, 0):
            return False
        self._guards[client_id] = guard
        return True

    def forget(self, client_id: str) -> None:
        """Remove a client id that has neither a connection nor a session any more."""
        self._guards.pop(client_id, None)
