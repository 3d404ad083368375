"""How long a node may be without a connection, as a state machine without I/O.

A core ends the lease of a node only if it was awake for all of it: time in which the core itself did not run does not count.
Workers have no lease: their core learns at once that their connection has ended.
"""

from __future__ import annotations

from typing import Final

# A core that ticks later than this was paused; it counts no more than this of the time.
TICK_S: Final = 1.0
COUNTED_S_MAX: Final = 2 * TICK_S

NodeIncarnation = tuple[str, int]


class Leases:
    """The nodes that are members, and how long each of them has been without a connection. Call `tick` every `TICK_S`."""

    def __init__(self, lease_s: float, now: float) -> None:
        self._lease_s = lease_s
        self._ticked_at = now
        self._connections: dict[NodeIncarnation, int] = {}
        self._silent_s: dict[NodeIncarnation, float] = {}

    def add(self, node: NodeIncarnation) -> None:
        """A node is a member from now on, without a connection yet."""
        self._connections.setdefault(node, 0)
        if not self._connections[node]:
            self._silent_s.setdefault(node, 0.0)

    def remove(self, node: NodeIncarnation) -> None:
        """A node is no longer a member."""
        self._connections.pop(node, None)
        self._silent_s.pop(node, None)

    def on_connected(self, node: NodeIncarnation) -> None:
        """A connection of a member was made."""
        self._connections[node] = self._connections.get(node, 0) + 1
        self._silent_s.pop(node, None)

    def on_disconnected(self, node: NodeIncarnation) -> None:
        """A connection of a member has ended; its lease begins with its last one."""
        if node not in self._connections:
            return
        self._connections[node] -= 1
        if not self._connections[node]:
            self._silent_s[node] = 0.0

    def tick(self, now: float) -> list[NodeIncarnation]:
        """The nodes whose leases have ended; they stay in the list until they are removed."""
        passed_s = min(max(now - self._ticked_at, 0.0), COUNTED_S_MAX)
        self._ticked_at = now
        for node in self._silent_s:
            self._silent_s[node] += passed_s
        return [node for node, silent_s in self._silent_s.items() if silent_s >= self._lease_s]
