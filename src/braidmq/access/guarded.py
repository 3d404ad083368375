"""Guards against an authenticator that is slow, fails or returns nonsense: each such answer becomes a rejection.

Hooks that authenticate clients are asked through a ``Breaker``. An answer that does not come in time, an exception, and anything
that is not a verdict become ``Refused(0x88)``. After a few failures in a row the authenticator is suspended for a short while;
then one client is passed to it as a test. One line in the log raises the alarm, another one ends it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from braidmq.access.contract import Granted, Refused
from braidmq.base.deadline_clock import wait_fairly
from braidmq.mqtt.reasons import Reason

log = logging.getLogger(__name__)

T = TypeVar("T")

_FAILURES_IN_A_ROW = 3
_PAUSE_S = 2.0

_REASONS: Final = frozenset(
    {
        Reason.BAD_USER_NAME_OR_PASSWORD,
        Reason.NOT_AUTHORIZED,
        Reason.SERVER_UNAVAILABLE,
        Reason.SERVER_BUSY,
        Reason.BANNED,
        Reason.BAD_AUTHENTICATION_METHOD,
        Reason.QUOTA_EXCEEDED,
        Reason.USE_ANOTHER_SERVER,
        Reason.SERVER_MOVED,
        Reason.CONNECTION_RATE_EXCEEDED,
    }
)

_REFUSED: Final = Refused(Reason.SERVER_UNAVAILABLE, "the authenticator returned an invalid answer")
_PAUSED: Final = Refused(Reason.SERVER_UNAVAILABLE, "the authenticator failed and is suspended for a moment")
_BUSY: Final = Refused(Reason.CONNECTION_RATE_EXCEEDED, "too many clients wait for the authenticator")


class Breaker:
    """Asks questions of an authenticator that may be slow, down or wrong; every answer that is not sound is a refusal.

    At most ``waiting_max`` questions are under way, including those that were given up but do not end.
    """

    def __init__(
        self,
        seconds: float,
        *,
        waiting_max: int = 1000,
        pause_s: float = _PAUSE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds = seconds
        self._waiting_max = waiting_max
        self._pause_s = pause_s
        self._clock = clock
        self._under_way: set[asyncio.Task[Any]] = set()
        self._failures = 0
        self._paused_until = 0.0

    @property
    def is_alarmed(self) -> bool:
        """Whether there were several failures in a row without a valid answer since."""
        return self._failures >= _FAILURES_IN_A_ROW

    async def ask(self, question: Callable[[], Coroutine[Any, Any, T]], is_sound: Callable[[object], bool]) -> T | Refused:
        """The answer if it comes in time and ``is_sound`` accepts it, else a rejection."""
        if not self._may_ask():
            return _PAUSED
        if len(self._under_way) >= self._waiting_max:
            return _BUSY
        task = asyncio.get_running_loop().create_task(_run(question))
        self._under_way.add(task)
        task.add_done_callback(self._end)
        try:
            await wait_fairly(task, self._seconds)
        finally:
            # Cancelled but not awaited: a call that ignores the deadline may ignore the cancellation as well.
            if not task.done():
                task.cancel()
        if not task.done() or task.cancelled():
            return self._fail("no answer within %g s", self._seconds)
        if (error := task.exception()) is not None:
            return self._fail("%s: %s", type(error).__name__, error)
        answer = task.result()
        if not is_sound(answer):
            return self._fail("an answer of type %s, not a verdict", type(answer).__name__)
        if self.is_alarmed:
            log.warning("the authenticator answers again")
        self._failures, self._paused_until = 0, 0.0
        return answer

    def _may_ask(self) -> bool:
        now = self._clock()
        if now < self._paused_until:
            return False
        if self.is_alarmed:
            # The first client after the pause is the test; the others wait for its outcome.
            self._paused_until = now + self._seconds + self._pause_s
        return True

    def _fail(self, problem: str, *details: object) -> Refused:
        self._failures += 1
        if self._failures == _FAILURES_IN_A_ROW:
            log.error(f"ALARM: the authenticator has failed {self._failures} times in a row, last: {problem}", *details)
        elif self._failures < _FAILURES_IN_A_ROW:
            log.warning(f"the authenticator failed: {problem}", *details)
        if self.is_alarmed:
            self._paused_until = self._clock() + self._pause_s
        return _REFUSED

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report the late failure of an abandoned call


def is_verdict(answer: object) -> bool:
    """Whether an authenticator may return this answer."""
    match answer:
        case Granted(user_name=user_name):
            return user_name is None or isinstance(user_name, str)
        case Refused(reason=reason):
            return isinstance(reason, int) and reason in _REASONS
        case _:
            return False


async def _run(question: Callable[[], Coroutine[Any, Any, T]]) -> T:
    # In a task of its own, so that even an exception before the first await belongs to the call.
    try:
        return await question()
    except SystemExit as error:
        raise RuntimeError("it tried to exit the process") from error  # which a task may do
