"""A message log on a real store whose loop is a queue that the test empties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Self

import pytest

from braidmq.base.config.settings import HistorySettings
from braidmq.lane.records.records import Record
from braidmq.storage.engine.rocksdb import Disk
from braidmq.storage.log import DurableLog, LogOptions
from braidmq.storage.reading.merge import MergedScan
from braidmq.storage.rows.changes import Change, WriteRefusal
from braidmq.storage.shard.clock import ShardClock
from tests.support.appending import append

DEADLINE_S = 10.0


class Stage:
    """An open log; `acks` and `refusals` are what appenders were told, in order."""

    def __init__(
        self,
        data_dir: Path,
        *,
        shards: int = 3,
        options: LogOptions | None = None,
        clock: ShardClock | None = None,
        **settings: object,
    ) -> None:
        self.log = DurableLog.open(
            data_dir,
            HistorySettings(shards=shards, **settings),  # type: ignore[arg-type]
            clock=clock,
            options=options or LogOptions(),
        )
        self.calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.log.start(self.calls.put)
        self.acks: list[tuple[bytes, int, int]] = []  # payload, shard, timestamp
        self.refusals: list[tuple[bytes, WriteRefusal]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.log.close()

    def append(
        self,
        client: str,
        topic: str,
        payload: bytes,
        *,
        session_only: bool = False,
        changes: Sequence[Change] = (),
        producers: Sequence[tuple[int, bytes, int, int]] = (),
    ) -> None:
        """Append without flushing."""
        append(
            self.log,
            client,
            topic.encode(),
            payload,
            on_commit=lambda shard, timestamp: self.acks.append((payload, shard, timestamp)),
            on_refused=lambda refusal: self.refusals.append((payload, refusal)),
            session_only=session_only,
            changes=changes,
            producers=producers,
        )

    def turn(self) -> None:
        """Handle one commit; waits for it."""
        self.calls.get(timeout=DEADLINE_S)()

    def settle(self) -> None:
        """Flush, and wait until nothing is pending any more."""
        self.log.flush()
        while self.log.pending_bytes:
            self.turn()

    def publish(self, client: str, topic: str, payload: bytes) -> None:
        """Append and commit."""
        self.append(client, topic, payload)
        self.settle()

    def read(self, *filters: str, start: int | dict[int, int] = 0, with_session_only: bool = False) -> list[tuple[int, Record]]:
        """Everything that matches, to the end."""
        return drain(self.log.replay(filters, start, with_session_only=with_session_only))

    def payloads(self, *filters: str, start: int | dict[int, int] = 0) -> list[bytes]:
        return [record.payload for _, record in self.read(*filters, start=start)]


def unexpected(refusal: WriteRefusal) -> None:
    """For those who must not be refused."""
    pytest.fail(refusal.reason)


def tables_bytes(path: Path) -> int:
    """What the tables in a directory take; the engine may delete any of them meanwhile."""
    size = 0
    for table in path.glob("*.sst"):
        with suppress(FileNotFoundError):
            size += table.stat().st_size
    return size


class BrokenDisk(Disk):
    """A disk that works until it is told to fail for good, or until it is told that it is full."""

    def __init__(self) -> None:
        self.is_broken = False
        self.is_full = False

    def flush(self, db: object) -> None:
        if self.is_broken:
            raise OSError("Corruption: fsync failed")
        super().flush(db)  # type: ignore[arg-type]

    def free_bytes(self, path: Path) -> int:
        return 0 if self.is_full else super().free_bytes(path)


def drain(replay: MergedScan, count: int = 1000) -> list[tuple[int, Record]]:
    """Read until there is nothing left."""
    found: list[tuple[int, Record]] = []
    for _ in range(100_000):
        if replay.is_caught_up:
            return found
        found += replay.next(count)
    raise AssertionError("the replay does not come to an end")


def clients_of(log: DurableLog, shard: int, count: int = 1) -> list[str]:
    """Client ids whose home is this shard."""
    found = (name for number in range(10_000) if log.shard_of(name := f"client-{number}") == shard)
    return [next(found) for _ in range(count)]
