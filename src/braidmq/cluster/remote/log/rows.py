"""The rows of a node that stores nothing: each change is an operation that its home carries out, in the block of its shard.

These classes fill the broker's storage ports on a node without a log. They load nothing: sessions come with grants, retained
messages are read from their homes, delayed messages and shared groups stay there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from msgspec import Struct

from braidmq.base.errors import Unavailable
from braidmq.base.shards import shard_of
from braidmq.broker.ports import (
    CursorRow,
    GroupRow,
    MessageLog,
    SessionRow,
    Storage,
    StoredMessage,
    StoredSession,
    SubscriptionRow,
)
from braidmq.cluster.protocol.operations import (
    Operation,
    PutCursor,
    PutDelayed,
    PutGroup,
    PutReceived,
    PutRetained,
    PutSession,
    PutSubscription,
    PutWill,
    RemoveGroup,
    RemoveReceived,
    RemoveRetained,
    RemoveSession,
    RemoveSubscription,
    RemoveWill,
    SessionOperation,
    encode_will,
)
from braidmq.lane.path.message import Message
from braidmq.lane.path.ports import Change
from braidmq.mqtt.packets import Will
from braidmq.storage.reading.positions import parse_start
from braidmq.storage.rows.messages import MessageRows

OWN: Final = ""  # stands for a client id in changes that no client makes


class NodeChange(Change, Struct, frozen=True, gc=False):
    """A change that the home of a shard makes.

    ``client_id``: whose channel asks for it; ``OWN`` if the node itself does.
    """

    shard: int
    client_id: str
    operation: Operation


class DelayedChange(NodeChange, frozen=True, gc=False):
    """The home keeps a message; it refuses one for which there is no room, and the message's publisher is told."""

    message: Message


class RemoteSessions:
    """The rows of this node's sessions; implements `broker.ports.SessionStore`."""

    def __init__(self, shards: int) -> None:
        self._shards = shards

    def _change(self, operation: SessionOperation) -> NodeChange:
        client_id = operation.client_id
        return NodeChange(shard_of(client_id, self._shards), client_id, operation)

    def put_session(self, row: SessionRow) -> NodeChange:
        """Set the session's own row."""
        return self._change(PutSession(row))

    def put_subscription(self, client_id: str, row: SubscriptionRow) -> NodeChange:
        """Set a subscription of the session."""
        return self._change(PutSubscription(client_id, row))

    def remove_subscription(self, client_id: str, written: str) -> NodeChange:
        """Remove a subscription."""
        return self._change(RemoveSubscription(client_id, written))

    def put_cursor(self, client_id: str, row: CursorRow) -> NodeChange:
        """Set how far the session has come."""
        return self._change(PutCursor(client_id, row))

    def put_will(self, client_id: str, will: Will) -> NodeChange:
        """Set its will."""
        return self._change(PutWill(client_id, encode_will(will)))

    def remove_will(self, client_id: str) -> NodeChange:
        """Remove its will."""
        return self._change(RemoveWill(client_id))

    def put_received(self, client_id: str, packet_id: int) -> NodeChange:
        """Note the packet id of a QoS 2 message; belongs into the block of its record (S1)."""
        return self._change(PutReceived(client_id, packet_id))

    def remove_received(self, client_id: str, packet_id: int) -> NodeChange:
        """Forget a packet id that the client has released."""
        return self._change(RemoveReceived(client_id, packet_id))

    def remove_session(self, client_id: str, written: Iterable[str], received: Iterable[int]) -> list[Change]:
        """Remove all of its rows."""
        return [self._change(RemoveSession(client_id, list(written), list(received)))]

    def load(self) -> Iterator[StoredSession]:
        """Nothing: a session comes with the grant of its client id."""
        return iter(())

    def load_one(self, client_id: str) -> StoredSession | None:
        """Always raises Unavailable: only the home can read them."""
        raise _elsewhere("the rows of a session")


