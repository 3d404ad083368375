"""Packets that every decoder must refuse, each with the reason code it deserves."""

from __future__ import annotations

from tests.mqtt.cases_format import Refused

V31, V311, V5 = (3,), (4,), (5,)
V3 = (3, 4)
ALL = (3, 4, 5)

MALFORMED = 0x81
PROTOCOL_ERROR = 0x82
UNSUPPORTED_VERSION = 0x84
TOPIC_NAME_INVALID = 0x90
TOPIC_ALIAS_INVALID = 0x94

# The first ten bytes of CONNECT 5 with clean start, and the client id "c".
_HEAD_5 = b"\0\x04MQTT\x05\x02\0\0"
_CLIENT = b"\0\x01c"

PROTOCOL = [
    Refused("connect with a wrong protocol name", ALL, 0x10, b"\0\x04HTTP\x04\x02\0\0" + _CLIENT, UNSUPPORTED_VERSION),
    Refused("connect with the name in lower case", ALL, 0x10, b"\0\x04mqtt\x04\x02\0\0" + _CLIENT, UNSUPPORTED_VERSION),
    Refused("connect of level 6", ALL, 0x10, b"\0\x04MQTT\x06\x02\0\0\0" + _CLIENT, UNSUPPORTED_VERSION),
    Refused("connect of level 3 under the name of 4", ALL, 0x10, b"\0\x04MQTT\x03\x02\0\0" + _CLIENT, UNSUPPORTED_VERSION),
    Refused("connect of level 4 under the name of 3", ALL, 0x10, b"\0\x06MQIsdp\x04\x02\0\0" + _CLIENT, UNSUPPORTED_VERSION),
    Refused("connect 5 with a bridge bit", ALL, 0x10, b"\0\x04MQTT\x85\x02\0\0\0" + _CLIENT, UNSUPPORTED_VERSION),
    Refused("connect whose name is no UTF-8", ALL, 0x10, b"\0\x04MQT\xff\x04\x02\0\0" + _CLIENT, MALFORMED),
]

CONNECT_FLAGS = [
    Refused("connect with the reserved flag", V311, 0x10, b"\0\x04MQTT\x04\x03\0\0" + _CLIENT, MALFORMED),
    Refused("connect 5 with the reserved flag", V5, 0x10, b"\0\x04MQTT\x05\x03\0\0\0" + _CLIENT, MALFORMED),
    Refused("connect with will QoS and no will", V311, 0x10, b"\0\x04MQTT\x04\x0a\0\0" + _CLIENT, MALFORMED),
    Refused("connect with will retain and no will", V311, 0x10, b"\0\x04MQTT\x04\x22\0\0" + _CLIENT, MALFORMED),
    Refused("connect 5 with will retain and no will", V5, 0x10, b"\0\x04MQTT\x05\x22\0\0\0" + _CLIENT, MALFORMED),
    Refused("connect with will QoS 3", V311, 0x10, b"\0\x04MQTT\x04\x1e\0\0" + _CLIENT + b"\0\x01w\0\0", MALFORMED),
    Refused("connect 5 with will QoS 3", V5, 0x10, b"\0\x04MQTT\x05\x1e\0\0\0" + _CLIENT + b"\0\0\x01w\0\0", MALFORMED),
    Refused("connect 3.1 with a lone password", V31, 0x10, b"\0\x06MQIsdp\x03\x42\0\0" + _CLIENT + b"\0\x01p", MALFORMED),
    Refused("connect 3.1.1 with a lone password", V311, 0x10, b"\0\x04MQTT\x04\x42\0\0" + _CLIENT + b"\0\x01p", MALFORMED),
]

