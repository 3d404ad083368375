"""The durable log as operators see and manage it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from time import monotonic, time
from typing import Final, Protocol

from msgspec import structs

from braidmq.access.local import LocalAccess
from braidmq.base.config.settings import Settings
from braidmq.base.errors import Unavailable, UsageError
from braidmq.control.history import (
    Begin,
    DurabilityInfo,
    End,
    GapLine,
    GenerationInfo,
    HistoryStats,
    ProgressLine,
    ReaderInfo,
    ReadRequest,
    Relearned,
    RelearnRequest,
    ShardInfo,
    ShardPatterns,
    StreamLine,
    Token,
    TokenRequest,
    Topic,
    encode_lines,
)
from braidmq.history import messages
from braidmq.history.node_side.supervisor import HistoryService
from braidmq.lane.records.records import Record
from braidmq.operations.backup import ALL, BackupMaker, Covered
from braidmq.operations.durability import durability_of
from braidmq.operations.history_lines import record_line
from braidmq.operations.log_walk import LogWalk
from braidmq.storage.engine.health import Health
from braidmq.storage.layouts.lessons import lesson_of
from braidmq.storage.log import DurableLog
from braidmq.storage.rows.changes import WriteRefusal
from braidmq.storage.upkeep.stats import ShardStats

TOPICS_MAX: Final = 10_000
TOKEN_S_MAX: Final = 366 * 86400
_TOPICS_BYTES_MAX: Final = 8 * 1024 * 1024
_READERS_SHOWN: Final = 100
_TELL_EVERY_S: Final = 0.2
_LINES_AT_ONCE: Final = 500


class RecordingNode(Protocol):
    """The node, as these operations see it."""

    @property
    def settings(self) -> Settings: ...
    @property
    def log(self) -> DurableLog: ...
    @property
    def log_health(self) -> Health: ...
    @property
    def history(self) -> HistoryService | None: ...
    @property
    def access(self) -> LocalAccess: ...


class Walk(Protocol):
    """Walks through a part of the log; `begin` comes first."""

    async def begin(self) -> Begin:
        """The time range to cover."""
        ...

    def first_gaps(self) -> list[GapLine]:
        """The gaps that retention had left when the walk began."""
        ...

    def new_gaps(self) -> list[GapLine]:
        """The gaps that retention has made since the last call."""
        ...

    def progress(self, records: int) -> ProgressLine:
        """How far it has read, as a time."""
        ...

    def pieces(self) -> AsyncGenerator[list[tuple[int, Record]], None]:
        """The records, in order of time, with their shards; close it to stop early."""
        ...


class NodeHistory:
    """Everything runs on the node's event loop; only files are read and written in threads."""

    def __init__(self, node: RecordingNode) -> None:
        self._node = node
        self._turns = asyncio.Lock()
        self._backups = BackupMaker()

    # Reading

    def read(self, request: ReadRequest) -> AsyncIterator[bytes]:
        """Records in order of time, as lines; raises UsageError at once."""
        return _read(self._walk(request), request.limit)

    def topics(self, request: ReadRequest) -> AsyncIterator[bytes]:
        """Topics and what was recorded of each, as lines; raises UsageError at once."""
        return _topics(self._walk(request))

    def _walk(self, request: ReadRequest) -> Walk:
        return LogWalk(self._node.log, request, self._turns)

    # Figures

    async def stats(self) -> HistoryStats:
        """Statistics of the log."""
        log = self._node.log
        stats = log.stats()
        names = log.readers.names
        readers = []
        for name in names[:_READERS_SHOWN]:
            readers.append(_reader(log, name))
            await asyncio.sleep(0)  # each one examines every epoch
        readers = await self._by_filters(readers)
        return HistoryStats(
            log_id=stats.log_id,
            records=stats.records,
            size_bytes=stats.size_bytes,
            shards=[_shard(each) for each in stats.shards],
            readers=readers,
            readers_more=max(0, len(names) - _READERS_SHOWN),
        )

    async def _by_filters(self, readers: list[ReaderInfo]) -> list[ReaderInfo]:
        """The same readers, with the lag counted by their filters, which the history service, another process, does."""
        service, log = self._node.history, self._node.log
        asked = [each for each in readers if each.records_behind and each.filters and "#" not in each.filters]
        if service is None or not asked:
            return readers
        places = [messages.ReaderAt(each.filters, log.readers.positions(each.name)) for each in asked]
        found = await service.backlogs(places)
        if found is None:
            return readers
        counted = dict(zip((each.name for each in asked), found, strict=True))
        return [_with_count(each, counted[each.name]) if each.name in counted else each for each in readers]

    async def durability(self) -> DurabilityInfo:
        """The current state of the log and its disk."""
        return await durability_of(self._node.log, self._node.log_health, self._node.settings)

    # Generations

    async def generations(self) -> list[GenerationInfo]:
        """Every generation, by shard and number."""
        return [
            GenerationInfo(
                shard=each.shard,
                number=each.number,
                layout=each.layout,
                parameters=each.parameters,
                first_epoch=each.first_epoch,
                records=each.records,
                size_bytes=each.size_bytes,
            )
            for each in self._node.log.generations()
        ]

    async def patterns(self) -> list[ShardPatterns]:
        """The patterns that records are being written with, by shard."""
        found = await asyncio.to_thread(self._node.log.patterns)
        return [ShardPatterns(shard=shard, patterns=patterns) for shard, patterns in sorted(found.items())]

    async def relearn(self, request: RelearnRequest) -> Relearned:
        """Start a generation with the given patterns, or with better ones if that would help; raises UsageError."""
        log = self._node.log
        if request.patterns is not None:
            log.teach(await asyncio.to_thread(lesson_of, request.patterns, request.thresholds))
            return Relearned(is_begun=True, reason=f"it starts with {len(request.patterns)} patterns")
        if request.thresholds is not None:
            raise UsageError("thresholds need patterns", "give both, or only patterns")
        gain = await asyncio.to_thread(log.relearn_gain)
        if gain.is_worth_it:
            log.relearn(gain)
        return Relearned(is_begun=gain.is_worth_it, reason=gain.reason)

    async def forget(self, name: str) -> bool:
        """Remove a named reader; False if there is none."""
        log = self._node.log
        if not log.readers.places(name):
            return False
        ended: asyncio.Future[WriteRefusal | None] = asyncio.get_running_loop().create_future()
        log.readers.drop(name, on_dropped=lambda: ended.set_result(None), on_refused=ended.set_result)
        log.flush()
        refusal = await ended
        if refusal is not None:
            raise Unavailable(refusal.reason)
        return True

    async def token(self, request: TokenRequest) -> Token:
        """A token for a user of the password file."""
        service = self._node.history
        if service is None:
            raise UsageError("this node has no history service", "set history.bind and install braidmq[history]")
        if not 0 < request.valid_s <= TOKEN_S_MAX:
            raise UsageError(f"a token may be valid for at most {TOKEN_S_MAX // 86400} days")
        access = self._node.access
        fingerprint = access.fingerprint(request.user)
        if fingerprint is None:
            raise UsageError(f"there is no user {request.user!r} in the password file", "`braidmq passwd` adds one")
        if access.is_rehashed_at_login(request.user):
            raise UsageError(
                f"the next login of {request.user!r} replaces its old password hash, which would invalidate the token",
                f"log in once as {request.user!r}, or set the password with `braidmq passwd`",
            )
        return Token(service.tokens.make(request.user, fingerprint, request.valid_s), time() + request.valid_s)

    # Backup

    def backup(self, path: str) -> AsyncIterator[bytes]:
        """Create a backup in a new directory; raises UsageError at once."""
        return self._backups.make(self._node.log, Path(self._node.settings.node.data_dir), Path(path), self._covered())

    def _covered(self) -> Covered:
        return ALL


