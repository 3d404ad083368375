"""Another node as a destination of messages: its flow in the routes, and the outlet that collects what waits for it.

    QoS 0                        the client's PUBLISH frames as they are; those of MQTT 3.1.1 and 5 are in separate bodies
    QoS 1 and 2, not recorded    numbered records, which the peer confirms (FORWARD)
    recorded                     records of each shard, in the order of their commits (FEED)

The order is kept within each of the three and, for QoS 0, for each publisher. A message that had to be encoded again becomes an
MQTT 5 frame, whatever its publisher speaks: so MQTT 5 bodies come before those of 3.1.1 that were collected with them, and such
a message first ends the body of 3.1.1.

A peer *follows* like a session: while it does, it is offered each record at its commit. When its outlet is full it falls behind,
and its owner reads the log for it (``take_record``) until it may ``follow`` again. For all other messages the outlet is the only
queue: when it is full they are dropped and counted.

A body has at most ``body_bytes_max`` bytes. A single frame or record that is larger is cut: all parts but the last have the flag
CONTINUED, and the next body of the same kind, flag V5 and destination goes on. `peer_receiver` reads all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast
from zlib import crc32

from braidmq.lane.flows.log_flow import LogFlow
from braidmq.lane.path.message import Message
from braidmq.lane.path.outbox import Outbox
from braidmq.lane.path.outlet import Outlet
from braidmq.lane.path.parser import Parser
from braidmq.lane.path.state import State
from braidmq.lane.records.records import VALUE_BYTES_MAX, encode_record
from braidmq.lane.routing.subscription import Subscription

# Kinds of frames between nodes: the numbers of ``net.frames.FrameKind``, which the lane does not import.
QOS0, FORWARD, FEED = 8, 9, 11
V5 = 1  # flag of QOS0: its packets are MQTT 5
CONTINUED = 2  # flag: the body ends within a packet or record
FEED_HEAD_BYTES = 12  # before a record of a feed: its timestamp and its length
FORWARD_HEAD_BYTES = 4  # before another one: its length
FRAME_MAX = 268_435_460
# C constants in the compiled form.
_QOS0, _FORWARD, _FEED, _V5, _CONTINUED = QOS0, FORWARD, FEED, V5, CONTINUED
_FEED_HEAD, _FORWARD_HEAD, _FRAME_MAX, _VALUE_BYTES_MAX = FEED_HEAD_BYTES, FORWARD_HEAD_BYTES, FRAME_MAX, VALUE_BYTES_MAX
_PUBLISH_HEAD = 11  # the most that a PUBLISH has beside topic, properties and payload

Body = tuple[int, int, int, bytes]  # kind, flags and destination of a frame between nodes, and its body


class PeerOutlet(Outlet):
    """What waits for one peer. The owner takes it at the end of a turn and says what its connection has not written."""

    __slots__ = (
        "_feeds", "_forwards", "_forwards_first", "_sealed", "_v3", "_v5", "body_bytes_max", "bytes_max", "forwarded", "name",
        "on_work", "state", "unwritten_bytes", "waiting_bytes",
    )  # fmt: skip

    def __init__(self, name: str, state: State, bytes_max: int, body_bytes_max: int, forwarded: int = 0) -> None:
        self.name = name
        self.state = state
        self.bytes_max = bytes_max  # collected and unwritten; beyond it the outlet is clogged
        self.body_bytes_max = body_bytes_max
        self.waiting_bytes = 0  # collected since ``take_frames``
        self.unwritten_bytes = 0  # taken, and not written by the connection
        self.on_work: Callable[[], None] | None = None  # called when the first bytes are collected: ``take_frames`` must follow
        self.forwarded = forwarded  # the number of the last FORWARD record
        self.is_waiting = self.is_muted = False
        self.turn = -1
        self._v3 = Outbox()
        self._v5 = Outbox()
        self._forwards = Outbox()
        self._forwards_first = 0  # the number of its first record
        self._feeds: list[Outbox | None] = []  # by shard
        self._sealed: list[Body] = []  # bodies to which nothing is added

    # Collecting

    def forward_frame(self, parser: Parser, v5: bool) -> bool:
        # The lane counts it as a packet to a client.
        self.state.counters.publish_qos0_sent -= 1
        if self.is_muted:
            return True
        if self.is_clogged():
            self.drop(parser.topic())  # a copy through another path would fail as well
        else:
            self._add_frame(parser, v5)
        return True

    def drop(self, topic: bytes) -> None:
        """Count and report a message for which there is no room."""
        self.state.counters.dropped_peer_full += 1
        self.state.drop("peer_full", self.name, topic)

    def is_clogged(self) -> bool:
        return self.waiting_bytes + self.unwritten_bytes >= self.bytes_max

    def is_filling(self) -> bool:
        return (self.waiting_bytes + self.unwritten_bytes) * 2 >= self.bytes_max

    def has_room(self) -> bool:
        """Whether a reader of the log may add records: half of the outlet is free."""
        return not self.is_filling()

    def flush(self) -> None:
        """Its owner takes the frames at the end of the turn."""

    def _count(self, size: int) -> None:
        is_first = self.waiting_bytes == 0
        self.waiting_bytes += size
        if is_first and self.on_work is not None:
            self.on_work()

    def _add_frame(self, parser: Parser, v5: bool) -> None:
        """Add the parser's current QoS 0 PUBLISH, which has no topic alias."""
        size = parser.end - parser.start
        outbox = self._v5 if v5 else self._v3
        if outbox.size + size > self.body_bytes_max:
            if v5:
                self._seal_v5()
            else:
                self._seal_v3()
        if size > self.body_bytes_max:
            self._seal_parts(_QOS0, _V5 if v5 else 0, 0, parser.frame())
        else:
            outbox.push_frame(parser)
        self._count(size)

    def add_publish(self, message: Message, expiry: int) -> bool:
        """Add a QoS 0 message as an MQTT 5 frame; False if it is too large for one."""
        if self._v3.size:
            self._seal_v3()
        size = _PUBLISH_HEAD + len(message.topic) + len(message.properties) + len(message.payload)
        if self._v5.size + size > self.body_bytes_max:
            self._seal_v5()
        size = self._v5.push_publish(
            0x31 if message.retain else 0x30, message.topic, 0, True, message.properties, b"", message.payload, 0, expiry,
            message.expiry_offset, _FRAME_MAX,
        )  # fmt: skip
        if size == 0:
            return False
        if size > self.body_bytes_max:
            self._seal_parts(_QOS0, _V5, 0, self._v5.take())
        self._count(size)
        return True

    def add_record(self, shard: int, timestamp: int, value: bytes) -> None:
        """Add a record to the feed of its shard."""
        while len(self._feeds) <= shard:
            self._feeds.append(None)
        outbox = self._feeds[shard]
        if outbox is None:
            outbox = self._feeds[shard] = Outbox()
        size = _FEED_HEAD + len(value)
        if outbox.size + size > self.body_bytes_max:
            self._seal_feed(shard, outbox)
        outbox.push_record(timestamp, value)
        if size > self.body_bytes_max:
            self._seal_parts(_FEED, 0, shard, outbox.take())
        self._count(size)

    def add_forward(self, value: bytes) -> None:
        """Add a record that the peer is to confirm; ``forwarded`` is its number then."""
        outbox = self._forwards
        size = _FORWARD_HEAD + len(value)
        if outbox.size + size > self.body_bytes_max:
            self._seal_forwards()
        self.forwarded += 1
        if outbox.size == 0:
            self._forwards_first = self.forwarded
        outbox.push_record(0, value)
        if size > self.body_bytes_max:
            self._seal_parts(_FORWARD, 0, self._forwards_first, outbox.take())
        self._count(size)

    # Bodies

    def _seal_v5(self) -> None:
        if self._v5.size:
            self._sealed.append((_QOS0, _V5, 0, self._v5.take()))

    def _seal_v3(self) -> None:
        self._seal_v5()  # it may have a message of a publisher that the other one has later messages of
        if self._v3.size:
            self._sealed.append((_QOS0, 0, 0, self._v3.take()))

    def _seal_forwards(self) -> None:
        if self._forwards.size:
            self._sealed.append((_FORWARD, 0, self._forwards_first, self._forwards.take()))

    def _seal_feed(self, shard: int, outbox: Outbox) -> None:
        if outbox.size:
            self._sealed.append((_FEED, 0, shard, outbox.take()))

    def _seal_parts(self, kind: int, flags: int, destination: int, item: bytes) -> None:
        """Cut a frame or record that is larger than a body; the outbox that it belongs to is empty."""
        size = len(item)
        at = 0
        while at < size:
            end = at + self.body_bytes_max
            self._sealed.append((kind, flags | _CONTINUED if end < size else flags, destination, item[at:end]))
            at = end

    def take_frames(self) -> list[Body]:
        """Take all bodies in the order in which they must be sent; they count as unwritten then."""
        self._seal_v3()
        self._seal_forwards()
        for shard in range(len(self._feeds)):
            outbox = self._feeds[shard]
            if outbox is not None:
                self._seal_feed(shard, outbox)
        sealed = self._sealed
        self._sealed = []
        self.unwritten_bytes += self.waiting_bytes
        self.waiting_bytes = 0
        self.state.encoded = self.state.encoded_value = None
        return sealed

    def note_unwritten(self, size: int) -> None:
        """The connection has this many bytes that it has not written."""
        self.unwritten_bytes = size


