"""Reading the home's log from a node: streams of records with credit.

A scan is opened at the home when it is first read. The home sends as many bytes as it has credit for; what the reader takes gives
credit back. A scan that has caught up stays open: the next call asks whether there is more. If the connection is lost, or the
home cannot read, every later call raises Unavailable, and the reader opens another scan from its own positions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from braidmq.base.errors import Corruption, Unavailable, UsageError
from braidmq.cluster.protocol.parts import BodyParts, Send, split
from braidmq.lane.records.records import Record
from braidmq.net.frames import BadFrame, FrameKind
from braidmq.net.proto_v1 import ScanClose, ScanCredit, ScanFailed, ScanMessage, ScanOpen, ScanRecords
from braidmq.storage.reading.reader import RetentionGap

T = TypeVar("T")

CREDIT_BYTES: Final = 256 * 1024
# Credit is given back in pieces of at least this size.
_CREDIT_PIECE: Final = CREDIT_BYTES // 4
RECORD_COST: Final = 32  # bytes that a record counts besides its value
_RETRY_AFTER_LOSS_S: Final = 0.5

_encode: Final = msgspec.msgpack.encode
_decoder: Final = msgspec.msgpack.Decoder(ScanRecords | ScanFailed)


class _Batch:
    """Records of one message that were not handed out yet, and where the scan is after them."""

    __slots__ = ("place", "positions", "records")

    def __init__(self, message: ScanRecords) -> None:
        """Raises BadFrame."""
        if not len(message.shards) == len(message.timestamps) == len(message.values):
            raise BadFrame("a scan's records are not complete")
        columns = zip(message.shards, message.timestamps, message.values, strict=True)
        try:
            self.records = [(shard, Record(timestamp, value)) for shard, timestamp, value in columns]
        except (Corruption, UsageError) as problem:
            raise BadFrame(f"a scan's record cannot be read: {problem}") from None
        self.positions = message.positions
        self.place = 0


class RemoteScan:
    """One scan; implements `broker.ports.LogScan`. Made by `RemoteScans.open`."""

    def __init__(self, scans: RemoteScans, number: int, opening: ScanOpen) -> None:
        self._scans = scans
        self._number = number
        self._opening = opening
        self._positions = scans.led_of(opening.positions)
        self._batches: deque[_Batch] = deque()
        self._gaps: dict[int, RetentionGap] = {}
        self._used = 0  # bytes that were handed out and not given back as credit
        self._failure: Unavailable | None = None
        self._is_open = False  # at the home
        self._is_asked = False  # an answer is on its way
        self._is_at_end = False  # the home had no more when it sent the last batch
        self._is_waiting = False
        self._callback: Callable[[], None] | None = None

    @property
    def is_caught_up(self) -> bool:
        """Whether everything that was committed at the home, when it was last asked, has been returned."""
        return self._is_at_end and not self._batches

    @property
    def is_waiting(self) -> bool:
        """Whether the last call found nothing because nothing has arrived."""
        return self._is_waiting

    def when_ready(self, callback: Callable[[], None]) -> None:
        """Call back once, when something has arrived."""
        self._callback = callback

    def close(self) -> None:
        """The reader needs it no more."""
        self._callback = None
        self._batches.clear()
        if self._is_open and self._failure is None:
            self._scans.send(self._number, ScanClose())
        self._is_open = False
        self._scans.forget(self._number)

    def positions(self) -> dict[int, int]:
        """Where to go on, by shard: everything at or below was handed out or does not match."""
        return dict(self._positions)

    def take_gaps(self) -> Mapping[int, RetentionGap]:
        """What retention deleted before it could be read, by shard; each gap is returned once."""
        gaps, self._gaps = self._gaps, {}
        return gaps

    def head(self) -> int | None:
        """The time of the record that comes next, if one has arrived. Raises Unavailable."""
        if self._failure is not None:
            raise self._failure
        while self._batches and not self._batches[0].records:
            self._positions.update(self._batches.popleft().positions)
        return self._batches[0].records[self._batches[0].place][1].timestamp if self._batches else None

    def next(self, count_max: int, *, slice_s: float, until: int | None = None) -> list[tuple[int, Record]]:
        """The next records with their shards, at most this many, of what has arrived; none later than ``until``."""
        if self._failure is not None:
            raise self._failure
        has_arrived = bool(self._batches)
        found: list[tuple[int, Record]] = []
        while self._batches and len(found) < count_max:
            batch = self._batches[0]
            end = min(batch.place + count_max - len(found), len(batch.records))
            if until is not None:
                end = next((at for at in range(batch.place, end) if batch.records[at][1].timestamp > until), end)
                if end == batch.place and batch.records:
                    break
            for shard, record in batch.records[batch.place : end]:
                found.append((shard, record))
                self._positions[shard] = record.timestamp
                self._used += len(record.value) + RECORD_COST
            batch.place = end
            if end == len(batch.records):
                # Not before its last record: what it says of other shards counts from there on.
                self._positions.update(batch.positions)
                self._batches.popleft()
        self._give_credit()
        if not has_arrived:
            self._ask()
        self._is_waiting = not found and not self._is_at_end
        return found

    def _give_credit(self) -> None:
        """What was handed out may be sent again, in pieces of some size."""
        if self._used >= _CREDIT_PIECE or (self._used and not self._batches):
            self._scans.send(self._number, ScanCredit(self._used))
            self._used = 0
            self._is_asked = True

    def _ask(self) -> None:
        """Open the scan, or ask a home that had no more whether there is more now."""
        if not self._is_open:
            self._is_open = self._is_asked = True
            self._scans.send(self._number, self._opening)
        elif self._is_at_end and not self._is_asked:
            self._scans.send(self._number, ScanCredit(0))
            self._is_asked = True
        self._is_at_end = False

    # What the home says

    def receive(self, message: ScanRecords | ScanFailed) -> None:
        """Something has arrived."""
        if isinstance(message, ScanFailed):
            self.fail(Unavailable(message.reason, message.retry_after_s))
            return
        batch = _Batch(message)
        batch.positions = self._scans.led_of(batch.positions)
        self._batches.append(batch)
        for shard, (wanted, floor) in self._scans.led_of(message.gaps).items():
            self._gaps[shard] = RetentionGap(wanted, floor).widened(self._gaps.get(shard))
        self._is_at_end = message.is_caught_up
        self._is_asked = False
        self._wake()

    def fail(self, problem: Unavailable) -> None:
        """It has ended."""
        self._failure = problem
        self._batches.clear()
        self._wake()

    def _wake(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class RemoteScans:
    """All scans of a node; the owner of the connection calls ``connected``, ``lost`` and ``on_frame``."""

    def __init__(self, send: Send, credit_bytes: int = CREDIT_BYTES, shards: Collection[int] | None = None) -> None:
        """``shards``: those that this home leads; None: all. What it says of others does not count."""
        self._send = send
        self._shards = shards
        self._credit_bytes = credit_bytes
        self._open: dict[int, RemoteScan] = {}
        self._parts = BodyParts()
        self._last = 0
        self._is_connected = False

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_connected(self) -> bool:
        """Whether the home can be read."""
        return self._is_connected

    def connected(self) -> None:
        """The home can be read."""
        self._is_connected = True

    def lost(self) -> None:
        """The connection is gone, and so are its scans."""
        self._is_connected = False
        self._parts = BodyParts()
        problem = Unavailable("the connection to the core was lost", _RETRY_AFTER_LOSS_S)
        for scan in list(self._open.values()):
            scan.fail(problem)

    def open(self, filters: Sequence[str], positions: Mapping[int, int], with_session_only: bool) -> RemoteScan:
        """Read above these positions. Raises Unavailable."""
        if not self._is_connected:
            raise Unavailable("the core is not connected", _RETRY_AFTER_LOSS_S)
        self._last += 1
        opening = ScanOpen(list(filters), dict(positions), with_session_only, self._credit_bytes)
        scan = self._open[self._last] = RemoteScan(self, self._last, opening)
        return scan

    def on_frame(self, number: int, flags: int, body: bytes | memoryview) -> None:
        """A frame of a scan has arrived. Raises BadFrame."""
        whole = self._parts.add(number, flags, body)
        scan = self._open.get(number)
        if whole is None or scan is None:  # it was closed, and the home does not know yet
            return
        try:
            message = _decoder.decode(whole)
        except msgspec.MsgspecError as problem:
            raise BadFrame(f"a message of a scan cannot be read: {problem}") from None
        scan.receive(message)

    # What scans ask

    def led_of(self, by_shard: Mapping[int, T]) -> dict[int, T]:
        """The part that is about shards which the home leads."""
        shards = self._shards
        return dict(by_shard) if shards is None else {shard: each for shard, each in by_shard.items() if shard in shards}

    def send(self, number: int, message: ScanMessage) -> None:
        """Send a message of a scan."""
        for part, more in split(_encode(message)):
            self._send(FrameKind.SCAN, number, part, more)

    def forget(self, number: int) -> None:
        """The scan is closed."""
        self._open.pop(number, None)
