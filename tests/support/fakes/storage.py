"""Durable storage in memory for a broker under test: commits come when the test says so, and a crash keeps what the test says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from braidmq.base.errors import Unavailable
from braidmq.base.shards import shard_of
from braidmq.base.start_position import Start, parse_start
from braidmq.broker.ports import (
    Change,
    CursorRow,
    GroupRow,
    SessionRow,
    Storage,
    StoredMessage,
    StoredSession,
    SubscriptionRow,
)
from braidmq.lane.recording.recorder import Block
from braidmq.lane.records.records import Record
from braidmq.mqtt.packets import Will
from braidmq.mqtt.topics import matches
from braidmq.storage.fences import FenceTable

Key = tuple[Any, ...]


class FakeChange(Change, Struct, frozen=True):
    """Set a row; None removes it."""

    key: Key
    value: Any


class FakeRefusal(Struct, frozen=True):
    """The disk is full."""

    reason: str = "the disk is full"
    is_in_doubt: bool = False


class FakeBatch:
    """What was flushed at once."""

    def __init__(self) -> None:
        self.records: list[tuple[int, Record]] = []
        self.changes: list[Change] = []
        self.waiters: list[tuple[Callable[[], None], Callable[[Any], None]]] = []


class FakeReplay:
    """Reads what is committed, one shard after the other merged by time, a few records at a time."""

    def __init__(self, log: FakeLog, filters: Sequence[str], start: Mapping[int, int]) -> None:
        self._log = log
        self._filters = filters
        self._positions = dict(start)
        log.scans.append(self)

    def _rest(self) -> list[tuple[int, Record]]:
        return [
            (shard, record)
            for shard, record in self._log.records
            if record.timestamp > self._positions[shard] and any(matches(each, record.topic.decode()) for each in self._filters)
        ]

    @property
    def is_caught_up(self) -> bool:
        return not self._rest()

    @property
    def is_waiting(self) -> bool:
        return not self._log.is_ready

    def when_ready(self, callback: Callable[[], None]) -> None:
        self._log.waiting[self] = callback

    def close(self) -> None:
        assert self in self._log.scans, "closed twice"
        self._log.scans.remove(self)
        self._log.waiting.pop(self, None)

    def positions(self) -> dict[int, int]:
        return dict(self._positions)

    def take_gaps(self) -> Mapping[int, Any]:
        return {}

    def next(self, count_max: int, *, slice_s: float = 0.0) -> list[tuple[int, Record]]:
        self._log.reads += 1
        taken = [] if self.is_waiting else self._rest()[: min(count_max, self._log.records_per_slice)]
        for shard, record in taken:
            self._positions[shard] = record.timestamp
        if self._log.fault is not None:
            raise self._log.fault  # and what was taken is lost, as in a scan that fails in the middle
        return taken


class FakeLog:
    """Fills `ports.MessageLog`. ``records`` is what is committed, in order of time."""

    def __init__(self, shards: int = 2) -> None:
        self.records: list[tuple[int, Record]] = []
        self.rows: dict[Key, Any] = {}
        self.records_per_slice = 2
        self.is_full = False
        self.is_ready = True  # records can be read now; else see ``make_ready``
        self.fault: Unavailable | None = None  # raised by every read
        self.reads = 0  # slices that were asked for, ever
        self.scans: list[FakeReplay] = []  # those that are open
        self.waiting: dict[FakeReplay, Callable[[], None]] = {}
        self.is_congested = False
        self.has_commit = False
        self.fences = FenceTable()
        self._shards = shards
        self._clock = 1000
        self._open = FakeBatch()
        self._written: deque[FakeBatch] = deque()

    @property
    def watermarks(self) -> dict[int, int]:
        return {
            number: max((record.timestamp for shard, record in self.records if shard == number), default=1)
            for number in range(self._shards)
        }

    @property
    def uncommitted(self) -> int:
        """Batches that were flushed and are not committed."""
        return len(self._written)

    def shard_of(self, client_id: str) -> int:
        return shard_of(client_id, self._shards)

    def append_block(self, block: Block) -> None:
        stamps: dict[int, list[int]] = {}
        for shard, entries in block.entries.items():
            for _, value in entries:
                self._clock += 1
                stamps.setdefault(shard, []).append(self._clock)
                self._open.records.append((shard, Record(self._clock, value)))
        self._open.changes += block.changes
        self._open.waiters.append((lambda: block.committed(stamps), block.refused))

    def change(self, changes: Iterable[Change], *, on_commit: Callable[[], None], on_refused: Callable[[Any], None]) -> None:
        self._open.changes += changes
        self._open.waiters.append((on_commit, on_refused))

    def size_of(self, changes: Iterable[Change]) -> int:
        return 100 * len(list(changes))

    def flush(self) -> None:
        batch, self._open = self._open, FakeBatch()
        if not self.is_full:
            if batch.waiters:
                self._written.append(batch)
            return
        for _, on_refused in batch.waiters:
            on_refused(FakeRefusal())

    def commit(self) -> None:
        """The oldest batch is on disk."""
        batch = self._written.popleft()
        self._apply(batch)
        for on_commit, _ in batch.waiters:
            on_commit()

    def _apply(self, batch: FakeBatch) -> None:
        self.records = sorted([*self.records, *batch.records], key=lambda pair: pair[1].timestamp)
        for change in batch.changes:
            assert isinstance(change, FakeChange)
            if change.value is None:
                self.rows.pop(change.key, None)
            else:
                self.rows[change.key] = change.value

    def crashed(self, kept: int) -> FakeLog:
        """The log after a crash that left this many of the uncommitted batches."""
        left = FakeLog(self._shards)
        left.records, left.rows, left._clock = list(self.records), dict(self.rows), self._clock
        for batch in list(self._written)[:kept]:
            left._apply(batch)
        return left

    def make_ready(self) -> None:
        """Records can be read again: wake every reader that waits for it."""
        self.is_ready = True
        waiting, self.waiting = self.waiting, {}
        for callback in waiting.values():
            callback()

    def on_relief(self, callback: Callable[[], None]) -> None:
        """It is never congested."""

    def replay(self, filters: Sequence[str], start: Mapping[int, int] | int, *, with_session_only: bool = False) -> FakeReplay:
        return FakeReplay(self, filters, dict.fromkeys(range(self._shards), start) if isinstance(start, int) else start)

    def positions_at(self, start: Start) -> dict[int, int]:
        return self.watermarks

    def gaps(self, start: Mapping[int, int] | int, filters: Sequence[str] = ("#",)) -> Mapping[int, Any]:
        return {}


class FakeSessions:
    """Fills `ports.SessionStore`."""

    def __init__(self, log: FakeLog) -> None:
        self._log = log

    def put_session(self, row: SessionRow) -> Change:
        return FakeChange(("session", row.client_id), row)

    def put_subscription(self, client_id: str, row: SubscriptionRow) -> Change:
        return FakeChange(("subscription", client_id, row.written), row)

    def remove_subscription(self, client_id: str, written: str) -> Change:
        return FakeChange(("subscription", client_id, written), None)

    def put_cursor(self, client_id: str, row: CursorRow) -> Change:
        return FakeChange(("cursor", client_id), row)

    def put_will(self, client_id: str, will: Will) -> Change:
        return FakeChange(("will", client_id), will)

    def remove_will(self, client_id: str) -> Change:
        return FakeChange(("will", client_id), None)

    def put_received(self, client_id: str, packet_id: int) -> Change:
        return FakeChange(("received", client_id, packet_id), packet_id)

    def remove_received(self, client_id: str, packet_id: int) -> Change:
        return FakeChange(("received", client_id, packet_id), None)

    def remove_session(self, client_id: str, written: Iterable[str], received: Iterable[int]) -> list[Change]:
        return [
            FakeChange(("session", client_id), None),
            FakeChange(("cursor", client_id), None),
            FakeChange(("will", client_id), None),
            *(FakeChange(("subscription", client_id, each), None) for each in written),
            *(FakeChange(("received", client_id, each), None) for each in received),
        ]

    def _table(self, *prefix: Any) -> list[Any]:
        return [value for key, value in self._log.rows.items() if key[: len(prefix)] == prefix]

    def load(self) -> Iterator[StoredSession]:
        return map(self._stored, self._table("session"))

    def load_one(self, client_id: str) -> StoredSession | None:
        row = self._log.rows.get(("session", client_id))
        return None if row is None else self._stored(row)

    def _stored(self, row: SessionRow) -> StoredSession:
        return StoredSession(
            row,
            self._log.rows.get(("cursor", row.client_id), CursorRow((), ())),
            self._table("subscription", row.client_id),
            self._log.rows.get(("will", row.client_id)),
            self._table("received", row.client_id),
        )


class FakeGroups:
    """Fills `ports.GroupStore`."""

    def __init__(self, log: FakeLog) -> None:
        self._log = log

    def put(self, row: GroupRow) -> Change:
        return FakeChange(("group", row.name, row.topic_filter), row)

    def remove(self, name: str, topic_filter: str) -> Change:
        return FakeChange(("group", name, topic_filter), None)

    def load(self) -> Iterator[GroupRow]:
        return iter([value for key, value in self._log.rows.items() if key[0] == "group"])

    def load_one(self, name: str, topic_filter: str) -> GroupRow | None:
        return self._log.rows.get(("group", name, topic_filter))


class NoMessages:
    """Fills `ports.RetainedRows` and `ports.DelayedRows` where a test has neither."""

    def put(self, *_: Any) -> Any:
        raise AssertionError("nothing is retained or delayed here")

    def remove(self, *_: Any) -> Any:
        raise AssertionError("nothing is retained or delayed here")

    def read(self, *_: Any) -> Any:
        raise AssertionError("nothing is retained or delayed here")

    def load(self) -> Iterator[StoredMessage]:
        return iter(())


class NoProducers:
    """Fills `ports.ProducerStore` where no client numbers its messages."""

    shards = 2

    def _refuse(self, *_: Any) -> Any:
        raise AssertionError("there are no producers here")

    name_of = mark = open_batch = put_batch = has_key = put_key = old_keys = _refuse


def fake_storage(log: FakeLog) -> Storage:
    """Everything that a broker asks for, over this log."""
    return Storage(
        log=log,
        sessions=FakeSessions(log),
        retained=NoMessages(),
        delayed=NoMessages(),
        groups=FakeGroups(log),
        parse_start=parse_start,
        producers=NoProducers(),
    )
