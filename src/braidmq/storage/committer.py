"""Group commit: one thread that brings writes to the disk, as many as there are at a time.

The loop writes without waiting (``wrote``); the thread takes the newest number *before* it starts a flush, so everything up to
that number was written before the flush began and is on disk when it returns. Writes that come meanwhile are the next group.

A flush that fails is the last one. The kernel may have dropped the pages it could not write and report success on the next
call, so a second fsync that works proves nothing about what the first one was for.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

# How long closing waits for a flush that is under way; a disk that needs longer does not come back.
CLOSE_TIMEOUT_S = 30.0

# How long a thread waits for the interpreter lock before its holder must give way. A busy loop gives the lock up for an instant
# at every poll and takes it back before this thread has woken, and the wait begins anew. So it must be shorter than the time
# between two polls. Beside a loop that polls every 1.5 ms a thread waited up to 600 ms with Python's 5 ms, 12 ms with 0.5 ms. At
# 20,000 recorded messages a second the polls are 0.3 ms apart: half of them were acknowledged after 1.4 ms, and 1.1 ms with this.
SWITCH_INTERVAL_S = 0.00005


# The longest commit of late is that of the last one to two such spans.
RECENT_S = 10.0


class Committer:
    """The commit thread; ``on_committed(number)``, or once ``on_failed(problem)``, are called in it."""

    def __init__(
        self,
        flush: Callable[[], None],
        number: int,
        on_committed: Callable[[int], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        """Start with everything up to ``number`` committed."""
        self.commits = 0
        self.commit_s_total = 0.0
        self.commit_s_max = 0.0
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
        """Begin no flush until ``release``."""
        with self._changed:
            self._is_held = True

    def release(self) -> None:
        """Go on after ``hold``."""
        with self._changed:
            self._is_held = False
            self._changed.notify()

    def running_s(self) -> float:
        """For how long the flush under way has been running; 0 if there is none."""
        began = self._flush_began
        return time.monotonic() - began if began else 0.0

    def recent_s_max(self) -> float:
        """The longest commit of late; 0 if there was none."""
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
                self._flush_began = began = time.monotonic()
                self._flush()
                self._flush_began = 0.0
                self._count(time.monotonic() - began)
                self._committed = number
                self._on_committed(number)
        except Exception as problem:  # whatever it was, nothing is committed from now on, and that must not go unseen
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
        with self._changed:
            while True:
                if self._written > self._committed and not self._is_held:
                    return self._written
                if self._is_closing:
                    return None
                self._changed.wait()
