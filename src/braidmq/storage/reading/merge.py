"""One replay over all shards, and over several families of a shard, in order of time.

Each family's replay reads ahead a little, and its position tells how far it has read. Records at or below the positions of all
shards that have more to read are complete and can be merged; later ones wait. A shard that has caught up does not delay others:
nothing committed is missing there. So everything committed when a call begins is returned in order of time; a record that another
shard commits later may be older than those already returned, because shards do not wait for each other.

The position to continue from is one timestamp per shard, and counts what was returned, not what was read ahead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from braidmq.lane.records.merging import merge_runs, note_last
from braidmq.lane.records.records import Record
from braidmq.storage.format.rows import TIMESTAMP_MAX
from braidmq.storage.reading.reader import CHUNK_BYTES, SLICE_S, RetentionGap, ShardScan

# Read ahead of a shard in one go.
_AHEAD_RECORDS: Final = 1024
_AHEAD_BYTES_MIN: Final = 16 * 1024


class MergedScan:
    """Replays of several families as one. Made by `DurableLog.replay`."""

    def __init__(self, replays: Iterable[tuple[int, ShardScan]], now: Callable[[], float] = time.monotonic) -> None:
        """Replays with the shard that each one reads, families of one shard together."""
        pairs = list(replays)
        self._shards = [shard for shard, _ in pairs]
        self._replays = [replay for _, replay in pairs]
        self._now = now
        self._ahead: list[list[Record]] = [[] for _ in pairs]
        self._ordered: list[tuple[int, Record]] = []
        self._given = 0  # the number of merged records that were returned
        self._handed = dict.fromkeys(self._shards, 0)  # the last timestamp of each shard that was returned
        self._ahead_bytes_max = max(CHUNK_BYTES // max(len(pairs), 1), _AHEAD_BYTES_MIN)
        self._turn = 0
        self._is_waiting = False

    @property
    def is_caught_up(self) -> bool:
        """Whether everything committed was returned."""
        is_empty = self._given == len(self._ordered) and not any(self._ahead)
        return is_empty and all(replay.is_caught_up for replay in self._replays)

    @property
    def is_waiting(self) -> bool:
        """Whether the last call of `next` returned nothing because older readers use all the memory; retry a little later."""
        return self._is_waiting

    def when_ready(self, callback: Callable[[], None]) -> None:
        """Call back once, when `next` is worth another call; only while `is_waiting`. The callback only schedules work."""
        for replay in self._replays:
            if replay.is_waiting:
                replay.when_ready(callback)

    def close(self) -> None:
        """The reader is gone: others may use its room. It is not called back any more."""
        for replay in self._replays:
            replay.close()

    def positions(self) -> dict[int, int]:
        """Where to continue, for each shard: everything at or below was returned or does not match."""
        # No merged record that still waits is earlier than the first of them.
        done = self._ordered[self._given][1].timestamp - 1 if self._given < len(self._ordered) else TIMESTAMP_MAX
        found = dict.fromkeys(self._handed, done)
        for shard, replay, ahead in zip(self._shards, self._replays, self._ahead, strict=True):
            found[shard] = min(found[shard], ahead[0].timestamp - 1 if ahead else replay.position)
        # To the next reader a position of 0 would mean "from the earliest on", and hide what retention deleted meanwhile.
        return {shard: max(position, self._handed[shard], 1) for shard, position in found.items()}

    def take_gaps(self) -> dict[int, RetentionGap]:
        """The records that retention deleted before they were read, by shard, reported once."""
        gaps: dict[int, RetentionGap] = {}
        for shard, replay in zip(self._shards, self._replays, strict=True):
            gap = replay.take_gap()
            if gap is not None:
                gaps[shard] = gap.widened(gaps.get(shard))
        return gaps

    def next(self, count_max: int, *, slice_s: float = SLICE_S) -> list[tuple[int, Record]]:
        """The next records with their shards, at most this many.

        An empty list means that nothing was found within the slice; `is_caught_up` tells whether there can be more.
        """
        deadline = self._now() + slice_s
        self._is_waiting = False
        handed: list[tuple[int, Record]] = []
        while len(handed) < count_max:
            if self._given == len(self._ordered):
                self._read_ahead(deadline)
                self._put_in_order()
                if not self._ordered:
                    self._is_waiting = self._are_all_held()
                    if self._is_waiting or self._now() >= deadline or self.is_caught_up:
                        break
                    continue
            part = self._ordered[self._given : self._given + count_max - len(handed)]
            self._given += len(part)
            note_last(part, self._handed)
            if handed:
                handed += part
            else:
                handed = part
            if self._now() >= deadline:
                break
        return handed

    def _read_ahead(self, deadline: float) -> None:
        """Read ahead in the families without waiting records, as time allows; the next call begins where this ends."""
        for _ in self._replays:
            place = self._turn % len(self._replays)
            replay = self._replays[place]
            if not self._ahead[place] and not replay.is_caught_up:
                left_s = deadline - self._now()
                if left_s <= 0:
                    return
                self._ahead[place] = replay.next(_AHEAD_RECORDS, slice_s=left_s, bytes_max=self._ahead_bytes_max)
            self._turn += 1

    def _are_all_held(self) -> bool:
        """Whether all families that need to be read must wait."""
        pairs = zip(self._replays, self._ahead, strict=True)
        reading = [replay for replay, ahead in pairs if not ahead and not replay.is_caught_up]
        return bool(reading) and all(replay.is_waiting for replay in reading)

    def _put_in_order(self) -> None:
        unread = [replay.position for replay in self._replays if not replay.is_caught_up]
        self._ordered = merge_runs(self._ahead, self._shards, min(unread, default=TIMESTAMP_MAX))
        self._given = 0
