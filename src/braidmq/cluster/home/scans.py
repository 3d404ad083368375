"""Reads a core's log for one node: each scan of the node is served in slices, as far as the node has given it credit.

The slices of all nodes take turns (`broker.bounds.turns`), and the scans of a node take turns among themselves, so a node with
many readers costs the core's own clients and other nodes no more than a node with one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from braidmq.base.errors import BraidError, Unavailable
from braidmq.broker.ports import LogScan
from braidmq.cluster.protocol.parts import BodyParts, Send, split
from braidmq.cluster.remote.log.scans import RECORD_COST
from braidmq.lane.records.records import Record
from braidmq.net.frames import BadFrame, FrameKind
from braidmq.net.proto_v1 import ScanClose, ScanCredit, ScanFailed, ScanMessage, ScanOpen, ScanRecords

SCANS_MAX: Final = 256  # open scans of one node: each keeps up to some megabytes
WAITING_MAX: Final = 10_000  # scans of one node that begin when others have ended
CREDIT_BYTES_MAX: Final = 16 * 1024 * 1024
SLICE_S: Final = 0.0005
_READ: Final = 64  # records asked for at a time
_BATCH_BYTES: Final = 64 * 1024  # of records in one message, unless the first one is larger
_QUIET_SLICES: Final = 64  # without a match, after which the node is told how far the scan has come
_RETRY_FULL_S: Final = 1.0
_RETRY_FAULT_S: Final = 60.0

_decoder: Final = msgspec.msgpack.Decoder(ScanOpen | ScanCredit | ScanClose)
_encode: Final = msgspec.msgpack.encode


class ScannedLog(Protocol):
    """The core's log; `DurableLog`."""

    @property
    def watermarks(self) -> dict[int, int]:
        """The last committed timestamp of each shard."""

    def replay(self, filters: Sequence[str], start: Mapping[int, int] | int, *, with_session_only: bool = False) -> LogScan:
        """Read what matches one of the filters, later than the start, in order of time."""


class ServedScan:
    """One scan of a node."""

    def __init__(self, scans: HomeScans, number: int, scan: LogScan, credit: int) -> None:
        self.scan = scan
        self._scans = scans
        self._number = number
        self._credit = credit
        self._read: list[tuple[int, Record]] = []  # and not sent
        self._is_scheduled = False
        self._is_end_told = False
        self._quiet = 0
        self._is_closed = False

    def give(self, size: int) -> None:
        """The node has used some bytes, or asks whether there is more."""
        self._credit = min(self._credit + size, CREDIT_BYTES_MAX)
        self._is_end_told = False
        self.schedule()

    def schedule(self) -> None:
        """Go on when it is this scan's turn."""
        if not self._is_scheduled and not self._is_closed:
            self._is_scheduled = True
            self._scans.add_work(self._run)

    def close(self) -> None:
        """Release what it holds."""
        self._is_closed = True
        self._read = []
        self.scan.close()

    def _run(self) -> None:
        self._is_scheduled = False
        if self._is_closed or self._is_end_told or self._credit <= 0:
            return
        try:
            self._step()
        except Unavailable as problem:
            self._scans.fail(self._number, problem.detail, problem.retry_after_s)
        except BraidError as problem:
            self._scans.fail(self._number, str(problem), _RETRY_FAULT_S)

    def _step(self) -> None:
        scan = self.scan
        if not self._read:
            self._read = scan.next(_READ, slice_s=SLICE_S)
        self._quiet = 0 if self._read else self._quiet + 1
        is_at_end = not self._read and scan.is_caught_up
        if self._read:
            self._send_batch()
        elif is_at_end or self._quiet >= _QUIET_SLICES:
            self._send([], is_at_end)
        if is_at_end:
            self._is_end_told = True
        elif not self._read and scan.is_waiting:
            scan.when_ready(self.schedule)
        else:
            self.schedule()

    def _send_batch(self) -> None:
        """Send what was read, as far as a message and the credit reach."""
        size = count = 0
        for _, record in self._read:
            if count and size + len(record.value) > _BATCH_BYTES:
                break
            size += len(record.value) + RECORD_COST
            count += 1
        batch, self._read = self._read[:count], self._read[count:]
        self._credit -= size
        is_at_end = not self._read and self.scan.is_caught_up
        self._send(batch, is_at_end)
        self._is_end_told = is_at_end

    def _send(self, batch: list[tuple[int, Record]], is_at_end: bool) -> None:
        self._quiet = 0
        positions = {} if self._read else self.scan.positions()
        if is_at_end:
            # Whatever the filters, nothing committed is missing: so the node's reader can reach the marks of its feed.
            for shard, mark in self._scans.watermarks().items():
                positions[shard] = max(positions.get(shard, 0), mark)
        gaps = {shard: (gap.wanted, gap.floor) for shard, gap in self.scan.take_gaps().items()}
        message = ScanRecords(
            [shard for shard, _ in batch],
            [record.timestamp for _, record in batch],
            [record.value for _, record in batch],
            positions,
            is_at_end,
            gaps,
        )
        self._scans.send(self._number, message)


