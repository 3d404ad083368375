"""The led shards of a core's log, as nodes read it: nothing is said of other cores' shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from braidmq.broker.ports import Gap, LogScan
from braidmq.cluster.home.scans import ScannedLog
from braidmq.cluster.membership.led_shards import LedShards
from braidmq.lane.records.records import Record


class LedLog:
    """Reads the led shards; implements `scans.ScannedLog`. A reader need name positions of these alone."""

    def __init__(self, log: ScannedLog, led: LedShards) -> None:
        self._log = log
        self._led = led

    @property
    def watermarks(self) -> dict[int, int]:
        """The last committed timestamp of each led shard."""
        return {shard: mark for shard, mark in self._log.watermarks.items() if shard in self._led}

    def replay(self, filters: Sequence[str], start: Mapping[int, int] | int, *, with_session_only: bool = False) -> LogScan:
        """Read what matches one of the filters, later than the start, in order of time."""
        if not isinstance(start, int):
            marks = self._log.watermarks
            start = {shard: start.get(shard, mark) if shard in self._led else mark for shard, mark in marks.items()}
        return _LedScan(self._log.replay(filters, start, with_session_only=with_session_only), self._led)


class _LedScan:
    """A scan of the led shards; implements `LogScan`."""

    def __init__(self, scan: LogScan, led: LedShards) -> None:
        self._scan = scan
        self._led = led

    @property
    def is_caught_up(self) -> bool:
        return self._scan.is_caught_up

    @property
    def is_waiting(self) -> bool:
        return self._scan.is_waiting

    def when_ready(self, callback: Callable[[], None]) -> None:
        self._scan.when_ready(callback)

    def close(self) -> None:
        self._scan.close()

    def positions(self) -> dict[int, int]:
        return {shard: position for shard, position in self._scan.positions().items() if shard in self._led}

    def take_gaps(self) -> Mapping[int, Gap]:
        return {shard: gap for shard, gap in self._scan.take_gaps().items() if shard in self._led}

    def next(self, count_max: int, *, slice_s: float) -> list[tuple[int, Record]]:
        return self._scan.next(count_max, slice_s=slice_s)