CONNECT_FIELDS = [
    Refused("connect with nothing", ALL, 0x10, b"", MALFORMED),
    Refused("connect without a client id", V311, 0x10, b"\0\x04MQTT\x04\x02\0\0", MALFORMED),
    Refused("connect cut in the keep alive", V311, 0x10, b"\0\x04MQTT\x04\x02\0", MALFORMED),
    Refused("connect cut in the client id", V311, 0x10, b"\0\x04MQTT\x04\x02\0\0\0\x02c", MALFORMED),
    Refused("connect with bytes after its end", V311, 0x10, b"\0\x04MQTT\x04\x02\0\0" + _CLIENT + b"\0", MALFORMED),
    Refused("connect 3.1.1 without the flagged user name", V311, 0x10, b"\0\x04MQTT\x04\x82\0\0" + _CLIENT, MALFORMED),
    Refused("connect 3.1 cut in the user name", V31, 0x10, b"\0\x06MQIsdp\x03\x82\0\0" + _CLIENT + b"\0", MALFORMED),
    Refused("connect with U+0000 in the client id", V311, 0x10, b"\0\x04MQTT\x04\x02\0\0\0\x02c\0", MALFORMED),
    Refused("connect with a surrogate", V311, 0x10, b"\0\x04MQTT\x04\x02\0\0\0\x03\xed\xa0\x80", MALFORMED),
    Refused("connect with an overlong slash", V311, 0x10, b"\0\x04MQTT\x04\x02\0\0\0\x02\xc0\xaf", MALFORMED),
    Refused("connect with a cut UTF-8 sequence", V311, 0x10, b"\0\x04MQTT\x04\x02\0\0\0\x01\xc3", MALFORMED),
    Refused("connect with a character past U+10FFFF", V311, 0x10, b"\0\x04MQTT\x04\x02\0\0\0\x04\xf4\x90\x80\x80", MALFORMED),
    Refused(
        "connect with a wildcard in the will topic",
        V311,
        0x10,
        b"\0\x04MQTT\x04\x06\0\0" + _CLIENT + b"\0\x01#\0\0",
        TOPIC_NAME_INVALID,
    ),
    Refused(
        "connect with an empty will topic", V311, 0x10, b"\0\x04MQTT\x04\x06\0\0" + _CLIENT + b"\0\0\0\0", TOPIC_NAME_INVALID
    ),
    Refused("connect 5 without a property length", V5, 0x10, _HEAD_5, MALFORMED),
]

CONNECT_PROPERTIES = [
    Refused("connect 5 with receive maximum 0", V5, 0x10, _HEAD_5 + b"\x03\x21\0\0" + _CLIENT, PROTOCOL_ERROR),
    Refused("connect 5 with maximum packet size 0", V5, 0x10, _HEAD_5 + b"\x05\x27\0\0\0\0" + _CLIENT, PROTOCOL_ERROR),
    Refused("connect 5 with a flag of 2", V5, 0x10, _HEAD_5 + b"\x02\x17\x02" + _CLIENT, PROTOCOL_ERROR),
    Refused("connect 5 with a property twice", V5, 0x10, _HEAD_5 + b"\x06\x21\0\x01\x21\0\x01" + _CLIENT, PROTOCOL_ERROR),
    Refused("connect 5 with a property of PUBLISH", V5, 0x10, _HEAD_5 + b"\x03\x23\0\x01" + _CLIENT, MALFORMED),
    Refused("connect 5 with a property of the will", V5, 0x10, _HEAD_5 + b"\x05\x18\0\0\0\0" + _CLIENT, MALFORMED),
    Refused("connect 5 with an unknown property", V5, 0x10, _HEAD_5 + b"\x02\x7f\0" + _CLIENT, MALFORMED),
    Refused("connect 5 with a property of two bytes' name", V5, 0x10, _HEAD_5 + b"\x03\x91\x01\0" + _CLIENT, MALFORMED),
    Refused("connect 5 with properties past its end", V5, 0x10, _HEAD_5 + b"\x7f" + _CLIENT, MALFORMED),
    Refused("connect 5 with a cut user property", V5, 0x10, _HEAD_5 + b"\x04\x26\0\x01k" + _CLIENT, MALFORMED),
    Refused("connect 5 whose last property has no value", V5, 0x10, _HEAD_5 + b"\x01\x21" + _CLIENT, MALFORMED),
    Refused("connect 5 with a property length in two bytes", V5, 0x10, _HEAD_5 + b"\x80\0" + _CLIENT, MALFORMED),
    Refused("connect 5 with a property length in five bytes", V5, 0x10, _HEAD_5 + b"\x80\x80\x80\x80\x01" + _CLIENT, MALFORMED),
    Refused("connect 5 with a bad user property", V5, 0x10, _HEAD_5 + b"\x06\x26\0\x01\xff\0\0" + _CLIENT, MALFORMED),
    Refused("connect 5 with data and no method", V5, 0x10, _HEAD_5 + b"\x04\x16\0\x01d" + _CLIENT, PROTOCOL_ERROR),
    Refused(
        "connect 5 with a property of CONNECT in the will",
        V5,
        0x10,
        b"\0\x04MQTT\x05\x06\0\0\0" + _CLIENT + b"\x03\x21\0\x01" + b"\0\x01w\0\0",
        MALFORMED,
    ),
    Refused(
        "connect 5 with a will delay twice",
        V5,
        0x10,
        b"\0\x04MQTT\x05\x06\0\0\0" + _CLIENT + b"\x0a\x18\0\0\0\x01\x18\0\0\0\x01" + b"\0\x01w\0\0",
        PROTOCOL_ERROR,
    ),
]

