"""The properties of MQTT 5: one value type for all packets, one table of where each is allowed, and their codec."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import astuple

from braidmq.base.errors import ProtocolViolation, UsageError
from braidmq.mqtt import wire
from braidmq.mqtt.packet_types import PacketType
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.text_pairs import IDENTIFIER, PAIRS_MAX, Pairs, TextPairs, read_more_pairs, write_pairs
from braidmq.mqtt.topics import check_topic_name


class Properties(Struct, frozen=True, kw_only=True, gc=False):
    """The properties of one packet or will; None or empty means absent. To change one, use `msgspec.structs.replace`."""

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    session_expiry_interval: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: bool | None = None
    will_delay_interval: int | None = None
    request_response_information: bool | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: bool | None = None
    user_properties: Pairs = ()  # a tuple, or `TextPairs` if they are many
    maximum_packet_size: int | None = None
    wildcard_subscription_available: bool | None = None
    subscription_identifiers_available: bool | None = None
    shared_subscription_available: bool | None = None

    def __repr__(self) -> str:
        # Only the properties that are present, and never the authentication data, which may be secret.
        fields = (
            f"{name}={'<hidden>' if name == 'authentication_data' else repr(value)}"
            for name, value in zip(self.__struct_fields__, astuple(self), strict=True)
            if value is not None and value != ()
        )
        return f"Properties({', '.join(fields)})"


NO_PROPERTIES: Final = Properties()


class WireType(Enum):
    """How a property's value is encoded."""

    BYTE = "Byte"
    FLAG = "Byte, 0 or 1"
    UINT16 = "Two Byte Integer"
    UINT32 = "Four Byte Integer"
    VARINT = "Variable Byte Integer"
    BINARY = "Binary Data"
    TEXT = "UTF-8 Encoded String"
    TEXT_PAIR = "UTF-8 String Pair"


_Reader: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
_Writer: TypeAlias = Callable[[Any], bytes]

_READERS: Final[dict[WireType, _Reader]] = {
    WireType.BYTE: wire.read_byte,
    WireType.FLAG: wire.read_flag,
    WireType.UINT16: wire.read_uint16,
    WireType.UINT32: wire.read_uint32,
    WireType.VARINT: wire.read_varint,
    WireType.BINARY: wire.read_binary,
    WireType.TEXT: wire.read_text,
    WireType.TEXT_PAIR: wire.read_text_pair,
}
_WRITERS: Final[dict[WireType, _Writer]] = {
    WireType.BYTE: wire.write_byte,
    WireType.FLAG: wire.write_flag,
    WireType.UINT16: wire.write_uint16,
    WireType.UINT32: wire.write_uint32,
    WireType.VARINT: wire.write_varint,
    WireType.BINARY: wire.write_binary,
    WireType.TEXT: wire.write_text,
    WireType.TEXT_PAIR: wire.write_text_pair,
}

# A will has properties of its own inside CONNECT. MQTT reserves packet type 0, so that number stands for them here.
WILL: Final = 0


class PropertyRule(NamedTuple):
    """One row of the table of properties: the field of `Properties`, its type, its packets and its bounds."""

    name: str
    wire_type: WireType
    packets: frozenset[int]
    repeats_in: frozenset[int] = frozenset()
    lowest: int | None = None
    highest: int | None = None
    violation: Reason = Reason.PROTOCOL_ERROR


def _in(*packets: int) -> frozenset[int]:
    return frozenset(packets)


_P = PacketType
_EVERYWHERE = frozenset((WILL, *PacketType)) - {_P.PINGREQ, _P.PINGRESP}
_ANSWERS = _in(_P.CONNACK, _P.PUBACK, _P.PUBREC, _P.PUBREL, _P.PUBCOMP, _P.SUBACK, _P.UNSUBACK, _P.DISCONNECT, _P.AUTH)
_W = WireType

PROPERTIES: Final[dict[int, PropertyRule]] = {
    0x01: PropertyRule("payload_format_indicator", _W.BYTE, _in(_P.PUBLISH, WILL), lowest=0, highest=1),
    0x02: PropertyRule("message_expiry_interval", _W.UINT32, _in(_P.PUBLISH, WILL)),
    0x03: PropertyRule("content_type", _W.TEXT, _in(_P.PUBLISH, WILL)),
    0x08: PropertyRule("response_topic", _W.TEXT, _in(_P.PUBLISH, WILL)),
    0x09: PropertyRule("correlation_data", _W.BINARY, _in(_P.PUBLISH, WILL)),
    0x0B: PropertyRule("subscription_identifiers", _W.VARINT, _in(_P.PUBLISH, _P.SUBSCRIBE), _in(_P.PUBLISH), lowest=1),
    0x11: PropertyRule("session_expiry_interval", _W.UINT32, _in(_P.CONNECT, _P.CONNACK, _P.DISCONNECT)),
    0x12: PropertyRule("assigned_client_identifier", _W.TEXT, _in(_P.CONNACK)),
    0x13: PropertyRule("server_keep_alive", _W.UINT16, _in(_P.CONNACK)),
    0x15: PropertyRule("authentication_method", _W.TEXT, _in(_P.CONNECT, _P.CONNACK, _P.AUTH)),
    0x16: PropertyRule("authentication_data", _W.BINARY, _in(_P.CONNECT, _P.CONNACK, _P.AUTH)),
    0x17: PropertyRule("request_problem_information", _W.FLAG, _in(_P.CONNECT)),
    0x18: PropertyRule("will_delay_interval", _W.UINT32, _in(WILL)),
    0x19: PropertyRule("request_response_information", _W.FLAG, _in(_P.CONNECT)),
    0x1A: PropertyRule("response_information", _W.TEXT, _in(_P.CONNACK)),
    0x1C: PropertyRule("server_reference", _W.TEXT, _in(_P.CONNACK, _P.DISCONNECT)),
    0x1F: PropertyRule("reason_string", _W.TEXT, _ANSWERS),
    0x21: PropertyRule("receive_maximum", _W.UINT16, _in(_P.CONNECT, _P.CONNACK), lowest=1),
    0x22: PropertyRule("topic_alias_maximum", _W.UINT16, _in(_P.CONNECT, _P.CONNACK)),
    # [MQTT-3.3.2-8], with a reason code of its own.
    0x23: PropertyRule("topic_alias", _W.UINT16, _in(_P.PUBLISH), lowest=1, violation=Reason.TOPIC_ALIAS_INVALID),
    0x24: PropertyRule("maximum_qos", _W.BYTE, _in(_P.CONNACK), lowest=0, highest=1),
    0x25: PropertyRule("retain_available", _W.FLAG, _in(_P.CONNACK)),
    0x26: PropertyRule("user_properties", _W.TEXT_PAIR, _EVERYWHERE, _EVERYWHERE),
    0x27: PropertyRule("maximum_packet_size", _W.UINT32, _in(_P.CONNECT, _P.CONNACK), lowest=1),
    0x28: PropertyRule("wildcard_subscription_available", _W.FLAG, _in(_P.CONNACK)),
    0x29: PropertyRule("subscription_identifiers_available", _W.FLAG, _in(_P.CONNACK)),
    0x2A: PropertyRule("shared_subscription_available", _W.FLAG, _in(_P.CONNACK)),
}

