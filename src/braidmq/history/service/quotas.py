"""Quotas of each reader of the history service: open streams, and bytes per second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from braidmq.flight.wire import Problem
from braidmq.history.messages import Limits, Served
from braidmq.history.service.errors import HistoryError

# Number of readers in memory above which idle ones are removed.
_USES_KEPT: Final = 1000


class _Use:
    """One reader's use: open streams, and the time at which the bytes sent so far are paid for."""

    __slots__ = ("streams", "paid_at")

    def __init__(self) -> None:
        self.streams = 0
        self.paid_at = 0.0


class Quotas:
    """Counts streams and bytes of all readers; thread-safe."""

    def __init__(
        self, limits: Limits, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._limits = limits
        self._now = now
        self._sleep = sleep
        self._lock = threading.Lock()
        self._uses: dict[str, _Use] = {}
        self._rows = self._bytes = self._streams = self._refused = 0

    def __len__(self) -> int:
        """The number of readers in memory."""
        return len(self._uses)

    def begin(self, key: str) -> None:
        """Open a stream for this reader; raises HistoryError `busy` if it has too many."""
        with self._lock:
            if len(self._uses) >= _USES_KEPT:
                self._forget_idle()
            use = self._uses.setdefault(key, _Use())
            if use.streams >= self._limits.streams_max:
                self._refused += 1
                detail = (
                    f"this reader has {use.streams} open streams, the maximum of history.streams_max; "
                    "run fewer tasks at a time, or raise it"
                )
                raise HistoryError(Problem("busy", detail))
            use.streams += 1
            self._streams += 1

    def end(self, key: str) -> None:
        """Close a stream of this reader."""
        with self._lock:
            use = self._uses[key]
            use.streams -= 1
            self._streams -= 1

    def _forget_idle(self) -> None:
        """Remove readers without open streams whose bytes are paid for, so that a rate holds across successive streams."""
        now = self._now()
        self._uses = {key: use for key, use in self._uses.items() if use.streams or use.paid_at > now}

    def sent(self, key: str, rows: int, size_bytes: int) -> None:
        """Count what was sent, and wait as long as the reader's rate requires."""
        with self._lock:
            self._rows += rows
            self._bytes += size_bytes
            if not self._limits.bytes_per_s_max:
                return
            use = self._uses[key]
            now = self._now()
            use.paid_at = max(use.paid_at, now) + size_bytes / self._limits.bytes_per_s_max
            wait_s = use.paid_at - now
        # The first second's worth is sent at once, so that small reads never wait.
        if wait_s > 1.0:
            self._sleep(wait_s - 1.0)

    def served(self) -> Served:
        """The totals to report to the node."""
        with self._lock:
            return Served(self._rows, self._bytes, self._streams, self._refused)
