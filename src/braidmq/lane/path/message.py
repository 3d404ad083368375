"""One application message that outlives the frame it arrived in."""

from __future__ import annotations

from braidmq.lane.path.expiry import from_wall, seconds_left, to_wall, wall_offset
from braidmq.lane.path.parser import Parser
from braidmq.lane.records.records import Record


class Message:
    """Topic, payload and forwardable properties in wire form; immutable once it has been delivered."""

    __slots__ = (
        "expires_at", "expiry_offset", "payload", "properties", "publisher", "qos", "retain", "shard", "timestamp", "topic",
    )  # fmt: skip

    def __init__(self, topic: bytes, payload: bytes, qos: int, retain: bool, publisher: str) -> None:
        self._set(topic, payload, qos, retain, publisher)

    def _set(self, topic: bytes, payload: bytes, qos: int, retain: bool, publisher: str) -> None:
        """Compiled, a call of the constructor makes Python objects of all arguments: frequent callers avoid it."""
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.publisher = publisher  # client id; "" for the broker itself
        self.properties = b""
        self.expires_at = 0.0  # on the monotonic clock; 0: never
        self.expiry_offset = -1
        self.shard = 0
        self.timestamp = 0  # its position in the log; 0: this copy is not recorded

    def set_properties(self, properties: bytes, expires_at: float, expiry_offset: int) -> None:
        """Attach encoded properties; ``expiry_offset`` is where the message expiry's value is in them, or -1."""
        self.properties = properties
        self.expires_at = expires_at
        self.expiry_offset = expiry_offset

    def set_position(self, shard: int, timestamp: int) -> None:
        """Set its position in the log, after its commit and before it is delivered."""
        self.shard = shard
        self.timestamp = timestamp

    def unrecorded(self) -> Message:
        """A copy without its position in the log, for storing the message elsewhere."""
        copy = Message(self.topic, self.payload, self.qos, self.retain, self.publisher)
        copy.set_properties(self.properties, self.expires_at, self.expiry_offset)
        return copy

    def in_place_of(self, original: Message) -> Message:
        """A copy at the position of ``original``, which it replaces: a hook may change a message, but not its record."""
        copy = self.unrecorded()
        copy.set_position(original.shard, original.timestamp)
        return copy

    def seconds_left(self) -> int:
        """Whole seconds until it expires, rounded up; 0 if it has expired [MQTT-3.3.2-5], -1 if it never does."""
        return seconds_left(self.expires_at)

    def wall_expiry(self) -> int:
        """When it expires by the wall clock, in microseconds since 1970; 0 if it never does."""
        return to_wall(self.expires_at, wall_offset()) if self.expires_at else 0

    def cost(self) -> int:
        """The bytes that this message counts towards a queue's limit."""
        return len(self.topic) + len(self.payload) + len(self.properties)


def from_parser(parser: Parser, topic: bytes, publisher: str, now: float) -> Message:
    """The message of the parser's current PUBLISH; ``now`` is used only if it expires."""
    message = Message.__new__(Message)
    message._set(topic, parser.payload(), parser.qos, parser.retain, publisher)
    if parser.properties_bytes:
        expires_at = now + parser.expiry if parser.expiry_at >= 0 else 0.0
        message.set_properties(parser.properties(), expires_at, parser.expiry_offset())
    return message


def from_record(shard: int, record: Record) -> Message:
    """The message of a record, with its position in the log."""
    message = Message.__new__(Message)
    message._set(record.topic, record.payload, record.qos, record.retain, record.publisher)
    properties = record.properties
    if properties:
        expires_at = record.expires_at
        message.set_properties(properties, from_wall(expires_at, wall_offset()) if expires_at else 0.0, record.expiry_offset)
    message.shard = shard
    message.timestamp = record.timestamp
    return message
