"""SUBSCRIBE, SUBACK, UNSUBSCRIBE and UNSUBACK.

The syntax of a filter (unless it is empty) and No Local on a shared subscription are not checked here: the server answers an
invalid filter with a reason for that one filter, and so has to see the others.
"""

from __future__ import annotations

from typing import Final

from braidmq.base.errors import UsageError
from braidmq.mqtt.packets import MQTT5, PacketType, Suback, Subscribe, SubscribeOption, Unsuback, Unsubscribe
from braidmq.mqtt.properties import NO_PROPERTIES, read_properties, write_properties
from braidmq.mqtt.reasons import REASONS_OF, SUBACK_RETURN_CODES, Reason
from braidmq.mqtt.wire import malformed, protocol_error, read_packet_id, read_text, write_packet_id, write_text, write_varint

_NO_LOCAL: Final = 0x04
_RETAIN_AS_PUBLISHED: Final = 0x08
_RETAIN_HANDLING_SHIFT: Final = 4
_RESERVED_5: Final = 0xC0
_RESERVED_3: Final = 0xFC


def decode_subscribe(body: bytes, version: int) -> Subscribe:
    """Read SUBSCRIBE."""
    packet_id, at = read_packet_id(body, 0)
    properties = NO_PROPERTIES
    if version == MQTT5:
        properties, at = read_properties(body, at, PacketType.SUBSCRIBE)
    subscriptions: list[SubscribeOption] = []
    while at < len(body):
        topic_filter, at = read_text(body, at)  # [MQTT-3.8.3-1]
        if not topic_filter:
            raise malformed("an empty topic filter")  # [MQTT-4.7.3-1]
        options = body[at]
        at += 1
        if options < 3:
            subscriptions.append(SubscribeOption(topic_filter, options))
        else:
            subscriptions.append(_read_options(topic_filter, options, version))
    if not subscriptions:
        raise protocol_error("SUBSCRIBE has no topic filter")  # [MQTT-3.8.3-2]
    return Subscribe(packet_id, subscriptions, properties)


def _read_options(topic_filter: str, options: int, version: int) -> SubscribeOption:
    qos = options & 3
    if version < MQTT5:
        # [MQTT-3.8.3-4] of 3.1.1: QoS 3 and the reserved bits alike.
        if options & _RESERVED_3 or qos == 3:
            raise malformed("the requested QoS must be 0, 1 or 2")
        return SubscribeOption(topic_filter, qos)
    if options & _RESERVED_5:
        raise malformed("reserved subscription options are set")  # [MQTT-3.8.3-5]
    retain_handling = options >> _RETAIN_HANDLING_SHIFT
    if qos == 3 or retain_handling == 3:
        raise protocol_error("the maximum QoS and the retain handling must be 0, 1 or 2")
    return SubscribeOption(topic_filter, qos, options & _NO_LOCAL != 0, options & _RETAIN_AS_PUBLISHED != 0, retain_handling)


def encode_subscribe(packet: Subscribe, version: int) -> bytes:
    """Write the body of SUBSCRIBE; before MQTT 5 the only option of a subscription is its QoS."""
    if not packet.subscriptions or not all(option.topic_filter for option in packet.subscriptions):
        raise UsageError("SUBSCRIBE needs a topic filter, and none may be empty")
    parts = [write_packet_id(packet.packet_id)]
    if version == MQTT5:
        parts.append(write_properties(packet.properties, PacketType.SUBSCRIBE))
    for option in packet.subscriptions:
        if option.qos not in (0, 1, 2) or option.retain_handling not in (0, 1, 2):
            raise UsageError("the QoS and the retain handling of a subscription must be 0, 1 or 2")
        options = option.qos
        if version == MQTT5:
            options |= option.retain_handling << _RETAIN_HANDLING_SHIFT
            options |= (_NO_LOCAL if option.no_local else 0) | (_RETAIN_AS_PUBLISHED if option.retain_as_published else 0)
        parts.append(write_text(option.topic_filter))
        parts.append(bytes((options,)))
    return b"".join(parts)


