"""Which client has which exclusive topic, as the topic's home decides for all nodes of several cores (C38, decision 32).

A *grant* stands for a client that is connected, and ends with its channel or its node, which says so. A durable session has a row
in the log of its client id's shard as well (`cores.exclusive_rows`), which outlives the channel. So the grant of such a session
is not over when its channel is: it counts until the session's own home has confirmed all its rows, as they were after that.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final, Protocol

from msgspec import Struct

from braidmq.cluster.membership.member import Member
from braidmq.cluster.protocol.operations import ReleaseExclusive, TakeExclusive

_SETTLED_AT_ONCE: Final = 8


class StoredOwners(Protocol):
    """The exclusive topics of durable sessions; `cores.exclusive_rows.ExclusiveRows`."""

    def has_other(self, topic: bytes, client_id: str) -> bool:
        """Whether a durable session of another client id has the topic."""


class _Grant(Struct, gc=False):
    """A topic that a client has. ``ended_at``: when its channel ended, if a durable session may keep the topic."""

    node: Member
    channel: int
    client_id: str
    is_durable: bool
    ended_at: float | None = None


class ExclusiveGrants:
    """The grants of one home, for the topics whose shards it leads."""

    def __init__(
        self,
        stored: StoredOwners,
        is_complete: Callable[[], bool],
        is_known_since: Callable[[str, float], bool],
        now: Callable[[], float],
    ) -> None:
        """``is_complete``: whether every live node and every core has said what its clients have, since this core was started.

        ``is_known_since(client_id, time)``: whether the home of a client id has said how its rows were at that time, or later.
        """
        self._stored = stored
        self._is_complete = is_complete
        self._is_known_since = is_known_since
        self._now = now
        self._grants: dict[bytes, _Grant] = {}
        self._ended: dict[bytes, None] = {}  # grants that durable sessions may still need

    def __len__(self) -> int:
        return len(self._grants)

    def take(self, node: Member, asked: TakeExclusive) -> bool:
        """Give a topic to a client; False if another one has it, or may have it."""
        topic, client_id = asked.topic_filter, asked.client_id
        self._settle(topic)
        held = self._grants.get(topic)
        if held is not None and held.client_id != client_id:
            return False
        if self._stored.has_other(topic, client_id) or not (asked.is_held or self._is_complete()):
            return False
        self._grants[topic] = _Grant(node, asked.channel, client_id, asked.is_durable)
        self._ended.pop(topic, None)
        return True

    def release(self, node: Member, asked: ReleaseExclusive) -> None:
        """A channel gives a topic up. Its session may keep it."""
        held = self._grants.get(asked.topic_filter)
        if held is not None and (held.node, held.channel) == (node, asked.channel):
            self._end(asked.topic_filter, held, asked.is_kept)
        for topic in list(islice(self._ended, _SETTLED_AT_ONCE)):
            self._settle(topic)

    def dead(self, node: Member) -> None:
        """A node is dead: its channels have ended."""
        for topic, held in [(topic, held) for topic, held in self._grants.items() if held.node == node]:
            self._end(topic, held, held.is_durable)

    def _end(self, topic: bytes, held: _Grant, is_kept: bool) -> None:
        if is_kept:
            if held.ended_at is None:
                held.ended_at = self._now()
            self._ended[topic] = None
        else:
            del self._grants[topic]
            self._ended.pop(topic, None)

    def _settle(self, topic: bytes) -> None:
        """From now on the rows alone say whether a durable session has the topic, if they are known."""
        held = self._grants.get(topic)
        if held is not None and held.ended_at is not None and self._is_known_since(held.client_id, held.ended_at):
            self._end(topic, held, is_kept=False)


class ExclusiveOnNode:
    """The grants, as the blocks of one node ask for them; implements `operations.TopicPort`."""

    def __init__(self, node: Member, grants: ExclusiveGrants, leads: Callable[[str], bool]) -> None:
        """``leads``: whether this core leads the shard of a topic."""
        self._node = node
        self._grants = grants
        self._leads = leads

    def is_home_of(self, topic: bytes) -> bool:
        """Whether this core decides about the topic."""
        return self._leads(topic.decode())

    def take_topic(self, asked: TakeExclusive) -> bool:
        """Give a topic to a client of the node; False if it cannot have it."""
        return self._grants.take(self._node, asked)

    def release_topic(self, asked: ReleaseExclusive) -> None:
        """A client of the node gives a topic up."""
        self._grants.release(self._node, asked)
