"""Publishes what clients of nodes have published: like the core's own messages, but without hooks, which ran on the node."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Final, NamedTuple, Protocol

from braidmq.base.errors import Corruption, UsageError
from braidmq.broker.messages.flags import TRACED
from braidmq.broker.messages.producer_books import NewKey
from braidmq.cluster.protocol.blocks import NOT_RECORDED, RECORDED
from braidmq.lane.flows.flow import Flow
from braidmq.lane.path.message import Message, from_record
from braidmq.lane.path.outlet import Outlet
from braidmq.lane.peers.node_entries import NodeEntries
from braidmq.lane.recording.commit_outcomes import Pending
from braidmq.lane.recording.recorder import Recorder
from braidmq.lane.records.records import Record, encode_record
from braidmq.lane.routing.routes import RouteTable
from braidmq.mqtt.reasons import Reason
from braidmq.net.frames import BadFrame

_EXPIRY_BYTES: Final = 4
_NO_MESSAGE: Final = Message(b"", b"", 0, False, "")

FindKey = Callable[[], NewKey | None]  # None: a message with this key is recorded; may raise Unavailable


class EntryPipeline(Protocol):
    """Retained messages and tracing; `broker.messages.pipeline.MessagePipeline`."""

    def may_retain(self, message: Message) -> bool:
        """Whether there is room for a retained message; counted if not."""

    def retain_on_commit(
        self, pending: Pending, message: Message, user_name: str | None, on_settled: Callable[[], None] | None = None
    ) -> bool:
        """Write the retained message with its block, and show it to subscribers from the commit on.

        Whether ``on_settled`` will be called: another home keeps it.
        """

    def retain_in_memory(self, message: Message, user_name: str | None) -> None:
        """Retain a message that has no row."""

    def trace(self, message: Message) -> None:
        """Report a message of a traced topic."""


class EntryShow(Protocol):
    """Shows messages that need no write; `lane.path.commit_outcomes.CommitOutcomes`."""

    def show(self, message: Message, flow: Flow | None, channel: Outlet | None, ack_qos: int, packet_id: int) -> None:
        """Show a message after those before it, then settle it with the channel."""


class NodeMessage(NamedTuple):
    """A message of a node's client, with its record."""

    message: Message
    value: bytes


class Published(NamedTuple):
    """What was decided: the outcome of the entry, and whether it waits for the block's write or to be shown.

    ``is_sent``: it also waits until another home has its retained message.
    """

    outcome: int
    is_written: bool
    is_shown: bool
    is_sent: bool = False


def read_message(value: bytes, client_id: str) -> NodeMessage:
    """The message of a record that a node sent in the name of this client. Raises BadFrame."""
    try:
        record = Record(0, value)
        message = from_record(0, record)
        message.topic.decode()
    except (Corruption, UsageError, UnicodeDecodeError) as problem:
        raise BadFrame(f"a node sent a message that cannot be read: {problem}") from None
    if message.publisher != client_id:
        raise BadFrame("a node sent a message in another client's name")
    if not record.expires_at:
        return NodeMessage(message, value)
    # It expires by this core's clock: the node's wall clock may be wrong (C39).
    offset = record.expiry_offset
    interval = message.properties[offset : offset + _EXPIRY_BYTES] if offset >= 0 else b""
    if len(interval) != _EXPIRY_BYTES:
        raise BadFrame("a node sent a message whose expiry cannot be read")
    message.set_properties(message.properties, monotonic() + int.from_bytes(interval, "big"), offset)
    encoded = encode_record(
        message.topic, message.payload, message.qos, message.retain, message.publisher, message.properties,
        message.wall_expiry(), offset,
    )  # fmt: skip
    return NodeMessage(message, encoded)


class EntryPublisher:
    """Publishes single messages. What it records belongs to the recorder's open block."""

    def __init__(
        self,
        recorder: Recorder,
        show: EntryShow,
        pipeline: EntryPipeline,
        routes: RouteTable,
        flush: Callable[[], None],
    ) -> None:
        """``flush`` sends what was shown: ``Lane.flush``."""
        self.flush = flush
        self.publish_plain = NodeEntries(recorder, routes).publish
        self._recorder = recorder
        self._show = show
        self._pipeline = pipeline
        self._routes = routes

    def publish(
        self,
        sent: NodeMessage,
        shard: int,
        user_name: str | None,
        waiter: Outlet,
        number: int,
        find_key: FindKey | None = None,
    ) -> Published:
        """Retain, record and route a message; ``flush`` must follow.

        ``waiter`` is settled with this number when the message has been shown: with QoS 1, or with QoS 0 after its commit if it
        is written; and with QoS 1 once more for what ``is_sent``. ``find_key``: that of a producer's message; one that is
        recorded already is not recorded again. Raises what that raises, and has done nothing then.
        """
        message = sent.message
        route = self._routes.resolve(message.topic)
        if route is None:
            return Published(Reason.TOPIC_NAME_INVALID, False, False)
        is_recorded = message.qos >= route.entry_qos
        new_key: NewKey | None = None
        if is_recorded and find_key is not None:
            new_key = find_key()
            if new_key is None:
                return Published(RECORDED, True, False)  # acknowledged when that record is on disk
        if route.flags & TRACED:
            self._pipeline.trace(message)
        if message.retain and not self._pipeline.may_retain(message):
            return Published(Reason.QUOTA_EXCEEDED, False, False)
        is_kept = message.retain and not message.topic.startswith(b"$")
        if is_recorded:
            session_only = message.qos < route.record_qos
            pending = self._recorder.record_value(message, sent.value, shard, session_only, None, waiter, 0, number)
            if pending.is_refused:
                return Published(Reason.QUOTA_EXCEEDED, False, False)
            if new_key is not None:
                self._recorder.change(new_key.row)
                new_key.recorded()
            outcome = RECORDED
        elif is_kept:
            # It is shown after the commit of its retained row; after a crash it is shown again.
            pending = self._recorder.await_rows(message, None, waiter, 0, number)
            outcome = NOT_RECORDED
        else:
            if message.retain:
                self._pipeline.retain_in_memory(message, user_name)
            self._show.show(message, None, waiter, 1, number)
            return Published(NOT_RECORDED, False, True)
        on_settled = partial(waiter.settle, None, 1, number, 0)
        is_sent = message.retain and self._pipeline.retain_on_commit(pending, message, user_name, on_settled)
        return Published(outcome, True, False, is_sent)

    def retain(self, message: Message, user_name: str | None) -> None:
        """Set or remove a retained message that has reached its subscribers on another way, with the recorder's block."""
        if self._pipeline.may_retain(message):
            pending = self._recorder.await_rows(_NO_MESSAGE, None, None, 0, 0)
            pending.is_delivered = False
            self._pipeline.retain_on_commit(pending, message, user_name)

    def show(self, message: Message, waiter: Outlet, number: int) -> None:
        """Show a message that is not recorded; ``flush`` must follow, and ``waiter`` is settled with this number."""
        self._show.show(message, None, waiter, 1, number)
