"""Packets from and to bytes, for MQTT 3.1, 3.1.1 and 5.0, in both directions.

`decode` accepts exactly what the specification of the version allows; `encode` raises `UsageError` rather than write what
`decode` would reject. The caller checks which side sent a packet, and whether it may do so now.
"""

from __future__ import annotations

import struct
from typing import Final, assert_never

from msgspec.structs import replace

from braidmq.base.errors import ProtocolViolation, UsageError
from braidmq.mqtt import connection_packets, message_packets, subscription_packets
from braidmq.mqtt.frames import FrameSplitter
from braidmq.mqtt.packets import (
    MQTT31,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from braidmq.mqtt.wire import malformed, write_varint

__all__ = ["FrameSplitter", "decode", "encode", "encode_fitting"]

# [MQTT-3.6.1-1], [MQTT-3.8.1-1], [MQTT-3.10.1-1]: these three carry flags 0010, every other packet but PUBLISH 0000.
_FLAGS_0010: Final = (PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE)
_DUP: Final = 0x08


def decode(first_byte: int, body: bytes, version: int) -> Packet:
    """The packet with this first byte and the `body` after its remaining length; `version` does not matter for CONNECT.

    Raises `ProtocolViolation` with the reason to answer with, or `UnsupportedProtocol` for a CONNECT of another protocol.
    """
    try:
        return _decode(first_byte, body, version)
    except (IndexError, struct.error):
        raise malformed("the packet ends too early") from None


def _decode(first_byte: int, body: bytes, version: int) -> Packet:
    packet_type, flags = first_byte >> 4, first_byte & 0x0F
    if packet_type == PacketType.PUBLISH:
        return message_packets.decode_publish(flags, body, version)
    _check_flags(packet_type, flags, version)
    match packet_type:
        case PacketType.PUBACK | PacketType.PUBREC | PacketType.PUBREL | PacketType.PUBCOMP:
            return message_packets.decode_acknowledgement(PacketType(packet_type), body, version)
        case PacketType.CONNECT:
            return connection_packets.decode_connect(body)
        case PacketType.CONNACK:
            return connection_packets.decode_connack(body, version)
        case PacketType.SUBSCRIBE:
            return subscription_packets.decode_subscribe(body, version)
        case PacketType.SUBACK:
            return subscription_packets.decode_suback(body, version)
        case PacketType.UNSUBSCRIBE:
            return subscription_packets.decode_unsubscribe(body, version)
        case PacketType.UNSUBACK:
            return subscription_packets.decode_unsuback(body, version)
        case PacketType.PINGREQ | PacketType.PINGRESP:
            if body:
                raise malformed("bytes after the end of a ping")
            return Pingreq() if packet_type == PacketType.PINGREQ else Pingresp()
        case PacketType.DISCONNECT:
            return connection_packets.decode_disconnect(body, version)
        case PacketType.AUTH:
            return connection_packets.decode_auth(body, version)
    raise malformed("packet type 0 is reserved")


def _check_flags(packet_type: int, flags: int, version: int) -> None:
    expected = 0
    if packet_type in _FLAGS_0010:
        expected = 0x02
        if version == MQTT31:
            flags &= ~_DUP  # MQTT 3.1 marks these three as duplicates when they are resent.
    if flags != expected:
        raise malformed("reserved flags of the fixed header are wrong")  # [MQTT-2.1.3-1]


def encode(packet: Packet, version: int) -> bytes:
    """The whole packet as bytes; omits what the version does not have (properties, and in MQTT 3 most reasons).

    CONNECT is encoded in the version that it names. Raises `UsageError` for a packet that the version does not have or that
    breaks its rules.
    """
    try:
        first_byte, body = _encode(packet, version)
        return bytes((first_byte,)) + write_varint(len(body)) + body
    except (ProtocolViolation, struct.error, UnicodeEncodeError, OverflowError) as error:
        raise UsageError(f"{type(packet).__name__} cannot be encoded: {error}") from error


def _encode(packet: Packet, version: int) -> tuple[int, bytes]:
    match packet:
        case Publish():
            flags, body = message_packets.encode_publish(packet, version)
            return PacketType.PUBLISH << 4 | flags, body
        case Puback():
            return 0x40, message_packets.encode_acknowledgement(packet, PacketType.PUBACK, version)
        case Suback():
            return 0x90, subscription_packets.encode_suback(packet, version)
        case Connack():
            return 0x20, connection_packets.encode_connack(packet, version)
        case Pubrec():
            return 0x50, message_packets.encode_acknowledgement(packet, PacketType.PUBREC, version)
        case Pubrel():
            return 0x62, message_packets.encode_acknowledgement(packet, PacketType.PUBREL, version)
        case Pubcomp():
            return 0x70, message_packets.encode_acknowledgement(packet, PacketType.PUBCOMP, version)
        case Pingresp():
            return 0xD0, b""
        case Unsuback():
            return 0xB0, subscription_packets.encode_unsuback(packet, version)
        case Disconnect():
            return 0xE0, connection_packets.encode_disconnect(packet, version)
        case Auth():
            return 0xF0, connection_packets.encode_auth(packet, version)
        case Connect():
            return 0x10, connection_packets.encode_connect(packet)
        case Subscribe():
            return 0x82, subscription_packets.encode_subscribe(packet, version)
        case Unsubscribe():
            return 0xA2, subscription_packets.encode_unsubscribe(packet, version)
        case Pingreq():
            return 0xC0, b""
        case _:
            assert_never(packet)


def encode_fitting(packet: Packet, version: int, max_bytes: int) -> bytes | None:
    """Like `encode`, within the receiver's Maximum Packet Size; None if the packet must not be sent.

    A response that is too large loses its reason string, then its user properties; messages [MQTT-3.3.2-17] and requests are
    never changed.
    """
    frame = encode(packet, version)
    if len(frame) <= max_bytes:
        return frame
    # [MQTT-3.2.2-19], [MQTT-3.2.2-20] for CONNACK; the other responses have the same pair of rules.
    if isinstance(packet, Connack | Puback | Pubrec | Pubrel | Pubcomp | Suback | Unsuback | Disconnect | Auth):
        for without in ({"reason_string": None}, {"reason_string": None, "user_properties": ()}):
            frame = encode(replace(packet, properties=replace(packet.properties, **without)), version)
            if len(frame) <= max_bytes:
                return frame
    return None
