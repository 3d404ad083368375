"""One application message, as it is kept when it must outlive the frame it came in."""

from __future__ import annotations

from braidmq.lane.records import Record
from braidmq.lane.scanner import Scanner


class Message:
    """Topic, payload and forwardable properties in wire form; never changed once somebody was shown it."""

    __slots__ = (
        "expires_at", "expiry_offset", "payload", "properties", "publisher", "qos", "retain", "shard", "timestamp", "topic",
    )  # fmt: skip

    def __init__(self, topic: bytes, payload: bytes, qos: int, retain: bool, publisher: str) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.publisher = publisher  # client id; "" for the broker itself
        self.properties = b""
        self.expires_at = 0.0  # on the monotonic clock; 0: never
        self.expiry_offset = -1
        self.shard = 0
        self.timestamp = 0  # its place in the log; 0: this copy is not recorded

    def set_properties(self, properties: bytes, expires_at: float, expiry_offset: int) -> None:
        """Attach encoded properties; ``expiry_offset`` is where the message expiry's value is in them, or -1."""
        self.properties = properties
        self.expires_at = expires_at
        self.expiry_offset = expiry_offset

    def set_position(self, shard: int, timestamp: int) -> None:
        """It is recorded and committed there; called before anybody is shown the message."""
        self.shard = shard
        self.timestamp = timestamp

    def unrecorded(self) -> Message:
        """A copy that does not speak of the log, for whoever keeps the message beside it."""
        copy = Message(self.topic, self.payload, self.qos, self.retain, self.publisher)
        copy.set_properties(self.properties, self.expires_at, self.expiry_offset)
        return copy

    def cost(self) -> int:
        """Bytes that this message counts for in a queue's bound."""
        return len(self.topic) + len(self.payload) + len(self.properties)


def from_scan(scan: Scanner, topic: bytes, publisher: str, now: float) -> Message:
    """The message of the PUBLISH that the scanner stands on; ``now`` is used only if it expires."""
    message = Message(topic, scan.payload(), scan.qos, scan.retain, publisher)
    if scan.properties_bytes:
        expires_at = now + scan.expiry if scan.expiry_at >= 0 else 0.0
        message.set_properties(scan.properties(), expires_at, scan.expiry_offset())
    return message


def from_record(shard: int, record: Record, wall_offset: float) -> Message:
    """The message of a record, with its place in the log; ``wall_offset`` is the wall clock minus the monotonic one."""
    message = Message(record.topic, record.payload, record.qos, record.retain, record.publisher)
    properties = record.properties
    if properties:
        expires_at = record.expires_at
        message.set_properties(properties, expires_at / 1_000_000 - wall_offset if expires_at else 0.0, record.expiry_offset)
    message.shard = shard
    message.timestamp = record.timestamp
    return message
