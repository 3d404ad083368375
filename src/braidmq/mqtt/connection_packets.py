"""CONNECT, CONNACK, AUTH and DISCONNECT: the packets that open and close a connection."""

from __future__ import annotations

from typing import Final

from braidmq.base.errors import UnsupportedProtocol, UsageError
from braidmq.mqtt.packets import MQTT5, MQTT31, MQTT311, Auth, Connack, Connect, Disconnect, PacketType, Will
from braidmq.mqtt.properties import NO_PROPERTIES, WILL, Properties, read_properties, write_properties
from braidmq.mqtt.reasons import REASONS_OF, connack_return_code
from braidmq.mqtt.topics import check_topic_name
from braidmq.mqtt.wire import (
    malformed,
    protocol_error,
    read_binary,
    read_text,
    read_uint16,
    write_binary,
    write_text,
    write_uint16,
)

_PREAMBLES: Final = {
    MQTT31: b"\x00\x06MQIsdp\x03",
    MQTT311: b"\x00\x04MQTT\x04",
    MQTT5: b"\x00\x04MQTT\x05",
}
_BRIDGE_BIT: Final = 0x80

_RESERVED: Final = 0x01
_CLEAN_START: Final = 0x02
_WILL_FLAG: Final = 0x04
_WILL_QOS_SHIFT: Final = 3
_WILL_RETAIN: Final = 0x20
_PASSWORD: Final = 0x40
_USER_NAME: Final = 0x80


def decode_connect(body: bytes) -> Connect:
    """Read CONNECT, whose first bytes name the version; raises `UnsupportedProtocol` if it is unknown."""
    version, bridge, at = _read_protocol(body)
    flags = body[at]
    keep_alive, at = read_uint16(body, at + 1)
    if flags & _RESERVED:
        raise malformed("the reserved connect flag is set")  # [MQTT-3.1.2-3]
    if version < MQTT5 and flags & (_USER_NAME | _PASSWORD) == _PASSWORD:
        raise malformed("a password without a user name")  # [MQTT-3.1.2-22] of 3.1.1
    properties = NO_PROPERTIES
    if version == MQTT5:
        properties, at = read_properties(body, at, PacketType.CONNECT)

    # [MQTT-3.1.3-1]: the order is fixed.
    client_id, at = read_text(body, at)
    will = None
    if flags & _WILL_FLAG:
        will, at = _read_will(body, at, flags, version)
    elif flags & (_WILL_RETAIN | 3 << _WILL_QOS_SHIFT):
        raise malformed("will flags without a will")  # [MQTT-3.1.2-11], [MQTT-3.1.2-13]
    user_name = password = None
    # MQTT 3.1 lets the end of the packet overrule these two flags; later versions do not.
    if flags & _USER_NAME and not (version == MQTT31 and at == len(body)):
        user_name, at = read_text(body, at)
    if flags & _PASSWORD and not (version == MQTT31 and at == len(body)):
        password, at = read_binary(body, at)
    if at != len(body):
        raise malformed("bytes after the end of CONNECT")
    return Connect(client_id, version, flags & _CLEAN_START != 0, keep_alive, user_name, password, will, properties, bridge)


def _read_protocol(body: bytes) -> tuple[int, bool, int]:
    name, at = read_text(body, 0)
    level = body[at]
    # Bridges of MQTT 3 set the highest bit; in MQTT 5 it has no such meaning.
    bridge = level in (_BRIDGE_BIT | MQTT31, _BRIDGE_BIT | MQTT311)
    version = level & ~_BRIDGE_BIT if bridge else level
    if (name == "MQTT" and version in (MQTT311, MQTT5)) or (name == "MQIsdp" and version == MQTT31):
        return version, bridge, at + 1
    raise UnsupportedProtocol("the protocol name or level is unknown", level)  # [MQTT-3.1.2-1], [MQTT-3.1.2-2]


def _read_will(body: bytes, at: int, flags: int, version: int) -> tuple[Will, int]:
    qos = flags >> _WILL_QOS_SHIFT & 3
    if qos == 3:
        raise malformed("the will has QoS 3")  # [MQTT-3.1.2-12]
    properties = NO_PROPERTIES
    if version == MQTT5:
        properties, at = read_properties(body, at, WILL)
    topic, at = read_text(body, at)
    check_topic_name(topic)
    payload, at = read_binary(body, at)
    return Will(topic, payload, qos, flags & _WILL_RETAIN != 0, properties), at


