"""Shared by all channels and sessions of a node: counters, limits, and the channels that have something to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from braidmq.lane.flows.group_flow import GroupFlow
    from braidmq.lane.flows.log_flow import LogFlow
    from braidmq.lane.flows.session_queue import SessionQueue
    from braidmq.lane.path.message import Message
    from braidmq.lane.path.writer import Writer


# All large packets of a turn together get this part of the work of one callback, about half a millisecond.
_LARGE_SHARE = 5


class Counters:
    """Plain integers, counted on the message path and read on request."""

    __slots__ = (
        "acked", "bytes_received", "bytes_sent", "delivered", "dropped_absent", "dropped_expired", "dropped_no_local",
        "dropped_memory_full", "dropped_no_subscribers", "dropped_not_authorized", "dropped_not_stored",
        "dropped_outbox_full", "dropped_peer_full", "dropped_queue_full", "dropped_session_ended", "dropped_too_large",
        "inflight_lost", "messages_received", "pingreq_received", "puback_received", "puback_sent", "pubcomp_received",
        "pubcomp_sent", "publish_qos0_received", "publish_qos0_sent", "publish_qos1_received", "publish_qos1_sent",
        "publish_qos2_received", "publish_qos2_sent", "publishers_held", "pubrec_received", "pubrec_sent",
        "pubrel_received", "pubrel_sent", "stray_acks",
    )  # fmt: skip

    def __init__(self) -> None:
        self.bytes_received = self.bytes_sent = 0
        self.messages_received = self.delivered = self.acked = self.stray_acks = self.publishers_held = 0
        self.publish_qos0_received = self.publish_qos1_received = self.publish_qos2_received = 0
        self.publish_qos0_sent = self.publish_qos1_sent = self.publish_qos2_sent = 0
        self.puback_received = self.pubrec_received = self.pubrel_received = self.pubcomp_received = 0
        self.puback_sent = self.pubrec_sent = self.pubrel_sent = self.pubcomp_sent = self.pingreq_received = 0
        self.dropped_absent = self.dropped_expired = self.dropped_no_local = self.dropped_no_subscribers = 0
        self.dropped_memory_full = self.dropped_not_authorized = self.dropped_not_stored = 0
        self.dropped_outbox_full = self.dropped_queue_full = self.dropped_session_ended = self.dropped_too_large = 0
        self.dropped_peer_full = 0
        self.inflight_lost = 0  # left the in-flight window without an acknowledgement


class State:
    """Shared by reference. ``now`` is a coarse monotonic clock that the node updates twice a second."""

    __slots__ = (
        "changed", "congested", "counters", "deferred_bytes", "deferring", "dirty", "encoded", "encoded_value", "heavy",
        "held_bytes", "held_bytes_max", "is_deferring", "is_pressed", "large_work", "large_work_max",
        "late", "make_room", "marks", "now", "on_deferring", "on_drop", "on_pressed", "on_retained", "on_turn", "on_unready",
        "outbox_bytes_max", "part_number", "part_shard", "part_timestamp", "queued_bytes", "queued_messages", "sender_shard",
        "turn", "turn_is_open", "unread_bytes", "unread_bytes_max", "unready", "unshown", "work", "work_max",
    )  # fmt: skip

    def __init__(self, outbox_bytes_max: int, work_max: int) -> None:
        self.counters = Counters()
        self.now = 0.0
        self.dirty: list[Writer] = []  # channels with something to write
        self.late: list[Writer] = []  # those already written to in this turn: they wait for its end
        self.turn = 0  # number of the current turn of the event loop
        self.turn_is_open = False
        self.on_turn: Callable[[], None] | None = None  # requests ``Lane.end_turn`` after the running callbacks
        self.congested: SessionQueue | None = None  # the session whose queue the last message filled
        self.on_drop: Callable[[str, str, bytes], None] | None = None  # reason, client id, topic
        self.on_retained: Callable[[bytes], None] | None = None  # topic of a message with the retain flag that is being delivered
        self.outbox_bytes_max = outbox_bytes_max
        self.queued_messages = self.queued_bytes = 0  # in the queues of all sessions
        self.unread_bytes = 0  # in the outboxes of clients that do not read now
        self.unread_bytes_max = 1 << 62
        self.held_bytes = 0  # of messages in flight and queued, for all sessions
        self.held_bytes_max = 1 << 62
        self.is_pressed = False  # ``held_bytes`` was above its maximum; the handler of ``on_pressed`` resets this
        self.on_pressed: Callable[[], None] | None = None  # requests that memory be released
        self.make_room: Callable[[SessionQueue, int], bool] | None = None  # for a message of this cost in this queue
        self.heavy: dict[SessionQueue, None] = {}  # those that hold much memory; some may hold little again
        self.marks: list[int] = []  # by shard of the log: live followers were offered everything up to this timestamp
        self.changed: list[LogFlow] = []  # durable flows whose cursor on disk is outdated
        self.unready: list[LogFlow] = []  # those whose next step must be on disk before it is sent
        self.on_unready: Callable[[], None] | None = None  # requests that their cursors be written
        self.work = 0  # deliveries since the running callback began
        self.work_max = work_max
        self.large_work = 0  # for large packets of all clients in this turn; a client's next one then waits
        self.large_work_max = work_max // _LARGE_SHARE
        self.unshown = 0  # committed messages that were not yet offered to all of their destinations
        # The message that was last encoded for peers, and its record: it is encoded once for all of them.
        self.encoded: Message | None = None
        self.encoded_value: bytes | None = None
        # The recorded message that is being delivered in parts, over several turns; shard -1: none.
        self.part_number = 0  # counts such messages, recorded or not
        self.part_shard = -1
        self.part_timestamp = 0
        self.sender_shard = 0  # the home of the publisher whose QoS 0 frame is being forwarded
        self.is_deferring = False  # the current message has very many destinations: groups defer it
        self.deferring: list[GroupFlow] = []  # flows of groups that have deferred messages since this was last emptied
        self.deferred_bytes = 0
        self.on_deferring: Callable[[], None] | None = None  # called for each of them

    def offered(self, seen: int) -> list[int]:
        """The positions up to which a follower was offered everything; ``seen`` is the number of its last wide message."""
        positions = list(self.marks)
        if self.part_shard >= 0 and seen == self.part_number:
            positions[self.part_shard] = self.part_timestamp
        return positions

    def has_room_for(self, queue: SessionQueue, cost: int) -> bool:
        """Whether this queue may take a message of this cost although the node's held bytes are at their limit."""
        return self.make_room is not None and self.make_room(queue, cost)

    def drop(self, reason: str, client_id: str, topic: bytes) -> None:
        """Report a dropped message to the drop log; the caller has counted it."""
        if self.on_drop is not None:
            self.on_drop(reason, client_id, topic)

    def drop_expired(self, client_id: str, topic: bytes) -> None:
        """A message expired before it could be sent to this client: count and report it."""
        self.counters.dropped_expired += 1
        self.drop("expired", client_id, topic)
