"""Exclusive topics as a node with several cores sees them: the home of each topic grants it (C38, decision 32).

The node asks in entries of its own, and says when a client that was granted a topic gives it up. A core that has restarted is
told what the node's clients have, before it can be sure of this node's routes; until then it grants nothing. A topic that a
durable session brings along needs no grant: its row counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from braidmq.base.shards import shard_of
from braidmq.broker.persistence import no_callback
from braidmq.broker.ports import Change, Refusal
from braidmq.cluster.protocol.operations import ReleaseExclusive, TakeExclusive, size_of
from braidmq.cluster.remote.log.core_blocks import CoreBlocks
from braidmq.cluster.remote.log.entries import ABSENT, CROWDED, CollectedRows, EntriesWaiter
from braidmq.cluster.remote.log.rows import OWN, NodeChange


class _ChannelTopics:
    """Those of one channel."""

    __slots__ = ("brought", "client_id", "granted")

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.granted: dict[bytes, bool] = {}  # by their homes; whether the session was durable then
        self.brought: set[bytes] = set()  # by a durable session


class TopicWriter(Protocol):
    """Passes entries to the homes; `remote.log.RemoteLog`."""

    ask_flush: Callable[[], None]

    def change(self, changes: Iterable[Change], *, on_commit: Callable[[], None], on_refused: Callable[[Refusal], None]) -> None:
        """Ask for changes; one of the two is called."""


class TopicHomes:
    """Implements the broker's ``ExclusiveTopics`` on a node with several cores."""

    def __init__(
        self,
        log: TopicWriter,
        cores: Iterable[CoreBlocks],
        channel_of: Callable[[str], int],
        is_durable: Callable[[str], bool],
    ) -> None:
        """``channel_of``: the channel that owns a client id; 0 if there is none. ``is_durable``: whether its session is."""
        self._log = log
        self._core_of = {shard: core for core in cores for shard in core.shards}
        self._channel_of = channel_of
        self._is_durable = is_durable
        self._granted: dict[int, _ChannelTopics] = {}  # by channel

    def __len__(self) -> int:
        return sum(len(topics.granted) + len(topics.brought) for topics in self._granted.values())

    def ask(self, topic_filters: list[bytes], client_id: str, on_answer: Callable[[], None]) -> bool:
        """Ask the homes of those that the client does not have; False if it is known at once who has them."""
        left = {each for each in topic_filters if not self.is_free(each, client_id)}
        is_asking = True  # an answer may be known at once

        def answered(topic: bytes) -> None:
            left.discard(topic)
            if not left and not is_asking:
                on_answer()

        for each in list(left):
            self._ask(each, client_id, answered)
        is_asking = False
        return bool(left)

    def _ask(self, topic: bytes, client_id: str, answered: Callable[[bytes], None]) -> None:
        channel = self._channel_of(client_id)
        is_durable = self._is_durable(client_id)

        def granted() -> None:
            if channel and self._channel_of(client_id) == channel:
                self._topics_of(channel, client_id).granted[topic] = is_durable
            else:
                self._give_back(channel, client_id, topic, is_kept=is_durable)
            answered(topic)

        def refused(refusal: Refusal) -> None:
            if refusal not in (ABSENT, CROWDED):  # else it was not sent
                self._give_back(channel, client_id, topic, is_kept=False)
            answered(topic)

        asked = TakeExclusive(client_id, topic, channel, is_durable)
        self._log.change([self._change(asked)], on_commit=granted, on_refused=refused)
        self._log.ask_flush()

    def is_free(self, topic_filter: bytes, client_id: str) -> bool:
        """Whether the client has it; ask its home before."""
        topics = self._granted.get(self._channel_of(client_id))
        return topics is not None and (topic_filter in topics.granted or topic_filter in topics.brought)

    def take(self, topic_filter: bytes, client_id: str) -> None:
        """The client has it: it was granted, or is that of a session that has come to this node."""
        channel = self._channel_of(client_id)
        if channel and not self.is_free(topic_filter, client_id):
            self._topics_of(channel, client_id).brought.add(topic_filter)

    def _topics_of(self, channel: int, client_id: str) -> _ChannelTopics:
        topics = self._granted.get(channel)
        if topics is None:
            topics = self._granted[channel] = _ChannelTopics(client_id)
        return topics

    def release(self, topic_filter: bytes, client_id: str, *, is_moving: bool = False) -> None:
        """Take it from the client, unless its session goes elsewhere: then ``leave`` and ``end`` follow."""
        channel = self._channel_of(client_id)
        topics = self._granted.get(channel)
        if topics is None or is_moving:
            return
        topics.brought.discard(topic_filter)
        if topics.granted.pop(topic_filter, None) is not None:
            self._give_back(channel, client_id, topic_filter, is_kept=False)

    def leave(self, channel: int) -> None:
        """A channel has ended, and the home of its client id is about to be told. What no row can keep is free at once."""
        topics = self._granted.get(channel)
        if topics is not None:
            self._end(channel, topics, [topic for topic, is_durable in topics.granted.items() if not is_durable])

    def end(self, channel: int) -> None:
        """The home of the client id has written all rows of a channel that has ended."""
        topics = self._granted.pop(channel, None)
        if topics is not None:
            self._end(channel, topics, list(topics.granted))

    def _end(self, channel: int, topics: _ChannelTopics, ended: list[bytes]) -> None:
        for topic in ended:
            self._give_back(channel, topics.client_id, topic, is_kept=topics.granted.pop(topic))

    def _give_back(self, channel: int, client_id: str, topic: bytes, *, is_kept: bool) -> None:
        self._write(ReleaseExclusive(client_id, topic, channel, is_kept))

    def announce(self, core: CoreBlocks) -> None:
        """A core has restarted, and has forgotten all grants: tell it of them."""
        for channel, topics in self._granted.items():
            for topic, is_durable in topics.granted.items():
                if self._core_of[self._shard_of(topic)] is core:
                    self._write(TakeExclusive(topics.client_id, topic, channel, is_durable, is_held=True))

    def _write(self, operation: TakeExclusive | ReleaseExclusive) -> None:
        """Tell the home when it is there: of each grant once, so what waits for a core that is away has a bound."""
        shard = self._shard_of(operation.topic_filter)
        waiter = EntriesWaiter(1, no_callback, _ignore, is_awaited=False)
        self._core_of[shard].shards[shard].add((CollectedRows(0, [operation], size_of([operation]), waiter),))
        self._log.ask_flush()

    def _change(self, operation: TakeExclusive | ReleaseExclusive) -> NodeChange:
        return NodeChange(self._shard_of(operation.topic_filter), OWN, operation)

    def _shard_of(self, topic: bytes) -> int:
        return shard_of(topic.decode(), len(self._core_of))


def _ignore(refusal: Refusal) -> None:
    """No client waits for that."""