def encode_connect(packet: Connect) -> bytes:
    """Write the body of CONNECT in the version that the packet names."""
    preamble = _PREAMBLES.get(packet.version)
    if preamble is None:
        raise UsageError(f"there is no MQTT version {packet.version}", "use 3, 4 or 5")
    if packet.bridge:
        if packet.version == MQTT5:
            raise UsageError("MQTT 5 has no bridge bit")
        preamble = preamble[:-1] + bytes((preamble[-1] | _BRIDGE_BIT,))
    if packet.version < MQTT5 and packet.password is not None and packet.user_name is None:
        raise UsageError("a password without a user name needs MQTT 5")
    flags = _CLEAN_START if packet.clean_start else 0
    payload = write_text(packet.client_id)
    will = packet.will
    if will is not None:
        if will.qos not in (0, 1, 2):
            raise UsageError(f"there is no QoS {will.qos}")
        check_topic_name(will.topic)
        flags |= _WILL_FLAG | will.qos << _WILL_QOS_SHIFT | (_WILL_RETAIN if will.retain else 0)
        if packet.version == MQTT5:
            payload += write_properties(will.properties, WILL)
        payload += write_text(will.topic) + write_binary(will.payload)
    if packet.user_name is not None:
        flags |= _USER_NAME
        payload += write_text(packet.user_name)
    if packet.password is not None:
        flags |= _PASSWORD
        payload += write_binary(packet.password)
    properties = write_properties(packet.properties, PacketType.CONNECT) if packet.version == MQTT5 else b""
    return preamble + bytes((flags,)) + write_uint16(packet.keep_alive) + properties + payload


def decode_connack(body: bytes, version: int) -> Connack:
    """Read CONNACK; for MQTT 3 the reason is the raw return code."""
    flags, reason, at = body[0], body[1], 2
    # [MQTT-3.2.2-1]; MQTT 3.1 has no session-present flag either.
    if flags > 1 or (flags and version == MQTT31):
        raise malformed("a reserved CONNACK flag is set")
    is_known = reason in REASONS_OF[PacketType.CONNACK] if version == MQTT5 else reason <= 5
    if not is_known:
        raise protocol_error(f"0x{reason:02X} is not a valid reason code for CONNACK")  # [MQTT-3.2.2-8]
    if flags and reason:
        raise protocol_error("CONNACK has an error code and session present")  # [MQTT-3.2.2-6]
    properties = NO_PROPERTIES
    if version == MQTT5:
        properties, at = read_properties(body, at, PacketType.CONNACK)
    if at != len(body):
        raise malformed("bytes after the end of CONNACK")
    return Connack(reason, flags == 1, properties)


def encode_connack(packet: Connack, version: int) -> bytes:
    """Write the body of CONNACK; with an error code, session present is always 0 [MQTT-3.2.2-6]."""
    flags = 1 if packet.session_present and packet.reason == 0 and version != MQTT31 else 0
    if version == MQTT5:
        if packet.reason not in REASONS_OF[PacketType.CONNACK]:
            raise UsageError(f"0x{packet.reason:02X} is not a valid reason code for CONNACK")  # [MQTT-3.2.2-8]
        return bytes((flags, packet.reason)) + write_properties(packet.properties, PacketType.CONNACK)
    return_code = connack_return_code(packet.reason)
    if return_code is None:
        # [MQTT-3.2.2-6] of 3.1.1
        raise UsageError(f"MQTT 3 has no return code for 0x{packet.reason:02X}", "close the connection without a CONNACK")
    return bytes((flags, return_code))


def decode_disconnect(body: bytes, version: int) -> Disconnect:
    """Read DISCONNECT; without a reason it is a normal disconnection."""
    if version < MQTT5:
        if body:
            raise malformed("bytes after the end of DISCONNECT")
        return Disconnect()
    reason, properties = _read_reason(body, PacketType.DISCONNECT)
    return Disconnect(reason, properties)


def encode_disconnect(packet: Disconnect, version: int) -> bytes:
    """Write the body of DISCONNECT in its shortest form."""
    return b"" if version < MQTT5 else _write_reason(packet.reason, packet.properties, PacketType.DISCONNECT)


def decode_auth(body: bytes, version: int) -> Auth:
    """Read AUTH, which always names its method."""
    if version < MQTT5:
        raise malformed("packet type 15 is reserved before MQTT 5")
    reason, properties = _read_reason(body, PacketType.AUTH)
    _check_method(properties)
    return Auth(reason, properties)


def encode_auth(packet: Auth, version: int) -> bytes:
    """Write the body of AUTH."""
    if version < MQTT5:
        raise UsageError("there is no AUTH before MQTT 5")
    _check_method(packet.properties)
    return _write_reason(packet.reason, packet.properties, PacketType.AUTH)


def _check_method(properties: Properties) -> None:
    # Section 3.15.2.2.2; so the short form of AUTH, without properties, is never valid.
    if properties.authentication_method is None:
        raise protocol_error("AUTH without an authentication method")


def _read_reason(body: bytes, packet_type: PacketType) -> tuple[int, Properties]:
    if not body:
        return 0, NO_PROPERTIES
    reason = body[0]
    if reason not in REASONS_OF[packet_type]:
        # [MQTT-3.14.2-1], [MQTT-3.15.2-1]
        raise protocol_error(f"0x{reason:02X} is not a valid reason code for {packet_type.name}")
    if len(body) == 1:
        return reason, NO_PROPERTIES
    properties, at = read_properties(body, 1, packet_type)
    if at != len(body):
        raise malformed(f"bytes after the end of {packet_type.name}")
    return reason, properties


def _write_reason(reason: int, properties: Properties, packet_type: PacketType) -> bytes:
    if reason not in REASONS_OF[packet_type]:
        raise UsageError(f"0x{reason:02X} is not a valid reason code for {packet_type.name}")
    if properties != NO_PROPERTIES:
        return bytes((reason,)) + write_properties(properties, packet_type)
    return bytes((reason,)) if reason else b""
