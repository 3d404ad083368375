"""PUBLISH and the packets that acknowledge it: PUBACK, PUBREC, PUBREL, PUBCOMP."""

from __future__ import annotations

from typing import Final, TypeAlias

from braidmq.base.errors import ProtocolViolation, UsageError
from braidmq.mqtt.packets import MQTT5, PacketType, Puback, Pubcomp, Publish, Pubrec, Pubrel
from braidmq.mqtt.properties import NO_PROPERTIES, read_properties, write_properties
from braidmq.mqtt.reasons import REASONS_OF, Reason
from braidmq.mqtt.wire import malformed, protocol_error, read_packet_id, read_text, write_packet_id, write_text

Acknowledgement: TypeAlias = Puback | Pubrec | Pubrel | Pubcomp

_RETAIN: Final = 0x01
_QOS_SHIFT: Final = 1
_DUP: Final = 0x08


def decode_publish(flags: int, body: bytes, version: int) -> Publish:
    """Read PUBLISH. A client's Subscription Identifier stays in the properties, for the server to reject."""
    qos = flags >> _QOS_SHIFT & 3
    if qos == 3:
        raise malformed("PUBLISH has QoS 3")  # [MQTT-3.3.1-4]
    if qos == 0 and flags & _DUP:
        raise malformed("PUBLISH of QoS 0 is marked as a duplicate")  # [MQTT-3.3.1-2]
    topic, at = read_text(body, 0)  # [MQTT-3.3.2-1]
    packet_id = None
    if qos:
        packet_id, at = read_packet_id(body, at)
    properties = NO_PROPERTIES
    if version == MQTT5:
        properties, at = read_properties(body, at, PacketType.PUBLISH)
    _check_topic(topic, properties.topic_alias)
    return Publish(topic, body[at:], qos, flags & _RETAIN != 0, flags & _DUP != 0, packet_id, properties)


def encode_publish(packet: Publish, version: int) -> tuple[int, bytes]:
    """Write PUBLISH: its four flags and its body."""
    properties = packet.properties if version == MQTT5 else NO_PROPERTIES
    _check_topic(packet.topic, properties.topic_alias)
    if packet.qos not in (0, 1, 2):
        raise UsageError(f"there is no QoS {packet.qos}")
    if packet.qos == 0 and (packet.dup or packet.packet_id is not None):
        # [MQTT-3.3.1-2], [MQTT-2.2.1-2]
        raise UsageError("PUBLISH of QoS 0 must have neither a packet identifier nor the DUP flag")
    flags = packet.qos << _QOS_SHIFT | (_RETAIN if packet.retain else 0) | (_DUP if packet.dup else 0)
    head = write_text(packet.topic)
    if packet.qos:
        head += write_packet_id(packet.packet_id)
    if version == MQTT5:
        head += write_properties(properties, PacketType.PUBLISH)
    return flags, head + packet.payload


def _check_topic(topic: str, topic_alias: int | None) -> None:
    # Length and U+0000 are checked with the string; the number of levels is the server's policy.
    if "+" in topic or "#" in topic:
        raise ProtocolViolation(Reason.TOPIC_NAME_INVALID, "a topic name contains a wildcard")  # [MQTT-3.3.2-2]
    if not topic and topic_alias is None:
        raise protocol_error("PUBLISH has neither a topic name nor a topic alias")


def decode_acknowledgement(packet_type: PacketType, body: bytes, version: int) -> Acknowledgement:
    """Read PUBACK, PUBREC, PUBREL or PUBCOMP; in MQTT 5 the reason and the properties after it may be absent."""
    packet_id, at = read_packet_id(body, 0)
    reason, properties = 0, NO_PROPERTIES
    if version == MQTT5 and len(body) > 2:
        reason, at = body[2], 3
        if reason not in REASONS_OF[packet_type]:
            # [MQTT-3.4.2-1], [MQTT-3.5.2-1], [MQTT-3.6.2-1], [MQTT-3.7.2-1]
            raise protocol_error(f"0x{reason:02X} is not a valid reason code for {packet_type.name}")
        if len(body) > 3:
            properties, at = read_properties(body, at, packet_type)
    if at != len(body):
        raise malformed(f"bytes after the end of {packet_type.name}")
    return _ACKNOWLEDGEMENTS[packet_type](packet_id, reason, properties)


def encode_acknowledgement(packet: Acknowledgement, packet_type: PacketType, version: int) -> bytes:
    """Write the body of PUBACK, PUBREC, PUBREL or PUBCOMP in its shortest form."""
    body = write_packet_id(packet.packet_id)
    if version < MQTT5:
        return body
    if packet.reason not in REASONS_OF[packet_type]:
        raise UsageError(f"0x{packet.reason:02X} is not a valid reason code for {packet_type.name}")
    if packet.properties != NO_PROPERTIES:
        return body + bytes((packet.reason,)) + write_properties(packet.properties, packet_type)
    return body + bytes((packet.reason,)) if packet.reason else body


_ACKNOWLEDGEMENTS: Final[dict[PacketType, type[Puback] | type[Pubrec] | type[Pubrel] | type[Pubcomp]]] = {
    PacketType.PUBACK: Puback,
    PacketType.PUBREC: Pubrec,
    PacketType.PUBREL: Pubrel,
    PacketType.PUBCOMP: Pubcomp,
}
