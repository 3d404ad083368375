"""Exclusive topics as a node sees them: the home grants them, in order with what else the client does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from braidmq.base.shards import shard_of
from braidmq.broker.ports import Change, Refusal
from braidmq.cluster.protocol.operations import ReleaseExclusive, TakeExclusive
from braidmq.cluster.remote.log.rows import NodeChange


class ExclusiveWriter(Protocol):
    """Passes changes to the home; `broker.persistence.TurnWriter`."""

    def change(self, changes: list[Change], on_commit: Callable[[], None], on_refused: Callable[[Refusal], None]) -> None:
        """Ask for changes; one of the two is called."""

    def write(self, *changes: Change) -> None:
        """Ask for changes that no client waits for."""


class NodeExclusiveTopics:
    """Implements the broker's ``ExclusiveTopics`` on a node that is not home."""

    def __init__(self, shards: int, channel_of: Callable[[str], int]) -> None:
        """``channel_of``: the channel that owns a client id; 0 if there is none."""
        self._shards = shards
        self._channel_of = channel_of
        self._writer: ExclusiveWriter | None = None
        self._granted: dict[int, set[bytes]] = {}  # by channel

    def serve(self, writer: ExclusiveWriter) -> None:
        """The broker is made."""
        self._writer = writer

    def __len__(self) -> int:
        return sum(map(len, self._granted.values()))

    def ask(self, topic_filters: list[bytes], client_id: str, on_answer: Callable[[], None]) -> bool:
        """Ask the home for those that the client does not have; False if it has all of them."""
        missing = {each for each in topic_filters if not self.is_free(each, client_id)}
        if not missing:
            return False
        left = set(missing)

        def answered(topic_filter: bytes) -> None:
            left.discard(topic_filter)
            if not left:
                on_answer()

        for each in missing:
            self._ask(each, client_id, answered)
        return True

    def _ask(self, topic_filter: bytes, client_id: str, answered: Callable[[bytes], None]) -> None:
        channel = self._channel_of(client_id)

        def granted() -> None:
            if channel and self._channel_of(client_id) == channel:
                self._granted.setdefault(channel, set()).add(topic_filter)
            answered(topic_filter)

        assert self._writer is not None  # clients come later
        change = self._change(client_id, TakeExclusive(client_id, topic_filter))
        self._writer.change([change], granted, lambda refusal: answered(topic_filter))

    def is_free(self, topic_filter: bytes, client_id: str) -> bool:
        """Whether the client has it; ask the home before."""
        return topic_filter in self._granted.get(self._channel_of(client_id), ())

    def take(self, topic_filter: bytes, client_id: str) -> None:
        """The client has it: it was granted, or is that of a session that has come to this node."""
        channel = self._channel_of(client_id)
        if channel:
            self._granted.setdefault(channel, set()).add(topic_filter)

    def release(self, topic_filter: bytes, client_id: str, *, is_moving: bool = False) -> None:
        """Take it from the client; the home keeps that of a session that goes elsewhere."""
        granted = self._granted.get(self._channel_of(client_id))
        if granted is None or topic_filter not in granted:
            return
        granted.remove(topic_filter)
        if not is_moving and self._writer is not None:
            self._writer.write(self._change(client_id, ReleaseExclusive(client_id, topic_filter)))

    def forget(self, channel: int) -> None:
        """A channel has ended, and the home knows what becomes of its topics."""
        self._granted.pop(channel, None)

    def announce_again(self, client_of: Callable[[int], str | None]) -> None:
        """The home has restarted: tell it what clients without stored sessions have."""
        for channel, topic_filters in list(self._granted.items()):
            client_id = client_of(channel)
            for each in list(topic_filters) if client_id is not None else ():
                assert client_id is not None
                self._ask(each, client_id, lambda topic_filter: None)

    def _change(self, client_id: str, operation: TakeExclusive | ReleaseExclusive) -> NodeChange:
        return NodeChange(shard_of(client_id, self._shards), client_id, operation)
