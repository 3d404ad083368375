"""Producers' messages in the blocks of a node: which of them count, and what is written with them.

An entry is fenced unless its number is above the last one of the producer (C32), and if its batch of keys is no longer open. A
producer that stops at a rejected message has nothing recorded after it, although later messages may be on their way: the home
notes the rejection here, and in the same callback. After a restart of the home the outcomes of repeated blocks tell it (C18).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol

from braidmq.base.errors import Unavailable
from braidmq.broker.messages.producer_books import KeySender, NewKey
from braidmq.cluster.home.blocks.block_ports import ChannelClient
from braidmq.cluster.home.blocks.publishing import FindKey
from braidmq.cluster.protocol.blocks import FENCED, NOT_RECORDED, RECORDED, outcome_of
from braidmq.mqtt.reasons import Reason
from braidmq.net.proto_v1 import BlockEntry, DelayEntry, PublishEntry, SentNumber

_ACCEPTED: Final = (RECORDED, NOT_RECORDED)


class ProducerPort(Protocol):
    """What the home knows of producers."""

    def producer_sequence(self, shard: int, name: bytes) -> int:
        """The last sequence of a producer, as of the last flush. May raise Unavailable."""

    def is_batch_open(self, name: str, base: int, user_name: str | None) -> bool:
        """Whether a user's messages with keys belong to the open batch of a name. May raise Unavailable."""

    def new_key(self, name: str, base: int, key: bytes, sender: KeySender) -> NewKey | None:
        """The key to record with its message; None if that is recorded. May raise Unavailable."""

    def note_live(self, name: bytes, sequence: int) -> None:
        """A message was shown that is not recorded, and everything before it is settled."""


class MarkRecorder(Protocol):
    """The recorder's open block."""

    def mark_entry(self, shard: int, name: bytes, sequence: int, check: int) -> None:
        """Write the sequence of a producer of another node."""


class ChannelProducer:
    """The producer of a channel."""

    __slots__ = ("is_stopped",)

    def __init__(self) -> None:
        self.is_stopped = False  # a message was rejected, and nothing is recorded after it


_GOES_ON: Final = ChannelProducer()  # stands for all producers that do not stop


class MarkedEntry(NamedTuple):
    """A producer's entry whose number is written with its block."""

    name: bytes
    sequence: int
    producer: ChannelProducer


class ProducerEntries:
    """The producers of one node's channels."""

    def __init__(self, port: ProducerPort, recorder: MarkRecorder) -> None:
        self._port = port
        self._recorder = recorder
        self._sequences: dict[bytes, int] = {}  # while their messages are on their way to the disk
        self._stopping: dict[int, ChannelProducer] = {}  # by channel, of those that stop at a rejected message

    def _producer(self, channel: int, sent: SentNumber) -> ChannelProducer:
        if not sent.stops:
            return _GOES_ON
        return self._stopping.setdefault(channel, ChannelProducer())

    def judge(self, shard: int, channel: int, sent: SentNumber, client: ChannelClient) -> int:
        """FENCED or a reason code if the entry is refused; else RECORDED."""
        if self._producer(channel, sent).is_stopped:
            return FENCED
        try:
            last = self._sequences.get(sent.name) or self._port.producer_sequence(shard, sent.name)
            key = sent.key
            is_open = key is None or self._port.is_batch_open(key.name, key.base, client.user_name)
        except Unavailable:
            self._producer(channel, sent).is_stopped = sent.stops
            return Reason.QUOTA_EXCEEDED
        return RECORDED if is_open and sent.sequence > last else FENCED

    def find_key(self, channel: int, sent: SentNumber) -> FindKey | None:
        """Finds out whether the entry's key is recorded; None: it has none."""
        key = sent.key
        if key is None:
            return None
        return partial(self._port.new_key, key.name, key.base, key.key, self._producer(channel, sent))

    def note(self, shard: int, channel: int, sent: SentNumber, outcome: int, is_written: bool) -> MarkedEntry | None:
        """The entry's message was published, or refused; what is written of the producer with it."""
        producer = self._producer(channel, sent)
        if outcome not in _ACCEPTED:
            producer.is_stopped = sent.stops
            return None
        if not is_written:
            if sent.name not in self._sequences:
                self._port.note_live(sent.name, sent.sequence)
            return None
        self._recorder.mark_entry(shard, sent.name, sent.sequence, sent.check)
        self._sequences[sent.name] = sent.sequence
        return MarkedEntry(sent.name, sent.sequence, producer)

    def settle(self, entries: Iterable[MarkedEntry], *, is_refused: bool = False) -> None:
        """The block of these entries is on disk, or the engine has refused it."""
        for entry in entries:
            if self._sequences.get(entry.name) == entry.sequence:
                del self._sequences[entry.name]
            if is_refused and entry.producer is not _GOES_ON:
                entry.producer.is_stopped = True

    def note_refused(self, entries: Iterable[BlockEntry], outcomes: Mapping[int, int] | None = None) -> None:
        """All of these were refused unread, or those with such outcomes at the first time."""
        for index, entry in enumerate(entries):
            if not isinstance(entry, PublishEntry | DelayEntry):
                continue
            sent = entry.producer
            if sent is not None and sent.stops and (outcomes is None or outcome_of(outcomes, index) not in _ACCEPTED):
                self._producer(entry.channel, sent).is_stopped = True

    def forget(self, channel: int) -> None:
        """The channel has ended."""
        self._stopping.pop(channel, None)
