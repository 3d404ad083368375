"""Version 1 of the messages between nodes. Once a release has it, nothing here changes: a change is a new module.

A message travels in a frame that also names its destination, so a message for many receivers is encoded once.
"""

from __future__ import annotations

from typing import Final

import msgspec

VERSION: Final = 1


class _NodeMessage(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """One message, or a part of one."""


# The handshake


class Hello(_NodeMessage, frozen=True):
    """Who a node is and what it speaks. ``purpose``: calls or messages; each pair of nodes has a connection for either."""

    cluster: str
    name: str
    role: str
    incarnation: int
    purpose: str
    shards: int
    version_min: int
    version_max: int
    nonce: bytes = b""


class Proof(_NodeMessage, frozen=True):
    """Shows that the sender knows the cluster's secret, on this connection and on this side of it."""

    digest: bytes


class Welcome(_NodeMessage, frozen=True):
    """The peer is accepted: from now on it may send anything."""


class HelloRefusal(_NodeMessage, frozen=True):
    """The peer is not accepted."""

    reason: str


# The replication log


class Position(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """How far a copy of an origin's rows has come. A higher incarnation is newer, whatever its sequence."""

    incarnation: int
    sequence: int


class RlogWatch(_NodeMessage, frozen=True):
    """Asks a server for entries from these positions on. ``own``: the origin whose rows the asker writes itself."""

    own: str
    is_core: bool
    vector: dict[str, Position]


class Entries(_NodeMessage, frozen=True):
    """Consecutive entries of one origin. Each states the result for its key: a value, or None if the row is gone."""

    origin: str
    incarnation: int
    first: int
    keys: list[bytes]
    values: list[bytes | None]


class Snapshot(_NodeMessage, frozen=True):
    """Some rows of an origin. Entries above ``sequence`` arrive in parallel; rows that no part names are gone at the end."""

    origin: str
    incarnation: int
    sequence: int
    keys: list[bytes]
    values: list[bytes]
    is_first: bool
    is_last: bool


class CaughtUp(_NodeMessage, frozen=True):
    """Everything that the server had when it was asked has been sent."""


class Applied(_NodeMessage, frozen=True):
    """The receiver has applied this much of an origin; ``size`` bytes of credit are free again."""

    origin: str
    position: Position
    size: int


class NotWatched(_NodeMessage, frozen=True):
    """The receiver does not watch this server, or no longer under this number."""


RlogMessage = RlogWatch | Entries | Snapshot | CaughtUp | Applied | NotWatched