class HomeScans:
    """The scans of one node, on its present connection."""

    def __init__(
        self,
        log: ScannedLog,
        add_work: Callable[[Callable[[], None]], None],
        send: Send,
        scans_max: int = SCANS_MAX,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        """``add_work``: does a piece of work when it is this node's turn."""
        self.add_work = add_work
        self.rejected = 0  # scans beyond the maximum
        self._log = log
        self._send = send
        self._scans_max = scans_max
        self._waiting_max = waiting_max
        self._open: dict[int, ServedScan] = {}
        self._waiting: dict[int, ScanOpen] = {}  # in the order of arrival
        self._parts = BodyParts()

    def __len__(self) -> int:
        return len(self._open)

    def on_frame(self, number: int, flags: int, body: bytes | memoryview) -> None:
        """A frame of a scan has arrived. Raises BadFrame."""
        whole = self._parts.add(number, flags, body)
        if whole is None:
            return
        try:
            message = _decoder.decode(whole)
        except msgspec.MsgspecError as problem:
            raise BadFrame(f"a message of a scan cannot be read: {problem}") from None
        if isinstance(message, ScanOpen):
            self._begin(number, message)
            return
        scan = self._open.get(number)
        if scan is None:  # it waits, or has failed and the node does not know yet
            if isinstance(message, ScanClose):
                self._waiting.pop(number, None)
            return
        if isinstance(message, ScanClose):
            del self._open[number]
            scan.close()
            self._begin_waiting()
        elif message.size < 0:
            raise BadFrame("a scan was given a negative credit")
        else:
            scan.give(message.size)

    def _begin(self, number: int, opening: ScanOpen) -> None:
        if number in self._open or number in self._waiting:
            raise BadFrame(f"scan {number} was opened twice")
        if len(self._open) < self._scans_max:
            self._open_scan(number, opening)
        elif len(self._waiting) < self._waiting_max:
            self._waiting[number] = opening
        else:
            self.rejected += 1
            self.send(number, ScanFailed("the core reads its log for too many clients of this node", _RETRY_FULL_S))

    def _begin_waiting(self) -> None:
        while self._waiting and len(self._open) < self._scans_max:
            number = next(iter(self._waiting))
            self._open_scan(number, self._waiting.pop(number))

    def _open_scan(self, number: int, opening: ScanOpen) -> None:
        try:
            found = self._log.replay(opening.filters, opening.positions, with_session_only=opening.with_session_only)
        except Unavailable as problem:
            self.send(number, ScanFailed(problem.detail, problem.retry_after_s))
            return
        except BraidError as problem:
            self.send(number, ScanFailed(str(problem), _RETRY_FAULT_S))
            return
        scan = self._open[number] = ServedScan(self, number, found, min(opening.credit_bytes, CREDIT_BYTES_MAX))
        scan.schedule()

    def lost(self) -> None:
        """The connection is gone."""
        scans, self._open = self._open, {}
        self._waiting.clear()
        for scan in scans.values():
            scan.close()

    # What scans ask

    def watermarks(self) -> dict[int, int]:
        """The last committed timestamp of each shard."""
        return self._log.watermarks

    def send(self, number: int, message: ScanMessage) -> None:
        """Send a message of a scan."""
        for part, more in split(_encode(message)):
            self._send(FrameKind.SCAN, number, part, more)

    def fail(self, number: int, reason: str, retry_after_s: float) -> None:
        """End a scan that could not be read."""
        scan = self._open.pop(number, None)
        if scan is not None:
            scan.close()
            self.send(number, ScanFailed(reason, retry_after_s))
            self._begin_waiting()
