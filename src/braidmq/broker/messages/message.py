"""Creates lane messages from decoded packets and for the broker's own messages."""

from __future__ import annotations

from time import monotonic

from braidmq.lane.path.message import Message
from braidmq.mqtt import wire
from braidmq.mqtt.packet_types import PacketType
from braidmq.mqtt.properties import NO_PROPERTIES, Properties, write_properties


def make_message(
    topic: str, payload: bytes, qos: int = 0, retain: bool = False, properties: Properties = NO_PROPERTIES, publisher: str = ""
) -> Message:
    """A message with these fields; its expiry begins now. ``publisher`` is a client id, or empty for the broker."""
    message = Message(topic.encode(), payload, qos, retain, publisher)
    encoded = write_properties(properties, PacketType.PUBLISH)
    if len(encoded) == 1:
        return message
    _, start = wire.read_varint(encoded, 0)
    expires_at, expiry_offset = 0.0, -1
    if properties.message_expiry_interval is not None:
        expires_at = monotonic() + properties.message_expiry_interval
        # Properties are written in the order of their identifiers: only the payload format (0x01) can come before.
        expiry_offset = 1 if properties.payload_format_indicator is None else 3
    message.set_properties(encoded[start:], expires_at, expiry_offset)
    return message
