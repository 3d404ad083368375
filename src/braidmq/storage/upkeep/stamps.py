"""Keeps the ceiling of the timestamps some seconds ahead of the log's clock (C36), with ``history.durability = "os"``.

- A record is stamped only up to a ceiling that is on disk. If there is no new one in time, because the disk is slow or the node
  was paused, stamps stop following the clock and are a microsecond apart; when none is left, messages are refused.
- A start begins above the ceiling it finds, whatever the durability is now. After an orderly stop the ceiling is the last stamp.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from braidmq.base.errors import Unavailable
from braidmq.storage.engine.ceiling import CeilingFile, ceiling_path
from braidmq.storage.shard.class_shard import LogShard
from braidmq.storage.shard.clock import ShardClock

log = logging.getLogger("braidmq.storage")

AHEAD_US: Final = 5_000_000
_RENEW_BELOW_US: Final = 3_000_000
ROOM_US: Final = 1_000_000  # where stamps stop following the clock; enough for all records until the ceiling is written
_CLOSE_TIMEOUT_S: Final = 10.0


class StampCeiling:
    """The ceiling of one log; used from one thread, which it never blocks once the log is open."""

    def __init__(self, log_path: Path, clock: ShardClock, shards: Sequence[LogShard], *, is_kept: bool) -> None:
        """Read the ceiling and, if it is to be kept, write the first one; blocks. Raises Unavailable."""
        self._file = CeilingFile(ceiling_path(log_path))
        self.found = self._file.value  # a start begins above it
        self._log_path = log_path
        self._clock = clock
        self._shards = shards
        self._is_kept = is_kept
        self._renewal: threading.Thread | None = None
        self._has_failed = False
        if is_kept:
            try:
                self._file.put(max(clock.now(), self.found) + AHEAD_US)
            except OSError as problem:
                raise Unavailable(f"cannot write {ceiling_path(log_path)}: {problem}") from problem
            clock.stamp_max = self._file.value - ROOM_US

    @property
    def _last(self) -> int:
        return max(shard.last_stamp for shard in self._shards)

    def admit(self, stamps: Iterable[list[int]]) -> None:
        """Raise Unavailable if one of these lists of rising stamps ends above the ceiling."""
        if self._is_kept and max((each[-1] for each in stamps if each), default=0) > self._file.value:
            raise Unavailable(f"the ceiling for timestamps of the log in {self._log_path} could not be raised in time")

    def check(self) -> None:
        """Start to write a new ceiling if it is time; call it every second."""
        if not self._is_kept or (self._renewal is not None and self._renewal.is_alive()):
            return
        self._clock.stamp_max = self._file.value - ROOM_US
        target = max(self._clock.now(), self._last) + AHEAD_US
        if target - self._file.value >= AHEAD_US - _RENEW_BELOW_US:
            self._renewal = threading.Thread(target=self._renew, args=(target,), name="braidmq-ceiling", daemon=True)
            self._renewal.start()

    def _renew(self, target: int) -> None:
        """In a thread."""
        try:
            self._file.put(target)
        except OSError as problem:
            if not self._has_failed:
                log.warning("cannot write the ceiling for timestamps of the log in %s: %s", self._log_path, problem)
            self._has_failed = True
        else:
            self._has_failed = False

    def close(self) -> None:
        """After an orderly stop of the log: lower the ceiling to the last stamp. Blocks."""
        if self._renewal is not None:
            self._renewal.join(_CLOSE_TIMEOUT_S)
        if not self._is_kept or (self._renewal is not None and self._renewal.is_alive()):
            return
        try:
            self._file.put(self._last)
        except OSError as problem:
            log.warning("the next timestamps of the log in %s may be some seconds ahead: %s", self._log_path, problem)