class PeerFlow(LogFlow):
    """The destination that stands for a peer. An *uplink* carries only QoS 0: a node's other messages are in its blocks."""

    __slots__ = ("confirmed", "is_lagging", "is_uplink", "name", "on_behind", "outlet")

    def __init__(self, name: str, state: State, is_uplink: bool = False) -> None:
        # No client has an empty id, so No Local concerns none of the peer's messages.
        super().__init__("", state, 0, 0, False, False)
        self.name = name
        self.is_peer = True
        self.is_uplink = is_uplink
        self.is_following = False  # until its owner knows where its feed starts
        self.outlet: PeerOutlet | None = None
        self.is_lagging = False  # a FORWARD was dropped; the owner resets it
        self.confirmed = 0  # the number of the last FORWARD that the peer has delivered; the owner sets it
        self.on_behind: Callable[[], None] | None = None  # called when it stops following: its owner must read the log for it

    @property
    def forwarded(self) -> int:
        """The number of the last FORWARD record; 0 without a connection."""
        return 0 if self.outlet is None else self.outlet.forwarded

    def attach(self, channel: Outlet, window: int) -> None:
        """The peer is connected: ``channel`` is its `PeerOutlet`; the window is not used."""
        self.outlet = cast("PeerOutlet", channel)
        self.channel = channel

    def detach(self) -> None:
        """The connection has ended: nothing is delivered until the next one, and the flow has stopped following."""
        LogFlow.detach(self)
        self.outlet = None

    def discard(self) -> None:
        """The peer is gone."""
        self.outlet = None
        self.channel = None
        LogFlow.discard(self)

    def deliver(self, message: Message, subscription: Subscription, qos: int, retain: bool) -> None:
        """Collect the message as it was published, whatever QoS and RETAIN a subscriber's copy would have."""
        outlet = self.outlet
        if outlet is None or self.is_over:
            return
        if message.timestamp:
            if not self.is_following:
                return  # its owner reads it from the log
            if outlet.is_clogged():
                self.fall_behind()
                if self.on_behind is not None:
                    self.on_behind()
            else:
                outlet.add_record(message.shard, message.timestamp, _encode(self.state, message))
        elif message.qos == 0:
            if not outlet.is_muted:
                self._send_publish(outlet, message)
        elif not self.is_uplink:
            self._forward(outlet, message)

    def deliver_late(self, message: Message, subscription: Subscription, qos: int, retain: bool) -> None:
        """As ``deliver``."""
        self.deliver(message, subscription, qos, retain)

    def _send_publish(self, outlet: PeerOutlet, message: Message) -> None:
        expiry = message.seconds_left()
        if expiry == 0:
            self._drop_expired(message)
        elif outlet.is_clogged():
            self.dropped += 1
            outlet.drop(message.topic)
        elif not outlet.add_publish(message, expiry):
            self.state.counters.dropped_too_large += 1
            self._drop("too_large", message)

    def _forward(self, outlet: PeerOutlet, message: Message) -> None:
        if outlet.is_clogged():
            self.is_lagging = True
            self.dropped += 1
            outlet.drop(message.topic)
        else:
            value = _encode(self.state, message)
            if len(value) <= _VALUE_BYTES_MAX:
                outlet.add_forward(value)
            else:
                self.state.counters.dropped_too_large += 1
                self._drop("too_large", message)

    def take_record(self, shard: int, timestamp: int, value: bytes) -> bool:
        """Add a record that was read from the log while the flow is behind; False if there is no room: offer it again."""
        outlet = self.outlet
        if outlet is None or outlet.is_clogged():
            return False
        outlet.add_record(shard, timestamp, value)
        return True


