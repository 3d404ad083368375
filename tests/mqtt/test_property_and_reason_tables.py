"""Which property and which reason may be where, as the sections on the packets say it.

The codec's tables are written property by property and reason by reason; the lists here packet by packet.
"""

from __future__ import annotations

import pytest

from braidmq.base.errors import ProtocolViolation, UsageError
from braidmq.mqtt.codec import decode, encode
from braidmq.mqtt.packets import Connack, Connect, PacketType, Suback, Will
from braidmq.mqtt.properties import NO_PROPERTIES, PROPERTIES, WILL, Properties
from braidmq.mqtt.reasons import REASONS_OF, Reason, connack_return_code

# A right value for each property that MQTT 5 has, by its identifier.
SAMPLES = {
    0x01: b"\1", 0x02: b"\0\0\0\1", 0x03: b"\0\1t", 0x08: b"\0\1r", 0x09: b"\0\1d", 0x0B: b"\1", 0x11: b"\0\0\0\1",
    0x12: b"\0\1c", 0x13: b"\0\1", 0x15: b"\0\1m", 0x16: b"\0\1d", 0x17: b"\1", 0x18: b"\0\0\0\1", 0x19: b"\1",
    0x1A: b"\0\1i", 0x1C: b"\0\1s", 0x1F: b"\0\1w", 0x21: b"\0\1", 0x22: b"\0\1", 0x23: b"\0\1", 0x24: b"\1", 0x25: b"\1",
    0x26: b"\0\1k\0\1v", 0x27: b"\0\0\0\1", 0x28: b"\1", 0x29: b"\1", 0x2A: b"\1",
}  # fmt: skip

PROPERTIES_OF = {
    PacketType.CONNECT: {0x11, 0x21, 0x27, 0x22, 0x19, 0x17, 0x26, 0x15, 0x16},  # 3.1.2.11
    WILL: {0x18, 0x01, 0x02, 0x03, 0x08, 0x09, 0x26},  # 3.1.3.2
    PacketType.CONNACK: {
        0x11, 0x21, 0x24, 0x25, 0x27, 0x12, 0x22, 0x1F, 0x26, 0x28, 0x29, 0x2A, 0x13, 0x1A, 0x1C, 0x15, 0x16,
    },  # 3.2.2.3
    PacketType.PUBLISH: {0x01, 0x02, 0x23, 0x08, 0x09, 0x26, 0x0B, 0x03},  # 3.3.2.3
    PacketType.PUBACK: {0x1F, 0x26},
    PacketType.PUBREC: {0x1F, 0x26},
    PacketType.PUBREL: {0x1F, 0x26},
    PacketType.PUBCOMP: {0x1F, 0x26},
    PacketType.SUBSCRIBE: {0x0B, 0x26},
    PacketType.SUBACK: {0x1F, 0x26},
    PacketType.UNSUBSCRIBE: {0x26},
    PacketType.UNSUBACK: {0x1F, 0x26},
    PacketType.DISCONNECT: {0x11, 0x1F, 0x26, 0x1C},  # 3.14.2.2
    PacketType.AUTH: {0x15, 0x16, 0x1F, 0x26},  # 3.15.2.2
}  # fmt: skip

# The first byte, what stands before the properties, and what stands behind them.
PLACES = {
    PacketType.CONNECT: (0x10, b"\0\x04MQTT\x05\x02\0\0", b"\0\1c"),
    WILL: (0x10, b"\0\x04MQTT\x05\x06\0\0\0\0\1c", b"\0\1w\0\0"),
    PacketType.CONNACK: (0x20, b"\0\0", b""),
    PacketType.PUBLISH: (0x30, b"\0\1t", b""),
    PacketType.PUBACK: (0x40, b"\0\1\0", b""),
    PacketType.PUBREC: (0x50, b"\0\1\0", b""),
    PacketType.PUBREL: (0x62, b"\0\1\0", b""),
    PacketType.PUBCOMP: (0x70, b"\0\1\0", b""),
    PacketType.SUBSCRIBE: (0x82, b"\0\1", b"\0\1f\0"),
    PacketType.SUBACK: (0x90, b"\0\1", b"\0"),
    PacketType.UNSUBSCRIBE: (0xA2, b"\0\1", b"\0\1f"),
    PacketType.UNSUBACK: (0xB0, b"\0\1", b"\0"),
    PacketType.DISCONNECT: (0xE0, b"\0", b""),
    PacketType.AUTH: (0xF0, b"\0", b""),
}

