"""The end of a turn of the event loop: what happens there, and in which order.

Callbacks of a turn collect work and ask for its phase; one callback at the turn's end runs the phases that were asked for. Their
order is that of ``Phase``, whatever the order of asking:

1. ``RESERVATIONS`` and ``STEPS`` first, because they only add rows. A reservation's row belongs into the batch of the turn that
   made it, and the cursors of sessions and groups that a QoS 2 delivery waits for are written as one (S10).
2. ``WRITE`` hands everything to the log as one batch (S1), as early as possible: the disk syncs while the other phases run.
3. ``KEYS`` forgets the keys that producers sent in this turn. Not before ``WRITE``: until then the log does not know them, and a
   repeat would be recorded twice.
4. ``SEND`` writes to the sockets. After ``WRITE``, so that writing to many sockets does not delay the disk.
5. ``PEERS`` sends to other nodes what the phases before have for them, all of it together.
6. ``BACKLOG`` and ``WORK`` come last: committed messages that earlier turns had no time for, and long work in pieces. The next
   turn collects what they produce, so neither delays what clients of this turn wait for.

A phase may ask for a later one, which then runs in the same turn. If it asks for itself or an earlier one, that runs at the end
of the next turn: packets that arrived meanwhile are read first, so nothing here can starve the sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import IntEnum


class Phase(IntEnum):
    """The phases in their order, one bit each."""

    RESERVATIONS = 1  # write the rows of groups that have reserved messages
    STEPS = 2  # write the cursors that steps of QoS 2 deliveries wait for
    WRITE = 4  # hand the block and the rows of the turn to the log
    KEYS = 8  # forget the keys of producers, which the log has now
    SEND = 16  # write to clients that were written to earlier in the turn
    PEERS = 32  # send to other nodes
    BACKLOG = 64  # show committed messages of earlier turns
    WORK = 128  # do a bounded part of long work


class Turn:
    """Runs the phases of a turn at its end. Each part of the broker registers the step of its phase when it is made."""

    __slots__ = ("_asked", "_is_due", "_loop", "_steps")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._steps: dict[int, Callable[[], None]] = {}
        self._asked = 0
        self._is_due = False

    def at_end(self, phase: Phase, step: Callable[[], None]) -> None:
        """Make this the step of a phase, which has one."""
        assert phase not in self._steps, f"{phase.name} has a step already"
        self._steps[phase] = step

    def ask(self, phase: Phase) -> None:
        """Run the phase at the end of this turn."""
        self._asked |= phase
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._end)

    def run_now(self, phase: Phase) -> None:
        """Run the phase at once, because rows that are written next must come after its rows."""
        self._asked &= ~phase
        self._steps[phase]()

    def run_asked(self, phase: Phase) -> None:
        """Run the phase now if it was asked for, at the end of a callback whose results should not wait for the next reads."""
        if self._asked & phase:
            self.run_now(phase)

    def _end(self) -> None:
        asked = self._asked
        while asked:
            phase = asked & -asked  # the lowest bit
            self._asked ^= phase
            try:
                self._steps[phase]()
            except Exception as problem:
                # A fault of one phase must not keep the others from running: the loop treats its callbacks the same way.
                name = Phase(phase).name
                self._loop.call_exception_handler({"message": f"the end of a turn failed in {name}", "exception": problem})
            asked = self._asked & -(phase << 1)  # the bits above it; what was asked for below them waits for the next turn
        self._is_due = bool(self._asked)
        if self._is_due:
            self._loop.call_soon(self._end)
