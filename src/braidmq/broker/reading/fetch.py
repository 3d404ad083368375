"""Fetches records whose position in the log is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from braidmq.broker.ports import LogScan
from braidmq.lane.records.records import Record

Place = tuple[int, int]  # shard and timestamp

_READ = 64  # records asked for at a time: they lie apart


class RecordFetch:
    """Reads records of one shard: the first, and those of the others that lie in the same stretch."""

    def __init__(self, replay: Callable[[list[int]], LogScan], marks: list[int], first: Place, others: Iterable[Place]) -> None:
        """``replay`` reads what is above the positions that it is given."""
        self._shard, start = first
        self._missing = sorted({start, *(timestamp for _, timestamp in others)})
        positions = list(marks)
        positions[self._shard] = start - 1
        self._replay = replay(positions)

    @property
    def is_waiting(self) -> bool:
        """Whether it needs room that others have; then let some time pass before the next run."""
        return self._replay.is_waiting

    def run(self, slice_s: float) -> dict[Place, Record | None] | None:
        """Read for a slice; what was found, None for what is no longer there. None as long as nothing can be said."""
        records = self._replay.next(_READ, slice_s=slice_s)
        by_timestamp = {record.timestamp: record for shard, record in records if shard == self._shard}
        upto = self._missing[-1] if self._replay.is_caught_up else self._replay.positions()[self._shard]
        known = [timestamp for timestamp in self._missing if timestamp <= upto]
        if not known:
            return None
        return {(self._shard, timestamp): by_timestamp.get(timestamp) for timestamp in known}
