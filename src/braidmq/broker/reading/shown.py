"""Reads the log only as far as its messages have been delivered to followers.

Committed messages are delivered in the order of the commits, over several turns of the loop if there are many. A reader that read
further and then started to follow would receive the rest twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from braidmq.broker.ports import Gap, LogScan
from braidmq.lane.path.state import State
from braidmq.lane.records.records import Record

_SLICE_S = 0.0005  # of reading, before others have their turn


class ShownScan:
    """A replay that ends where the live messages begin; fills `ports.LogScan`."""

    def __init__(self, replay: LogScan, state: State) -> None:
        self._replay = replay
        self._state = state
        self._held: list[tuple[int, Record]] = []  # read, and not to be handed out before the first of them was shown
        self._is_barred = False  # the last call came to nothing because of that

    @property
    def is_caught_up(self) -> bool:
        """Whether everything that was shown was handed out, so that its reader may follow from here on."""
        state = self._state
        if not state.unshown:
            return not self._held and self._replay.is_caught_up
        if state.part_shard >= 0:
            return False  # some of those who follow have this message, and others have not
        if any(record.timestamp <= state.marks[shard] for shard, record in self._held):
            return False
        positions = self._replay.positions()
        return self._replay.is_caught_up or all(positions[shard] >= state.marks[shard] for shard in positions)

    @property
    def is_waiting(self) -> bool:
        """Whether nothing can be handed out for a moment."""
        return self._is_barred or self._replay.is_waiting

    def positions(self) -> dict[int, int]:
        """Where to go on, by shard: everything at or below was handed out or does not match, and was shown to others."""
        positions = self._replay.positions()
        for shard, record in self._held:
            positions[shard] = min(positions[shard], record.timestamp - 1)
        return {shard: min(position, self._state.marks[shard]) for shard, position in positions.items()}

    def take_gaps(self) -> Mapping[int, Gap]:
        """What retention removed before it could be read, by shard, told once."""
        return self._replay.take_gaps()

    def next(self, count_max: int, *, slice_s: float = _SLICE_S) -> list[tuple[int, Record]]:
        """The next records with their shards, at most so many; none if nothing can be handed out now."""
        self._is_barred = False
        records, self._held = self._held, []
        if not records:
            records = self._replay.next(count_max, slice_s=slice_s)
        if self._state.unshown:
            marks = self._state.marks
            place = next((i for i, (shard, record) in enumerate(records) if record.timestamp > marks[shard]), len(records))
            self._held = list(islice(records, place, None))
            records = records[:place]
            self._is_barred = not records and (bool(self._held) or self._replay.is_caught_up)
        if len(records) > count_max:
            records, self._held = records[:count_max], records[count_max:] + self._held
        return records
