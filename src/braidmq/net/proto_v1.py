"""Version 1 of the messages between nodes. Once a release has it, nothing here changes: a change is a new module.

A message travels in a frame that also names its destination, so a message for many receivers is encoded once.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

VERSION: Final = 1

PacketId = Annotated[int, msgspec.Meta(ge=0, le=65_535)]  # 0: none


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


class ProbeAnswer(_NodeMessage, frozen=True):
    """How far the sender's own logs of routes had come when it was probed, by origin."""

    positions: dict[str, Position]


# Joining


class Register(_NodeMessage, frozen=True):
    """A node asks a core for its incarnation. ``key``: identifies the node over restarts; another key with its name is refused.

    ``incarnation``: the one that the node has; 0 for a node that has just started. ``mode``: its `registry.mode`.
    """

    name: str
    key: bytes
    incarnation: int
    mode: str = "linear"


class CoreEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A core of the cluster and the shards that it leads. ``address``: where nodes reach it.

    It is empty for the core that answers, which the node has reached, and for one that has never been started.
    """

    name: str
    address: str
    shards: list[int]


class Registered(_NodeMessage, frozen=True):
    """The node is a member. ``core_incarnation`` is new at every start of the core; ``shards`` is how many there are.

    ``cores``: all cores of the cluster, by name. Each shard is led by one of them. ``cluster_version``: the version that all
    members speak; formats and operations of later ones are not used. A node is asked to register again when it rises.
    """

    registration_id: int
    incarnation: int
    core_incarnation: int
    log_id: bytes
    shards: int
    cores: list[CoreEntry]
    cluster_version: int = 1


class CallFailed(_NodeMessage, frozen=True):
    """A call was refused or failed."""

    reason: str
    retry_after_s: float


# Blocks: on the connection for messages


class KeyOfBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The key of a producer's message, and the batch that it belongs to."""

    name: str
    base: int
    key: bytes


class SentNumber(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The number of a producer's message. ``check``: crc32 of its topic and payload.

    ``stops``: if the message is rejected, no later one of this channel is recorded.
    """

    name: bytes
    sequence: int
    check: int
    stops: bool = False
    key: KeyOfBatch | None = None


class PublishEntry(_NodeMessage, frozen=True):
    """A message with QoS 1 or 2 that a channel's client has published. ``value``: the message as a record of the log.

    ``producer``: of a producer's message; None for all others. ``received``: the packet id of a message with QoS 2, to be noted
    unless the message is refused; 0 if it is not to be noted.
    """

    channel: int
    value: bytes
    producer: SentNumber | None = None
    received: PacketId = 0


class RowsEntry(_NodeMessage, frozen=True):
    """Row operations of a channel, to be written together; encoded by the cluster layer. Channel 0: the node's own."""

    channel: int
    operations: bytes


class DelayEntry(_NodeMessage, frozen=True):
    """A message that the home publishes later: the one operation that keeps it. The rest is as in ``PublishEntry``."""

    channel: int
    operation: bytes
    producer: SentNumber | None = None
    received: PacketId = 0


class ReleaseEntry(_NodeMessage, frozen=True):
    """A channel has ended. ``ending``: the value of an ``Ending``."""

    channel: int
    ending: str


class WithdrawEntry(_NodeMessage, frozen=True):
    """A node no longer wants what it has claimed, granted or not."""

    number: int
    client_id: str
    channel: int


class PresenceEntry(_NodeMessage, frozen=True):
    """A client has connected, or its connection has ended. It counts as told when its block is answered.

    ``version``: of its grant. ``age_ms``: how long ago that was when the block was sent. ``clean_start``: of its CONNECT.
    ``reason``: why the connection has ended.
    """

    client_id: str
    version: list[int]
    is_online: bool
    age_ms: int
    user_name: str | None
    peer_host: str | None
    peer_port: int
    listener: str
    protocol: int
    keep_alive: int
    clean_start: bool
    reason: int


BlockEntry = PublishEntry | RowsEntry | DelayEntry | ReleaseEntry | WithdrawEntry | PresenceEntry


class BlockBody(_NodeMessage, frozen=True):
    """A block of a shard. ``confirmed``: the node has the answers up to this number.

    ``next_number``: in the first block after a connection was made, the number of the node's next new block; else 0.
    """

    number: int
    confirmed: int
    next_number: int
    entries: list[BlockEntry]


class AnswerBody(_NodeMessage, frozen=True):
    """What became of a block: the outcome of each entry that was not simply recorded, by its index (see `cluster.blocks`)."""

    number: int
    outcomes: dict[int, int]


class Marks(_NodeMessage, frozen=True):
    """Everything up to these timestamps, by shard, has been sent to the node. ``clock``: the log's clock, in microseconds.

    ``floors``: the first timestamps that retention has left, by shard; empty if they are as before.
    """

    positions: list[int]
    clock: int
    floors: list[int] = []


class FeedStart(_NodeMessage, frozen=True):
    """A node has connected for messages, and says so in a frame of kind MARKS.

    ``positions``: how far the feed has come, by shard; empty: the node has just started. The feed starts once the core has the
    node's routes up to ``sequence``.
    """

    positions: list[int]
    sequence: int


# Scans of the log: in frames of kind SCAN


class ScanOpen(_NodeMessage, frozen=True):
    """Read what matches one of the filters above these positions, in order of time."""

    filters: list[str]
    positions: dict[int, int]
    with_session_only: bool
    credit_bytes: int


class ScanRecords(_NodeMessage, frozen=True):
    """Records in order of time: shards, timestamps and values. ``positions``: how far the scan has come, by shard.

    ``gaps``: what retention deleted before it could be read, by shard: the position asked for and the first one that is left.
    """

    shards: list[int]
    timestamps: list[int]
    values: list[bytes]
    positions: dict[int, int]
    is_caught_up: bool
    gaps: dict[int, tuple[int, int]]


class ScanCredit(_NodeMessage, frozen=True):
    """The reader has used this many bytes: as many more may be sent. 0: it had caught up, and asks whether there is more."""

    size: int


class ScanFailed(_NodeMessage, frozen=True):
    """The scan has ended because the log could not be read."""

    reason: str
    retry_after_s: float


class ScanClose(_NodeMessage, frozen=True):
    """The reader needs no more."""


ScanMessage = ScanOpen | ScanRecords | ScanCredit | ScanFailed | ScanClose


# Operation: calls of a core, for its operator


class AskNode(_NodeMessage, frozen=True):
    """Asks a node for something that an operator wants to see or do. ``arguments``: JSON, as the operation defines them."""

    operation: str
    arguments: bytes


class NodeAnswer(_NodeMessage, frozen=True):
    """The answer, as JSON."""

    value: bytes


# Leases of shared groups: in frames of kind LEASE_RESULTS


class HeldLeases(_NodeMessage, frozen=True):
    """The leases of a channel, by number, that its node has, and those that it has answered lately."""

    channel: int
    held: list[int]
    settled: list[int]


class LeaseStatement(_NodeMessage, frozen=True):
    """What a node has of the messages that it was lent; says so first on every connection for messages."""

    channels: list[HeldLeases]