class UplinkOutlet(Outlet):
    """The ways from a node to its cores: each QoS 0 message goes to the core at which its publisher is at home."""

    __slots__ = ("_by_shard", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self.is_waiting = self.is_muted = False
        self.turn = -1
        self._by_shard: list[PeerOutlet] = []

    def lead(self, by_shard: list[PeerOutlet]) -> None:
        """From now on the messages of each shard's clients go this way; there is one for each shard."""
        self._by_shard = by_shard

    def forward_frame(self, parser: Parser, v5: bool) -> bool:
        if self.is_muted:
            self.state.counters.publish_qos0_sent -= 1  # the lane counts it as a packet to a client
            return True
        outlet = self._by_shard[self.state.sender_shard]
        return outlet.forward_frame(parser, v5)

    def way_of(self, client_id: str) -> PeerOutlet:
        """The way of a client's messages."""
        return self._by_shard[crc32(client_id.encode()) % len(self._by_shard)]

    def flush(self) -> None:
        """The owner of the ways takes their frames at the end of the turn."""


class UplinkFlow(PeerFlow):
    """The destination that stands for all other nodes, on a node with several cores."""

    __slots__ = ("ways",)

    def __init__(self, name: str, state: State) -> None:
        super().__init__(name, state, True)
        self.ways: UplinkOutlet | None = None

    def attach(self, channel: Outlet, window: int) -> None:
        """A core is connected: ``channel`` is an `UplinkOutlet`."""
        self.ways = cast("UplinkOutlet", channel)
        self.channel = channel

    def detach(self) -> None:
        """No core is connected."""
        PeerFlow.detach(self)
        self.ways = None

    def deliver(self, message: Message, subscription: Subscription, qos: int, retain: bool) -> None:
        """Collect a QoS 0 message for the core of its publisher."""
        ways = self.ways
        if ways is None or ways.is_muted or self.is_over or message.timestamp or message.qos:
            return
        self._send_publish(ways.way_of(message.publisher), message)

    def deliver_late(self, message: Message, subscription: Subscription, qos: int, retain: bool) -> None:
        """As ``deliver``."""
        self.deliver(message, subscription, qos, retain)


def _encode(state: State, message: Message) -> bytes:
    """The record of a message, encoded once for all peers; one that was recorded here has its record already."""
    if state.encoded is not message or state.encoded_value is None:
        state.encoded_value = encode_record(
            message.topic, message.payload, message.qos, message.retain, message.publisher, message.properties,
            message.wall_expiry(), message.expiry_offset, 0, False,
        )  # fmt: skip
        state.encoded = message
    return state.encoded_value


class SilentFlow(LogFlow):
    """Stands for a durable session that lives on another node: messages for it are recorded here, and delivered there."""

    __slots__ = ()

    def __init__(self, client_id: str, state: State) -> None:
        super().__init__(client_id, state, 0, 0, False, True)

    def deliver(self, message: Message, subscription: Subscription, qos: int, retain: bool) -> None:
        """Nothing: the session's own node delivers it."""

    def deliver_late(self, message: Message, subscription: Subscription, qos: int, retain: bool) -> None:
        """Nothing, likewise."""