REASONS = {
    PacketType.CONNACK: {
        0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B,
        0x9C, 0x9D, 0x9F,
    },
    PacketType.PUBACK: {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    PacketType.PUBREC: {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    PacketType.PUBREL: {0x00, 0x92},
    PacketType.PUBCOMP: {0x00, 0x92},
    PacketType.SUBACK: {0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2},
    PacketType.UNSUBACK: {0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91},
    PacketType.DISCONNECT: {
        0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97,
        0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2,
    },
    PacketType.AUTH: {0x00, 0x18, 0x19},
}  # fmt: skip


def _with_property(place: int, identifiers: list[int]) -> tuple[int, bytes]:
    first_byte, before, behind = PLACES[place]
    properties = b"".join(bytes((identifier,)) + SAMPLES.get(identifier, b"\0") for identifier in identifiers)
    return first_byte, before + bytes((len(properties),)) + properties + behind


def _beside(place: int, identifier: int) -> list[int]:
    # Authentication data needs its method, and AUTH always has one.
    needs_method = identifier == 0x16 or place == PacketType.AUTH
    return [0x15] if needs_method and identifier != 0x15 else []


@pytest.mark.parametrize("place", PLACES, ids=lambda place: PacketType(place).name if place else "WILL")
def test_a_packet_has_the_properties_of_its_section_and_no_others(place: int) -> None:
    for identifier in range(256):
        first_byte, body = _with_property(place, [*_beside(place, identifier), identifier])
        if identifier in PROPERTIES_OF[place]:
            decode(first_byte, body, 5)
        else:
            with pytest.raises(ProtocolViolation) as refused:
                decode(first_byte, body, 5)
            assert refused.value.reason == 0x81


@pytest.mark.parametrize("place", PLACES, ids=lambda place: PacketType(place).name if place else "WILL")
def test_a_property_is_there_once_unless_it_may_repeat(place: int) -> None:
    for identifier in PROPERTIES_OF[place]:
        first_byte, body = _with_property(place, [*_beside(place, identifier), identifier, identifier])
        if identifier == 0x26 or (identifier == 0x0B and place == PacketType.PUBLISH):
            decode(first_byte, body, 5)
        else:
            with pytest.raises(ProtocolViolation) as refused:
                decode(first_byte, body, 5)
            assert refused.value.reason == 0x82


@pytest.mark.parametrize("packet_type", PacketType)
def test_a_packet_has_the_reasons_of_its_section_and_no_others(packet_type: PacketType) -> None:
    assert REASONS_OF[packet_type] == REASONS.get(packet_type, set())


def test_every_reason_code_has_a_packet() -> None:
    assert {int(reason) for reason in Reason} == set().union(*REASONS.values())


def test_the_fields_of_properties_stand_in_the_order_of_the_table() -> None:
    assert list(Properties.__struct_fields__) == [PROPERTIES[identifier].name for identifier in sorted(PROPERTIES)]
    assert list(PROPERTIES) == sorted(PROPERTIES) == sorted(SAMPLES)


@pytest.mark.parametrize(
    ("reason", "return_code"),
    [
        (Reason.SUCCESS, 0),
        (Reason.UNSUPPORTED_PROTOCOL_VERSION, 1),
        (Reason.CLIENT_IDENTIFIER_NOT_VALID, 2),
        (Reason.SERVER_UNAVAILABLE, 3),
        (Reason.SERVER_BUSY, 3),
        (Reason.CONNECTION_RATE_EXCEEDED, 3),
        (Reason.BAD_USER_NAME_OR_PASSWORD, 4),
        (Reason.NOT_AUTHORIZED, 5),
        (Reason.BANNED, 5),
    ],
)
def test_connack_of_mqtt_3_gets_the_return_code_that_fits(reason: Reason, return_code: int) -> None:
    assert connack_return_code(reason) == return_code
    assert encode(Connack(reason), 4) == bytes((0x20, 2, 0, return_code))


@pytest.mark.parametrize("reason", [Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR, Reason.UNSPECIFIED_ERROR])
def test_a_reason_without_a_return_code_sends_no_connack(reason: Reason) -> None:
    assert connack_return_code(reason) is None
    with pytest.raises(UsageError):
        encode(Connack(reason), 4)


@pytest.mark.parametrize("version", [4, 5])
def test_a_refusal_never_says_that_a_session_is_present(version: int) -> None:
    frame = encode(Connack(Reason.NOT_AUTHORIZED, session_present=True), version)

    assert frame[2] == 0


@pytest.mark.parametrize("version", [3, 4])
def test_every_failure_in_suback_is_0x80_before_mqtt_5(version: int) -> None:
    assert encode(Suback(1, [0, 2, 0x80, 0x87, 0x8F, 0xA2]), version)[4:] == bytes((0, 2, 0x80, 0x80, 0x80, 0x80))


def test_secrets_do_not_show_in_the_text_of_a_packet() -> None:
    properties = Properties(authentication_method="m", authentication_data=b"hunter2")

    shown = repr(Connect("c", 5, user_name="me", password=b"hunter2", will=Will("w", b""), properties=properties))

    assert "hunter2" not in shown
    assert "user_name='me'" in shown
    assert "authentication_method='m'" in shown


def test_an_absent_password_shows_as_absent() -> None:
    assert "password=None" in repr(Connect("c", 4))


def test_the_shared_empty_properties_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        NO_PROPERTIES.reason_string = "w"  # type: ignore[misc]
