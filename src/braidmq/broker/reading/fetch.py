"""Fetches records whose places in the log are known: messages in flight (`recall`) and returned messages of shared groups.

They are read in order of time, and may lie far apart: a stretch without any of them is skipped. A record that is not found
at its place was deleted by retention, or does not match the filters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from braidmq.broker.ports import LogScan
from braidmq.broker.reading.source import LogSource, ReaderScan
from braidmq.lane.records.records import Record

Place = tuple[int, int]  # shard and timestamp

_READ = 64  # records asked for at a time: few, because they lie apart


class RecordFetch:
    """Reads some records by their places; ``close`` ends it early."""

    def __init__(
        self, source: LogSource, filters: Sequence[str], places: Iterable[Place], wake: Callable[[], None], name: str
    ) -> None:
        """``wake`` asks the reader to continue when the source is ready; ``name`` is for log messages."""
        self._source = source
        self._filters = filters
        self._missing = dict.fromkeys(places)
        self._scan = ReaderScan(source.later, self._open, wake, name)

    @property
    def is_blocked(self) -> bool:
        """Whether nothing can be read before the reader is woken."""
        return self._scan.is_blocked

    @property
    def is_over(self) -> bool:
        """Whether every record was found or is gone."""
        return not self._missing

    def run(self, slice_s: float) -> dict[Place, Record | None]:
        """Read for a slice; returns the records found, and None for those that are gone."""
        records = self._scan.next(_READ, slice_s)
        scan = None if records is None else self._scan.open()
        if records is None or scan is None:
            return {}
        known: dict[Place, Record | None] = {}
        for shard, record in records:
            place = shard, record.timestamp
            if place in self._missing:
                known[place] = record
        is_in_vain = bool(records) and not known
        upto = {} if scan.is_caught_up else scan.positions()
        for place in self._missing:
            if place not in known and (place[0] not in upto or upto[place[0]] >= place[1]):
                known[place] = None
        for place in known:
            del self._missing[place]
        if is_in_vain or not self._missing:
            self._scan.close()  # the next run begins at the first that is missing, which may be days later
        return known

    def close(self) -> None:
        """Release the scan; no wake-up follows."""
        self._scan.close()

    def _open(self) -> LogScan:
        positions = list(self._source.state.marks)
        for shard, timestamp in self._missing:
            positions[shard] = min(positions[shard], timestamp - 1)
        return self._source.open(self._filters, positions)
