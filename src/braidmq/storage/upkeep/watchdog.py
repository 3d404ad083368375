"""Timers of an open log: its health every second, retention, and a better layout if configured.

Slow work runs in a thread, one task at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from braidmq.base.errors import Unavailable
from braidmq.storage.engine.health import HEALTHY, Health, HealthState
from braidmq.storage.log import DurableLog
from braidmq.storage.upkeep.generations import RelearnGain

Result = TypeVar("Result")

log = logging.getLogger("braidmq.storage")

_CHECK_S: Final = 1.0
_RETAIN_CHECKS: Final = 10  # checks between two steps of retention
_LEARN_CHECKS: Final = 600  # checks between two analyses of the learned patterns


class Watchdog:
    """Timers on the loop; `health` is the result of the last check."""

    def __init__(self, message_log: DurableLog, *, relearns: bool = False, on_slow: Callable[[bool], None] | None = None) -> None:
        """`on_slow` is called when the log starts or stops being slow."""
        self.health: Health = HEALTHY
        self._log = message_log
        self._relearns = relearns
        self._on_slow = on_slow
        self._checks = 0
        self._timer: asyncio.TimerHandle | None = None
        self._work: asyncio.Future[Any] | None = None
        self._is_stopped = False
        self._clock_alarm = ""

    def start(self) -> None:
        """Check now, and regularly from now on."""
        self._check()

    def stop(self) -> None:
        """Stop checking. Work in a thread may continue; closing the log waits for it."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_CHECK_S, self._check)
        self._checks += 1
        health = self._log.check()
        if (health.state, health.reason) != (self.health.state, self.health.reason):
            _tell(self.health, health)
        if self._on_slow is not None and (health.state is HealthState.SLOW) != (self.health.state is HealthState.SLOW):
            self._on_slow(health.state is HealthState.SLOW)
        self.health = health
        self._tell_clock()
        if self._checks % _RETAIN_CHECKS == 0:
            self._retain()
        if self._relearns and self._checks % _LEARN_CHECKS == 0:
            self._run_aside(self._log.relearn_gain, self._relearn, "relearning the topics")

    def _retain(self) -> None:
        self._try(self._log.retain, "retention")
        if self.health.state is HealthState.STOPPED and not self.health.needs_restart:
            # Nothing is written now, so nothing else would free the space of records that retention has removed.
            self._run_aside(self._log.reclaim, lambda _: None, "freeing disk space")

    def _relearn(self, gain: RelearnGain) -> None:
        if gain.is_worth_it:
            self._log.relearn(gain)
            log.info("started a new generation of the log: %s", gain.reason)

    def _run_aside(self, work: Callable[[], Result], then: Callable[[Result], None], what: str) -> None:
        if self._work is not None:
            return

        def done(future: asyncio.Future[Result]) -> None:
            self._work = None
            if self._is_stopped:
                future.exception()  # the log may have been closed before the thread started
            else:
                self._try(lambda: then(future.result()), what)

        self._work = running = asyncio.get_running_loop().run_in_executor(None, work)
        running.add_done_callback(done)

    def _try(self, work: Callable[[], None], what: str) -> None:
        try:
            work()
        except Unavailable as problem:
            log.warning("%s has to wait: %s", what, problem.detail)

    def _tell_clock(self) -> None:
        alarm = self._log.clock_alarm
        said = "" if alarm is None else str(alarm)
        if said and said != self._clock_alarm:
            log.error("ALARM: the wall clock does not match the log: %s", said)
        self._clock_alarm = said


def _tell(before: Health, now: Health) -> None:
    if now.state is HealthState.OK:
        log.warning("the log accepts messages again (resolved: %s)", before.reason)
    elif now.state is HealthState.SLOW:
        log.warning("the log is slow: %s", now.reason)
    else:
        log.error("ALARM: the log accepts no messages, and nothing is acknowledged: %s", now.reason)
