"""A node that reads a log through scans: its frames are carried when the test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from braidmq.cluster.home.scans import HomeScans, ScannedLog
from braidmq.cluster.remote.log.scans import CREDIT_BYTES, RemoteScan, RemoteScans
from braidmq.net.frames import FrameKind

Carried = tuple[int, int, bytes]


class ScanPair:
    """The node's and the core's side, and what is on its way between them."""

    def __init__(self, log: ScannedLog, credit_bytes: int = CREDIT_BYTES, scans_max: int = 8, waiting_max: int = 8) -> None:
        self.to_home: deque[Carried] = deque()
        self.to_node: deque[Carried] = deque()
        self.work: deque[Callable[[], None]] = deque()
        self.remote = RemoteScans(self._send_home, credit_bytes)
        self.remote.connected()
        self.home = HomeScans(log, self.work.append, self._send_node, scans_max, waiting_max)

    def _send_home(self, kind: FrameKind, number: int, body: bytes, flags: int) -> None:
        assert kind is FrameKind.SCAN
        self.to_home.append((number, flags, body))

    def _send_node(self, kind: FrameKind, number: int, body: bytes, flags: int) -> None:
        assert kind is FrameKind.SCAN
        self.to_node.append((number, flags, body))

    def open(self, filters: Sequence[str], start: Mapping[int, int], with_session_only: bool = False) -> RemoteScan:
        return self.remote.open(filters, start, with_session_only)

    def serve(self) -> None:
        """The core reads and answers as far as it can."""
        while self.to_home or self.work:
            while self.to_home:
                self.home.on_frame(*self.to_home.popleft())
            if self.work:
                self.work.popleft()()

    def deliver(self) -> None:
        """What the core has sent arrives."""
        while self.to_node:
            self.remote.on_frame(*self.to_node.popleft())

    def carry(self) -> None:
        """Let everything happen."""
        self.serve()
        self.deliver()
