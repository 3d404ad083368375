"""Every origin's rows as this node has them, and the fences that keep rows of dead nodes out.

A *fence* of an origin is the lowest incarnation whose rows count. It only rises. Dropping rows below a fence and receiving
entries of that origin commute: whichever comes first, no row of a fenced incarnation is left (C2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from braidmq.cluster.rlog.origin_log import ENTRIES_MAX, Entry, OriginLog
from braidmq.cluster.rlog.origins import written_with
from braidmq.net.proto_v1 import Position

STORE: Final = "store"  # the origin of the core store's tables
_STORE_PREFIX: Final = "store/"
_DEATH: Final = b"death/"


def death_of(origin: str, lowest: int) -> Entry:
    """The store's entry that declares incarnations of an origin below ``lowest`` dead."""
    return Entry(_DEATH + origin.encode(), str(lowest).encode())


def store_origin(core: str) -> str:
    """The origin of what one of several cores has read in the core store: positions of two cores cannot be compared."""
    return _STORE_PREFIX + core


class RowChange(NamedTuple):
    """A row of an origin has this value from now on; None: it is gone."""

    origin: str
    key: bytes
    value: bytes | None


class Loading(NamedTuple):
    """A snapshot that is being loaded: the log that it fills, and the rows of before that no part has named yet.

    It belongs to the watch that began it. A later watch of the same origin begins another one, and this one is over.
    """

    origin: str
    log: OriginLog
    stale: dict[bytes, bytes]


