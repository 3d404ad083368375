"""Places for those who read the log for a client: a bound for what was read and could not be sent yet.

Each reader keeps up to about two megabytes in memory. One whose client takes nothing more for now gives its place to whoever
needs it: it knows its positions, and reads again from there when it has a place once more.
"""

from __future__ import annotations

from typing import Protocol


class Reader(Protocol):
    """Reads the log for one client."""

    def pause(self) -> None:
        """Let go of what was read and not sent, and call ``Readers.leave``."""

    def wake(self) -> None:
        """There may be a place: call ``Readers.admit`` again, not within this call."""


class Readers:
    """Who reads now, who of them stands still, and who waits for a place."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._reading: dict[Reader, None] = {}
        self._idle: dict[Reader, None] = {}  # of those who read
        self._waiting: dict[Reader, None] = {}

    def __len__(self) -> int:
        return len(self._reading)

    def admit(self, reader: Reader) -> bool:
        """Whether it may read now; if not, it is woken when there is a place."""
        self._idle.pop(reader, None)
        if reader not in self._reading:
            if len(self._reading) >= self._count_max:
                if not self._idle:
                    self._waiting[reader] = None
                    return False
                next(iter(self._idle)).pause()
            self._waiting.pop(reader, None)
            self._reading[reader] = None
        return True

    def note_idle(self, reader: Reader) -> None:
        """Its client takes no more for now."""
        if reader in self._reading:
            self._idle[reader] = None
            self._wake_next()

    def leave(self, reader: Reader) -> None:
        """It reads no more, and waits for no place."""
        self._idle.pop(reader, None)
        self._waiting.pop(reader, None)
        if reader in self._reading:
            del self._reading[reader]
            self._wake_next()

    def _wake_next(self) -> None:
        if self._waiting:
            next(iter(self._waiting)).wake()
