"""Recording: messages are collected during a turn of the loop, and delivered and acknowledged after their commit.

All recorded messages pass through here in the order of arrival, so the log has each publisher's messages in order.
The messages of a turn form a *block*: the log writes it as a whole, and calls back once for all of it. ``commit_outcomes`` has
what follows.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from braidmq.lane.flows.flow import Flow
from braidmq.lane.path.lane import Lane
from braidmq.lane.path.message import Message
from braidmq.lane.path.outlet import Outlet
from braidmq.lane.path.ports import Change, Refusal
from braidmq.lane.recording.commit_outcomes import PENDING_COST, CommitOutcomes, Pending, new_pending
from braidmq.lane.records.records import SESSION_ONLY, VALUE_BYTES_MAX, encode_record

# C constants in the compiled form.
_PENDING_COST, _VALUE_BYTES_MAX, _SESSION_ONLY = PENDING_COST, VALUE_BYTES_MAX, SESSION_ONLY


class Producer:
    """A client that numbers its messages; the number of the last one is written together with its records."""

    __slots__ = ("is_keyed", "is_stopped", "name", "sequence", "shard", "stops")

    def __init__(self, name: bytes, shard: int, sequence: int, stops: bool) -> None:
        self.name = name
        self.shard = shard  # of its records
        self.sequence = sequence  # of its last PUBLISH
        self.stops = stops  # after a rejected message, all later ones are rejected as well
        self.is_stopped = False  # a message was rejected
        self.is_keyed = False  # its messages have keys, and take the slow path


class Block:
    """The records and rows that one turn has collected."""

    __slots__ = ("_outcomes", "_producers", "_relayed", "changes", "entries", "pendings", "size_bytes")

    def __init__(self, outcomes: CommitOutcomes) -> None:
        self.entries: dict[int, list[tuple[bytes, bytes]]] = {}  # by shard: topic and value of each record
        self.changes: list[Change] = []  # rows to be written with them
        self.size_bytes = 0
        self._outcomes = outcomes
        self.pendings: list[Pending] = []  # in the order of arrival; ``place`` is the index among the entries of the shard
        # By index of the pendings: producer, sequence, message and key, if that is to be sent with the message.
        self._producers: dict[int, tuple[Producer, int, Message, Change | None]] | None = None
        self._relayed: list[tuple[int, bytes, int, int]] | None = None  # marks of producers of other nodes

    def add(self, pending: Pending) -> None:
        """Add a waiter."""
        self.pendings.append(pending)

    def mark(self, producer: Producer, message: Message, key: Change | None) -> None:
        """The message that was added last belongs to this producer."""
        if self._producers is None:
            self._producers = {}
        self._producers[len(self.pendings) - 1] = (producer, producer.sequence, message, key)

    def relay_mark(self, shard: int, name: bytes, sequence: int, check: int) -> None:
        """A message in this block belongs to a producer of another node."""
        if self._relayed is None:
            self._relayed = []
        self._relayed.append((shard, name, sequence, check))

    def runs(self) -> list[tuple[int, list[bytes], int]]:
        """Messages of one client that follow each other, in one shard: the index of the first, their records, and their bytes.

        A waiter that has no record is alone, without a record.
        """
        found: list[tuple[int, list[bytes], int]] = []
        pendings = self.pendings
        count = len(pendings)
        index = 0
        while index < count:
            start = index
            pending = pendings[index]
            index += 1
            flow = pending.flow
            shard = pending.shard
            place = pending.place
            values: list[bytes] = []
            size = 0
            if place >= 0:
                entries = self.entries[shard]
                while True:
                    value: bytes = entries[place][1]
                    values.append(value)
                    size += len(value)
                    place += 1
                    if index == count:
                        break
                    pending = pendings[index]
                    if pending.flow is not flow or pending.shard != shard or pending.place != place:
                        break
                    index += 1
            found.append((start, values, size))
        return found

    def marks(self) -> list[tuple[int, bytes, int, int]]:
        """The producers of these messages: shard, name, last sequence, and crc32 of that message's topic and payload."""
        found = [] if self._relayed is None else self._relayed
        if self._producers is None:
            return found
        last = {producer: (sequence, message) for producer, sequence, message, _ in self._producers.values()}
        return found + [
            (producer.shard, producer.name, sequence, _check_value(message)) for producer, (sequence, message) in last.items()
        ]

    def producer_marks(self) -> dict[int, tuple[Producer, int, int, Change | None]]:
        """By index of the pendings: producer, sequence, check value and key of each producer's message."""
        if self._producers is None:
            return {}
        return {
            index: (producer, sequence, _check_value(message), key)
            for index, (producer, sequence, message, key) in self._producers.items()
        }

    def stop_producers(self) -> None:
        """The block will be rejected: from now on record nothing of producers that stop at a rejected message."""
        if self._producers is not None:
            for producer, _, _, _ in self._producers.values():
                producer.is_stopped = producer.stops

    def committed(self, stamps: dict[int, list[int]]) -> None:
        """The block is on disk, with these timestamps: deliver and acknowledge, in the order of arrival."""
        self._outcomes.conclude(self.pendings, stamps)

    def refused(self, refusal: Refusal) -> None:
        """Nothing was stored or, if in doubt, the outcome is unknown."""
        self.stop_producers()
        self._outcomes.refuse(self.pendings, refusal.is_in_doubt)


