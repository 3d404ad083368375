"""The clock for deadlines: it excludes time in which this process did not run.

While a process is stopped (SIGSTOP, a paused container), its machine suspended or its virtual machine frozen, it reads nothing.
When it continues, every deadline seems to have passed, while data that peers sent in time is still unread in the kernel. So a
long gap between two readings of this clock is a *pause*. It does not count, nor does the *grace period* after it, which is as
long as the excess of the gap, up to ``GRACE_S_MAX``. During the grace period the process reads what has arrived, accepts waiting
connections, and gives clients that lost theirs time to return.

    running --gap above GAP_S_MAX--> grace --its time is over--> resumed --a step of any length--> running

The step in *resumed* always counts, by at most ``GAP_S_MAX``: in a process that is always too slow, deadlines still expire, only
later.

Read the clock at least every ``BEAT_S`` seconds; otherwise it mistakes an idle process for a paused one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

BEAT_S: Final = 0.5  # how often the clock must be read
GAP_S_MAX: Final = 1.5 * BEAT_S  # between two readings, and the most that one step counts
GRACE_S_MAX: Final = 10.0
# Turns of the event loop before a deadline is checked: accept, read, decide on a CONNECT, and a few to spare.
READING_TURNS: Final = 8


def time_since_boot() -> float:
    """Seconds since boot, including those in which the machine was suspended, unlike the monotonic clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class DeadlineClock:
    """A monotonic clock, in seconds, that excludes pauses. It does no I/O; ``source`` is the clock of the machine."""

    __slots__ = ("_grace_s", "_is_running", "_now", "_read_at", "_source", "paused_s", "pauses")

    def __init__(self, source: Callable[[], float] = time_since_boot) -> None:
        self._source = source
        self._read_at = self._now = source()
        self._grace_s = 0.0  # the rest of the grace period
        self._is_running = True  # whether a gap counts as a pause; False in the first step after a grace period
        self.pauses = 0
        self.paused_s = 0.0  # in all pauses, without their grace periods

    def __call__(self) -> float:
        """The current time without pauses."""
        at = self._source()
        gap_s = at - self._read_at
        self._read_at = at
        step_s = min(gap_s, GAP_S_MAX)
        if self._grace_s > 0:
            self._grace_s -= step_s
        elif gap_s > GAP_S_MAX and self._is_running:
            self._is_running = False
            self._grace_s = min(gap_s - GAP_S_MAX, GRACE_S_MAX)
            self.pauses += 1
            self.paused_s += gap_s
        else:
            self._is_running = True
            self._now += step_s
        return self._now


def after_reading(loop: asyncio.AbstractEventLoop, callback: Callable[[], None], turns: int = READING_TURNS) -> asyncio.Handle:
    """Call back when the loop has polled its sockets this many times; the handle is that of the first turn only."""
    if turns <= 1:
        return loop.call_soon(callback)
    return loop.call_soon(after_reading, loop, callback, turns - 1)


async def wait_fairly(waiting: asyncio.Future[Any], seconds: float, source: Callable[[], float] = time_since_boot) -> bool:
    """Wait until the future or task is done or its time, without pauses, is over; True if done. Does not cancel it."""
    clock = DeadlineClock(source)
    until = clock() + seconds
    while not waiting.done() and (left_s := until - clock()) > 0:
        await asyncio.wait({waiting}, timeout=min(left_s, BEAT_S))
    for _ in range(READING_TURNS):  # data that has arrived by now is in time
        if waiting.done():
            break
        await asyncio.sleep(0)
    return waiting.done()


async def finish_fairly(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Run the coroutine to its end; if its time, without pauses, runs out, cancel it and raise TimeoutError."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        if not await wait_fairly(task, seconds):
            raise TimeoutError
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})  # it has released everything before the caller continues