def decode_suback(body: bytes, version: int) -> Suback:
    """Read SUBACK."""
    packet_id, at = read_packet_id(body, 0)
    properties = NO_PROPERTIES
    if version == MQTT5:
        properties, at = read_properties(body, at, PacketType.SUBACK)
    reasons = list(body[at:])
    known = REASONS_OF[PacketType.SUBACK] if version == MQTT5 else SUBACK_RETURN_CODES
    if not reasons or not known.issuperset(reasons):  # [MQTT-3.9.3-2]
        raise protocol_error("SUBACK has no reason code, or one that is not valid for SUBACK")
    return Suback(packet_id, reasons, properties)


def encode_suback(packet: Suback, version: int) -> bytes:
    """Write the body of SUBACK; before MQTT 5 every failure is 0x80."""
    if not packet.reasons or not REASONS_OF[PacketType.SUBACK].issuperset(packet.reasons):
        raise UsageError("SUBACK has no reason code, or one that is not valid for SUBACK")
    if version == MQTT5:
        head = write_packet_id(packet.packet_id) + write_properties(packet.properties, PacketType.SUBACK)
        return head + bytes(packet.reasons)
    return write_packet_id(packet.packet_id) + bytes([min(reason, Reason.UNSPECIFIED_ERROR) for reason in packet.reasons])


def plain_suback(packet_id: int, reasons: list[int], version: int) -> bytes:
    """The whole frame of a SUBACK without properties; the reasons are the broker's own and are not checked again."""
    codes = bytes(reasons) if version == MQTT5 else bytes([min(reason, Reason.UNSPECIFIED_ERROR) for reason in reasons])
    properties = b"\0" if version == MQTT5 else b""
    return b"\x90" + write_varint(2 + len(properties) + len(codes)) + packet_id.to_bytes(2, "big") + properties + codes


def decode_unsubscribe(body: bytes, version: int) -> Unsubscribe:
    """Read UNSUBSCRIBE."""
    packet_id, at = read_packet_id(body, 0)
    properties = NO_PROPERTIES
    if version == MQTT5:
        properties, at = read_properties(body, at, PacketType.UNSUBSCRIBE)
    topic_filters: list[str] = []
    while at < len(body):
        topic_filter, at = read_text(body, at)  # [MQTT-3.10.3-1]
        if not topic_filter:
            raise malformed("an empty topic filter")  # [MQTT-4.7.3-1]
        topic_filters.append(topic_filter)
    if not topic_filters:
        raise protocol_error("UNSUBSCRIBE has no topic filter")  # [MQTT-3.10.3-2]
    return Unsubscribe(packet_id, topic_filters, properties)


def encode_unsubscribe(packet: Unsubscribe, version: int) -> bytes:
    """Write the body of UNSUBSCRIBE."""
    if not packet.topic_filters or not all(packet.topic_filters):
        raise UsageError("UNSUBSCRIBE needs a topic filter, and none may be empty")
    properties = write_properties(packet.properties, PacketType.UNSUBSCRIBE) if version == MQTT5 else b""
    return write_packet_id(packet.packet_id) + properties + b"".join(map(write_text, packet.topic_filters))


def decode_unsuback(body: bytes, version: int) -> Unsuback:
    """Read UNSUBACK, which has no reasons before MQTT 5."""
    packet_id, at = read_packet_id(body, 0)
    if version < MQTT5:
        if at != len(body):
            raise malformed("bytes after the end of UNSUBACK")
        return Unsuback(packet_id, [])
    properties, at = read_properties(body, at, PacketType.UNSUBACK)
    reasons = list(body[at:])
    # [MQTT-3.11.3-2]
    if not reasons or not REASONS_OF[PacketType.UNSUBACK].issuperset(reasons):
        raise protocol_error("UNSUBACK has no reason code, or one that is not valid for UNSUBACK")
    return Unsuback(packet_id, reasons, properties)


def encode_unsuback(packet: Unsuback, version: int) -> bytes:
    """Write the body of UNSUBACK; before MQTT 5 the reasons are left out."""
    if version < MQTT5:
        return write_packet_id(packet.packet_id)
    if not packet.reasons or not REASONS_OF[PacketType.UNSUBACK].issuperset(packet.reasons):
        raise UsageError("UNSUBACK has no reason code, or one that is not valid for UNSUBACK")
    head = write_packet_id(packet.packet_id) + write_properties(packet.properties, PacketType.UNSUBACK)
    return head + bytes(packet.reasons)
