"""One replay over all shards, in order of time.

Each shard's replay runs ahead a little and says with its position how far it has looked. What lies at or below the position of
every shard that has more to read is complete and can be put in order; what lies above it waits. A shard that has caught up holds
nobody back: nothing committed is missing there. Hence everything that is committed when a call begins comes in order of time;
what another shard commits later may be older than what was shown, because shards do not wait for each other.

The position to go on from is one timestamp per shard, and counts what was handed out, not what was read ahead.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Final

from braidmq.lane.records import Record
from braidmq.storage.reader import CHUNK_BYTES, SLICE_S, Gap, Replay

# Read ahead of a shard in one go.
_AHEAD_RECORDS: Final = 512
_AHEAD_BYTES_MIN: Final = 16 * 1024


class MergedReplay:
    """Replays of several shards as one. Made by `MessageLog.replay`."""

    def __init__(self, replays: Mapping[int, Replay], now: Callable[[], float] = time.monotonic) -> None:
        self._replays = dict(replays)
        self._now = now
        self._ahead: dict[int, list[Record]] = {shard: [] for shard in self._replays}
        self._ordered: list[tuple[int, Record]] = []
        self._given = 0  # of the ordered ones
        self._positions = {shard: replay.position for shard, replay in self._replays.items()}
        self._waiting = dict.fromkeys(self._replays, 0)  # records read and not handed out
        self._ahead_bytes_max = max(CHUNK_BYTES // max(len(self._replays), 1), _AHEAD_BYTES_MIN)
        self._turn = 0

    @property
    def is_caught_up(self) -> bool:
        """Whether everything committed was handed out."""
        return not any(self._waiting.values()) and all(replay.is_caught_up for replay in self._replays.values())

    def positions(self) -> dict[int, int]:
        """Where to go on, for each shard: everything at or below was handed out or does not match."""
        return {
            # A position of 0 would mean "from the earliest on" to the next reader, and hide what retention took meanwhile.
            shard: self._positions[shard] if self._waiting[shard] else max(replay.position, 1)
            for shard, replay in self._replays.items()
        }

    def take_gaps(self) -> dict[int, Gap]:
        """What retention removed before it could be read, by shard, told once."""
        return {shard: gap for shard, replay in self._replays.items() if (gap := replay.take_gap()) is not None}

    def next(self, count_max: int, *, slice_s: float = SLICE_S) -> list[tuple[int, Record]]:
        """The next records with their shards, at most this many.

        An empty list means that nothing was found within the slice; `is_caught_up` tells whether there can be more.
        """
        deadline = self._now() + slice_s
        handed: list[tuple[int, Record]] = []
        while len(handed) < count_max:
            if self._given == len(self._ordered):
                self._read_ahead(deadline)
                self._put_in_order()
                if not self._ordered:
                    if self._now() >= deadline or self.is_caught_up:
                        break
                    continue
            part = self._ordered[self._given : self._given + count_max - len(handed)]
            self._given += len(part)
            for shard, record in part:
                self._positions[shard] = record.timestamp
                self._waiting[shard] -= 1
            handed += part
            if self._now() >= deadline:
                break
        return handed

    def _read_ahead(self, deadline: float) -> None:
        """Let the shards that have nothing waiting read on, as far as the time allows; the next call begins where this ends."""
        shards = list(self._replays)
        for _ in shards:
            shard = shards[self._turn % len(shards)]
            replay = self._replays[shard]
            if not self._ahead[shard] and not replay.is_caught_up:
                left_s = deadline - self._now()
                if left_s <= 0:
                    return
                self._ahead[shard] = found = replay.next(_AHEAD_RECORDS, slice_s=left_s, bytes_max=self._ahead_bytes_max)
                self._waiting[shard] += len(found)
            self._turn += 1

    def _put_in_order(self) -> None:
        unread = [replay.position for replay in self._replays.values() if not replay.is_caught_up]
        upto = min(unread, default=None)
        self._ordered = []
        self._given = 0
        for shard, ahead in self._ahead.items():
            if not ahead:
                continue
            place = len(ahead) if upto is None else bisect_right(ahead, upto, key=_timestamp)
            self._ordered += [(shard, record) for record in ahead[:place]]
            self._ahead[shard] = ahead[place:]
        # Runs that are in order already: the sort merges them. Equal timestamps stay in the order of their shards.
        self._ordered.sort(key=_pair_timestamp)


def _timestamp(record: Record) -> int:
    return record.timestamp


def _pair_timestamp(pair: tuple[int, Record]) -> int:
    return pair[1].timestamp
