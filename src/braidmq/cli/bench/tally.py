"""The counters of a benchmark: messages, losses and latencies of all connections together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from struct import Struct

from braidmq.cli.bench.frames import HEADER, MAGIC
from braidmq.cli.bench.histogram import Histogram
from braidmq.cli.bench.runs import Run


class Tally:
    """Counters of one run. ``latency`` covers all of it, ``recent`` the time since ``take_recent``."""

    def __init__(self) -> None:
        self.connected = 0
        self.disconnected = 0
        self.sent = 0
        self.acknowledged = 0
        self.refused = 0
        self.received = 0
        self.lost = 0
        self.duplicates = 0
        self.failures: Counter[str] = Counter()
        self.latency = Histogram()
        self.recent = Histogram()

    def add_latency(self, duration_ns: int, count: int = 1) -> None:
        """Count a latency of this many messages or connections."""
        self.latency.add(duration_ns, count)
        self.recent.add(duration_ns, count)

    def take_recent(self) -> Histogram:
        """The latencies since the last call."""
        recent, self.recent = self.recent, Histogram()
        return recent


class Sequences:
    """The next sequence number that a subscriber expects from each publisher."""

    def __init__(self, tally: Tally, *, counts_loss: bool = True, starts_at_zero: bool = False) -> None:
        self._tally = tally
        self._counts_loss = counts_loss
        self._starts_at_zero = starts_at_zero
        self._next: dict[int, int] = {}

    def take(self, data: bytes, run: Run, now_ns: int) -> list[tuple[int, int]]:
        """Count a run of messages; returns the number of new ones by publisher. Foreign payloads are only counted."""
        self._tally.received += run.frames
        if run.stride - run.payload_at < HEADER.size or not _is_ours(data, run):
            return []
        fields = _fields(run.payload_at, run.stride).iter_unpack(memoryview(data)[run.at : run.end])
        publishers, sequences, times = zip(*fields, strict=True)
        for sent_ns, count in Counter(times).items():
            self._tally.add_latency(now_ns - sent_ns, count)
        if not self._counts_loss:
            return []
        publisher, first, count = publishers[0], sequences[0], run.frames
        is_plain = (
            first == self._next.get(publisher, 0 if self._starts_at_zero else first)
            and publishers.count(publisher) == count
            and sequences == tuple(range(first, first + count))
        )
        if is_plain:
            self._next[publisher] = first + count
            return [(publisher, count)]
        return self._take_one_by_one(zip(publishers, sequences, strict=True))

    def _take_one_by_one(self, pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        fresh: Counter[int] = Counter()
        for publisher, sequence in pairs:
            expected = self._next.get(publisher, 0 if self._starts_at_zero else sequence)
            if sequence < expected:
                self._tally.duplicates += 1
                continue
            # A lost message never arrives, so it counts as received for the window that waits for it.
            self._tally.lost += sequence - expected
            fresh[publisher] += sequence - expected + 1
            self._next[publisher] = sequence + 1
        return list(fresh.items())


def _is_ours(data: bytes, run: Run) -> bool:
    return all(run.lane(data, run.payload_at + place) == MAGIC[place : place + 1] * run.frames for place in range(len(MAGIC)))


@lru_cache(maxsize=256)
def _fields(payload_at: int, stride: int) -> Struct:
    """Unpacks publisher, sequence number and time of one packet."""
    return Struct(f">{payload_at + len(MAGIC)}xIQQ{stride - payload_at - HEADER.size}x")
