"""One core's part of the log, in pages: what cores ask each other to walk through the whole log for an operator.

A page names the positions to go on from, so nothing is kept between two pages, and a walk that is given up leaves nothing behind.
A record that does not fit into a page comes alone and cut off; `piece` has the rest of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic
from typing import Final, Protocol

from msgspec import Struct

from braidmq.base.errors import Unavailable
from braidmq.control.history import GapLine
from braidmq.lane.records.records import Record
from braidmq.operations.log_walk import checked_filters
from braidmq.storage.log import DurableLog
from braidmq.storage.reading.merge import MergedScan
from braidmq.storage.reading.positions import parse_start

PAGE_RECORDS: Final = 1000
PAGE_BYTES: Final = 512 * 1024  # as JSON it fits into a frame
_SLICE_RECORDS: Final = 256
_PAGE_S: Final = 1.0  # after which a page is returned as it is
_ROOM_S: Final = 0.02  # while other readers use all the memory
_NEWS_S: Final = 5.0  # for which a page waits for the next record


class Span(Struct, frozen=True):
    """The filters, and the times as clients write ``stream-offset``."""

    filters: tuple[str, ...]
    start: str
    end: str


class PartSpan(Struct, frozen=True):
    """The span in the shards of a part, as positions; ``oldest``: the first record of each shard that has one."""

    starts: dict[int, int]
    ends: dict[int, int]
    oldest: dict[int, int]
    gaps: list[GapLine]


class PageOf(Struct, frozen=True):
    """The page after these positions. ``waits``: for a record, if there is none yet."""

    filters: tuple[str, ...]
    positions: dict[int, int]
    waits: bool = False


class PartRecord(Struct, frozen=True, array_like=True):
    """A record as the log has it; ``value`` is its beginning if it is shorter than ``size``."""

    shard: int
    timestamp: int
    size: int
    value: bytes


class PartPage(Struct, frozen=True):
    """Records in order of time, and where to go on; gaps that retention has made meanwhile."""

    records: list[PartRecord]
    positions: dict[int, int]
    gaps: list[GapLine]
    is_caught_up: bool


class PieceOf(Struct, frozen=True):
    """The bytes of one record, which matches the filters, from ``first`` on."""

    filters: tuple[str, ...]
    shard: int
    timestamp: int
    first: int


class LogPart(Protocol):
    """The part of one core. All raise Unavailable; `span` also UsageError."""

    async def span(self, span: Span) -> PartSpan:
        """Where the span begins and ends."""
        ...

    async def page(self, page: PageOf) -> PartPage:
        """The next records."""
        ...

    async def piece(self, piece: PieceOf) -> bytes:
        """More of a record that was cut off."""
        ...


class LedPart:
    """The part of this core; implements `LogPart`."""

    def __init__(self, log: DurableLog, shards: Iterable[int]) -> None:
        """``shards``: those that this core leads."""
        self._log = log
        self._shards = frozenset(shards)
        self._turns = asyncio.Lock()

    async def span(self, span: Span) -> PartSpan:
        """Where the span begins and ends."""
        log, filters = self._log, checked_filters(span.filters)
        starts = log.positions_at(parse_start(span.start))
        return PartSpan(
            starts=self._own(starts),
            ends=self._own(log.positions_at(parse_start(span.end))),
            oldest={each.shard: each.oldest for each in log.stats().shards if each.oldest and each.shard in self._shards},
            gaps=[GapLine(shard=shard, after=gap.wanted, floor=gap.floor) for shard, gap in log.gaps(starts, filters).items()],
        )

    def _own(self, positions: dict[int, int]) -> dict[int, int]:
        return {shard: position for shard, position in positions.items() if shard in self._shards}

    async def page(self, page: PageOf) -> PartPage:
        """The next records. Those of other shards do not exist here."""
        checked_filters(page.filters)
        news = asyncio.Event()
        following = [self._log.follow(shard, lambda *_: news.set()) for shard in self._shards] if page.waits else []
        scan = self._log.replay(page.filters, self._log.watermarks | page.positions)
        try:
            found = await self._read(scan)
            if page.waits and not found and scan.is_caught_up:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_NEWS_S):
                        await news.wait()
                found = await self._read(scan)
            return self._page_of(scan, found)
        finally:
            scan.close()
            for each in following:
                each.stop()

    async def _read(self, scan: MergedScan) -> list[tuple[int, Record]]:
        found: list[tuple[int, Record]] = []
        size = 0
        deadline = monotonic() + _PAGE_S
        while len(found) < PAGE_RECORDS and size < PAGE_BYTES and monotonic() < deadline and not scan.is_caught_up:
            async with self._turns:
                more = scan.next(min(_SLICE_RECORDS, PAGE_RECORDS - len(found)))
                await asyncio.sleep(_ROOM_S if scan.is_waiting else 0)  # let other callbacks run before the next walk
            found += more
            size += sum(len(record.value) for _, record in more)
        return found

    def _page_of(self, scan: MergedScan, found: list[tuple[int, Record]]) -> PartPage:
        records: list[PartRecord] = []
        positions = self._own(scan.positions())
        size = 0
        for shard, record in found:
            size += len(record.value)
            if records and size > PAGE_BYTES:
                # It is the first of the next page, and so are the later ones.
                positions[shard] = min(positions[shard], record.timestamp - 1)
            else:
                records.append(PartRecord(shard, record.timestamp, len(record.value), record.value[:PAGE_BYTES]))
        is_whole = len(records) == len(found)
        gaps = [GapLine(shard=shard, after=gap.wanted, floor=gap.floor) for shard, gap in scan.take_gaps().items()]
        return PartPage(records, positions, gaps, is_caught_up=is_whole and scan.is_caught_up)

    async def piece(self, piece: PieceOf) -> bytes:
        """More of a record that was cut off."""
        scan = self._log.replay(piece.filters, self._log.watermarks | {piece.shard: piece.timestamp - 1})
        try:
            while not scan.is_caught_up:
                for _, record in scan.next(1):
                    if record.timestamp == piece.timestamp:
                        return record.value[piece.first : piece.first + PAGE_BYTES]
                    raise Unavailable("retention has deleted the record meanwhile")
                await asyncio.sleep(0)
        finally:
            scan.close()
        raise Unavailable("retention has deleted the record meanwhile")
