"""The bag: which channels have a client id, as far as this node has heard.

Each node writes its own channels into its part of the replication log, and reads those of all nodes in its copy. A CONNECT does
not wait for rows to arrive: a node may see a channel that has ended, or miss one that has begun. The rows of a dead node end with
its routes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from braidmq.cluster.registry.versions import Version
from braidmq.cluster.rlog.origin_log import Entry
from braidmq.cluster.rlog.origins import CHANNELS
from braidmq.cluster.rlog.tables import Tables

UNKNOWN: Final = Version(0, 0, 0)
_MODE_KEY: Final = b""


class OwnedChannel(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A channel of the node whose row this is in."""

    channel: int
    version: Version = UNKNOWN


class BagEntry(msgspec.Struct, frozen=True, gc=False):
    """A channel that has a client id."""

    node: str
    incarnation: int
    channel: int
    version: Version


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(list[OwnedChannel])


class Bag:
    """The rows of all nodes; this one writes its own. A row has all channels of one client id on one node, nearly always one."""

    def __init__(self, tables: Tables, name: str, incarnation: int, on_written: Callable[[], None]) -> None:
        """``on_written`` asks for a round of the replication log at the end of this turn."""
        self._tables = tables
        self._origin = CHANNELS + name
        self._on_written = on_written
        self._own = tables.open(self._origin, incarnation)

    def __len__(self) -> int:
        """Client ids of this node."""
        return len(self._own.rows) - (_MODE_KEY in self._own.rows)

    def announce(self, mode: str) -> None:
        """Tell all nodes which mode this one has; a row of the client id that no client has."""
        self._tables.write(self._origin, [Entry(_MODE_KEY, mode.encode())])
        self._on_written()

    def has_other(self, mode: str) -> bool:
        """Whether another node has announced this mode."""
        value = mode.encode()
        return any(self._tables.row(origin, _MODE_KEY) == value for origin in self._origins())

    def add(self, client_id: str, channel: int, version: Version = UNKNOWN) -> None:
        """A channel of this node has the client id."""
        self._write(client_id, [*self._channels(client_id), OwnedChannel(channel, version)])

    def remove(self, client_id: str, channel: int) -> None:
        """A channel of this node has ended."""
        before = self._channels(client_id)
        after = [each for each in before if each.channel != channel]
        if len(after) < len(before):
            self._write(client_id, after)

    def _channels(self, client_id: str) -> list[OwnedChannel]:
        row = self._own.rows.get(client_id.encode())
        return [] if row is None else _decoder.decode(row)

    def _write(self, client_id: str, channels: list[OwnedChannel]) -> None:
        self._tables.write(self._origin, [Entry(client_id.encode(), _encode(channels) if channels else None)])
        self._on_written()

    def others(self, client_id: str) -> list[BagEntry]:
        """The channels of the client id on other nodes, as far as this node knows."""
        key = client_id.encode()
        found: list[BagEntry] = []
        for origin in self._origins():
            row, log = self._tables.row(origin, key), self._tables.get(origin)
            if row is not None and log is not None:
                node = origin.removeprefix(CHANNELS)
                found += [BagEntry(node, log.incarnation, each.channel, each.version) for each in _decoder.decode(row)]
        return found

    def _origins(self) -> list[str]:
        """Those of the other nodes."""
        return [origin for origin, _ in self._tables if origin.startswith(CHANNELS) and origin != self._origin]
