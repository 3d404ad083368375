"""The rows of one origin and the last entries that led to them.

Invariants:
- Only the origin writes; all other nodes apply its entries in order, so equal positions mean equal rows.
- Entries are absolute: each states the result for its key. Applying one twice, or from any earlier state on, gives the same rows.
- The log is bounded. A copy whose position is below ``reaches_back_to`` needs a snapshot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from braidmq.net.proto_v1 import Position

ENTRIES_MAX: Final = 100_000
_KEYS_GONE_MIN: Final = 1000  # among the keys, before those that are gone are forgotten
_ENTRY_BYTES: Final = 16  # what an entry takes on the wire besides key and value


def wire_size(keys: Sequence[bytes], values: Sequence[bytes | None]) -> int:
    """About how many bytes these take on the wire. Sender and receiver count credit by it, so both must get the same."""
    return _ENTRY_BYTES * len(keys) + sum(map(len, keys)) + sum(len(value) for value in values if value is not None)


class Entry(NamedTuple):
    """One change: the row of ``key`` is ``value`` from now on, or gone."""

    key: bytes
    value: bytes | None

    @property
    def size(self) -> int:
        """About how many bytes it takes on the wire."""
        return _ENTRY_BYTES + len(self.key) + len(self.value or b"")


class OriginLog:
    """Rows, position and the bounded log of one origin."""

    __slots__ = ("rows", "incarnation", "sequence", "_entries", "_entries_max", "_keys")

    def __init__(self, incarnation: int, sequence: int = 0, *, entries_max: int = ENTRIES_MAX) -> None:
        self.rows: dict[bytes, bytes] = {}
        # Every key of the rows, and some that are gone or come twice: a list can be read in pieces while the rows change.
        self._keys: list[bytes] = []
        self.incarnation = incarnation
        self.sequence = sequence
        self._entries: deque[Entry] = deque()
        self._entries_max = entries_max

    @property
    def position(self) -> Position:
        """The last entry that is applied."""
        return Position(self.incarnation, self.sequence)

    @property
    def reaches_back_to(self) -> int:
        """The lowest sequence from which the log leads to the rows."""
        return self.sequence - len(self._entries)

    def append(self, entries: Sequence[Entry]) -> None:
        """Apply the next entries and keep them for copies that are behind."""
        rows, kept = self.rows, self._entries
        for entry in entries:
            if entry.value is None:
                rows.pop(entry.key, None)
            else:
                self.put(entry.key, entry.value)
            kept.append(entry)
        self.sequence += len(entries)
        if len(self._keys) > 2 * len(rows) + _KEYS_GONE_MIN:
            self._keys = list(rows)
        while len(kept) > self._entries_max:
            kept.popleft()

    def put(self, key: bytes, value: bytes) -> None:
        """Set a row."""
        if key not in self.rows:
            self._keys.append(key)
        self.rows[key] = value

    def replace_rows(self, rows: dict[bytes, bytes]) -> None:
        """These are the rows now."""
        self.rows = rows
        self._keys = list(rows)

    def keys(self) -> list[bytes]:
        """The keys of all rows up to now; more are added behind them. Some are those of rows that are gone, or come twice."""
        return self._keys

    def begin_again(self, position: Position) -> None:
        """A snapshot was loaded at this position: the entries before it are unknown."""
        self.incarnation, self.sequence = position.incarnation, position.sequence
        self._entries.clear()

    def reaches(self, sequence: int) -> bool:
        """Whether the log has every entry after this one. One that is not there yet counts as reached."""
        return sequence >= self.reaches_back_to

    def after(self, sequence: int, bytes_max: int) -> list[Entry]:
        """The entries after this one, in order, at least one of them and then up to ``bytes_max`` bytes."""
        taken: list[Entry] = []
        size = 0
        for entry in self._from(sequence):
            size += entry.size
            if taken and size > bytes_max:
                break
            taken.append(entry)
        return taken

    def _from(self, sequence: int) -> Iterator[Entry]:
        behind = self.sequence - sequence
        if behind <= len(self._entries) // 2:
            # Most readers are close to the end, and a deque is walked from either end.
            tail = list(islice(reversed(self._entries), max(0, behind)))
            return reversed(tail)
        return islice(self._entries, max(0, sequence - self.reaches_back_to), None)
