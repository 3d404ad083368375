"""Sends a snapshot of one origin in parts, while the origin's log goes on.

The parts are not of one moment: each has its rows as they are when it is made. The entries since the snapshot began are sent
beside it, on the same ordered stream, and since they are absolute the receiver ends with the right rows: a row that a part shows
too new is set again by the entries that led to it, and a row that was removed after its part is removed by its entry.
"""

from __future__ import annotations

from typing import Final

from braidmq.cluster.rlog.origin_log import OriginLog, wire_size
from braidmq.net.proto_v1 import Snapshot

PART_ROWS: Final = 500  # a route takes about a hundred bytes


class Bootstrapper:
    """One snapshot on its way to one replica."""

    def __init__(self, origin: str, log: OriginLog, part_rows: int) -> None:
        self._origin = origin
        self._log = log
        self._start = log.position
        self._part_rows = part_rows
        self._keys = log.keys()  # not a copy: that of a million keys would stop everything for 10 ms, and its end for 5 ms
        self._at, self._end = 0, len(self._keys)
        self._is_first = True
        self.is_over = False

    def is_of(self, log: OriginLog | None) -> bool:
        """Whether the origin's log is still the one that this snapshot is taken from."""
        return log is self._log and log.incarnation == self._start.incarnation

    def part(self) -> tuple[Snapshot, int]:
        """The next part and its size."""
        end = min(self._at + self._part_rows, self._end)
        looked_at, self._at = self._keys[self._at : end], end
        rows = self._log.rows
        keys = [key for key in looked_at if key in rows]
        values = [rows[key] for key in keys]
        self.is_over = end == self._end
        part = Snapshot(self._origin, self._start.incarnation, self._start.sequence, keys, values, self._is_first, self.is_over)
        self._is_first = False
        return part, wire_size(keys, values)
