"""Limits the memory of incomplete packets: beyond the limit, the connection with the oldest one is closed."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from braidmq.lane.path.channel_reader import PART_BYTES
from braidmq.mqtt.reasons import Reason

log = logging.getLogger("braidmq.connection")


class Receiver(Protocol):
    """A connection, as far as its incomplete packet is concerned."""

    client_id: str
    hold_bits: int

    @property
    def part_bytes(self) -> int:
        """Received bytes that wait for the rest of their packet, or for a hold to end."""
        ...

    def peer(self) -> str:
        """Where the client is, for logs."""
        ...

    def close(self, reason: int, detail: str) -> None:
        """End the connection."""
        ...


class Parts:
    """Connections that have received a large part of a packet."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0  # as last noted: packets completed since then count until ``_relieve``
        self.closed = 0  # connections
        self._loop = loop
        self._sizes: dict[Receiver, int] = {}  # the oldest packet first
        self._is_due = False

    def note(self, connection: Receiver, size: int) -> None:
        """Note the bytes that this connection holds of an incomplete packet."""
        before = self._sizes.get(connection, 0)
        if size < before:  # another packet
            del self._sizes[connection]
        self._sizes[connection] = size
        self.size_bytes += size - before
        if self.size_bytes > self.bytes_max and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._relieve)

    def forget(self, connection: Receiver) -> None:
        """The connection is gone."""
        self.size_bytes -= self._sizes.pop(connection, 0)

    def _relieve(self) -> None:
        self._is_due = False
        for connection in list(self._sizes):
            size = connection.part_bytes
            if size <= PART_BYTES or connection.hold_bits:  # it is complete, or the broker is not reading
                self.forget(connection)
            else:
                self.size_bytes += size - self._sizes[connection]
                self._sizes[connection] = size
        while self.size_bytes > self.bytes_max:
            connection = next(iter(self._sizes))
            self.forget(connection)
            self.closed += 1
            log.info("%s %s: closed, incomplete packets take too much memory", connection.peer(), connection.client_id or "-")
            connection.close(Reason.QUOTA_EXCEEDED, "incomplete packets take too much memory")
