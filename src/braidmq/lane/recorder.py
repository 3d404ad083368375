"""Messages on their way through the log: collected during a turn of the loop, delivered and acknowledged after their commit.

Everything that is recorded passes here in the order in which it came, so that the order of a publisher's messages is the order of
the log. What a turn has collected is a *block*: the log writes it as one, and calls back once for all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

from braidmq.lane.flow import Flow
from braidmq.lane.lane import Lane
from braidmq.lane.message import Message
from braidmq.lane.outlet import Outlet
from braidmq.lane.records import encode_record
from braidmq.lane.routes import Route

_NO_MATCHING_SUBSCRIBERS = 0x10
# A record is one value of the database and is copied whole: MQTT's largest packet is 256 MiB, and nobody means that.
VALUE_BYTES_MAX = 64 * 1024 * 1024
# What a message that waits for its commit costs beside its bytes.
_PENDING_COST = 300


class Producer:
    """A client that numbers its messages; the number of the last one is written with what is recorded of them."""

    __slots__ = ("is_keyed", "is_stopped", "name", "row", "sent", "sequence", "shard", "stops")

    def __init__(self, name: bytes, shard: int, sequence: int, stops: bool) -> None:
        self.name = name
        self.shard = shard  # its home
        self.sequence = sequence  # of its last PUBLISH
        self.stops = stops  # what comes after a message that was refused is not wanted
        self.is_stopped = False  # and such a one there was
        self.is_keyed = False  # its messages have keys, and go the long way
        self.row: Any = None  # of the key of the message at hand, to be written with it
        self.sent: Message | None = None  # the message at hand as the client sent it, if it goes the long way


class Pending:
    """A message, or rows alone, that waits for the log."""

    __slots__ = (
        "ack_qos", "channel", "flow", "is_delivered", "is_refused", "message", "on_commit", "on_refused", "packet_id", "place",
        "shard",
    )  # fmt: skip

    def __init__(self, message: Message, flow: Flow | None) -> None:
        self.message = message
        self.flow = flow  # of the publisher; None: the broker itself
        self.channel: Outlet | None = None  # whom to acknowledge, if ``ack_qos``
        self.ack_qos = 0
        self.packet_id = 0
        self.shard = 0
        self.place = -1  # among the block's entries of this shard; -1: it is not recorded
        self.is_delivered = True
        self.is_refused = False  # it will not be stored
        self.on_commit: Callable[[], None] | None = None  # called before the message is shown to anybody
        self.on_refused: Callable[[], None] | None = None


class Block:
    """What one turn has collected."""

    __slots__ = ("_pendings", "_producers", "_recorder", "changes", "entries", "size_bytes")

    def __init__(self, recorder: Recorder) -> None:
        self.entries: dict[int, list[tuple[bytes, bytes]]] = {}  # by shard: topic and value of each record
        self.changes: list[Any] = []  # rows to be written with them
        self.size_bytes = 0
        self._recorder = recorder
        self._pendings: list[Pending] = []
        self._producers: dict[Producer, tuple[int, Message]] | None = None  # and the last message of each

    def add(self, pending: Pending) -> None:
        """Let somebody wait for it."""
        self._pendings.append(pending)

    def mark(self, producer: Producer, message: Message) -> None:
        """The message that was added last is this producer's."""
        if self._producers is None:
            self._producers = {}
        self._producers[producer] = (producer.sequence, message)

    def marks(self) -> list[tuple[int, bytes, int, int]]:
        """The producers whose messages these are: shard, name, last sequence, and crc32 of that message's topic and payload."""
        if self._producers is None:
            return []
        return [
            (producer.shard, producer.name, sequence, crc32(message.payload, crc32(message.topic)))
            for producer, (sequence, message) in self._producers.items()
        ]

    def stop_producers(self) -> None:
        """It will be refused: from now on nothing of a producer may be recorded that wants nothing after that."""
        if self._producers is not None:
            for producer in self._producers:
                producer.is_stopped = producer.stops

    def committed(self, stamps: dict[int, list[int]]) -> None:
        """All of it is on disk, with these timestamps: deliver and acknowledge, in the order of arrival."""
        self._recorder.conclude(self._pendings, stamps)

    def refused(self, refusal: Any) -> None:
        """Nothing of it is stored, or, if that is in doubt, nobody knows."""
        self.stop_producers()
        self._recorder.refuse(self._pendings, refusal.is_in_doubt)


