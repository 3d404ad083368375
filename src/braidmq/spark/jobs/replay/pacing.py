"""Pacing of a replay: at the original speed, slower or faster, with a maximum rate."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Generic, TypeVar

from braidmq.base.errors import ProtocolViolation, UsageError
from braidmq.mqtt.topics import check_topic

T = TypeVar("T")

# Maximum number of rows published at once; all of them are due.
CHUNK_ROWS_MAX: Final = 1000
_TOPICS_CACHED_MAX: Final = 100_000


class Pacer(Generic[T]):
    """Turns rows in order of time into chunks, each returned when it is due.

    `speed` is how many recorded seconds pass per second; None: everything is due. `rate` is the maximum rows per second.
    """

    def __init__(
        self,
        moment_of: Callable[[T], float],
        *,
        speed: float | None = None,
        rate: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._moment_of = moment_of
        self._speed = speed
        self._spacing_s = 1 / rate if rate else 0.0
        self._clock = clock
        self._sleep = sleep
        self._began: tuple[float, float] | None = None  # by our clock, and in recorded time
        self._free_at = clock()  # when the rate allows the next row

    def chunks(self, rows: Iterable[T]) -> Iterator[Sequence[T]]:
        """Chunks of the rows, in their order; sleeps until the first row of each is due."""
        waiting: list[T] = []
        for row in rows:
            due_at = self._due_at(row)
            if waiting and (due_at > self._clock() or len(waiting) >= CHUNK_ROWS_MAX):
                yield waiting
                waiting = []
            pause = due_at - self._clock()
            if pause > 0:
                self._sleep(pause)
            waiting.append(row)
        if waiting:
            yield waiting

    def _due_at(self, row: T) -> float:
        moment = self._moment_of(row)
        now = self._clock()
        if self._began is None:
            self._began = now, moment
        due_at = now if self._speed is None else self._began[0] + (moment - self._began[1]) / self._speed
        if self._spacing_s:
            due_at = max(due_at, self._free_at)
            # A pause in the recording does not allow a burst after it.
            self._free_at = max(due_at, now) + self._spacing_s
        return due_at


class TopicMap:
    """Renames topics by the first regular expression that matches, then adds a prefix."""

    def __init__(self, rules: Iterable[str] = (), prefix: str = "") -> None:
        """Rules are `REGEX=>REPLACEMENT`; raises UsageError for an invalid one."""
        self._rules = [_rule(each) for each in rules]
        self._prefix = prefix
        self._known: dict[str, str] = {}

    def of(self, topic: str) -> str:
        """The new topic; raises UsageError if it is invalid."""
        found = self._known.get(topic)
        if found is None:
            if len(self._known) >= _TOPICS_CACHED_MAX:
                self._known.clear()
            found = self._known[topic] = self._make(topic)
        return found

    def _make(self, topic: str) -> str:
        made = topic
        for pattern, replacement in self._rules:
            made, count = pattern.subn(replacement, topic, count=1)
            if count:
                break
        made = self._prefix + made
        try:
            check_topic(made)
        except ProtocolViolation as problem:
            raise UsageError(f"the topic {topic!r} would become {made!r}: {problem.detail}", "fix --map or --prefix") from None
        return made


def _rule(text: str) -> tuple[re.Pattern[str], str]:
    regex, arrow, replacement = text.partition("=>")
    if not arrow:
        raise UsageError(f"--map takes REGEX=>REPLACEMENT, not {text!r}", r"as in --map '^plant/(.*)=>test/\1'")
    try:
        pattern = re.compile(regex)
        pattern.subn(replacement, "")
        return pattern, replacement
    except (re.error, IndexError) as problem:
        raise UsageError(f"--map {text!r} cannot be used: {problem}") from None


def parse_speed(text: str) -> float | None:
    """Parse `10x` or `10`; None for `max`, as fast as possible. Raises UsageError."""
    if text == "max":
        return None
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise UsageError(f"{text!r} is not a speed", "write 1x for the original speed, 10x for ten times that, or max")
    return speed
