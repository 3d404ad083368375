"""The outgoing half of a channel: writes frames to the outbox, and the outbox to the transport."""

from __future__ import annotations

from typing import Any

from braidmq.lane.path.message import Message
from braidmq.lane.path.outbox import Outbox
from braidmq.lane.path.outlet import Upcalls
from braidmq.lane.path.parser import Parser
from braidmq.lane.path.state import State
from braidmq.lane.routing.subscription import Subscription

ALIAS_TOPIC_BYTES_MAX = 512  # of a topic that gets an alias, which stays in memory as long as the connection
_NO_ALIASES: dict[bytes, int] = {}


class Writer(Upcalls):
    """Everything that is written to one client. The public fields are set when its CONNECT is accepted."""

    __slots__ = (
        "_aliases_out", "_is_urgent", "_unread", "_writable", "alias_out_max", "bytes_sent", "fd", "frame_max_out", "is_dirty",
        "is_traced", "is_v5", "messages_sent", "outbox", "state", "transport",
    )  # fmt: skip

    def __init__(self, state: State) -> None:
        self.state = state
        self.transport: Any = None
        self.fd = -1  # of a transport that does not transform bytes, so that the socket may be written to directly
        self.outbox = Outbox()
        self.is_v5 = False
        self.is_traced = False
        self.is_dirty = False  # something waits in the outbox
        self._is_urgent = False  # it should not wait for the end of the turn
        self.is_waiting = self.is_muted = False
        self.turn = -1
        self.frame_max_out = 268_435_460  # the client's Maximum Packet Size
        self.alias_out_max = 0
        self.bytes_sent = self.messages_sent = 0
        self._aliases_out = _NO_ALIASES  # a dict of its own once aliases are allowed
        self._writable = True
        self._unread = 0  # bytes in the outbox that count as unread by a slow client

    def allow_aliases(self, alias_out_max: int) -> None:
        """Use topic aliases up to this number, as the client's CONNECT allows."""
        self.alias_out_max = alias_out_max
        if alias_out_max:
            self._aliases_out = {}

    def _mark(self) -> None:
        if not self._writable:
            self._count_unread(self.outbox.size)
        if not self.is_dirty:
            self.is_dirty = True
            self.state.dirty.append(self)
        elif not self._is_urgent and self.is_filling():  # it may be waiting for the end of the turn
            self._is_urgent = True
            self.state.dirty.append(self)

    def _count_unread(self, size: int) -> None:
        """Count the bytes that wait for a client that does not read now."""
        self.state.unread_bytes += size - self._unread
        self._unread = size

    def send(self, frame: bytes) -> None:
        """Put a whole frame into the outbox."""
        if self.is_traced:
            self.on_trace(False, frame)
        self.outbox.push(frame)
        self._mark()

    def send_ack(self, first_byte: int, packet_id: int, reason: int) -> None:
        self.outbox.push_ack(first_byte, packet_id, reason)
        if self.is_traced:
            self.on_trace(False, bytes((first_byte, 3, packet_id >> 8, packet_id & 255, reason)))  # reason spelled out
        if not self.is_dirty:
            # Acknowledgements are less urgent than messages: those of one turn are written together.
            self.is_dirty = True
            self.state.late.append(self)

    def send_publish(self, message: Message, subscription: Subscription, flags: int, packet_id: int, expiry: int) -> int:
        topic = message.topic
        alias = 0
        aliases = self._aliases_out
        if self.alias_out_max:
            alias = -aliases.get(topic, 0)
            if alias == 0 and len(aliases) < self.alias_out_max and len(topic) <= ALIAS_TOPIC_BYTES_MAX:
                alias = len(aliases) + 1
        size = self.outbox.push_publish(
            flags, topic, packet_id, self.is_v5, message.properties, subscription.identifiers, message.payload, alias, expiry,
            message.expiry_offset, self.frame_max_out,
        )  # fmt: skip
        if size == 0:
            return 0
        if alias > 0:
            aliases[topic] = alias
        if self.is_traced:
            self.on_trace(False, bytes((flags, 0)) + topic)
        self.messages_sent += 1
        self._mark()
        return size

    def forward_frame(self, parser: Parser, v5: bool) -> bool:
        if (
            self.is_v5 != v5
            or self.alias_out_max
            or self.is_traced
            or parser.end - parser.start > self.frame_max_out
            or self.is_clogged()
        ):
            return False
        self.outbox.push_frame(parser)
        self.messages_sent += 1
        self._mark()
        return True

    def is_clogged(self) -> bool:
        state = self.state
        # Clients that read are not limited here; all others share one limit.
        return self.outbox.size >= state.outbox_bytes_max or (not self._writable and state.unread_bytes >= state.unread_bytes_max)

    def is_stuck(self) -> bool:
        """Whether the client does not read at all: messages stop at the outbox's limit, answers at twice that."""
        state = self.state
        if self._writable:
            return False
        return self.outbox.size >= 2 * state.outbox_bytes_max or state.unread_bytes >= state.unread_bytes_max

    def is_filling(self) -> bool:
        return self.outbox.size * 2 >= self.state.outbox_bytes_max

    def has_room(self) -> bool:
        """Whether a paced sender may put more into the outbox: half of it is free."""
        return self._writable and not self.is_filling()

    def flush(self) -> None:
        self.is_dirty = self._is_urgent = False
        if not self._writable or self.transport is None or not self.outbox.size:
            return
        if self._unread:
            self._count_unread(0)
        sent = self.outbox.size
        self.state.counters.bytes_sent += sent
        self.bytes_sent += sent
        if self.fd >= 0 and self.outbox.send_to(self.fd) == sent:
            return
        # The transport waits until there is room, and handles a broken connection.
        self.transport.write(self.outbox.take())

    def pause_writing(self) -> None:
        """The transport has enough: let the outbox fill."""
        self._writable = False

    def forget_unread(self) -> None:
        """The connection is closed: its bytes no longer count as unread."""
        if self._unread:
            self._count_unread(0)
