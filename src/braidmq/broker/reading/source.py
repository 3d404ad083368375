"""Where readers of the log get their records: a source that may not be ready, may fail, and tells its readers when to go on.

The log may be remote, so a scan is *not ready* for as long as it likes, and it may fail at any call. Rules:

- A reader whose scan is not ready is *blocked*: it does not ask again, and takes no turns of the loop, until it is woken.
- It is woken at most once for each time it is blocked, however late. A reader that was paused or closed meanwhile is not woken.
- After a failure (`Unavailable`) the scan is closed and opened again from the reader's own positions after a while: a call that
  fails may have moved the scan past records that it did not hand out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial

from braidmq.base.errors import Unavailable
from braidmq.broker.ports import LogScan, MessageLog
from braidmq.broker.reading.shown import Showing, ShownScan
from braidmq.lane.path.state import State
from braidmq.lane.records.records import Record

log = logging.getLogger("braidmq.durability")

Later = Callable[[float, Callable[[], None]], object]  # calls back after this many seconds


class LogSource:
    """Opens scans of the node's log; made once."""

    def __init__(self, message_log: MessageLog, state: State, later: Later) -> None:
        self.state = state
        self.later = later
        self.showing = Showing(state)
        self.may_follow: Callable[[Sequence[str]], bool] = _always  # whether these filters are known to all publishers
        self.away: Callable[[], Collection[int]] = _nowhere  # the shards whose homes cannot be read now
        self._log = message_log

    def open(self, filters: Sequence[str], positions: Sequence[int]) -> LogScan:
        """Read everything above these positions, records of durable sessions included."""
        return self._log.replay(filters, dict(enumerate(positions)), with_session_only=True)

    def open_shown(self, filters: Sequence[str], positions: Sequence[int], *, leaves_out: bool = False) -> LogScan:
        """The same, only as far as messages have been delivered to followers, so that the reader may follow at its end.

        ``leaves_out``: it may do so without the shards that are ``away`` then.
        """
        scan = self.open(filters, positions)
        away = self.away if leaves_out else _nowhere
        return ShownScan(scan, self.showing, dict(enumerate(positions)), lambda: self.may_follow(filters), away)


def _always(filters: Sequence[str]) -> bool:
    return True


def _nowhere() -> Collection[int]:
    return ()


class ReaderScan:
    """The scan of one reader: opened when it is first needed, and again after a failure."""

    __slots__ = ("_later", "_name", "_open_scan", "_scan", "_ticket", "_wake")

    def __init__(self, later: Later, open_scan: Callable[[], LogScan], wake: Callable[[], None], name: str) -> None:
        """``wake`` asks the reader to continue, not within the call; ``name`` is for log messages."""
        self._later = later
        self._open_scan = open_scan
        self._wake = wake
        self._name = name
        self._scan: LogScan | None = None
        self._ticket: object | None = None  # of the wake-up that is awaited; an older one has no effect

    @property
    def is_open(self) -> bool:
        """Whether there is a scan, with what it has read ahead."""
        return self._scan is not None

    @property
    def is_blocked(self) -> bool:
        """Whether nothing can be read before the reader is woken."""
        return self._ticket is not None

    def open(self) -> LogScan | None:
        """The scan, opened if need be; None if that fails, and then the reader is woken later."""
        if self._scan is None:
            try:
                self._scan = self._open_scan()
            except Unavailable as problem:
                self._fail(problem)
        return self._scan

    def next(self, count_max: int, slice_s: float) -> list[tuple[int, Record]] | None:
        """The next records, perhaps none within the slice; None if the reader is blocked."""
        if self._ticket is not None:
            return None
        scan = self.open()
        if scan is None:
            return None
        try:
            records = scan.next(count_max, slice_s=slice_s)
        except Unavailable as problem:
            self._fail(problem)
            return None
        if records or not scan.is_waiting or scan.is_caught_up:
            return records
        scan.when_ready(self._new_wake())
        return None

    def close(self) -> None:
        """Release the scan; a wake-up that comes later has no effect."""
        self._ticket = None
        scan, self._scan = self._scan, None
        if scan is not None:
            scan.close()

    def _fail(self, problem: Unavailable) -> None:
        log.warning("%s has to wait for recorded messages: %s", self._name, problem.detail)
        self.close()
        self._later(problem.retry_after_s, self._new_wake())

    def _new_wake(self) -> Callable[[], None]:
        self._ticket = ticket = object()
        return partial(self._on_ready, ticket)

    def _on_ready(self, ticket: object) -> None:
        if ticket is self._ticket:
            self._ticket = None
            self._wake()