async def _read(walk: Walk, limit: int) -> AsyncIterator[bytes]:
    begin = await walk.begin()
    yield encode_lines([begin, *walk.first_gaps()])
    count = 0
    told_at = monotonic()
    async with aclosing(walk.pieces()) as pieces:
        async for found in pieces:
            if limit:
                found = found[: limit - count]
            count += len(found)
            lines: list[StreamLine] = [*walk.new_gaps(), *(record_line(shard, record) for shard, record in found)]
            if monotonic() - told_at >= _TELL_EVERY_S:
                told_at = monotonic()
                lines.append(walk.progress(count))
            if lines:
                yield encode_lines(lines)
            if limit and count == limit:
                break
    yield encode_lines([End(records=count, is_cut=bool(limit) and count == limit)])


async def _topics(walk: Walk) -> AsyncIterator[bytes]:
    begin = await walk.begin()
    yield encode_lines([begin, *walk.first_gaps()])
    counts = _TopicCounts()
    told_at = monotonic()
    async with aclosing(walk.pieces()) as pieces:
        async for found in pieces:
            for _, record in found:
                counts.add(record)
            if monotonic() - told_at >= _TELL_EVERY_S:
                told_at = monotonic()
                yield encode_lines([walk.progress(counts.records)])
    yield encode_lines(walk.new_gaps())
    topics = sorted(counts.by_topic)
    for first in range(0, len(topics), _LINES_AT_ONCE):
        yield encode_lines([counts.line(topic) for topic in topics[first : first + _LINES_AT_ONCE]])
        await asyncio.sleep(0)
    yield encode_lines([End(records=counts.records, is_cut=counts.is_cut)])