CONNACK = [
    Refused("connack with a reserved flag", V311, 0x20, b"\x02\0", MALFORMED),
    Refused("connack 5 with a reserved flag", V5, 0x20, b"\x80\0\0", MALFORMED),
    Refused("connack 3.1 with a session", V31, 0x20, b"\x01\0", MALFORMED),
    Refused("connack with an unknown return code", V3, 0x20, b"\0\x06", PROTOCOL_ERROR),
    Refused("connack 5 with a reason of SUBACK", V5, 0x20, b"\0\x01\0", PROTOCOL_ERROR),
    Refused("connack that refuses with a session", V311, 0x20, b"\x01\x05", PROTOCOL_ERROR),
    Refused("connack 5 that refuses with a session", V5, 0x20, b"\x01\x87\0", PROTOCOL_ERROR),
    Refused("connack with one byte", V3, 0x20, b"\0", MALFORMED),
    Refused("connack 5 without a property length", V5, 0x20, b"\0\0", MALFORMED),
    Refused("connack 3.1.1 with properties", V311, 0x20, b"\0\0\0", MALFORMED),
    Refused("connack 5 with maximum QoS 2", V5, 0x20, b"\0\0\x02\x24\x02", PROTOCOL_ERROR),
]

PUBLISH = [
    Refused("publish of QoS 3", V3, 0x36, b"\0\x01t\0\x01", MALFORMED),
    Refused("publish 5 of QoS 3", V5, 0x36, b"\0\x01t\0\x01\0", MALFORMED),
    Refused("publish of QoS 0, again", V3, 0x38, b"\0\x01t", MALFORMED),
    Refused("publish 5 of QoS 0, again", V5, 0x38, b"\0\x01t\0", MALFORMED),
    Refused("publish with packet id 0", V3, 0x32, b"\0\x01t\0\0", MALFORMED),
    Refused("publish 5 with packet id 0", V5, 0x34, b"\0\x01t\0\0\0", MALFORMED),
    Refused("publish cut in the packet id", V3, 0x32, b"\0\x01t\0", MALFORMED),
    Refused("publish with nothing", ALL, 0x30, b"", MALFORMED),
    Refused("publish cut in the topic", ALL, 0x30, b"\0\x05t", MALFORMED),
    Refused("publish without a topic", V3, 0x30, b"\0\0x", PROTOCOL_ERROR),
    Refused("publish 5 without a topic or alias", V5, 0x30, b"\0\0\0x", PROTOCOL_ERROR),
    Refused("publish with + in the topic", V3, 0x30, b"\0\x03a/+", TOPIC_NAME_INVALID),
    Refused("publish 5 with # in the topic", V5, 0x30, b"\0\x03a/#\0", TOPIC_NAME_INVALID),
    Refused("publish with U+0000 in the topic", ALL, 0x30, b"\0\x02a\0\0", MALFORMED),
    Refused("publish with an overlong U+0000", ALL, 0x30, b"\0\x02\xc0\x80\0", MALFORMED),
    Refused("publish 5 with alias 0", V5, 0x30, b"\0\x01t\x03\x23\0\0", TOPIC_ALIAS_INVALID),
    Refused("publish 5 with an alias twice", V5, 0x30, b"\0\x01t\x06\x23\0\x01\x23\0\x01", PROTOCOL_ERROR),
    Refused("publish 5 with payload format 2", V5, 0x30, b"\0\x01t\x02\x01\x02", PROTOCOL_ERROR),
    Refused("publish 5 with subscription id 0", V5, 0x30, b"\0\x01t\x02\x0b\x00", PROTOCOL_ERROR),
    Refused("publish 5 with a long subscription id 1", V5, 0x30, b"\0\x01t\x03\x0b\x81\x00", MALFORMED),
    Refused("publish 5 with a wildcard in the response topic", V5, 0x30, b"\0\x01t\x04\x08\0\x01+", TOPIC_NAME_INVALID),
    Refused("publish 5 with an empty response topic", V5, 0x30, b"\0\x01t\x03\x08\0\0", TOPIC_NAME_INVALID),
    Refused("publish 5 with a reason string", V5, 0x30, b"\0\x01t\x04\x1f\0\x01w", MALFORMED),
    Refused("publish 5 without a property length", V5, 0x30, b"\0\x01t", MALFORMED),
    Refused("publish 5 with properties past its end", V5, 0x30, b"\0\x01t\x05x", MALFORMED),
    Refused("publish 5 with an alias twice and properties past its end", V5, 0x30, b"\0\x01t\x7f\x23\0\x01\x23\0\x01", MALFORMED),
    Refused("publish 5 whose last property runs into the payload", V5, 0x30, b"\0\x01t\x03\x02\0\0\0\x01xx", MALFORMED),
]

