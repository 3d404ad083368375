"""File descriptors: how many connections a node has room for.

A process without free descriptors cannot open a file of its log either, and the storage engine takes that for a broken disk.
So the limit is divided once, at the start: the log, the control socket and the API have shares of their own, and a flood of
connections to one of them takes nothing from the others.
"""

from __future__ import annotations

import sys
from typing import Final, NamedTuple

# Standard streams, listening sockets, the event loop, write-ahead logs, files that are reread, a child process.
FILES_SPARE: Final = 64
TABLES_MAX: Final = 1024
_TABLES_MIN: Final = 16
_CONTROL_CONNECTIONS: Final = 16
_API_CONNECTIONS_MAX: Final = 128


class Room:
    """Slots for connections; used on the loop's thread. ``refused`` counts connections without a slot."""

    __slots__ = ("connections_max", "refused", "taken")

    def __init__(self, connections_max: int = sys.maxsize) -> None:
        self.connections_max = connections_max
        self.taken = 0
        self.refused = 0

    def take(self) -> bool:
        """Take a slot if there is one."""
        if self.taken >= self.connections_max:
            self.refused += 1
            return False
        self.taken += 1
        return True

    def give_back(self) -> None:
        """Release a slot."""
        self.taken -= 1


class FilePlan(NamedTuple):
    """How the file descriptors are divided; ``FILES_SPARE`` are kept in reserve."""

    tables: int  # table files that the storage engine keeps open
    clients: int  # connections of all MQTT listeners together
    api: int  # connections to api.bind
    control: int  # connections to the control socket


def plan_files(files_max: int) -> FilePlan:
    """Divide the descriptors of a process."""
    free = max(files_max - FILES_SPARE - _CONTROL_CONNECTIONS, 0)
    tables = max(min(free // 4, TABLES_MAX), _TABLES_MIN)
    rest = max(free - tables, 0)
    api = min(rest // 8, _API_CONNECTIONS_MAX)
    return FilePlan(tables, rest - api, api, _CONTROL_CONNECTIONS)
