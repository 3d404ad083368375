"""Reading the logs of several cores as one: a scan at each core, merged by time.

A reader gets the records of each shard in order, each once. Those of different shards are merged by their timestamps as long as
every core answers. A core that is away, or silent for a second, is left out: what the others have is handed out without it, and
its records follow from its own positions when it is back (C22).

A core's scan that has caught up is asked again only when that core has announced later commits: so a reader that waits for one
core does not keep asking the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Final

from braidmq.base.errors import Unavailable
from braidmq.cluster.remote.log.log_ports import Later, WaitTimer
from braidmq.cluster.remote.log.scans import RemoteScan, RemoteScans
from braidmq.lane.records.records import Record
from braidmq.storage.reading.reader import RetentionGap

SILENT_S: Final = 1.0
_RETRY_S: Final = 0.5


class _Part:
    """One core's share of a scan."""

    def __init__(self, scans: RemoteScans, start: Mapping[int, int]) -> None:
        """``start``: of all shards; only those that the core leads count."""
        self.scans = scans
        self.scan: RemoteScan | None = None
        self.retry_at = 0.0  # not before it is opened again
        self.waits_since: float | None = None
        self._start = start
        self._positions = scans.led_of(start)  # while there is no scan

    @property
    def positions(self) -> dict[int, int]:
        """Where to go on in this core's shards."""
        return self._positions if self.scan is None else self.scan.positions()

    @property
    def is_away(self) -> bool:
        """Whether the core cannot be read now."""
        return self.scan is None

    @property
    def is_at_end(self) -> bool:
        """Whether everything that the core had when it was last asked was handed out."""
        return self.scan is not None and self.scan.is_caught_up

    def open(self, filters: Sequence[str], with_session_only: bool, now: float) -> None:
        """Open it if the core can be read."""
        if self.scan is None and self.scans.is_connected and now >= self.retry_at:
            self.scan = self.scans.open(filters, {**self._start, **self._positions}, with_session_only)
            self.waits_since = None

    def fail(self, retry_at: float) -> RemoteScan | None:
        """The core cannot be read: go on later, behind what was handed out. The scan that has failed."""
        scan, self.scan = self.scan, None
        if scan is not None:
            self._positions = scan.positions()
        # One that is gone is read as soon as it is back: nothing else may happen after that.
        self.retry_at = retry_at if self.scans.is_connected else 0.0
        return scan