ACKNOWLEDGEMENTS = [
    *(
        Refused(f"{name} with packet id 0", ALL, first, b"\0\0", MALFORMED)
        for name, first in (("puback", 0x40), ("pubrec", 0x50), ("pubrel", 0x62), ("pubcomp", 0x70))
    ),
    *(
        Refused(f"{name} cut in the packet id", ALL, first, b"\0", MALFORMED)
        for name, first in (("puback", 0x40), ("pubrec", 0x50), ("pubrel", 0x62), ("pubcomp", 0x70))
    ),
    *(
        Refused(f"{name} with a reason before MQTT 5", V3, first, b"\0\x01\0", MALFORMED)
        for name, first in (("puback", 0x40), ("pubrec", 0x50), ("pubrel", 0x62), ("pubcomp", 0x70))
    ),
    Refused("puback 5 with a reason of PUBREL", V5, 0x40, b"\0\x01\x92", PROTOCOL_ERROR),
    Refused("pubrel 5 with a reason of PUBACK", V5, 0x62, b"\0\x01\x10", PROTOCOL_ERROR),
    Refused("puback 5 with bytes after its end", V5, 0x40, b"\0\x01\0\0\0", MALFORMED),
    Refused("puback 5 with a reason string twice", V5, 0x40, b"\0\x01\0\x06\x1f\0\0\x1f\0\0", PROTOCOL_ERROR),
    Refused("puback 5 with a property of CONNACK", V5, 0x40, b"\0\x01\0\x03\x13\0\x01", MALFORMED),
]

