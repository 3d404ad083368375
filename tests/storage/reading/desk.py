"""A desk at which readers share the lists of a few epochs, with a clock that is moved by hand."""

from __future__ import annotations

from braidmq.storage.format.rows import EpochLimits
from braidmq.storage.reading.epoch_scan import ScanCache, ScanLimits
from braidmq.storage.reading.reader import LogReader, ShardScan
from tests.storage.log import Log

CLAIM_S = 1.0


class Clock:
    """Stands still until the test moves it."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


class Desk:
    """A log with one epoch of 100 records, and readers of it with little room for their lists."""

    def __init__(self, *, scans_max: int = 2, bytes_max: int = 1_000_000) -> None:
        self.log = Log(limits=EpochLimits(count_max=100))
        self.stamps = self.log.append(*(f"t/{number % 7}" for number in range(100)), payload=bytes(100))
        self.clock = Clock()
        self.scans = ScanCache(scans_max, bytes_max, CLAIM_S, self.clock)
        self.reader = LogReader(self.log.store, self.log.shard, self.scans, self.clock, ScanLimits(steps=10))
        self.log.store.records_read = 0

    def replay(self, number: int) -> ShardScan:
        """A reader of everything whose filters nobody else has."""
        return self.reader.start_replay(["t/#", f"other/{number}"], 0)

    @property
    def scanned(self) -> float:
        """How many times the epoch was read."""
        return round(self.log.store.records_read / 100, 1)
