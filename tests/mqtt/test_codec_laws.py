"""What holds for every packet and for all bytes: round trips, canonical form, and no surprise in between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import ProtocolViolation, UsageError
from braidmq.mqtt.codec import FrameSplitter, decode, encode
from braidmq.mqtt.packets import Connect, Packet, PacketType, Suback
from braidmq.mqtt.reasons import REASONS_OF
from braidmq.mqtt.subscription_packets import plain_suback
from tests.mqtt.cases import ACCEPTED, REFUSED
from tests.mqtt.strategies import valid_packets, wild_packets

VERSIONS = (3, 4, 5)


def decode_frame(frame: bytes, version: int) -> Packet:
    ((first_byte, body),) = FrameSplitter(len(frame)).feed(frame)
    return decode(first_byte, body, version)


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_every_packet_survives_encoding_and_decoding(version: int, data: st.DataObject) -> None:
    packet = data.draw(valid_packets(version))

    assert decode_frame(encode(packet, version), version) == packet


@pytest.mark.parametrize("version", VERSIONS)
@given(packet=wild_packets())
def test_decode_accepts_everything_that_encode_writes(version: int, packet: Packet) -> None:
    if isinstance(packet, Connect) and packet.version in VERSIONS:
        version = packet.version
    try:
        frame = encode(packet, version)
    except UsageError:
        return

    again = decode_frame(frame, version)

    assert type(again) is type(packet)
    assert encode(again, version) == frame


@st.composite
def damaged_packets(draw: st.DrawFn) -> tuple[int, bytes]:
    """A packet of the tables with a few bytes changed, added, removed or cut off."""
    case = draw(st.sampled_from(ACCEPTED) | st.sampled_from(REFUSED))
    bytes_of_it = bytearray((case.first_byte,)) + case.body
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(bytes_of_it) - 1))
        byte = draw(st.integers(0, 255))
        match draw(st.sampled_from(("change", "insert", "remove", "cut", "flip"))):
            case "change":
                bytes_of_it[at] = byte
            case "insert":
                bytes_of_it.insert(at, byte)
            case "remove" if at:
                del bytes_of_it[at]
            case "cut" if at:
                del bytes_of_it[at:]
            case _:
                bytes_of_it[at] ^= 1 << byte % 8
    return bytes_of_it[0], bytes(bytes_of_it[1:])


def any_bytes() -> st.SearchStrategy[tuple[int, bytes]]:
    return st.tuples(st.integers(0, 255), st.binary(max_size=64)) | damaged_packets()


@pytest.mark.parametrize("version", VERSIONS)
@given(packet=any_bytes())
def test_decode_of_any_bytes_gives_a_packet_or_a_violation(version: int, packet: tuple[int, bytes]) -> None:
    try:
        decoded = decode(*packet, version)
    except ProtocolViolation as violation:
        assert violation.reason in (0x81, 0x82, 0x84, 0x90, 0x94)
        return

    # Whatever is accepted can be written again, never longer, with the same meaning.
    if isinstance(decoded, Connect):
        version = decoded.version
    frame = encode(decoded, version)
    ((_, body),) = FrameSplitter(1000).feed(frame)
    assert len(body) <= len(packet[1])
    assert decode_frame(frame, version) == decoded


@given(packet=any_bytes())
def test_mqtt_3_1_1_has_one_form_for_every_packet(packet: tuple[int, bytes]) -> None:
    try:
        decoded = decode(*packet, 4)
    except ProtocolViolation:
        return
    if isinstance(decoded, Connect) and decoded.version != 4:
        return

    assert FrameSplitter(1000).feed(encode(decoded, 4)) == [packet]


@given(st.text(st.characters(exclude_categories=()), max_size=8))
def test_a_filter_is_accepted_exactly_if_it_is_unicode_without_nul_and_not_empty(text: str) -> None:
    raw = text.encode("utf-8", "surrogatepass")
    body = b"\0\1" + len(raw).to_bytes(2, "big") + raw
    is_good = text != "" and not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in text)

    try:
        packet = decode(0xA2, body, 4)
    except ProtocolViolation as violation:
        assert not is_good
        assert violation.reason == 0x81
    else:
        assert is_good
        assert packet.topic_filters == [text]  # type: ignore[union-attr]


@pytest.mark.parametrize("version", VERSIONS)
@given(
    packet_id=st.integers(1, 65535),
    reasons=st.lists(st.sampled_from(sorted(REASONS_OF[PacketType.SUBACK])), min_size=1, max_size=300),
)
def test_the_short_way_to_a_suback_leads_to_the_same_bytes(version: int, packet_id: int, reasons: list[int]) -> None:
    assert plain_suback(packet_id, reasons, version) == encode(Suback(packet_id, reasons), version)
