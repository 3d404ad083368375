"""Reader slots: a limit for the memory of readers whose data has not been sent yet.

Each reader keeps up to about two megabytes in memory. A reader whose client accepts nothing more for now gives its slot to
another reader: it knows its positions and reads again from there when it gets a slot.

Slots are shared between *owners*: users, and sessions of clients without a user name. An owner with fewer slots takes one at once
from an owner with more. If all have equally many, readers take turns.
"""

from __future__ import annotations

from typing import Protocol

_TURN_ADMISSIONS = 256  # after which a reader gives its place to one that waits: some tenths of a second of reading


class Reader(Protocol):
    """Reads the log for one client."""

    @property
    def owner(self) -> object:
        """The owner that the slot counts for; a hashable value."""

    def pause(self) -> None:
        """Let go of what was read and not sent, and call ``Readers.leave``."""

    def wake(self) -> None:
        """There may be a place: call ``Readers.admit`` again, not within this call."""


class Readers:
    """The readers that have a slot, those of them that are idle, and those that wait."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._reading: dict[Reader, int] = {}  # and how often each was admitted since it has its place
        self._idle: dict[Reader, None] = {}  # of those who read
        self._places: dict[object, dict[Reader, None]] = {}  # those who read by owner, the longest first
        self._waiting: dict[object, dict[Reader, None]] = {}  # by owner, the one whose turn is next first
        self.displaced = 0  # readers that had to give their place to another owner's, ever

    def __len__(self) -> int:
        return len(self._reading)

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return sum(map(len, self._waiting.values()))

    def admit(self, reader: Reader) -> bool:
        """Whether it may read now; if not, it is woken when there is a place."""
        self._idle.pop(reader, None)
        if reader in self._reading:
            self._reading[reader] += 1
            if self._reading[reader] <= _TURN_ADMISSIONS or not self._waiting:
                return True
            self._displace(reader)
            return False
        if len(self._reading) >= self._count_max and not self._make_place(reader.owner):
            self._waiting.setdefault(reader.owner, {})[reader] = None
            return False
        _remove(self._waiting, reader)
        self._reading[reader] = 0
        self._places.setdefault(reader.owner, {})[reader] = None
        return True

    def _make_place(self, owner: object) -> bool:
        """Take a place from a reader that stands still, or from an owner that has at least two more than this one."""
        if self._idle:
            next(iter(self._idle)).pause()
            return True
        richest = max(self._places.values(), key=len)
        if len(richest) <= len(self._places.get(owner, ())) + 1:
            return False
        self._displace(next(iter(richest)))
        return True

    def _displace(self, reader: Reader) -> None:
        """Let it wait behind the others."""
        self.displaced += 1
        reader.pause()
        self._waiting.setdefault(reader.owner, {})[reader] = None

    def note_idle(self, reader: Reader) -> None:
        """Its client takes no more for now."""
        if reader in self._reading:
            self._idle[reader] = None
            self._wake_next()

    def leave(self, reader: Reader) -> None:
        """It reads no more, and waits for no place."""
        self._idle.pop(reader, None)
        _remove(self._waiting, reader)
        if self._reading.pop(reader, None) is not None:
            _remove(self._places, reader)
        # Also if it was waiting: it may have been woken for a place that is another's now.
        if self._idle or len(self._reading) < self._count_max:
            self._wake_next()

    def _wake_next(self) -> None:
        """Wake a reader of the owner whose turn it is; it goes on waiting until it is admitted."""
        for owner, readers in self._waiting.items():
            del self._waiting[owner]
            self._waiting[owner] = readers
            reader = next(iter(readers))
            del readers[reader]
            readers[reader] = None
            reader.wake()
            return


def _remove(by_owner: dict[object, dict[Reader, None]], reader: Reader) -> None:
    readers = by_owner.get(reader.owner)
    if readers is not None:
        readers.pop(reader, None)
        if not readers:
            del by_owner[reader.owner]
