"""One application message, as it is kept when it must outlive the frame it came in."""

from __future__ import annotations

from braidmq.lane.scanner import Scanner


class Message:
    """Topic, payload and forwardable properties in wire form; never changed after it is made."""

    __slots__ = ("expires_at", "expiry_offset", "payload", "properties", "publisher", "qos", "retain", "topic")

    def __init__(self, topic: bytes, payload: bytes, qos: int, retain: bool, publisher: str) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.publisher = publisher  # client id; "" for the broker itself
        self.properties = b""
        self.expires_at = 0.0  # on the monotonic clock; 0: never
        self.expiry_offset = -1

    def set_properties(self, properties: bytes, expires_at: float, expiry_offset: int) -> None:
        """Attach encoded properties; ``expiry_offset`` is where the message expiry's value is in them, or -1."""
        self.properties = properties
        self.expires_at = expires_at
        self.expiry_offset = expiry_offset

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
