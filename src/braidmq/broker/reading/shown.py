"""Reads the log only as far as its messages have been delivered to followers.

Committed messages are delivered in the order of the commits, over several turns of the loop if there are many. A reader that read
further and then started to follow would receive the rest twice.

On a node whose log is elsewhere, the marks say how far the feed has come. The log may be ahead of them at any time, and so may a
reader that comes from another node: it follows only when the marks have reached its position, and reads from the log what lies
between the two at that moment (C20). It also waits until the routes of its session are known to the home (C10).

With several homes, shards whose home is *away* can be left out: the reader follows the others, and reads those later (C22).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import islice

from braidmq.broker.ports import Gap, LogScan
from braidmq.lane.path.state import State
from braidmq.lane.records.records import Record


class Showing:
    """The scans that wait until more of what is committed has been delivered; ``note_progress`` is called after each part."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.is_remote = False  # the log is elsewhere: only the marks say what was delivered
        self._waiting: dict[ShownScan, Callable[[], None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, scan: ShownScan, callback: Callable[[], None]) -> None:
        """Call back once, when the scan can be read on."""
        self._waiting[scan] = callback

    def remove(self, scan: ShownScan) -> None:
        """The scan is closed."""
        self._waiting.pop(scan, None)

    def note_progress(self) -> None:
        """More messages have been delivered to followers, or routes have become known."""
        for scan in [each for each in self._waiting if not each.is_barred()]:
            self._waiting.pop(scan)()


def _always() -> bool:
    return True


def _nowhere() -> Collection[int]:
    return ()


class ShownScan:
    """A scan that ends where the live messages begin; implements `ports.LogScan`."""

    def __init__(
        self,
        scan: LogScan,
        showing: Showing,
        start: Mapping[int, int] | None = None,
        may_follow: Callable[[], bool] = _always,
        away: Callable[[], Collection[int]] = _nowhere,
    ) -> None:
        """``start``: the reader's positions, which may be above the marks. ``may_follow``: whether its routes are known.

        ``away``: the shards that may be left out now.
        """
        self._scan = scan
        self._showing = showing
        self._state = showing.state
        self._start = dict(start or {})
        self._may_follow = may_follow
        self._away = away
        self._held: list[tuple[int, Record]] = []  # read, but the first of them was not delivered to followers yet
        self._is_barred = False  # the last call found nothing because of that

    @property
    def _is_bounded(self) -> bool:
        """Whether the log may be ahead of what was delivered."""
        return self._showing.is_remote or bool(self._state.unshown)

    @property
    def is_caught_up(self) -> bool:
        """Whether everything delivered to followers was handed out, so that the reader may follow from here on."""
        if not self._is_bounded:
            return not self._held and self._scan.is_caught_up and self._may_follow()
        return self._is_read() and not self._is_ahead() and self._may_follow()

    def _is_read(self) -> bool:
        """Whether everything delivered to followers was handed out, and nothing is being delivered."""
        state = self._state
        if state.part_shard >= 0:
            return False  # some followers have this message, and others have not
        if any(record.timestamp <= state.marks[shard] for shard, record in self._held):
            return False
        if self._scan.is_caught_up and not self._showing.is_remote:
            return True
        positions, away = self._scan.positions(), self._away()
        return all(positions[shard] >= state.marks[shard] for shard in positions if shard not in away)

    def _is_ahead(self) -> bool:
        """Whether the feed would bring what the reader has read elsewhere."""
        away = self._away()
        return any(position > self._state.marks[shard] for shard, position in self._start.items() if shard not in away)

    @property
    def is_waiting(self) -> bool:
        """Whether the last call found nothing because the source, or delivery to followers, has to come first."""
        return self._is_barred or self._scan.is_waiting

    def is_barred(self) -> bool:
        """Whether more messages have to be delivered to followers before it can be read on."""
        if self.is_caught_up:
            return False
        if self._held:
            shard, record = self._held[0]
            return record.timestamp > self._state.marks[shard]
        return self._is_at_end()

    def _is_at_end(self) -> bool:
        """Whether there is nothing to read on for."""
        if self._showing.is_remote:
            return self._is_read() or self._state.part_shard >= 0
        return self._scan.is_caught_up

    def when_ready(self, callback: Callable[[], None]) -> None:
        """Call back once, when it can be read on."""
        if self._is_barred:
            self._showing.add(self, callback)
        else:
            self._scan.when_ready(callback)

    def close(self) -> None:
        """The reader no longer needs it."""
        self._showing.remove(self)
        self._scan.close()

    def positions(self) -> dict[int, int]:
        """Where to go on, by shard: everything at or below was handed out or does not match, and was delivered to followers."""
        positions = self._scan.positions()
        for shard, record in self._held:
            positions[shard] = min(positions[shard], record.timestamp - 1)
        marks, start = self._state.marks, self._start
        return {shard: max(min(position, marks[shard]), start.get(shard, 0)) for shard, position in positions.items()}

    def take_gaps(self) -> Mapping[int, Gap]:
        """What retention deleted before it could be read, by shard; each gap is returned once."""
        return self._scan.take_gaps()

    def next(self, count_max: int, *, slice_s: float) -> list[tuple[int, Record]]:
        """The next records with their shards, at most this many; none if nothing can be handed out now."""
        self._is_barred = False
        records, self._held = self._held, []
        if not records and not (self._showing.is_remote and self._is_at_end()):
            records = self._scan.next(count_max, slice_s=slice_s)
        if self._is_bounded:
            marks = self._state.marks
            place = next((i for i, (shard, record) in enumerate(records) if record.timestamp > marks[shard]), len(records))
            self._held = list(islice(records, place, None))
            records = records[:place]
        is_at_end = bool(self._held) or self._is_at_end()
        self._is_barred = not records and is_at_end and (self._is_bounded or not self.is_caught_up)
        if len(records) > count_max:
            records, self._held = records[:count_max], records[count_max:] + self._held
        return records
