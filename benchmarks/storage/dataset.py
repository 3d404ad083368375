"""The data of a node that has run for a long time: millions of records and many durable sessions, created once and kept.

Records are of ten kinds from at most a million devices, ``devices/NUMBER/KIND``, with 100 random bytes each, so that
``devices/+/temp`` matches a tenth of them. Every session has one subscription and has read everything.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec

from braidmq.base.config.settings import HistorySettings
from braidmq.base.units import Seconds
from braidmq.broker.ports import CursorRow, SessionRow, SubscriptionRow
from braidmq.lane.records.records import encode_record
from braidmq.storage.log import DurableLog
from braidmq.storage.rows.sessions import LogSessions

VERSION = 2
PAYLOAD_BYTES = 100
TOPICS_MAX = 1_000_000
KINDS = ["temp", *(f"kind{number}" for number in range(9))]
TENTH = "devices/+/temp"
# Longer than the files are kept.
RETENTION = Seconds(100 * 365 * 86400)
SETTINGS = HistorySettings(retention=RETENTION)
_BLOCK = 2000
_SESSIONS_AT_ONCE = 1000
_NEVER_EXPIRES = 0xFFFFFFFF
_STALL_S = 0.05

Say = Callable[[str], None]


class DataSet(msgspec.Struct):
    """``folder`` is a node's ``data_dir``. Bytes are those of topics and payloads, and of compacted tables on disk."""

    version: int
    folder: str
    records: int
    topics: int
    sessions: int
    user_bytes: int
    table_bytes: int
    append_s: float


def prepare(folder: Path, records: int, sessions: int, say: Say, topics: int = 0) -> DataSet:
    """The data set in its own directory below ``folder``, created if missing. ``topics`` overrides `topics_of`."""
    topics = topics or topics_of(records)
    place = folder / f"{records}-records-{sessions}-sessions"
    notes = place / "dataset.json"
    known = _read_notes(notes)
    if known is not None and known.topics == topics:
        return known
    shutil.rmtree(place, ignore_errors=True)
    say(f"creating {records:,} records and {sessions:,} sessions in {place}; they are kept for the next run")
    made = _make(place, records, topics, sessions)
    notes.write_bytes(msgspec.json.encode(made))
    return made


def _read_notes(notes: Path) -> DataSet | None:
    try:
        known = msgspec.json.decode(notes.read_bytes(), type=DataSet)
    except (FileNotFoundError, msgspec.ValidationError):
        return None  # incomplete, or created by another version
    return known if known.version == VERSION else None


def topics_of(records: int) -> int:
    """The number of topics for this many records."""
    return max(min(records // 10, TOPICS_MAX), 10)


def topic_of(number: int, topics: int) -> str:
    """The topic of a record; devices are in no order, as in real data."""
    return f"devices/{number * 7919 % topics}/{KINDS[number % 10]}"


class _Records:
    """A block of records for the log, by shard."""

    def __init__(self, entries: dict[int, list[tuple[bytes, bytes]]], changes: list[Any], size_bytes: int) -> None:
        self.entries = entries
        self.changes = changes
        self.size_bytes = size_bytes
        self.is_refused = False

    def marks(self) -> list[tuple[int, bytes, int, int]]:
        """The records have no producer."""
        return []

    def committed(self, stamps: dict[int, list[int]], /) -> None:
        """Ignored: no publisher waits for it."""

    def refused(self, refusal: Any, /) -> None:
        """The engine cannot keep up at the moment."""
        self.is_refused = True


class _Filling:
    """Fills a log as fast as possible."""

    def __init__(self, log: DurableLog) -> None:
        self._log = log
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        log.start(self._calls.put)

    def write(self, block: _Records) -> None:
        """Append, and wait if too much is pending."""
        while True:
            block.is_refused = False
            self._log.append_block(block)
            self._log.flush()
            while self._log.is_congested or not self._calls.empty():
                self._calls.get()()
            if not block.is_refused:
                return
            time.sleep(_STALL_S)

    def settle(self) -> None:
        """Wait until everything is on disk."""
        while self._log.pending_bytes:
            self._calls.get()()


def _make(place: Path, records: int, topics: int, sessions: int) -> DataSet:
    log = DurableLog.open(place, SETTINGS)
    filling = _Filling(log)
    began = time.monotonic()
    user_bytes = 0
    for block, size in _blocks(log, records, topics):
        filling.write(block)
        user_bytes += size
    filling.settle()
    append_s = time.monotonic() - began
    for block in _sessions(log, sessions):
        filling.write(block)
    filling.settle()
    log.close()
    return DataSet(VERSION, str(place), records, topics, sessions, user_bytes, _compact(place), append_s)


def _blocks(log: DurableLog, records: int, topics: int) -> Iterator[tuple[_Records, int]]:
    # A device has one publisher, and a publisher one shard.
    publishers = [next(name for name in map(str, range(10_000)) if log.shard_of(name) == shard) for shard in range(log.shards)]
    for first in range(0, records, _BLOCK):
        entries: dict[int, list[tuple[bytes, bytes]]] = {shard: [] for shard in range(log.shards)}
        size = user_bytes = 0
        for number in range(first, min(first + _BLOCK, records)):
            shard = number % log.shards
            topic = topic_of(number, topics).encode()
            value = encode_record(topic, os.urandom(PAYLOAD_BYTES), 1, False, publishers[shard])
            entries[shard].append((topic, value))
            size += len(value)
            user_bytes += len(topic) + PAYLOAD_BYTES
        yield _Records(entries, [], size), user_bytes


def _sessions(log: DurableLog, sessions: int) -> Iterator[_Records]:
    rows = LogSessions(log)
    positions = tuple(log.watermarks.values())
    now = time.time()
    for first in range(0, sessions, _SESSIONS_AT_ONCE):
        changes: list[Any] = []
        for number in range(first, min(first + _SESSIONS_AT_ONCE, sessions)):
            name = f"session-{number}"
            written = f"devices/{number}/{KINDS[number % 10]}"
            changes += [
                rows.put_session(SessionRow(name, None, _NEVER_EXPIRES, False, now, now, 1)),
                rows.put_subscription(name, SubscriptionRow(written, 1, False, False, b"", positions)),
                rows.put_cursor(name, CursorRow(positions, ())),
            ]
        yield _Records({}, changes, 0)


def _compact(place: Path) -> int:
    """Compact all tables; returns the bytes on disk, without the write-ahead log."""
    log = DurableLog.open(place, SETTINGS)
    store = log._store
    for family in store.families:
        store.compact(family, b"", b"\xff" * 32)
    log.close()
    # Compacted files are deleted in the background; after reopening they are certainly gone.
    DurableLog.open(place, SETTINGS).close()
    return sum(file.stat().st_size for file in (place / "log").glob("*.sst"))
