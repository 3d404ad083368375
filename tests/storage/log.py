"""A shard on a fake store with a clock of its own, for tests of the log."""

from __future__ import annotations

from collections.abc import Sequence

from braidmq.lane.records.records import Record, encode_record
from braidmq.storage.format.rows import EpochLimits
from braidmq.storage.layouts import make_layout
from braidmq.storage.layouts.hashed import HashedLayout
from braidmq.storage.layouts.learned import LearnedLayout
from braidmq.storage.reading.reader import LogReader, ShardScan
from braidmq.storage.shard.clock import ShardClock
from braidmq.storage.shard.producer_marks import ProducerMark
from braidmq.storage.shard.shard import Shard, ShardOptions
from tests.support.fakes.store import FakeStore

FAMILY = "shard-00"
NOON = 1_700_000_000_000_000

# Small thresholds and few bits: levels vary soon, and hashes collide.
LAYOUTS = {
    "learned": LearnedLayout((2, 1)).parameters(),
    "hashed": HashedLayout((3, 2, 3)).parameters(),
}


class Hands:
    """The two clocks that a shard's clock looks at, moved by the test."""

    def __init__(self, now: int = NOON) -> None:
        self.boot = 5_000_000
        self.wall = now

    def move(self, microseconds: int) -> None:
        """Let time pass."""
        self.boot += microseconds
        self.wall += microseconds

    def clock(self) -> ShardClock:
        return ShardClock(lambda: self.boot, lambda: self.wall)


class Log:
    """A shard, its store and its reader; `append` writes and commits unless told otherwise."""

    def __init__(
        self,
        layout: str = "learned",
        limits: EpochLimits | None = None,
        store: FakeStore | None = None,
        hands: Hands | None = None,
        tail_bytes_max: int = 0,
    ) -> None:
        self.store = store or FakeStore()
        self.hands = hands or Hands()
        self.options = ShardOptions(layout, LAYOUTS[layout], limits or EpochLimits(), tail_bytes_max)
        self.shard = Shard(self.store, FAMILY, self.hands.clock(), make_layout, self.options)
        self.shard.recover()
        self.reader = LogReader(self.store, self.shard)

    def append(
        self, *topics: str, payload: bytes = b"x", producer: bytes = b"", sequence: int = 0, commit: bool = True
    ) -> list[int]:
        """Append one record for each topic in one batch, the last of them with the producer's sequence."""
        batch = self.store.batch()
        stamps = self.shard.append(batch, entries(topics, payload))
        if producer:
            self.shard.mark_producer(producer, ProducerMark(sequence))
        self.write(batch, commit)
        return stamps

    def write(self, batch: object, commit: bool = True) -> None:
        """Seal, write and adopt a batch."""
        self.shard.seal(batch)  # type: ignore[arg-type]
        number = self.store.write(batch)  # type: ignore[arg-type]
        self.shard.adopt(number)
        if commit:
            self.commit()

    def commit(self) -> None:
        self.store.committed = len(self.store.writes)
        self.shard.commit(self.store.committed)

    def reopened(self, kept: int | None = None) -> Log:
        """The log after a crash that left so many writes, or all."""
        store = self.store.crashed(len(self.store.writes) if kept is None else kept)
        opened = Log(store=store, hands=self.hands)
        opened.options = self.options
        opened.shard = Shard(store, FAMILY, self.hands.clock(), make_layout, self.options)
        opened.shard.recover()
        opened.reader = LogReader(store, opened.shard)
        return opened

    def read(self, *filters: str, start: int = 0) -> list[Record]:
        """Everything that matches from there on."""
        return drain(self.reader.start_replay(filters, start))


def entries(topics: Sequence[str], payload: bytes = b"x") -> list[tuple[bytes, bytes]]:
    return [(topic.encode(), encode_record(topic.encode(), payload, 1, False, "p")) for topic in topics]


def drain(replay: ShardScan, count: int = 1000) -> list[Record]:
    """Read until there is nothing left."""
    records: list[Record] = []
    for _ in range(100_000):
        if replay.is_caught_up:
            return records
        records += replay.next(count)
    raise AssertionError("the replay does not come to an end")


def stamps_of(records: Sequence[Record]) -> list[int]:
    return [record.timestamp for record in records]