class Tables:
    """The rows of all origins. ``on_change`` learns of changed rows, a batch at a time, after they are applied."""

    def __init__(self, on_change: Callable[[list[RowChange]], None], *, entries_max: int = ENTRIES_MAX) -> None:
        self._on_change = on_change
        self._entries_max = entries_max
        self._logs: dict[str, OriginLog] = {}
        self._loading: dict[str, Loading] = {}
        self._fences: dict[str, int] = {}
        self._own: set[str] = set()
        self._touched: set[str] = set()

    def __iter__(self) -> Iterator[tuple[str, OriginLog]]:
        return iter(self._logs.items())

    def get(self, origin: str) -> OriginLog | None:
        """The rows of an origin, None while there are none or a first snapshot of them is being loaded."""
        return self._logs.get(origin)

    def rows(self, origin: str) -> Iterator[tuple[bytes, bytes]]:
        """All rows that count now: while a snapshot is loaded, those of before that may still be named, too."""
        loading = self._loading.get(origin)
        if loading is not None:
            yield from loading.log.rows.items()
            yield from loading.stale.items()
        elif (log := self._logs.get(origin)) is not None:
            yield from log.rows.items()

    def has_row(self, origin: str, key: bytes) -> bool:
        """Whether the origin has a row of this key that counts now."""
        loading = self._loading.get(origin)
        if loading is not None:
            return key in loading.log.rows or key in loading.stale
        log = self._logs.get(origin)
        return log is not None and key in log.rows

    def row(self, origin: str, key: bytes) -> bytes | None:
        """The origin's row of this key that counts now."""
        loading = self._loading.get(origin)
        if loading is not None:
            return loading.log.rows.get(key, loading.stale.get(key))
        log = self._logs.get(origin)
        return None if log is None else log.rows.get(key)

    def vector(self) -> dict[str, Position]:
        """How far each origin has come. One whose snapshot is not complete is where it was before that snapshot."""
        return {origin: log.position for origin, log in self._logs.items()}

    def take_touched(self) -> set[str]:
        """The origins whose logs have changed since the last call."""
        touched, self._touched = self._touched, set()
        return touched

    # Own origins

    def open(self, origin: str, incarnation: int) -> OriginLog:
        """The log of an origin that this node writes, empty, in its new incarnation."""
        log = self._logs[origin] = OriginLog(incarnation, entries_max=self._entries_max)
        self._own.add(origin)
        self._touched.add(origin)
        return log

    def write(self, origin: str, entries: Sequence[Entry]) -> None:
        """Append entries to the log of an origin that this node writes."""
        self._logs[origin].append(entries)
        self._changed(origin, entries)

    def _changed(self, origin: str, changes: Sequence[Entry]) -> None:
        self._touched.add(origin)
        if origin == STORE or origin.startswith(_STORE_PREFIX):
            for key, value in changes:
                if value is not None and key.startswith(_DEATH):
                    for each in written_with(key.removeprefix(_DEATH).decode()):
                        self.fence(each, int(value))
        if changes:
            self._on_change([RowChange(origin, key, value) for key, value in changes])

    # Copies

    def is_fenced(self, origin: str, incarnation: int) -> bool:
        """Whether this incarnation of the origin is dead."""
        return incarnation < self._fences.get(origin, 0)

    def fence(self, origin: str, lowest: int) -> None:
        """Drop the origin's rows of incarnations below ``lowest``, and accept none from now on.

        Not those that this node writes itself: a node that was declared dead first drops its clients (C3).
        """
        self._fences[origin] = max(lowest, self._fences.get(origin, 0))
        if origin in self._own:
            return
        gone: list[RowChange] = []
        loading = self._loading.get(origin)
        if loading is not None and self.is_fenced(origin, loading.log.incarnation):
            del self._loading[origin]
            gone += [RowChange(origin, key, None) for key in loading.log.rows]
        log = self._logs.get(origin)
        if log is not None and self.is_fenced(origin, log.incarnation):
            del self._logs[origin]
            if loading is None:
                gone += [RowChange(origin, key, None) for key in log.rows]
        if loading is not None and origin not in self._logs:
            # They are those of the log that has just gone, or of a log before it.
            gone += [RowChange(origin, key, None) for key in loading.stale]
            loading.stale.clear()
        if gone:
            self._on_change(gone)

    def apply(self, origin: str, incarnation: int, first: int, entries: Sequence[Entry]) -> Position | None:
        """Apply entries of another node's origin, as far as they are the next ones; the position then.

        None: there is a gap before them, or this incarnation is not known here; only a new watch can help.
        """
        loading = self._loading.get(origin)
        log = loading.log if loading is not None else self._logs.get(origin)
        if self.is_fenced(origin, incarnation):
            return Position(incarnation, first + len(entries) - 1)  # as good as applied: its rows count for nothing
        if log is None and first == 1:
            log = self._logs[origin] = OriginLog(incarnation, entries_max=self._entries_max)
        if log is None or incarnation > log.incarnation or first > log.sequence + 1:
            return None
        if incarnation < log.incarnation:
            return log.position
        new = entries[log.sequence + 1 - first :]
        if new:
            log.append(new)
            if loading is not None:
                for entry in new:
                    loading.stale.pop(entry.key, None)
            self._changed(origin, new)
        return log.position

    def begin_load(self, origin: str, start: Position) -> Loading | None:
        """A snapshot of another node's origin begins; None if it has nothing that is not here (C6)."""
        log = self._logs.get(origin)
        if self.is_fenced(origin, start.incarnation) or (log is not None and start <= log.position):
            return None
        before = self._loading.get(origin)
        if before is not None:
            self.abandon_load(before)
        log = self._logs.get(origin)
        fresh = OriginLog(start.incarnation, start.sequence, entries_max=self._entries_max)
        loading = self._loading[origin] = Loading(origin, fresh, {} if log is None else dict(log.rows))
        return loading

    def is_over(self, loading: Loading) -> bool:
        """Whether another snapshot has replaced it, or its incarnation is fenced."""
        return self._loading.get(loading.origin) is not loading

    def load(self, loading: Loading, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Add rows of a snapshot."""
        if self.is_over(loading):
            return
        changes: list[Entry] = []
        rows, stale = loading.log.rows, loading.stale
        for key, value in zip(keys, values, strict=True):
            if stale.pop(key, rows.get(key)) != value:
                changes.append(Entry(key, value))
            loading.log.put(key, value)
        self._changed(loading.origin, changes)

    def end_load(self, loading: Loading) -> None:
        """The snapshot is complete: rows of before that it did not name are gone."""
        if self.is_over(loading):
            return
        del self._loading[loading.origin]
        self._logs[loading.origin] = loading.log
        self._changed(loading.origin, [Entry(key, None) for key in loading.stale])

    def abandon_load(self, loading: Loading) -> None:
        """The server of the snapshot is gone. What it brought stays, and so does the position of before (see ``vector``).

        That is sound because entries are absolute: the log from the old position on, or another snapshot, repairs the rows.
        """
        if self.is_over(loading):
            return
        origin = loading.origin
        del self._loading[origin]
        rows = {**loading.stale, **loading.log.rows}
        log = self._logs.get(origin)
        if log is None:
            # No position of before: incarnation 0 is below every node's, so any server sends a snapshot.
            log = self._logs[origin] = OriginLog(0, entries_max=self._entries_max)
        else:
            log.begin_again(log.position)  # its entries no longer lead to these rows
        log.replace_rows(rows)
