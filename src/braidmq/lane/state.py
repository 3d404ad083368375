"""What all channels and sessions of one node share: counters, bounds, and who has something to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Counters:
    """Plain integers, counted on the message path and read when somebody asks."""

    __slots__ = (
        "acked", "bytes_received", "bytes_sent", "delivered", "dropped_absent", "dropped_expired", "dropped_no_local",
        "dropped_no_subscribers", "dropped_not_authorized", "dropped_not_stored", "dropped_outbox_full",
        "dropped_queue_full", "dropped_session_ended", "dropped_too_large", "inflight_lost", "messages_received",
        "pingreq_received", "puback_received", "puback_sent", "pubcomp_received", "pubcomp_sent", "publish_qos0_received",
        "publish_qos0_sent", "publish_qos1_received", "publish_qos1_sent", "publish_qos2_received", "publish_qos2_sent",
        "publishers_held", "pubrec_received", "pubrec_sent", "pubrel_received", "pubrel_sent", "stray_acks",
    )  # fmt: skip

    def __init__(self) -> None:
        self.bytes_received = self.bytes_sent = 0
        self.messages_received = self.delivered = self.acked = self.stray_acks = self.publishers_held = 0
        self.publish_qos0_received = self.publish_qos1_received = self.publish_qos2_received = 0
        self.publish_qos0_sent = self.publish_qos1_sent = self.publish_qos2_sent = 0
        self.puback_received = self.pubrec_received = self.pubrel_received = self.pubcomp_received = 0
        self.puback_sent = self.pubrec_sent = self.pubrel_sent = self.pubcomp_sent = self.pingreq_received = 0
        self.dropped_absent = self.dropped_expired = self.dropped_no_local = self.dropped_no_subscribers = 0
        self.dropped_not_authorized = self.dropped_not_stored = 0
        self.dropped_outbox_full = self.dropped_queue_full = self.dropped_session_ended = self.dropped_too_large = 0
        self.inflight_lost = 0  # left the in-flight window without an acknowledgement


class State:
    """Shared by reference. ``now`` is a coarse monotonic clock that the node moves on twice a second."""

    __slots__ = (
        "changed", "congested", "counters", "dirty", "late", "marks", "now", "on_drop", "on_turn", "on_unready",
        "outbox_bytes_max", "queued_bytes", "queued_messages", "turn", "turn_is_open", "unready", "wall_offset",
        "work", "work_max",
    )  # fmt: skip

    def __init__(self, outbox_bytes_max: int, work_max: int) -> None:
        self.counters = Counters()
        self.now = 0.0
        self.dirty: list[Any] = []  # channels with something to write
        self.late: list[Any] = []  # those that were written to in this turn already: they wait for its end
        self.turn = 0  # of the event loop
        self.turn_is_open = False
        self.on_turn: Callable[[], None] | None = None  # asks for ``Lane.end_turn`` after the running callbacks
        self.congested: Any = None  # the session whose queue the last message filled
        self.on_drop: Callable[[str, str, bytes], None] | None = None  # reason, client id, topic
        self.outbox_bytes_max = outbox_bytes_max
        self.queued_messages = self.queued_bytes = 0  # in the queues of all sessions
        self.marks: list[int] = []  # by shard of the log: live followers were offered everything up to this timestamp
        self.changed: list[Any] = []  # durable flows whose cursor on disk is behind
        self.unready: list[Any] = []  # those whose next step must be on disk before it is on the wire
        self.on_unready: Callable[[], None] | None = None  # asks for somebody to write them
        self.wall_offset = 0.0  # wall clock minus monotonic clock, in seconds
        self.work = 0  # deliveries since the running callback began
        self.work_max = work_max

    def drop(self, reason: str, client_id: str, topic: bytes) -> None:
        """Tell whoever wants to know that a message was dropped; the caller has counted it."""
        if self.on_drop is not None:
            self.on_drop(reason, client_id, topic)
