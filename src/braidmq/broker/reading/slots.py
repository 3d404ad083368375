"""Reader slots: a limit for the memory of readers whose data has not been sent yet.

Each reader keeps up to about two megabytes in memory. A reader whose client accepts nothing more for now gives its slot to
another reader: it knows its positions and reads again from there when it gets a slot.

`Readers` limits replays and shared groups, of which a client can start many. Its slots are shared between *owners*: users, and
sessions of clients without a user name. An owner with fewer slots takes one at once from an owner with more. If all have equally
many, readers take turns. `IdleReaders` limits catch-up: each session has at most one, which always may read, so only those whose
clients accept nothing are counted.
"""

from __future__ import annotations

from typing import Protocol

IDLE_MAX = 128  # sessions that keep their read-ahead while their clients take nothing: up to some megabytes each

_TURN_ADMISSIONS = 256  # after which a reader gives its slot to one that waits: some tenths of a second of reading


class Reader(Protocol):
    """Reads the log for one client."""

    @property
    def owner(self) -> object:
        """The owner that the slot counts for; a hashable value."""

    def pause(self) -> None:
        """Release the read-ahead, and call ``Slots.leave``."""

    def wake(self) -> None:
        """Go on in another turn, not within this call."""


class Slots(Protocol):
    """Decides which readers may read and keep what they have read."""

    def admit(self, reader: Reader) -> bool:
        """Whether it may read now; if not, it is woken when there is a slot."""

    def note_idle(self, reader: Reader) -> None:
        """Its client accepts no more for now; it is paused if another reader needs the slot."""

    def leave(self, reader: Reader) -> None:
        """It has stopped reading, and no longer waits for a slot."""


class IdleReaders:
    """Readers whose clients accept nothing: a limited number keep their read-ahead, the others read again later."""

    def __init__(self) -> None:
        self._idle: dict[Reader, None] = {}  # the longest first

    def __len__(self) -> int:
        return len(self._idle)

    def admit(self, reader: Reader) -> bool:
        """Every reader may read."""
        self._idle.pop(reader, None)
        return True

    def note_idle(self, reader: Reader) -> None:
        """Let it keep its read-ahead; the reader that has been idle longest may have to release its own."""
        self._idle[reader] = None
        if len(self._idle) > IDLE_MAX:
            longest = next(iter(self._idle))
            del self._idle[longest]
            longest.pause()

    def leave(self, reader: Reader) -> None:
        """It has stopped reading."""
        self._idle.pop(reader, None)


class Readers:
    """The readers that have a slot, those of them that are idle, and those that wait."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._reading: dict[Reader, int] = {}  # and how often each was admitted since it has its slot
        self._idle: dict[Reader, None] = {}  # of those that read
        self._holders: dict[object, dict[Reader, None]] = {}  # those that read by owner, the longest first
        self._waiting: dict[object, dict[Reader, None]] = {}  # by owner, the one whose turn is next first
        self.displaced = 0  # readers that had to give their slot to another reader, since the node started

    def __len__(self) -> int:
        return len(self._reading)

    @property
    def waiting(self) -> int:
        """How many wait for a slot."""
        return sum(map(len, self._waiting.values()))

    def admit(self, reader: Reader) -> bool:
        """Whether it may read now; if not, it is woken when there is a slot."""
        self._idle.pop(reader, None)
        if reader in self._reading:
            self._reading[reader] += 1
            if self._reading[reader] <= _TURN_ADMISSIONS or not self._waiting:
                return True
            self._displace(reader)
            return False
        if len(self._reading) >= self._count_max and not self._make_slot(reader.owner):
            self._waiting.setdefault(reader.owner, {})[reader] = None
            return False
        _remove(self._waiting, reader)
        self._reading[reader] = 0
        self._holders.setdefault(reader.owner, {})[reader] = None
        return True

    def _make_slot(self, owner: object) -> bool:
        """Take a slot from an idle reader, or from an owner that has at least two more than this one."""
        if self._idle:
            next(iter(self._idle)).pause()
            return True
        richest = max(self._holders.values(), key=len)
        if len(richest) <= len(self._holders.get(owner, ())) + 1:
            return False
        self._displace(next(iter(richest)))
        return True

    def _displace(self, reader: Reader) -> None:
        """Let it wait behind the others."""
        self.displaced += 1
        reader.pause()
        self._waiting.setdefault(reader.owner, {})[reader] = None

    def note_idle(self, reader: Reader) -> None:
        """Its client accepts no more for now; it is paused if another reader needs the slot."""
        if reader in self._reading:
            self._idle[reader] = None
            self._wake_next()

    def leave(self, reader: Reader) -> None:
        """It has stopped reading, and no longer waits for a slot."""
        self._idle.pop(reader, None)
        _remove(self._waiting, reader)
        if self._reading.pop(reader, None) is not None:
            _remove(self._holders, reader)
        # Also if it was waiting: it may have been woken for a slot that another reader has now.
        if self._idle or len(self._reading) < self._count_max:
            self._wake_next()

    def _wake_next(self) -> None:
        """Wake a reader of the owner whose turn it is; it keeps waiting until it is admitted."""
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