# `Properties` has its fields in the order of the table, so a value and its rule are found by walking both together.
_WRITING: Final[list[tuple[bytes, PropertyRule, _Writer]]] = [
    (bytes((identifier,)), rule, _WRITERS[rule.wire_type]) for identifier, rule in PROPERTIES.items()
]
_READING: Final[dict[int, dict[int, tuple[PropertyRule, _Reader]]]] = {
    packet: {identifier: (rule, _READERS[rule.wire_type]) for identifier, rule in PROPERTIES.items() if packet in rule.packets}
    for packet in (WILL, *PacketType)
}
# These two are always sequences, even where the packet may have only one.
_COLLECTED: Final = ("subscription_identifiers", "user_properties")


def read_properties(body: bytes, at: int, packet: int) -> tuple[Properties, int]:
    """Read the property length and the properties of `packet` (a `PacketType`, or `WILL`)."""
    size, at = wire.read_varint(body, at)
    if size == 0:
        return NO_PROPERTIES, at
    end = at + size
    if end > len(body):
        raise wire.malformed("the properties run past the end of the packet")
    known = _READING[packet]
    values: dict[str, Any] = {}
    many: list[bytes] = []  # user properties beyond the first hundred
    count = 0
    while at < end:
        if body[at] == IDENTIFIER and len(values.get("user_properties", ())) == PAIRS_MAX:
            start = at
            at, more = read_more_pairs(body, at, end)
            many.append(body[start:at])
            count += more
            continue
        if body[at] not in known:
            raise wire.malformed(f"property 0x{body[at]:02X} does not belong in this packet")
        rule, read = known[body[at]]
        value, at = read(body, at + 1)
        if at > end:
            raise wire.malformed(f"{rule.name} runs past the end of the properties")
        _check_bounds(rule, value)
        if rule.name in _COLLECTED:
            collected = values.setdefault(rule.name, [])
            if collected and packet not in rule.repeats_in:
                raise wire.protocol_error(f"{rule.name} appears twice")
            collected.append(value)
        elif rule.name in values:
            raise wire.protocol_error(f"{rule.name} appears twice")
        else:
            values[rule.name] = value
    for name in _COLLECTED:
        if name in values:
            values[name] = tuple(values[name])
    if many:
        first = values["user_properties"]
        values["user_properties"] = TextPairs(write_pairs(first) + b"".join(many), len(first) + count)
    properties = Properties(**values)
    _check_together(properties)
    return properties, end


def write_properties(properties: Properties, packet: int) -> bytes:
    """Write the property length and the properties of `packet`, in the order of their identifiers."""
    if properties is NO_PROPERTIES:
        return b"\0"  # [MQTT-2.2.2-1]
    _check_together(properties)
    written = bytearray()
    for (identifier, rule, write), value in zip(_WRITING, astuple(properties), strict=True):
        if value is None or value == ():
            continue
        if packet not in rule.packets:
            raise UsageError(f"{rule.name} does not belong in this packet")
        values = value if rule.name in _COLLECTED else (value,)
        if len(values) > 1 and packet not in rule.repeats_in:
            raise UsageError(f"{rule.name} may appear only once in this packet")
        if isinstance(values, TextPairs):
            written += values.wire
            continue
        for one in values:
            _check_bounds(rule, one)
            written += identifier
            written += write(one)
    return wire.write_varint(len(written)) + written


def _check_bounds(rule: PropertyRule, value: Any) -> None:
    if (rule.lowest is not None and value < rule.lowest) or (rule.highest is not None and value > rule.highest):
        raise ProtocolViolation(rule.violation, f"{rule.name} must not be {value}")


def _check_together(properties: Properties) -> None:
    if properties.authentication_data is not None and properties.authentication_method is None:
        raise wire.protocol_error("authentication data without an authentication method")
    if properties.response_topic is not None:
        check_topic_name(properties.response_topic)  # [MQTT-3.3.2-14]
