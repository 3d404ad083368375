"""Walks through the whole log of several cores for an operator: pages of all parts, merged in order of time.

A part without a page delays the others until it has one, so records come in the order of time; no more than a page of each part
is in memory. A walk that follows first reads what is there, and then takes what comes from any part as it comes. If a core is
away, the walk fails, and the error names the core.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from heapq import merge
from typing import Final

from braidmq.base.errors import Unavailable
from braidmq.control.history import Begin, GapLine, ProgressLine, ReadRequest
from braidmq.lane.records.records import Record
from braidmq.operations.log_part import LogPart, PageOf, PartPage, PartRecord, PartSpan, PieceOf, Span
from braidmq.operations.log_walk import checked_filters
from braidmq.storage.reading.positions import parse_start

_PIECE_RECORDS: Final = 256  # encoded in one turn

Pairs = list[tuple[int, Record]]


class _Reading:
    """One part, and how far it was read."""

    def __init__(self, part: LogPart, filters: tuple[str, ...], span: PartSpan, *, has_end: bool) -> None:
        self.span = span
        self.positions = dict(span.starts)
        self.ahead: deque[tuple[int, Record]] = deque()
        self.gaps: list[GapLine] = []
        self.is_done = False  # nothing of the span is left
        self._part = part
        self._filters = filters
        self._has_end = has_end

    async def fetch(self) -> None:
        """Read a page, unless one waits."""
        if self.ahead or self.is_done:
            return
        page = await self._page(waits=False)
        ends = self.span.ends
        found = await self._whole(page.records)
        self.ahead += [pair for pair in found if not self._has_end or pair[1].timestamp <= ends[pair[0]]]
        is_at_end = self._has_end and all(position >= ends[shard] for shard, position in page.positions.items())
        self.is_done = page.is_caught_up or is_at_end

    async def follow(self) -> Pairs:
        """The next records, when there are any; perhaps none after a while."""
        page = await self._page(waits=True)
        return await self._whole(page.records)

    async def _page(self, *, waits: bool) -> PartPage:
        page = await self._part.page(PageOf(self._filters, self.positions, waits))
        self.positions = page.positions
        # Those at the beginning were told with the span.
        self.gaps += [gap for gap in page.gaps if gap.after > self.span.starts.get(gap.shard, 0)]
        return page

    async def _whole(self, records: Sequence[PartRecord]) -> Pairs:
        return [(each.shard, Record(each.timestamp, await self._value(each))) for each in records]

    async def _value(self, record: PartRecord) -> bytes:
        if len(record.value) == record.size:
            return record.value
        value = bytearray(record.value)
        while len(value) < record.size:
            more = await self._part.piece(PieceOf(self._filters, record.shard, record.timestamp, len(value)))
            if not more:
                raise Unavailable("a record has become shorter while it was read")
            value += more
        return bytes(value)


class ClusterWalk:
    """One walk; ``latest`` and ``-24h`` are relative to `begin`, by the clock of each core. Has the methods of `LogWalk`."""

    def __init__(self, parts: Sequence[LogPart], request: ReadRequest) -> None:
        """Raises UsageError for an invalid filter, start or end."""
        self._parts = parts
        self._filters = checked_filters(request.filters)
        parse_start(request.start)
        parse_start(request.end)
        self._span = Span(self._filters, request.start, request.end)
        self._is_following = request.follow
        self._readings: list[_Reading] = []
        self._began = 0

    async def begin(self) -> Begin:
        """The time range to cover: it begins with the first record, if that is later than the requested start."""
        spans = await asyncio.gather(*(part.span(self._span) for part in self._parts))
        self._readings = [
            _Reading(part, self._filters, span, has_end=not self._is_following)
            for part, span in zip(self._parts, spans, strict=True)
        ]
        starts = [max(span.starts[shard] + 1, oldest) for span in spans for shard, oldest in span.oldest.items()]
        end = max(position for span in spans for position in span.ends.values())
        self._began = min(starts, default=end)
        return Begin(start=self._began, end=end)

    def first_gaps(self) -> list[GapLine]:
        """The gaps that retention had left when the walk began."""
        return [gap for reading in self._readings for gap in reading.span.gaps]

    def new_gaps(self) -> list[GapLine]:
        """The gaps that retention has made since the last call."""
        found = [gap for reading in self._readings for gap in reading.gaps]
        for reading in self._readings:
            reading.gaps.clear()
        return found

    def progress(self, records: int) -> ProgressLine:
        """How far it has read, as a time."""
        waiting = [reading.ahead[0][1].timestamp - 1 for reading in self._readings if reading.ahead]
        reached = [
            position
            for reading in self._readings
            if not reading.ahead
            for shard, position in reading.positions.items()
            if position < reading.span.ends[shard]
        ]
        end = max(position for reading in self._readings for position in reading.span.ends.values())
        return ProgressLine(position=max(self._began, min([*waiting, *reached], default=end)), records=records)

    async def pieces(self) -> AsyncGenerator[Pairs, None]:
        """The records, in order of time, with their shards; close it to stop early."""
        while True:
            await asyncio.gather(*(reading.fetch() for reading in self._readings))
            found = self._take()
            for first in range(0, len(found), _PIECE_RECORDS):
                yield found[first : first + _PIECE_RECORDS]
                await asyncio.sleep(0)
            if all(reading.is_done and not reading.ahead for reading in self._readings):
                break
        if self._is_following:
            async for found in self._news():
                yield found

    def _take(self) -> Pairs:
        """What is complete: no part that has more to read can still have something earlier."""
        waiting = [reading for reading in self._readings if not reading.is_done]
        if any(not reading.ahead for reading in waiting):
            return []
        complete = min((reading.ahead[-1][1].timestamp for reading in waiting), default=None)
        parts: list[Pairs] = []
        for reading in self._readings:
            part: Pairs = []
            while reading.ahead and (complete is None or reading.ahead[0][1].timestamp <= complete):
                part.append(reading.ahead.popleft())
            parts.append(part)
        return list(merge(*parts, key=_timestamp))

    async def _news(self) -> AsyncGenerator[Pairs, None]:
        asking = {asyncio.ensure_future(reading.follow()): reading for reading in self._readings}
        try:
            while True:
                done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    reading = asking.pop(each)
                    found = each.result()
                    asking[asyncio.ensure_future(reading.follow())] = reading
                    for first in range(0, len(found), _PIECE_RECORDS):
                        yield found[first : first + _PIECE_RECORDS]
        finally:
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


def _timestamp(pair: tuple[int, Record]) -> int:
    return pair[1].timestamp
