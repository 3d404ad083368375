"""The log cursor: reads the log for one reader, from its positions to the end. Catch-up, replays and shared groups use it.

What to do with a record is up to the reader (`ScanReader.offer_record`). Everything else is decided here, for all of them:

    positions   everything at or below was taken by the reader or is not for it. They move only past what was handed out, so a
                reader may stop at any record, lose its read-ahead, and go on from there without loss or repetition
    slices      one run ends with its deadline. The clock is checked after each record that is offered alone
    slots       nothing is read without a slot; a reader that takes nothing more for now may have to give up its slot
    waiting     a source that is not ready, or fails, wakes the reader (`source`). Until then a run costs nothing
    gaps        what retention deleted before it could be read is reported once

Offering a record may end the connection, and with it the reading: ``close`` may be called within a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from time import monotonic
from typing import Protocol

from braidmq.broker.ports import LogScan
from braidmq.broker.reading.slots import Reader, Slots
from braidmq.broker.reading.source import LogSource, ReaderScan
from braidmq.lane.records.records import Record

SLICE_S = 0.0005  # of reading for one reader, before others have their turn; see `bounds.turns`

_READ = 256  # records asked for at a time

Records = list[tuple[int, Record]]  # with their shards
TakePlain = Callable[[Records, int], int]  # takes records from a place on; returns the place of the first that it did not take


class RunEnd(Enum):
    """How a run ended."""

    MORE = auto()  # there is more to read, in another turn
    FULL = auto()  # the reader takes no more for now
    WAITS = auto()  # for a slot, the source or the disk; the reader is woken
    CAUGHT_UP = auto()  # the reader may follow, in this very turn of the loop


class ScanReader(Reader, Protocol):
    """A reader of the log."""

    @property
    def name(self) -> str:
        """Its name in log messages."""

    @property
    def positions(self) -> list[int]:
        """Where it is, by shard; the cursor moves them."""

    def filters(self) -> Sequence[str]:
        """The filters it reads."""

    def plain(self) -> TakePlain | None:
        """Takes many plain records at once, and moves the positions; None: each record is offered alone."""

    def offer_record(self, shard: int, record: Record) -> bool:
        """Take the record, or skip it if it is not for this reader; False if there is no room for it now."""

    def note_gap(self) -> None:
        """Retention deleted records before they were read."""


class LogCursor:
    """Reads the log for one reader. It is closed with ``close``, and opens itself again at the next run."""

    __slots__ = ("_ahead", "_place", "_reader", "_scan", "_slots")

    def __init__(self, source: LogSource, slots: Slots, reader: ScanReader, *, leaves_out: bool = False) -> None:
        """``leaves_out``: the reader may follow without the shards that cannot be read (``LogSource.away``)."""

        def open_scan() -> LogScan:
            return source.open_shown(reader.filters(), reader.positions, leaves_out=leaves_out)

        self._reader = reader
        self._slots = slots
        self._scan = ReaderScan(source.later, open_scan, reader.wake, reader.name)
        self._ahead: Records = []
        self._place = 0  # in it: what comes next was not taken yet

    @property
    def is_blocked(self) -> bool:
        """Whether it waits until the source is ready."""
        return self._scan.is_blocked

    def run(self, deadline: float) -> RunEnd:
        """Read and offer records until the deadline, or until the reader accepts no more."""
        if self._scan.is_blocked or not self._slots.admit(self._reader):
            return RunEnd.WAITS
        turn = self._run(deadline)
        if turn is RunEnd.FULL:
            self.note_idle()
        return turn

    def note_idle(self) -> None:
        """The reader accepts no more for now."""
        if self._scan.is_open:
            self._slots.note_idle(self._reader)

    def close(self) -> None:
        """Release the scan, the read-ahead and the slot."""
        self._scan.close()
        self._ahead = []
        self._place = 0
        self._slots.leave(self._reader)

    def _run(self, deadline: float) -> RunEnd:
        while True:
            turn = self._offer_ahead(deadline)
            if turn is not None:
                return turn
            scan = self._scan.open()
            if scan is None:
                return RunEnd.WAITS
            if scan.is_caught_up:
                return RunEnd.CAUGHT_UP
            left_s = deadline - monotonic()
            if left_s <= 0:
                return RunEnd.MORE
            found = self._scan.next(_READ, left_s)
            if found is None and not self._scan.is_open:
                return RunEnd.WAITS  # it failed: where it had come to is not known
            self._take_in(scan, found or [])
            if found is None:
                return RunEnd.WAITS

    def _take_in(self, scan: LogScan, found: Records) -> None:
        self._ahead = found
        self._place = 0
        if not found:
            positions = self._reader.positions
            for shard, position in scan.positions().items():
                positions[shard] = position
        for _ in scan.take_gaps():
            self._reader.note_gap()

    def _offer_ahead(self, deadline: float) -> RunEnd | None:
        """Offer what was read, one record in any case; None if everything was taken."""
        records, reader = self._ahead, self._reader
        if not records:
            return None
        positions, take_plain = reader.positions, reader.plain()
        while self._place < len(records):
            if take_plain is not None:
                place = take_plain(records, self._place)
                if self._ahead is not records:
                    return RunEnd.FULL  # sending has ended the connection
                self._place = place
                if place == len(records):
                    break
            shard, record = records[self._place]
            if not reader.offer_record(shard, record):
                return RunEnd.FULL
            positions[shard] = record.timestamp
            if self._ahead is not records:
                return RunEnd.FULL
            self._place += 1
            if self._place < len(records) and monotonic() >= deadline:
                return RunEnd.MORE
        return None


def is_new(shard: int, timestamp: int, start: Sequence[int]) -> bool:
    """Whether a record is later than a subscription's start (S3); a shard without a start has only such records."""
    return shard >= len(start) or timestamp > start[shard]


def is_shown(shard: int, record: Record, start: Sequence[int]) -> bool:
    """Whether a replay shows a record: history hides session-only ones, but any subscription receives what is new."""
    return not record.session_only or is_new(shard, record.timestamp, start)