SUBSCRIPTIONS = [
    Refused("subscribe with no filter", V3, 0x82, b"\0\x01", PROTOCOL_ERROR),
    Refused("subscribe 5 with no filter", V5, 0x82, b"\0\x01\0", PROTOCOL_ERROR),
    Refused("subscribe with packet id 0", V3, 0x82, b"\0\0\0\x01a\0", MALFORMED),
    Refused("subscribe 5 with packet id 0", V5, 0x82, b"\0\0\0\0\x01a\0", MALFORMED),
    Refused("subscribe without options", V3, 0x82, b"\0\x01\0\x01a", MALFORMED),
    Refused("subscribe with QoS 3", V3, 0x82, b"\0\x01\0\x01a\x03", MALFORMED),
    Refused("subscribe 5 with QoS 3", V5, 0x82, b"\0\x01\0\0\x01a\x03", PROTOCOL_ERROR),
    Refused("subscribe 3 with an option of 5", V3, 0x82, b"\0\x01\0\x01a\x04", MALFORMED),
    Refused("subscribe 5 with reserved bit 6", V5, 0x82, b"\0\x01\0\0\x01a\x40", MALFORMED),
    Refused("subscribe 5 with reserved bit 7", V5, 0x82, b"\0\x01\0\0\x01a\x80", MALFORMED),
    Refused("subscribe 5 with retain handling 3", V5, 0x82, b"\0\x01\0\0\x01a\x30", PROTOCOL_ERROR),
    Refused("subscribe 5 with subscription id 0", V5, 0x82, b"\0\x01\x02\x0b\0\0\x01a\0", PROTOCOL_ERROR),
    Refused("subscribe 5 with two subscription ids", V5, 0x82, b"\0\x01\x04\x0b\x01\x0b\x02\0\x01a\0", PROTOCOL_ERROR),
    Refused("subscribe 5 with a reason string", V5, 0x82, b"\0\x01\x03\x1f\0\0\0\x01a\0", MALFORMED),
    Refused("subscribe with U+0000 in the filter", V3, 0x82, b"\0\x01\0\x02a\0\0", MALFORMED),
    Refused("subscribe with bad UTF-8 in the second filter", V3, 0x82, b"\0\x01\0\x01a\0\0\x01\xff\0", MALFORMED),
    Refused("subscribe with an empty filter", V3, 0x82, b"\0\x01\0\0\0", MALFORMED),
    Refused("subscribe 5 with an empty filter", V5, 0x82, b"\0\x01\0\0\0\0", MALFORMED),
    Refused("subscribe 5 with an empty second filter", V5, 0x82, b"\0\x01\0\0\x01a\0\0\0\x01", MALFORMED),
    Refused("unsubscribe with an empty filter", V3, 0xA2, b"\0\x01\0\0", MALFORMED),
    Refused("unsubscribe 5 with an empty second filter", V5, 0xA2, b"\0\x01\0\0\x01a\0\0", MALFORMED),
    Refused("suback with no reason", V3, 0x90, b"\0\x01", PROTOCOL_ERROR),
    Refused("suback 5 with no reason", V5, 0x90, b"\0\x01\0", PROTOCOL_ERROR),
    Refused("suback with a reason of 5", V3, 0x90, b"\0\x01\x87", PROTOCOL_ERROR),
    Refused("suback 5 with a reason of UNSUBACK", V5, 0x90, b"\0\x01\0\x11", PROTOCOL_ERROR),
    Refused("suback with packet id 0", V3, 0x90, b"\0\0\0", MALFORMED),
    Refused("unsubscribe with no filter", V3, 0xA2, b"\0\x01", PROTOCOL_ERROR),
    Refused("unsubscribe 5 with no filter", V5, 0xA2, b"\0\x01\0", PROTOCOL_ERROR),
    Refused("unsubscribe with packet id 0", V3, 0xA2, b"\0\0\0\x01a", MALFORMED),
    Refused("unsubscribe cut in the filter", V3, 0xA2, b"\0\x01\0\x02a", MALFORMED),
    Refused("unsubscribe 5 with a subscription id", V5, 0xA2, b"\0\x01\x02\x0b\x01\0\x01a", MALFORMED),
    Refused("unsuback 3 with a reason", V3, 0xB0, b"\0\x01\0", MALFORMED),
    Refused("unsuback 5 with no reason", V5, 0xB0, b"\0\x01\0", PROTOCOL_ERROR),
    Refused("unsuback 5 with a reason of SUBACK", V5, 0xB0, b"\0\x01\0\x01", PROTOCOL_ERROR),
]

