"""Group commit: one thread calls fsync for all writes collected so far.

The loop writes without waiting (``wrote``); the thread takes the newest number *before* it starts a flush, so everything up to
that number was written before the flush began and is on disk when it returns. Writes made meanwhile form the next group.

A flush that fails is the last one. The kernel may have dropped the pages it could not write and report success on the next
call, so a later successful fsync proves nothing about the data of the failed one.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

# How long closing waits for a running flush; a disk that needs longer will not recover.
CLOSE_TIMEOUT_S = 30.0

# How long a thread waits for the interpreter lock before its holder must release it. A busy loop releases the lock for an instant
# at every poll and takes it again before this thread has woken, and the wait restarts. So it must be shorter than the time
# between two polls. With a loop that polled every 1.5 ms, a thread waited up to 600 ms with Python's default of 5 ms, and 12 ms
# with 0.5 ms. At 20,000 recorded messages a second the polls are 0.3 ms apart: the median acknowledgement took 1.4 ms, and 1.1 ms
# with this value.
SWITCH_INTERVAL_S = 0.00005


# How long after a commit the thread counts as idle. Clients that publish one message after the other are faster than this.
IDLE_S = 0.01

# The longest recent commit is that of the last one to two such periods.
RECENT_S = 10.0


class Committer:
    """The commit thread; ``on_committed(number)``, or once ``on_failed(problem)``, are called in it."""

    def __init__(
        self,
        flush: Callable[[], None],
        number: int,
        on_committed: Callable[[int], None],
        on_failed: Callable[[Exception], None],
        before: Committer | None = None,
        on_time: Callable[[bool], None] = lambda is_idle: None,
    ) -> None:
        """Start with everything up to ``number`` committed; statistics continue from those of the committer ``before``.

        ``on_time(is_idle)`` is called after each reported commit, and once more, with True, if none follows.
        """
        self.commits: int = before.commits if before is not None else 0
        self.commit_s_total: float = before.commit_s_total if before is not None else 0.0
        self.commit_s_max: float = before.commit_s_max if before is not None else 0.0
        self._on_time = on_time
        self._is_fresh = False  # there was a commit since ``on_time`` was last called with True
        self.committed_at = 0.0  # on the monotonic clock; 0: never
        self._span_began = 0.0
        self._span_s_max = self._span_before_s_max = 0.0
        self._flush = flush
        self._on_committed = on_committed
        self._on_failed = on_failed
        self._changed = threading.Condition()
        self._written = number
        self._committed = number
        self._is_held = False
        self._is_closing = False
        self._flush_began = 0.0
        self._thread = threading.Thread(target=self._run, name="braidmq-commit", daemon=True)

    def start(self) -> None:
        """Start the thread; shortens the switch interval of the whole process."""
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        self._thread.start()

    def wrote(self, number: int) -> None:
        """Everything up to ``number`` is written; commit it soon."""
        with self._changed:
            self._written = number
            self._changed.notify()

    def hold(self) -> None:
        """Start no flush until ``release``."""
        with self._changed:
            self._is_held = True

    def release(self) -> None:
        """Continue after ``hold``."""
        with self._changed:
            self._is_held = False
            self._changed.notify()

    def running_s(self) -> float:
        """How long the current flush has been running; 0 if there is none."""
        began = self._flush_began
        return time.monotonic() - began if began else 0.0

    def recent_s_max(self) -> float:
        """The longest recent commit; 0 if there was none."""
        age_s = time.monotonic() - self._span_began
        if age_s >= 2 * RECENT_S:
            return 0.0
        return self._span_s_max if age_s >= RECENT_S else max(self._span_s_max, self._span_before_s_max)

    def close(self) -> bool:
        """Commit what is written, unless held or failed, and end the thread; False if the disk did not answer in time."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(CLOSE_TIMEOUT_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while (number := self._next_group()) is not None:
                if number == self._committed:
                    self._on_time(True)
                    continue
                self._flush_began = began = time.monotonic()
                self._flush()
                self._flush_began = 0.0
                self._count(time.monotonic() - began)
                self._committed = number
                self._on_committed(number)
                self._on_time(False)
                self._is_fresh = True
        except Exception as problem:  # whatever it is, nothing is committed from now on, which must be reported
            self._flush_began = 0.0
            self._on_failed(problem)

    def _count(self, taken_s: float) -> None:
        self.commits += 1
        self.commit_s_total += taken_s
        self.commit_s_max = max(self.commit_s_max, taken_s)
        self.committed_at = now = time.monotonic()
        age_s = now - self._span_began
        if age_s >= RECENT_S:
            self._span_before_s_max = self._span_s_max if age_s < 2 * RECENT_S else 0.0
            self._span_s_max = 0.0
            self._span_began = now
        self._span_s_max = max(self._span_s_max, taken_s)

    def _next_group(self) -> int | None:
        """The number to commit up to; the committed one if there was no write for a while; None at the end."""
        with self._changed:
            while True:
                if self._written > self._committed and not self._is_held:
                    return self._written
                if self._is_closing:
                    return None
                if not self._changed.wait(IDLE_S if self._is_fresh else None):
                    self._is_fresh = False
                    return self._committed
