"""Timers that end something because of silence: wills, sessions, slow clients.

Such a timer may be late, but it must not fire because of unread input. It runs on the ``DeadlineClock``, which leaves out pauses
of the process. When its time has come, the loop first takes the turns that it needs to read everything that has arrived.
While the timers are *held*, because the node cannot hear its clients, none of them fires.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic

from braidmq.base.deadline_clock import BEAT_S, DeadlineClock, after_reading

log = logging.getLogger("braidmq.broker")

_WORTH_A_WARNING_S = 2.0  # a busy loop may well miss a beat


class Timer:
    """One callback to come, unless it is cancelled."""

    __slots__ = ("_callback", "_due", "_handle", "_timers")

    def __init__(self, timers: Timers, due: float, callback: Callable[[], None]) -> None:
        self._timers = timers
        self._due = due
        self._callback: Callable[[], None] | None = callback
        self._handle: asyncio.Handle | None = None

    def cancel(self) -> None:
        """Do not call back any more."""
        self._callback = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def wait(self) -> None:
        """Sleep until the time has come, which a pause may have moved."""
        left_s = self._due - self._timers.now()
        if left_s > 0:
            self._handle = self._timers.loop.call_later(left_s, self.wait)
        elif self._timers.is_held:
            self._handle = self._timers.loop.call_later(BEAT_S, self.wait)
        else:
            self._handle = after_reading(self._timers.loop, self._fire)

    def _fire(self) -> None:
        if self._timers.is_held:  # what was read meanwhile has shown it
            self.wait()
            return
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class Timers:
    """Makes timers; ``now`` is the clock that they run on."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now: Callable[[], float]) -> None:
        self.loop = loop
        self.now = now
        self.is_held = False
        self.pauses = 0
        self.paused_s = 0.0
        self.beaten_at = monotonic()  # for ``LoopWatch``, which runs in another thread

    def beat(self) -> float:
        """The time that counts, now; to be called at least every ``BEAT_S``. Says in the log if the node was paused."""
        self.beaten_at = monotonic()
        now, clock = self.now(), self.now
        if isinstance(clock, DeadlineClock) and clock.pauses != self.pauses:
            paused_s = clock.paused_s - self.paused_s
            level = logging.WARNING if paused_s >= _WORTH_A_WARNING_S else logging.INFO
            log.log(level, "the node did not run for %.1f s; client deadlines are extended", paused_s)
            self.pauses, self.paused_s = clock.pauses, clock.paused_s
        return now

    def after(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call back when the delay has passed and everything that arrived in it has been read."""
        timer = Timer(self, self.now() + delay_s, callback)
        timer.wait()
        return timer
