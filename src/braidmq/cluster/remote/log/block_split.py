"""Splits what one turn has collected into entries for the homes: by shard, and in it by channel.

Messages of a channel and the rows that belong to them become entries of one shard, whose block the home writes as one (S1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from braidmq.broker.messages.producers import SentKey
from braidmq.broker.ports import Change, Refusal
from braidmq.cluster.protocol import operations
from braidmq.cluster.remote.log.entries import (
    Collected,
    CollectedDelay,
    CollectedMessages,
    CollectedRows,
    EntriesWaiter,
    HomeRefusal,
)
from braidmq.cluster.remote.log.log_ports import NodeBlock, NodeChannels, NodeOutcomes
from braidmq.cluster.remote.log.rows import OWN, DelayedChange, NodeChange
from braidmq.lane.recording.commit_outcomes import Pending
from braidmq.lane.recording.recorder import Producer
from braidmq.net.proto_v1 import KeyOfBatch, SentNumber

_EXACTLY_ONCE: Final = 2


class BlockSplit:
    """The entries of one block of the recorder. ``own``: rows that belong to no channel."""

    __slots__ = ("_carried", "_channels", "_outcomes", "_refuse", "_refused", "_shard_of", "_shards", "_waiting", "groups", "own")

    def __init__(
        self,
        block: NodeBlock,
        refused: Mapping[int, HomeRefusal],
        channels: NodeChannels,
        outcomes: NodeOutcomes,
        refuse: Callable[[list[Pending], Refusal], None],
        shard_of: Callable[[str], int],
    ) -> None:
        """``refused``: shards whose cores take nothing more, and why: what is for them is refused at once.

        ``refuse``: rejects messages. The entries keep it until they are answered.
        """
        self.groups: dict[tuple[int, int], list[Collected]] = {}  # by shard and channel
        self.own: list[NodeChange] = []
        self._refused = refused
        self._channels = channels
        self._outcomes = outcomes
        self._refuse = refuse
        self._shard_of = shard_of
        self._shards: dict[int, int] = {}  # of channels that have messages or wait for rows
        self._waiting: dict[int, list[Pending]] = {}  # for rows only, by channel
        self._carried: set[tuple[str, int]] = set()  # received ids that travel with their messages
        self._add_pendings(block)
        self._add_rows(block.changes)

    def _add_pendings(self, block: NodeBlock) -> None:
        pendings = block.pendings
        marks = block.producer_marks()
        delayed = {id(change.message): change for change in block.changes if isinstance(change, DelayedChange)}
        noted = {found for change in block.changes if (found := _received_id(change)) is not None}
        for start, values, size in block.runs():
            flow = pendings[start].flow
            channel = 0 if flow is None else self._channels.of_flow(flow)
            if values and not marks and not noted:
                self._add_messages(channel, values, size, pendings[start : start + len(values)])
                continue
            for index in range(start, start + (len(values) or 1)):
                pending = pendings[index]
                number = _number(marks[index]) if index in marks else None
                kept = delayed.get(id(pending.message)) if delayed and not values else None
                received = 0
                if noted and pending.ack_qos == _EXACTLY_ONCE and flow is not None:
                    received = pending.packet_id if (flow.client_id, pending.packet_id) in noted else 0
                if received and flow is not None and (values or kept is not None):
                    self._carried.add((flow.client_id, received))
                if values:
                    value = values[index - start]
                    self._add_messages(channel, [value], len(value), [pending], number, received)
                elif kept is not None:
                    self._add_delay(channel, pending, kept, number, received)
                else:
                    self._waiting.setdefault(channel, []).append(pending)
                    self._shards.setdefault(channel, 0 if flow is None else self._shard_of(flow.client_id))

    def _add_messages(
        self,
        channel: int,
        values: list[bytes],
        size: int,
        pendings: list[Pending],
        number: SentNumber | None = None,
        received: int = 0,
    ) -> None:
        shard = self._shards[channel] = pendings[0].shard
        if shard in self._refused:
            self._refuse(pendings, self._refused[shard])
            return
        messages = CollectedMessages(channel, values, size, pendings, self._refuse, number, received)
        self.groups.setdefault((shard, channel), []).append(messages)

    def _add_delay(self, channel: int, pending: Pending, kept: DelayedChange, number: SentNumber | None, received: int) -> None:
        if kept.shard in self._refused:
            self._refuse([pending], self._refused[kept.shard])
            return
        self._shards[channel] = kept.shard
        size, waiter = operations.size_of((kept.operation,)), self._waiter([pending])
        delay = CollectedDelay(channel, kept.operation, size, waiter, number, received)
        self.groups.setdefault((kept.shard, channel), []).append(delay)

    def _add_rows(self, changes: Iterable[Change]) -> None:
        """Behind the messages of their channels."""
        shards = self._shards
        rows: dict[int, tuple[int, list[operations.Operation]]] = {channel: (shards[channel], []) for channel in self._waiting}
        for change in changes:
            assert isinstance(change, NodeChange)  # this node's storage makes no other
            if isinstance(change, DelayedChange) or _received_id(change) in self._carried:
                continue
            channel = channel_of(change, self._channels)
            if channel:
                rows.setdefault(channel, (shards.get(channel, change.shard), []))[1].append(change.operation)
            else:
                self.own.append(change)
        for channel, (shard, found) in rows.items():
            waiter = self._waiter(self._waiting.get(channel, []))
            if shard in self._refused:
                if waiter is not None:
                    waiter.answered(self._refused[shard])
                continue
            row = CollectedRows(channel, found, operations.size_of(found), waiter, is_of_block=True)
            self.groups.setdefault((shard, channel), []).append(row)

    def _waiter(self, pendings: list[Pending]) -> EntriesWaiter | None:
        if not pendings:
            return None
        outcomes = self._outcomes

        def on_commit() -> None:
            outcomes.answer(pendings, [0] * len(pendings))

        def on_refused(refusal: Refusal) -> None:
            outcomes.refuse(pendings, refusal.is_in_doubt)

        return EntriesWaiter(1, on_commit, on_refused, is_awaited=True)


def channel_of(change: NodeChange, channels: NodeChannels) -> int:
    """The channel that asks for a change; 0 if the node itself does."""
    return 0 if change.client_id == OWN else channels.of_client(change.client_id)


def _number(mark: tuple[Producer, int, int, Change | None]) -> SentNumber:
    """What the home is told of a producer's message."""
    producer, sequence, check, key = mark
    sent = KeyOfBatch(key.name, key.base, key.key) if isinstance(key, SentKey) else None
    return SentNumber(producer.name, sequence, check, producer.stops, sent)


def _received_id(change: Change) -> tuple[str, int] | None:
    """The client and packet id that a change notes as received; None if it does something else."""
    operation = change.operation if isinstance(change, NodeChange) else None
    return (operation.client_id, operation.packet_id) if isinstance(operation, operations.PutReceived) else None
