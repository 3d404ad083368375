"""User properties by the thousand stay in wire form."""

from __future__ import annotations

import sys

import pytest
from msgspec.structs import replace

from braidmq.base.errors import ProtocolViolation
from braidmq.mqtt import codec
from braidmq.mqtt.packet_types import PacketType
from braidmq.mqtt.packets import MQTT5, Connect, Will
from braidmq.mqtt.properties import WILL, Properties, read_properties, write_properties
from braidmq.mqtt.text_pairs import PAIRS_MAX, TextPairs, first_pairs

MANY = tuple((str(number), "\U0001f600" * (number % 3)) for number in range(1000))


def read(wire: bytes, packet: int = WILL) -> Properties:
    properties, at = read_properties(wire, 0, packet)
    assert at == len(wire)
    return properties


@pytest.mark.parametrize("count", [PAIRS_MAX - 1, PAIRS_MAX, PAIRS_MAX + 1, 1000])
def test_many_pairs_are_read_as_they_were_written(count: int) -> None:
    written = Properties(user_properties=MANY[:count], content_type="c", will_delay_interval=7)
    wire = write_properties(written, WILL)

    found = read(wire)

    assert found == written
    assert tuple(found.user_properties) == MANY[:count]
    assert len(found.user_properties) == count
    assert isinstance(found.user_properties, TextPairs) == (count > PAIRS_MAX)
    assert write_properties(found, WILL) == wire


def test_other_properties_between_them_do_not_change_their_order() -> None:
    pairs = write_properties(Properties(user_properties=MANY), WILL)[2:]  # without the length
    cut = 5 * PAIRS_MAX
    place = len(write_properties(Properties(user_properties=MANY[:cut]), WILL)[2:])
    content_type, delay = b"\x03\x00\x01c", b"\x18\x00\x00\x00\x07"
    body = content_type + pairs[:place] + delay + pairs[place:]
    size = len(body)

    found = read(bytes((size & 127 | 128, size >> 7)) + body)

    assert tuple(found.user_properties) == MANY
    assert (found.content_type, found.will_delay_interval) == ("c", 7)


@pytest.mark.parametrize(
    "pair",
    [b"\x26\x00\x01\x00\x00\x00", b"\x26\x00\x01\xff\x00\x00", b"\x26\x00\x00\x00\x05abc", b"\x26\x00\x00\x00", b"\x26\xff\xff"],
    ids=["NUL", "not UTF-8", "value beyond the end", "half a length", "name beyond the end"],
)
def test_a_malformed_pair_after_a_thousand_others_is_found(pair: bytes) -> None:
    will = Will("t", b"", properties=Properties(user_properties=MANY))
    sound = codec.encode(Connect("c", MQTT5, will=will), MQTT5)
    wire = write_properties(will.properties, WILL)
    size = len(wire) - 2 + len(pair)
    spoilt = bytes((size & 127 | 128, size >> 7)) + wire[2:] + pair
    at = sound.index(wire)
    start = 3  # the type, and two bytes of length

    with pytest.raises(ProtocolViolation) as found:
        codec.decode(0x10, sound[start:at] + spoilt + sound[at + len(wire) :], MQTT5)

    assert found.value.reason == 0x81


def test_in_wire_form_pairs_take_little_more_memory_than_on_the_wire() -> None:
    wire = b"\x26\x00\x00\x00\x00" * 12_000
    size = len(wire)

    found = read(bytes((size & 127 | 128, size >> 7 & 127 | 128, size >> 14)) + wire).user_properties

    assert isinstance(found, TextPairs)
    assert sys.getsizeof(found) + sys.getsizeof(found.wire) < size + 200


def test_pairs_in_wire_form_behave_like_a_tuple() -> None:
    found = read(write_properties(Properties(user_properties=MANY), WILL)).user_properties

    assert (found[0], found[-1], found[3:5]) == (MANY[0], MANY[-1], MANY[3:5])
    assert found == MANY
    assert found != MANY[1:]
    assert found != ()
    assert found == read(write_properties(Properties(user_properties=MANY), WILL)).user_properties
    assert hash(found) == hash(MANY)
    assert repr(found) == repr(MANY)
    assert first_pairs(found) == MANY[:PAIRS_MAX]
    assert first_pairs(MANY[:3]) == MANY[:3]
    assert replace(Properties(user_properties=found), will_delay_interval=1).user_properties is found


def test_a_message_has_the_pairs_of_its_will() -> None:
    will = read(write_properties(Properties(user_properties=MANY, will_delay_interval=3), WILL))

    written = write_properties(replace(will, will_delay_interval=None), PacketType.PUBLISH)

    assert read(written, PacketType.PUBLISH).user_properties == MANY
