"""Logs where the event loop is stuck, from a thread.

Hooks run on the loop. One that waits for something or never ends stops the whole node, which then cannot say why. This thread
can: it notices that the loop has not beaten for a while and logs where it is. It changes nothing.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from time import monotonic
from typing import Final

from braidmq.broker.timers import Timers

log = logging.getLogger("braidmq.broker")

_STUCK_S: Final = 3.0
_LOOK_EVERY_S: Final = 1.0
_FRAMES: Final = 4  # of the innermost calls


class LoopWatch:
    """A thread that watches the loop of the thread that made it, from ``start`` to ``stop``."""

    def __init__(self, timers: Timers, stuck_s: float = _STUCK_S, look_every_s: float = _LOOK_EVERY_S) -> None:
        self._timers = timers
        self._stuck_s = stuck_s
        self._look_every_s = look_every_s
        self._watched = threading.get_ident()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loop-watch", daemon=True)

    def start(self) -> None:
        """Watch from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; the thread ends by itself."""
        self._is_over.set()

    def _run(self) -> None:
        told_of, looked_at = 0.0, monotonic()
        while not self._is_over.wait(self._look_every_s):
            now, beaten_at = monotonic(), self._timers.beaten_at
            was_paused = now - looked_at > 2 * self._look_every_s  # the whole process, this thread included
            looked_at = now
            if now - beaten_at > self._stuck_s and beaten_at != told_of and not was_paused:
                told_of = beaten_at
                log.error("the event loop has been busy for %.1f s and serves no client: %s", now - beaten_at, self._where())

    def _where(self) -> str:
        frame = sys._current_frames().get(self._watched)
        calls = traceback.extract_stack(frame)[-_FRAMES:] if frame is not None else []
        return " < ".join(f"{call.name} ({call.filename}:{call.lineno})" for call in reversed(calls))