class Recorder:
    """Between the channels and the log. Its owner hands blocks to the log, at the end of a turn."""

    __slots__ = (
        "_block",
        "_last_route",
        "_last_topic",
        "_last_version",
        "deliver",
        "is_congested",
        "lane",
        "on_block",
        "on_fault",
    )

    def __init__(self, lane: Lane, on_block: Callable[[], None]) -> None:
        self.lane = lane
        self.on_block = on_block  # called when a block begins: it is to be taken at the end of the turn
        self.deliver: Callable[[Message, Route, Flow | None], int] | None = None  # for routes with flags
        self.on_fault: Callable[[Exception], None] | None = None
        self.is_congested = False  # publishers must wait
        self._block: Block | None = None
        self._last_topic = b""
        self._last_route: Route | None = None
        self._last_version = -1

    def _open(self) -> Block:
        block = self._block
        if block is None:
            block = self._block = Block(self)
            self.on_block()
        return block

    def take(self) -> Block | None:
        """What was collected; None if nothing was."""
        block = self._block
        self._block = None
        return block

    def record(
        self, message: Message, flow: Flow | None, channel: Outlet | None, ack_qos: int, packet_id: int, session_only: bool
    ) -> Pending:
        """Record a message; deliver it, and acknowledge it to the channel if ``ack_qos``, after the commit.

        One that is too large for a record is refused at once.
        """
        pending = Pending(message, flow)
        pending.channel = channel
        pending.ack_qos = ack_qos
        pending.packet_id = packet_id
        pending.shard = shard = 0 if flow is None else flow.home
        expires_at = 0
        if message.expires_at:
            expires_at = int((message.expires_at + self.lane.state.wall_offset) * 1_000_000)
        value = encode_record(
            message.topic, message.payload, message.qos, message.retain, message.publisher, message.properties, expires_at,
            message.expiry_offset, 0, session_only,
        )  # fmt: skip
        if len(value) > VALUE_BYTES_MAX:
            pending.is_refused = True
            self.refuse([pending], False)
            return pending
        block = self._open()
        entries = block.entries.get(shard)
        if entries is None:
            entries = block.entries[shard] = []
        pending.place = len(entries)
        entries.append((message.topic, value))
        block.size_bytes += len(value) + _PENDING_COST
        block.add(pending)
        return pending

    def await_rows(self, message: Message, flow: Flow | None, channel: Outlet | None, ack_qos: int, packet_id: int) -> Pending:
        """The same for a message that is not recorded, but must wait for rows that are written with it."""
        pending = Pending(message, flow)
        pending.channel = channel
        pending.ack_qos = ack_qos
        pending.packet_id = packet_id
        block = self._open()
        block.add(pending)
        block.size_bytes += _PENDING_COST
        return pending

    def change(self, change: Any) -> None:
        """Write a row with what is collected in this turn."""
        self._open().changes.append(change)

    def mark(self, producer: Producer, message: Message) -> None:
        """What was collected last is a message of this producer's: write down with it how far the producer has come."""
        block = self._open()
        block.mark(producer, message if producer.sent is None else producer.sent)
        if producer.row is not None:
            block.changes.append(producer.row)
            producer.row = None

    def conclude(self, pendings: list[Pending], stamps: dict[int, list[int]]) -> None:
        """These are committed: show them to their subscribers, and acknowledge."""
        marks = self.lane.state.marks
        timestamp = 0
        for pending in pendings:
            self.lane.state.congested = None
            message = pending.message
            if pending.place >= 0:
                timestamp = stamps[pending.shard][pending.place]
                message.set_position(pending.shard, timestamp)
                # A flow that stops following at this message has been offered everything before it.
                marks[pending.shard] = timestamp - 1
            code = 0
            try:
                if pending.on_commit is not None:
                    pending.on_commit()
                if pending.is_delivered and not self._publish(message, pending.flow):
                    code = _NO_MATCHING_SUBSCRIBERS
            except Exception as problem:
                self._report(problem)
            if pending.place >= 0:
                marks[pending.shard] = timestamp
            self._acknowledge(pending, code)
        self._last_route = None  # it would hold on to sessions that are over
        self.lane.flush()

    def _publish(self, message: Message, flow: Flow | None) -> int:
        lane = self.lane
        route = self._last_route
        if route is None or self._last_version != lane.routes.version or message.topic != self._last_topic:
            route = lane.routes.resolve(message.topic)
            if route is None:
                return 0
            self._last_topic = message.topic
            self._last_route = route
            self._last_version = lane.routes.version
        if route.flags and self.deliver is not None:
            return self.deliver(message, route, flow)
        return lane.publish(message, route, flow)

    def _report(self, problem: Exception) -> None:
        if self.on_fault is not None:
            self.on_fault(problem)

    def _acknowledge(self, pending: Pending, code: int) -> None:
        flow = pending.flow
        channel = pending.channel
        times = 1
        if pending.ack_qos == 2 and flow is not None:
            times = flow.end_pending(pending.packet_id)
            if flow.channel is not None:
                channel = flow.channel  # a client that has come back asks for it there
        if channel is not None:
            for _ in range(times):
                channel.settle(flow, pending.ack_qos, pending.packet_id, code)

    def refuse(self, pendings: list[Pending], is_in_doubt: bool) -> None:
        """These are not stored: tell whoever can be told, and let the others send again."""
        counters = self.lane.state.counters
        for pending in pendings:
            counters.dropped_not_stored += 1
            flow = pending.flow
            if pending.ack_qos == 2 and flow is not None:
                flow.end_pending(pending.packet_id)
                flow.forget_received(pending.packet_id)
            self.lane.state.drop("not_stored", pending.message.publisher, pending.message.topic)
            if pending.on_refused is not None:
                pending.on_refused()
            if pending.channel is not None:
                pending.channel.refuse_publish(flow, pending.ack_qos, pending.packet_id, is_in_doubt)
        self.lane.flush()
