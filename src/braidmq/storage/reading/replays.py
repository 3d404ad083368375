"""Replays of a whole log: which families a reader has to read, and what retention has deleted there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from braidmq.base.errors import UsageError
from braidmq.storage.ports import Reads
from braidmq.storage.reading.epoch_scan import ScanCache, ScanLimits
from braidmq.storage.reading.merge import MergedScan
from braidmq.storage.reading.positions import EARLIEST
from braidmq.storage.reading.reader import LogReader, RetentionGap
from braidmq.storage.shard.class_shard import LogShard
from braidmq.storage.shard.classes import ClassTable

# The number of lists in memory.
_SCANS_PER_FAMILY: Final = 64


class LogReaders:
    """Starts replays over all shards; their lists share one bounded cache."""

    def __init__(self, store: Reads, shards: Sequence[LogShard], classes: ClassTable, scan_bytes_max: int) -> None:
        self._classes = classes
        families = len(shards) * len(classes)
        self._scans = scans = ScanCache(_SCANS_PER_FAMILY * families, scan_bytes_max)
        # The lists of all families of a merged replay must fit at once, or each would evict the next one's.
        limits = ScanLimits(values_bytes_max=scan_bytes_max // (2 * families))
        self._readers = [[LogReader(store, family, scans, limits=limits) for family in shard] for shard in shards]

    def replay(self, filters: Sequence[str], start: Mapping[int, int] | int, with_session_only: bool) -> MergedScan:
        """See `DurableLog.replay`."""
        positions = self._positions(start)
        seniority = self._scans.seniority()
        return MergedScan(
            (shard, reader.start_replay(filters, positions[shard], with_session_only=with_session_only, seniority=seniority))
            for shard, reader in self._for(filters)
        )

    def gaps(self, start: Mapping[int, int] | int, filters: Sequence[str]) -> dict[int, RetentionGap]:
        """See `DurableLog.gaps`."""
        positions = self._positions(start)
        gaps: dict[int, RetentionGap] = {}
        for shard, reader in self._for(filters):
            position, floor = positions[shard], reader.shard.floor
            if position != EARLIEST and position < floor - 1:
                gaps[shard] = RetentionGap(position, floor).widened(gaps.get(shard))
        return gaps

    def tick(self) -> None:
        """Let readers that wait for room look again: a claim may have lapsed. Call it every second."""
        self._scans.tick()

    def close(self) -> None:
        """Release everything that would keep the directory locked."""
        self._readers = []

    def _for(self, filters: Sequence[str]) -> list[tuple[int, LogReader]]:
        """The readers of all families that may match these filters, with their shards."""
        wanted = [each for each in range(len(self._classes)) if self._classes.may_hold(each, filters)]
        return [(shard, readers[each]) for shard, readers in enumerate(self._readers) for each in wanted]

    def _positions(self, start: Mapping[int, int] | int) -> Mapping[int, int]:
        numbers = range(len(self._readers))
        if isinstance(start, int):
            return dict.fromkeys(numbers, start)
        if start.keys() != set(numbers):
            raise UsageError(f"a start needs a position for each of the {len(numbers)} shards, and for no others")
        return start