class RemoteRetained:
    """The rows of retained messages; implements `broker.ports.RetainedRows`."""

    def __init__(self, shards: int, *, wall: Callable[[], float] = time.time, now: Callable[[], float] = time.monotonic) -> None:
        self._shards = shards
        self._messages = MessageRows(wall, now)

    def put(self, message: Message, user_name: str | None, stored_at: float = 0.0) -> NodeChange:
        """Let the publisher's home set or remove the retained message of its topic; raises UsageError if it is too large.

        It goes the way of everything that the client publishes, so the client's messages keep their order.
        """
        operation = PutRetained(self._messages.row_of(message, user_name, stored_at))
        return NodeChange(shard_of(message.publisher, self._shards), message.publisher, operation)

    def remove(self, topic: bytes) -> NodeChange:
        """Remove the retained message of a topic, if there is one."""
        return NodeChange(self._shard_of(topic), OWN, RemoveRetained(topic))

    def read(self, topic: bytes) -> StoredMessage | None:
        """Always raises Unavailable: `RetainedReads` gets whole messages from their homes."""
        raise _elsewhere("a retained message")

    def load(self) -> Iterator[StoredMessage]:
        """Nothing: retained messages stay at their homes."""
        return iter(())

    def _shard_of(self, topic: bytes) -> int:
        return shard_of(topic.decode(), self._shards)


class RemoteDelayed:
    """The rows of delayed messages; implements `broker.ports.DelayedRows`. Their homes publish them when they are due."""

    def __init__(self, shards: int, *, wall: Callable[[], float] = time.time, now: Callable[[], float] = time.monotonic) -> None:
        self._shards = shards
        self._messages = MessageRows(wall, now)

    def put(self, message: Message, user_name: str | None, due: float) -> tuple[bytes, DelayedChange]:
        """Let the home keep the message; the id is empty, since this node does not wait for its time."""
        operation = PutDelayed(self._messages.row_of(message, user_name), due)
        publisher = message.publisher
        return b"", DelayedChange(shard_of(publisher, self._shards), publisher, operation, message)

    def remove(self, publisher: str, row_id: bytes) -> NodeChange:
        """Always raises Unavailable: only the home removes them, when it publishes them."""
        raise _elsewhere("a delayed message")

    def read(self, shard: int, row_id: bytes) -> StoredMessage | None:
        """Always raises Unavailable."""
        raise _elsewhere("a delayed message")

    def load(self) -> Iterator[StoredMessage]:
        """Nothing: delayed messages stay at their homes."""
        return iter(())


class RemoteGroups:
    """The rows of shared groups; implements `broker.ports.GroupStore`."""

    def __init__(self, shards: int) -> None:
        self._shards = shards

    def put(self, row: GroupRow) -> NodeChange:
        """Set the positions and all outstanding records of a group."""
        return NodeChange(self._shard_of(row.name, row.topic_filter), OWN, PutGroup(row))

    def remove(self, name: str, topic_filter: str) -> NodeChange:
        """Remove a group, if it is there."""
        return NodeChange(self._shard_of(name, topic_filter), OWN, RemoveGroup(name, topic_filter))

    def load(self) -> Iterator[GroupRow]:
        """Nothing: groups stay at their homes."""
        return iter(())

    def load_one(self, name: str, topic_filter: str) -> GroupRow | None:
        """Always raises Unavailable: only the home can read it."""
        raise _elsewhere("the row of a shared group")

    def _shard_of(self, name: str, topic_filter: str) -> int:
        return shard_of(f"{name}\0{topic_filter}", self._shards)


def _elsewhere(what: str) -> Unavailable:
    return Unavailable(f"{what} can be read at its home only, not on this node")


def remote_storage(log: MessageLog, shards: int) -> Storage:
    """What the broker of such a node stores with."""
    rows = RemoteSessions(shards), RemoteRetained(shards), RemoteDelayed(shards), RemoteGroups(shards)
    return Storage(log, *rows, parse_start, None)
