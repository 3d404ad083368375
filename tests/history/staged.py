"""A log with a view of it beside, in one process: the test says when the view hears of commits."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from braidmq.base.config.settings import HistoryClassSettings
from braidmq.base.units import Seconds
from braidmq.flight.wire import Part, Plan, Ticket
from braidmq.history.view.log_view import LogView
from braidmq.mqtt.topics import matches
from braidmq.storage.format.rows import EpochLimits
from braidmq.storage.log import LogOptions
from braidmq.storage.shard.clock import ShardClock
from braidmq.storage.shard.shard import Shard
from tests.storage.log import LAYOUTS, Hands
from tests.storage.message_log import Stage, clients_of

SECOND = 1_000_000
SHARDS = 2


class Known(NamedTuple):
    """A record that was committed, as the test knows it; `number` is its payload."""

    shard: int
    position: int
    topic: str
    number: int
    session_only: bool


@contextmanager
def folder() -> Iterator[Path]:
    """A directory for one example of a property test, in memory if that can be had: most of the time would go to the disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


class Viewed(Stage):
    """A log of two shards with small epochs and a clock that the test moves, and a view that knows what it was told."""

    def __init__(
        self,
        path: Path,
        *,
        layout: str = "learned",
        limits: EpochLimits | None = None,
        retention_s: float = 1e6,
        classes: dict[str, HistoryClassSettings] | None = None,
        idle_s: float = 60.0,
    ) -> None:
        self.hands = Hands()
        self.known: list[Known] = []
        self.heard: dict[int, int] = {}
        self._topics: dict[bytes, tuple[str, bool]] = {}
        super().__init__(
            path / "data",
            shards=SHARDS,
            layout=layout,
            durability="fsync",  # without it the clock would be bound by the ceiling, which only a ticking node renews
            retention=Seconds(retention_s),
            classes=classes or {},
            clock=ShardClock(lambda: self.hands.boot, lambda: self.hands.wall),
            options=LogOptions(limits=limits or EpochLimits(count_max=4), tail_bytes_max=0, layout_parameters=LAYOUTS[layout]),
        )
        self.clients = [clients_of(self.log, shard)[0] for shard in range(SHARDS)]
        self.view = LogView.open(path / "data" / "log", path / "scratch", idle_s=idle_s)

    def __exit__(self, *_: object) -> None:
        self.view.close()
        super().__exit__()

    def write(self, *records: tuple[int, str], session_only: bool = False) -> None:
        """Append records of these shards and topics, and commit them; the view is not told."""
        for shard, topic in records:
            payload = b"%d" % len(self._topics)
            self._topics[payload] = topic, session_only
            self.append(self.clients[shard], topic, payload, session_only=session_only)
            self.hands.move(7)
        self.settle()
        for payload, shard, timestamp in self.acks:
            self.known.append(Known(shard, timestamp, self._topics[payload][0], int(payload), self._topics[payload][1]))
        self.acks.clear()

    def hear(self) -> None:
        """Tell the view what is committed."""
        self.heard = self.log.watermarks
        self.view.on_watermarks(self.heard)

    def catch_up(self, *, counts: bool = True) -> None:
        """Let the view see what is in the log now, whether it was told of it or not; without knowing it if it does not count."""
        follower = self.view._follower
        with follower.using() as opened:
            if counts:
                follower._catch_up(opened, None)
            else:
                opened.store.catch_up()

    def publish_all(self, *records: tuple[int, str]) -> None:
        """Append, commit and tell."""
        self.write(*records)
        self.hear()

    def family(self, record: Known) -> Shard:
        """Where a record is, as the log itself knows it."""
        return self.log._shards[record.shard].families[self.log._classes.class_of(record.topic.encode())]

    def floor(self, record: Known) -> int:
        """Where the family of a record begins."""
        return self.family(record).floor

    def expected(self, filters: Sequence[str], starts: dict[int, int], ends: dict[int, int]) -> list[Known]:
        """What is in a range, by the naive rule, in order of time."""
        return sorted(
            each
            for each in self.known
            if not each.session_only
            and starts[each.shard] < each.position <= min(ends[each.shard], self.heard.get(each.shard, 0))
            and each.position >= self.floor(each)
            and any(matches(one, each.topic) for one in filters)
        )

    def rows(self, plan: Plan) -> list[Known]:
        """What the view gives for a plan, in the order in which it comes."""
        _, parts = self.view.plan(plan)
        return self.rows_of(parts)

    def rows_of(self, parts: Iterable[tuple[Ticket, Part]]) -> list[Known]:
        found: list[Known] = []
        for ticket, part in parts:
            rows = [row for batch in self.view.scan(ticket) for row in knowns(batch)]
            assert all(ticket.start < row.position <= ticket.end and row.shard == ticket.shard for row in rows)
            assert len(rows) <= part.rows_max
            found += rows
        return found


def knowns(batch: pa.RecordBatch) -> list[Known]:
    """The rows of a batch."""
    batch.validate(full=True)
    fields = (batch.column(name).to_pylist() for name in ("shard", "position", "topic", "payload"))
    return [Known(shard, position, topic, int(payload), False) for shard, position, topic, payload in zip(*fields, strict=True)]


def is_ordered_by_topic(rows: Sequence[Known]) -> bool:
    """Whether rows of one topic and shard are in order of their positions."""
    last: dict[tuple[int, str], int] = {}
    for row in rows:
        if last.get((row.shard, row.topic), 0) >= row.position:
            return False
        last[row.shard, row.topic] = row.position
    return True
