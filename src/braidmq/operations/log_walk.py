"""Walks through a part of the log for operators while the broker works.

A walk reads in slices, and only one walk gets a slice in a turn of the loop: together they take the time of one reader. Nothing
is read ahead of the consumer, so a slow one costs no memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from braidmq.base.errors import ProtocolViolation, UsageError
from braidmq.control.history import Begin, GapLine, ProgressLine, ReadRequest
from braidmq.lane.records.records import Record
from braidmq.mqtt.topics import check_filter
from braidmq.storage.log import DurableLog
from braidmq.storage.reading.merge import MergedScan
from braidmq.storage.reading.positions import parse_start

FILTERS_MAX: Final = 64
# The records of a slice are also encoded in one turn, at about 3 us each: that must not take longer than the slice.
_SLICE_RECORDS: Final = 256
# A follower should see a record soon, but not each one separately.
_FOLLOW_PAUSE_S: Final = 0.02
_NOT_FILTERS: Final = ("$share/", "$exclusive/", "$replay/")


class LogWalk:
    """One walk; ``latest`` and ``-24h`` are relative to its creation."""

    def __init__(self, log: DurableLog, request: ReadRequest, turns: asyncio.Lock) -> None:
        """Raises UsageError for an invalid filter, start or end."""
        self._log = log
        self._turns = turns
        self._filters = checked_filters(request.filters)
        self._from = log.positions_at(parse_start(request.start))
        self._ends = log.positions_at(parse_start(request.end))
        self._is_following = request.follow
        self._replay: MergedScan | None = None
        self._began = 0
        self.is_over = False

    async def begin(self) -> Begin:
        """The time range to cover: it begins with the first record, if that is later than the requested start."""
        firsts = {each.shard: each.oldest for each in self._log.stats().shards if each.oldest}
        starts = [max(self._from[shard] + 1, oldest) for shard, oldest in firsts.items()]
        end = max(self._ends.values())
        self._began = min(starts, default=end)
        return Begin(start=self._began, end=end)

    def first_gaps(self) -> list[GapLine]:
        """The gaps that retention had left when the walk was created."""
        missing = self._log.gaps(self._from, self._filters)
        return [GapLine(shard=shard, after=gap.wanted, floor=gap.floor) for shard, gap in missing.items()]

    def new_gaps(self) -> list[GapLine]:
        """The gaps that retention has made since the last call."""
        missing = self._replay.take_gaps() if self._replay is not None else {}
        return [
            GapLine(shard=shard, after=gap.wanted, floor=gap.floor)
            for shard, gap in missing.items()
            if gap.wanted > self._from[shard]  # otherwise it was reported at the beginning
        ]

    def progress(self, records: int) -> ProgressLine:
        """How far it has read, as a time."""
        return ProgressLine(position=self._position(), records=records)

    def _position(self) -> int:
        behind = [position for shard, position in self._positions().items() if position < self._ends[shard]]
        return max(self._began, min(behind, default=max(self._ends.values())))

    def _positions(self) -> dict[int, int]:
        return self._replay.positions() if self._replay is not None else self._from

    async def pieces(self) -> AsyncGenerator[list[tuple[int, Record]], None]:
        """The records of each slice, possibly none, with their shards, in order of time; close it to stop early."""
        self._replay = replay = self._log.replay(self._filters, self._from)
        news = asyncio.Event()
        followings = []
        if self._is_following:
            followings = [self._log.follow(shard, lambda *_: news.set()) for shard in range(self._log.shards)]
        try:
            while not self.is_over:
                async with self._turns:
                    found = replay.next(_SLICE_RECORDS)
                    await asyncio.sleep(0)  # let other callbacks run before the next walk
                if self._is_following:
                    yield found
                    await self._await_news(replay, news)
                else:
                    self.is_over = self._is_past_end(found)
                    yield [pair for pair in found if pair[1].timestamp <= self._ends[pair[0]]]
        finally:
            for each in followings:
                each.stop()

    async def _await_news(self, replay: MergedScan, news: asyncio.Event) -> None:
        news.clear()
        if replay.is_caught_up:
            await news.wait()
            await asyncio.sleep(_FOLLOW_PAUSE_S)

    def _is_past_end(self, found: list[tuple[int, Record]]) -> bool:
        # Records of all shards come in one order, so after one that is too late for every shard all others are too late as well.
        if found and found[-1][1].timestamp > max(self._ends.values()):
            return True
        return all(position >= self._ends[shard] for shard, position in self._positions().items())


def checked_filters(filters: tuple[str, ...]) -> tuple[str, ...]:
    """The same filters; raises UsageError if they are too many or one is invalid."""
    if not 0 < len(filters) <= FILTERS_MAX:
        raise UsageError(f"give 1 to {FILTERS_MAX} topic filters, not {len(filters)}")
    for each in filters:
        if each.startswith(_NOT_FILTERS):
            raise UsageError(f"{each!r} is a special subscription, not a topic filter", "give the filter inside it")
        try:
            check_filter(each)
        except ProtocolViolation as violation:
            raise UsageError(f"{each!r} is not a topic filter", violation.detail) from None
    return filters