class CoresScan:
    """One scan; implements `broker.ports.LogScan`. Made by `MergedScans.open`."""

    def __init__(
        self, scans: MergedScans, parts: list[_Part], filters: Sequence[str], with_session_only: bool, now: Callable[[], float]
    ) -> None:
        self._scans = scans
        self._parts = parts
        self._filters = filters
        self._with_session_only = with_session_only
        self._now = now
        self._gaps: dict[int, RetentionGap] = {}
        self._is_waiting = False
        self._callback: Callable[[], None] | None = None
        self._timer: WaitTimer | None = None

    @property
    def is_caught_up(self) -> bool:
        """Whether everything that was committed at all cores, when they were last asked, has been returned."""
        return all(part.is_at_end for part in self._parts)

    @property
    def is_waiting(self) -> bool:
        """Whether the last call found nothing because nothing has arrived."""
        return self._is_waiting

    def when_ready(self, callback: Callable[[], None]) -> None:
        """Call back once, when it is worth another call."""
        self._callback = callback
        for part in self._parts:
            if part.scan is not None:
                part.scan.when_ready(self.wake)
        self._scans.add_waiting(self)
        now = self._now()
        dues = [part.waits_since + SILENT_S for part in self._parts if part.waits_since is not None]
        dues += [part.retry_at for part in self._parts if part.is_away and part.scans.is_connected]
        left_s = min((due - now for due in dues if due > now), default=None)
        if left_s is not None:
            self._stop_timer()
            self._timer = self._scans.later(left_s, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self.wake()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def wake(self) -> None:
        """Something may have arrived."""
        callback, self._callback = self._callback, None
        if callback is not None:
            self._scans.remove_waiting(self)
            self._stop_timer()
            callback()

    @property
    def has_news(self) -> bool:
        """Whether a core can be asked for more than it was."""
        return any(self._is_open_again(part) or self._is_behind(part) for part in self._parts)

    def _is_open_again(self, part: _Part) -> bool:
        return part.is_away and part.scans.is_connected and self._now() >= part.retry_at

    def _is_behind(self, part: _Part) -> bool:
        """Whether a scan that had caught up has more to read by now."""
        if not part.is_at_end:
            return False
        watermarks = self._scans.watermarks()
        return any(position < watermarks[shard] for shard, position in part.positions.items())

    def close(self) -> None:
        """The reader needs it no more."""
        self._callback = None
        self._scans.remove_waiting(self)
        self._stop_timer()
        for part in self._parts:
            if part.scan is not None:
                part.scan.close()

    def positions(self) -> dict[int, int]:
        """Where to go on, by shard: everything at or below was handed out or does not match."""
        return {shard: position for part in self._parts for shard, position in part.positions.items()}

    def take_gaps(self) -> Mapping[int, RetentionGap]:
        """What retention deleted before it could be read, by shard; each gap is returned once."""
        for part in self._parts:
            self._keep_gaps(part.scan)
        gaps, self._gaps = self._gaps, {}
        return gaps

    def _keep_gaps(self, scan: RemoteScan | None) -> None:
        for shard, gap in scan.take_gaps().items() if scan is not None else ():
            self._gaps[shard] = gap.widened(self._gaps.get(shard))

    def next(self, count_max: int, *, slice_s: float) -> list[tuple[int, Record]]:
        """The next records with their shards, at most this many, of what has arrived. Raises Unavailable if no core answers."""
        found: list[tuple[int, Record]] = []
        while len(found) < count_max:
            heads = self._heads()
            if heads is None or not heads:
                break
            part = heads[0][1]
            until = heads[1][0] if len(heads) > 1 else None
            assert part.scan is not None  # it has a head
            found += part.scan.next(count_max - len(found), slice_s=slice_s, until=until)
        self._is_waiting = not found and not self.is_caught_up
        if not found and all(part.is_away for part in self._parts):
            raise Unavailable("no core is connected", _RETRY_S)
        return found

    def _heads(self) -> list[tuple[int, _Part]] | None:
        """The parts with records, by the times of their first ones; None if a core that answers has to be waited for."""
        now = self._now()
        heads: list[tuple[int, _Part]] = []
        is_awaited = False
        for part in self._parts:
            part.open(self._filters, self._with_session_only, now)
            if part.scan is None:
                continue
            try:
                head = self._head(part, part.scan)
            except Unavailable as problem:
                failed = part.fail(now + problem.retry_after_s)
                self._keep_gaps(failed)
                if failed is not None:
                    failed.close()
                continue
            if head is not None:
                part.waits_since = None
                heads.append((head, part))
            elif not part.is_at_end:
                part.waits_since = now if part.waits_since is None else part.waits_since
                is_awaited |= now < part.waits_since + SILENT_S
        if is_awaited:
            return None
        heads.sort(key=lambda each: each[0])
        return heads

    def _head(self, part: _Part, scan: RemoteScan) -> int | None:
        """The time of a part's first record; if there is none, its core is asked. Raises Unavailable."""
        head = scan.head()
        if head is None and (not scan.is_caught_up or self._is_behind(part)):
            scan.next(0, slice_s=0.0)
        return head


class MergedScans:
    """All scans of a node with several cores. The owner of the connections calls ``note`` when a core has news."""

    def __init__(
        self,
        cores: Sequence[RemoteScans],
        watermarks: Callable[[], Mapping[int, int]],
        later: Later,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """``cores``: for each, what reads it. ``watermarks``: how far the log of each shard is said to be."""
        self.watermarks = watermarks
        self.later = later
        self._cores = cores
        self._now = now
        self._waiting: dict[CoresScan, None] = {}

    def open(self, filters: Sequence[str], positions: Mapping[int, int], with_session_only: bool) -> CoresScan:
        """Read above these positions. Raises Unavailable if no core is connected."""
        if not any(scans.is_connected for scans in self._cores):
            raise Unavailable("no core is connected", _RETRY_S)
        parts = [_Part(scans, positions) for scans in self._cores]
        return CoresScan(self, parts, filters, with_session_only, self._now)

    def note(self) -> None:
        """A core is connected, or has announced commits: wake the readers that wait for it."""
        for scan in [each for each in self._waiting if each.has_news]:
            scan.wake()

    # What scans ask

    def add_waiting(self, scan: CoresScan) -> None:
        """The scan waits."""
        self._waiting[scan] = None

    def remove_waiting(self, scan: CoresScan) -> None:
        """The scan no longer waits."""
        self._waiting.pop(scan, None)