OTHERS = [
    Refused("packet type 0", ALL, 0x00, b"", MALFORMED),
    Refused("auth before MQTT 5", V3, 0xF0, b"", MALFORMED),
    Refused("auth 5 with nothing", V5, 0xF0, b"", PROTOCOL_ERROR),
    Refused("auth 5 without a method", V5, 0xF0, b"\x18\0", PROTOCOL_ERROR),
    Refused("auth 5 with data alone", V5, 0xF0, b"\x18\x04\x16\0\x01d", PROTOCOL_ERROR),
    Refused("auth 5 with a reason of DISCONNECT", V5, 0xF0, b"\x87\x04\x15\0\x01m", PROTOCOL_ERROR),
    Refused("auth 5 with bytes after its end", V5, 0xF0, b"\x18\x04\x15\0\x01m\0", MALFORMED),
    Refused("disconnect with bytes before MQTT 5", V3, 0xE0, b"\0", MALFORMED),
    Refused("disconnect 5 with a reason of CONNACK", V5, 0xE0, b"\x86", PROTOCOL_ERROR),
    Refused("disconnect 5 with bytes after its end", V5, 0xE0, b"\0\0\0", MALFORMED),
    Refused("disconnect 5 with session expiry twice", V5, 0xE0, b"\0\x0a\x11\0\0\0\0\x11\0\0\0\0", PROTOCOL_ERROR),
    Refused("pingreq with a byte", ALL, 0xC0, b"\0", MALFORMED),
    Refused("pingresp with a byte", ALL, 0xD0, b"\0", MALFORMED),
]

# Every flag of every packet type but PUBLISH, with a body that would be right. MQTT 3.1 allows DUP beside 0010.
_BODIES_3 = {
    0x10: b"\0\x04MQTT\x04\x02\0\0" + _CLIENT,
    0x20: b"\0\0",
    0x40: b"\0\x01",
    0x50: b"\0\x01",
    0x60: b"\0\x01",
    0x70: b"\0\x01",
    0x80: b"\0\x01\0\x01a\0",
    0x90: b"\0\x01\0",
    0xA0: b"\0\x01\0\x01a",
    0xB0: b"\0\x01",
    0xC0: b"",
    0xD0: b"",
    0xE0: b"",
}
_BODIES_5 = _BODIES_3 | {
    0x10: _HEAD_5 + b"\0" + _CLIENT,
    0x20: b"\0\0\0",
    0x80: b"\0\x01\0\0\x01a\0",
    0x90: b"\0\x01\0\0",
    0xA0: b"\0\x01\0\0\x01a",
    0xB0: b"\0\x01\0\0",
    0xF0: b"\x18\x04\x15\0\x01m",
}
_FLAGS_0010 = (0x60, 0x80, 0xA0)


def _wrong_flags(versions: tuple[int, ...], bodies: dict[int, bytes]) -> list[Refused]:
    cases = []
    for packet, body in bodies.items():
        right = {0x02} if packet in _FLAGS_0010 else {0x00}
        if versions == V31 and packet in _FLAGS_0010:
            right.add(0x0A)
        for flags in set(range(16)) - right:
            cases.append(
                Refused(f"first byte {packet | flags:#04x} in version {versions[0]}", versions, packet | flags, body, MALFORMED)
            )
    return cases


FIXED_FLAGS = [*_wrong_flags(V31, _BODIES_3), *_wrong_flags(V311, _BODIES_3), *_wrong_flags(V5, _BODIES_5)]

REFUSED: list[Refused] = [
    *PROTOCOL,
    *CONNECT_FLAGS,
    *CONNECT_FIELDS,
    *CONNECT_PROPERTIES,
    *CONNACK,
    *PUBLISH,
    *ACKNOWLEDGEMENTS,
    *SUBSCRIPTIONS,
    *OTHERS,
    *FIXED_FLAGS,
]