class _TopicCounts:
    """Counts records by topic, up to a maximum number of topics."""

    def __init__(self) -> None:
        self.by_topic: dict[bytes, list[int]] = {}  # records, bytes of their payloads, timestamp of the newest
        self.records = 0
        self.is_cut = False
        self._bytes_left = _TOPICS_BYTES_MAX

    def add(self, record: Record) -> None:
        topic = record.topic
        self.records += 1
        counts = self.by_topic.get(topic)
        if counts is None:
            if len(self.by_topic) >= TOPICS_MAX or len(topic) > self._bytes_left:
                self.is_cut = True
                return
            self._bytes_left -= len(topic)
            self.by_topic[topic] = counts = [0, 0, 0]
        counts[0] += 1
        counts[1] += len(record.payload)
        counts[2] = record.timestamp

    def line(self, topic: bytes) -> Topic:
        records, payload_bytes, newest = self.by_topic[topic]
        return Topic(topic=topic.decode(), records=records, payload_bytes=payload_bytes, newest=newest)


def _shard(stats: ShardStats) -> ShardInfo:
    return ShardInfo(
        shard=stats.shard,
        records=stats.records,
        size_bytes=stats.size_bytes,
        epochs=stats.epochs,
        generations=len(stats.generations),
        oldest=stats.oldest,
        newest=stats.newest,
        floor=stats.floor,
    )


def _reader(log: DurableLog, name: str) -> ReaderInfo:
    lags = log.readers.lag(name).values()
    return ReaderInfo(
        name=name,
        records_behind=sum(lag.records_max for lag in lags),
        lag_s=max((lag.behind_us for lag in lags), default=0) / 1e6,
        pins=any(place.pins for place in log.readers.places(name).values()),
        user=log.readers.owner(name),
        filters=list(log.readers.filters(name)),
        is_estimate=any(lag.records_max for lag in lags),
        is_upper_bound=any(lag.records_max for lag in lags) and "#" not in log.readers.filters(name),
    )


def _with_count(reader: ReaderInfo, behind: messages.Behind) -> ReaderInfo:
    is_done = not behind.records and not behind.is_estimate
    return structs.replace(
        reader,
        records_behind=behind.records,
        is_estimate=behind.is_estimate,
        is_upper_bound=False,
        lag_s=0.0 if is_done else reader.lag_s,
    )