def _check_value(message: Message) -> int:
    return crc32(message.payload, crc32(message.topic))


class Recorder:
    """Collects messages from the channels for the log. Its owner passes the block to the log at the end of a turn."""

    __slots__ = ("_block", "is_congested", "is_remote", "keeps_values", "on_block", "outcomes", "stalled")

    def __init__(self, lane: Lane, on_block: Callable[[], None]) -> None:
        self.outcomes = CommitOutcomes(lane)
        self.on_block = on_block  # called when a block begins: its owner must take it at the end of the turn
        self.is_congested = False  # publishers must wait
        self.stalled: frozenset[int] | None = None  # the shards whose publishers must wait, if not all of them must
        # The log is on another node, which answers each message: recorded ones come back through its feed.
        self.is_remote = False
        self.keeps_values = False  # peers may want the records
        self._block: Block | None = None

    def _open(self) -> Block:
        block = self._block
        if block is None:
            block = self._block = Block(self.outcomes)
            self.on_block()
        return block

    def take(self) -> Block | None:
        """Take the collected block; None if it is empty."""
        block = self._block
        self._block = None
        return block

    def holds(self, flow: Flow) -> bool:
        """Whether the publisher with this flow must wait."""
        return self.is_congested or (self.stalled is not None and flow.home_shard in self.stalled)

    def record(
        self, message: Message, flow: Flow | None, channel: Outlet | None, ack_qos: int, packet_id: int, session_only: bool
    ) -> Pending:
        """Record a message; after the commit deliver it, and acknowledge it to the channel if ``ack_qos``.

        A message that is too large for a record is rejected at once.
        """
        value = encode_record(
            message.topic, message.payload, message.qos, message.retain, message.publisher, message.properties,
            message.wall_expiry(), message.expiry_offset, 0, session_only,
        )  # fmt: skip
        return self._add(message, value, 0 if flow is None else flow.home_shard, flow, channel, ack_qos, packet_id)

    def record_value(
        self, message: Message, value: bytes, shard: int, session_only: bool, flow: Flow | None, channel: Outlet | None,
        ack_qos: int, packet_id: int,
    ) -> Pending:  # fmt: skip
        """Like ``record``, for a message that another node has encoded: ``value`` is its record, which `Record` has accepted."""
        flags = value[1]
        patched = flags | _SESSION_ONLY if session_only else flags & ~_SESSION_ONLY
        if patched != flags:
            value = value[:1] + bytes((patched,)) + value[2:]
        return self._add(message, value, shard, flow, channel, ack_qos, packet_id)

    def _add(
        self, message: Message, value: bytes, shard: int, flow: Flow | None, channel: Outlet | None, ack_qos: int, packet_id: int
    ) -> Pending:
        pending = new_pending(message, flow)
        pending.channel = channel
        pending.ack_qos = ack_qos
        pending.packet_id = packet_id
        pending.shard = shard
        if len(value) > _VALUE_BYTES_MAX:
            pending.is_refused = True
            self.outcomes.refuse([pending], False)
            return pending
        if self.is_remote:
            pending.is_delivered = False
        elif self.keeps_values:
            pending.value = value
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
        """Like ``record``, for a message that is not recorded but must wait for rows that are written with it."""
        pending = new_pending(message, flow)
        pending.channel = channel
        pending.ack_qos = ack_qos
        pending.packet_id = packet_id
        block = self._open()
        block.add(pending)
        block.size_bytes += _PENDING_COST
        return pending

    def change(self, change: Change) -> None:
        """Add a row to the block of this turn."""
        self._open().changes.append(change)

    def mark(self, producer: Producer, sent: Message, key_row: Change | None) -> None:
        """Write the producer's sequence with what was collected last, its message ``sent``, and the row of that message's key.

        If the log is on another node, the key goes there with its message.
        """
        block = self._open()
        if key_row is not None and not self.is_remote:
            block.changes.append(key_row)
            key_row = None
        block.mark(producer, sent, key_row)

    def mark_entry(self, shard: int, name: bytes, sequence: int, check: int) -> None:
        """Write the sequence of another node's producer with what was collected last."""
        self._open().relay_mark(shard, name, sequence, check)
