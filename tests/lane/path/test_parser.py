"""The parser finds the frames that the codec's splitter finds, and reads PUBLISH and acknowledgements as the codec does."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from braidmq.base.errors import ProtocolViolation
from braidmq.lane.path.parser import FRAME, NEED_MORE, VIOLATION, Parser, is_text, topic_error
from braidmq.mqtt import wire
from braidmq.mqtt.codec import FrameSplitter, decode, encode
from braidmq.mqtt.packets import MQTT5, MQTT31, MQTT311, Packet, PacketType, Puback, Pubcomp, Publish, Pubrec, Pubrel
from braidmq.mqtt.properties import Properties, read_properties
from braidmq.mqtt.reasons import REASONS_OF
from tests.mqtt.cases import ACCEPTED, REFUSED, Accepted, Refused
from tests.mqtt.strategies import packet_ids, properties_of, publishes, valid_packets

FRAME_MAX = 1000
VERSIONS = (MQTT31, MQTT311, MQTT5)
CASES: list[Accepted | Refused] = [*ACCEPTED, *REFUSED]
ACKNOWLEDGEMENTS = (PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP)


def on_frame(frame: bytes) -> Parser:
    """A parser that stands on this frame."""
    parser = Parser()
    parser.load(frame, len(frame), len(frame))
    assert parser.next() == FRAME
    return parser


def parse_all(stream: bytes, cuts: list[int]) -> tuple[list[bytes], int]:
    """The frames of a stream that arrives in pieces, and the reason why it broke off, or 0."""
    parser = Parser()
    frames: list[bytes] = []
    rest = b""
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        rest += stream[start:stop]
        parser.load(bytearray(rest), len(rest), FRAME_MAX)
        while (status := parser.next()) == FRAME:
            frames.append(parser.frame())
        if status == VIOLATION:
            return frames, parser.error
        rest = rest[parser.end :]
    return frames, 0


def split(stream: bytes) -> tuple[list[bytes], int]:
    """The same by the codec's splitter."""
    splitter = FrameSplitter(FRAME_MAX)
    try:
        frames = splitter.feed(stream)
    except ProtocolViolation as violation:
        return [], violation.reason
    whole = [bytes((first,)) + wire.write_varint(len(body)) + body for first, body in frames]
    return whole, splitter.violation.reason if splitter.violation is not None else 0


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Frames of any kind one after another, perhaps with rubbish behind."""
    packets = draw(st.lists(valid_packets(MQTT5), max_size=5))
    return b"".join(encode(packet, MQTT5) for packet in packets) + draw(st.binary(max_size=6))


@given(stream=streams(), data=st.data())
def test_frames_are_found_wherever_the_stream_is_cut(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))

    assert parse_all(stream, cuts) == parse_all(stream, [])
    assert parse_all(stream, list(range(1, len(stream)))) == parse_all(stream, [])


@given(stream=streams() | st.binary(max_size=30))
@example(b"\x30\x80\x80\x80\x80\x01")
@example(b"\x30\x80\x00")
@example(b"\xc0\x00\x30\xff\x7f")
def test_the_parser_finds_the_same_frames_and_violations_as_the_splitter(stream: bytes) -> None:
    frames, reason = parse_all(stream, [])

    assert (frames, reason) == split(stream)


@pytest.mark.parametrize(("size", "status"), [(99, FRAME), (100, FRAME), (101, VIOLATION)])
def test_a_frame_is_refused_when_it_is_larger_than_allowed_with_its_header(size: int, status: int) -> None:
    parser = Parser()
    frame = bytes((0x30, size - 2)) + bytes(size - 2)

    parser.load(frame, len(frame), 100)

    assert parser.next() == status
    assert status == FRAME or parser.error == 0x95


def test_a_frame_that_is_too_large_is_rejected_by_its_header_alone() -> None:
    parser = Parser()
    parser.load(b"\x30\xff\xff\xff\x7f", 5, 1000)

    assert parser.next() == VIOLATION
    assert parser.error == 0x95


def test_bytes_after_the_filled_part_are_not_read() -> None:
    parser = Parser()
    parser.load(bytearray(b"\xc0\x00\xc0\x00"), 3, 100)

    assert [parser.next(), parser.next()] == [FRAME, NEED_MORE]
    assert (parser.start, parser.end) == (2, 2)


def test_the_parser_rejects_buffers_it_could_not_read_safely() -> None:
    parser = Parser()

    with pytest.raises(ValueError):
        parser.load(b"abc", 4, 100)
    with pytest.raises(TypeError):
        parser.load(memoryview(b"abc"), 3, 100)  # type: ignore[arg-type]


@given(data=st.data(), version=st.sampled_from(VERSIONS))
def test_a_publish_is_read_as_the_codec_reads_it(data: st.DataObject, version: int) -> None:
    packet = data.draw(publishes(version))
    packet.properties = _of_a_client(packet.properties)
    parser = on_frame(encode(packet, version))

    assert parser.parse_publish(version == MQTT5) == 0
    assert (parser.qos, parser.retain, parser.dup) == (packet.qos, packet.retain, packet.dup)
    assert parser.packet_id == (packet.packet_id or 0)
    assert (parser.topic(), parser.payload()) == (packet.topic.encode(), packet.payload)
    assert parser.topic_is(packet.topic.encode()) == bool(packet.topic)
    assert not parser.topic_is(packet.topic.encode() + b"x")
    properties = packet.properties
    assert parser.alias == (properties.topic_alias or 0)
    assert parser.payload_format == (properties.payload_format_indicator or 0)
    forwarded = parser.properties()
    kept, _ = read_properties(wire.write_varint(len(forwarded)) + forwarded, 0, PacketType.PUBLISH)
    assert kept == _without_alias(properties)
    offset = parser.expiry_offset()
    if properties.message_expiry_interval is None:
        assert offset == -1
    else:
        assert int.from_bytes(forwarded[offset : offset + 4], "big") == properties.message_expiry_interval == parser.expiry


def _of_a_client(properties: Properties) -> Properties:
    return Properties(**{name: getattr(properties, name) for name in _names(properties) if name != "subscription_identifiers"})


def _without_alias(properties: Properties) -> Properties:
    return Properties(**{name: getattr(properties, name) for name in _names(properties) if name != "topic_alias"})


def _names(properties: Properties) -> tuple[str, ...]:
    return properties.__struct_fields__


@given(data=st.data(), order=st.permutations(["alias", "expiry", "format", "user"]))
def test_the_expiry_is_found_at_any_position_among_the_properties(data: st.DataObject, order: list[str]) -> None:
    parts = {
        "alias": b"\x23\x00\x07",
        "expiry": b"\x02\x00\x01\x02\x03",
        "format": b"\x01\x01",
        "user": b"\x26\x00\x01a\x00\x01b",
    }
    chosen = [name for name in order if data.draw(st.booleans(), label=name)]
    properties = b"".join(parts[name] for name in chosen)
    body = b"\x00\x01t" + bytes((len(properties),)) + properties + b"payload"

    parser = on_frame(bytes((0x30, len(body))) + body)

    assert parser.parse_publish(True) == 0
    assert parser.properties() == b"".join(parts[name] for name in chosen if name != "alias")
    assert parser.alias == (7 if "alias" in chosen else 0)
    if "expiry" in chosen:
        assert parser.properties()[parser.expiry_offset() :][:4] == b"\x00\x01\x02\x03"
    else:
        assert parser.expiry_offset() == -1


def codec_verdict(first_byte: int, body: bytes, version: int) -> int:
    """The reason for which the codec, and the rule for clients above it, refuse the frame; 0: none."""
    try:
        packet = decode(first_byte, body, version)
    except ProtocolViolation as violation:
        return violation.reason
    if isinstance(packet, Publish) and packet.properties.subscription_identifiers:
        return 0x82  # [MQTT-3.3.4-6]
    return 0


def publish_verdict(first_byte: int, body: bytes, version: int) -> int:
    """``codec_verdict`` in the order of the lane: the text of the topic is looked at last, because most are known already."""
    size = int.from_bytes(body[:2], "big") if len(body) >= 2 else 0
    if 0 < size <= len(body) - 2:
        reason = codec_verdict(first_byte, body[:2] + b"t" * size + body[2 + size :], version)
        if reason:
            return reason
    return codec_verdict(first_byte, body, version)


def lane_verdict(first_byte: int, body: bytes, version: int) -> int | None:
    """The same by the parser; None if it leaves the frame to the codec."""
    parser = on_frame(bytes((first_byte,)) + wire.write_varint(len(body)) + body)
    if parser.kind == PacketType.PUBLISH:
        return parser.parse_publish(version == MQTT5) or (topic_error(parser.topic(), 65536) if parser.topic() else 0)
    code = parser.parse_ack(version == MQTT5)
    return None if code < 0 else code


def acknowledgements(version: int) -> st.SearchStrategy[Packet]:
    """PUBACK, PUBREC, PUBREL and PUBCOMP, in MQTT 5 often with a reason and properties."""
    kinds = (Puback, Pubrec, Pubrel, Pubcomp)
    plain: list[st.SearchStrategy[Packet]] = [st.builds(kind, packet_ids) for kind in kinds]
    if version < MQTT5:
        return st.one_of(plain)
    return st.one_of(
        *plain,
        *(
            st.builds(
                kind,
                packet_ids,
                st.sampled_from(sorted(REASONS_OF[PacketType[kind.__name__.upper()]])),
                properties_of(PacketType.PUBACK),
            )
            for kind in kinds
        ),
    )


@st.composite
def damaged(draw: st.DrawFn, version: int, kinds: tuple[PacketType, ...]) -> tuple[int, bytes]:
    """A PUBLISH or acknowledgement with some bytes changed, added, removed or cut off."""
    known = [(case.first_byte, case.body) for case in CASES if case.first_byte >> 4 in kinds]
    made = publishes(version) if PacketType.PUBLISH in kinds else acknowledgements(version)
    if draw(st.booleans()):
        first_byte, body = draw(st.sampled_from(known))
    else:
        ((first_byte, body),) = FrameSplitter(FRAME_MAX).feed(encode(draw(made), version))
    data = bytearray((first_byte,)) + body
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.sampled_from(("change", "insert", "remove", "cut", "flags"))):
            case "change" if at:
                data[at] = draw(st.integers(0, 255))
            case "insert" if at:
                data.insert(at, draw(st.integers(0, 255)))
            case "remove" if at:
                del data[at]
            case "cut" if at:
                del data[at:]
            case _:
                data[0] = data[0] & 0xF0 | draw(st.integers(0, 15))
    return data[0], bytes(data[1:])


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_parser_and_codec_agree_on_a_damaged_publish(version: int, data: st.DataObject) -> None:
    first_byte, body = data.draw(damaged(version, (PacketType.PUBLISH,)))

    assert lane_verdict(first_byte, body, version) == publish_verdict(first_byte, body, version)


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_parser_and_codec_agree_on_a_damaged_acknowledgement(version: int, data: st.DataObject) -> None:
    first_byte, body = data.draw(damaged(version, ACKNOWLEDGEMENTS))

    verdict = lane_verdict(first_byte, body, version)

    assert verdict in (None, codec_verdict(first_byte, body, version))


@pytest.mark.parametrize("case", [case for case in CASES if case.first_byte >> 4 in (3, 4, 5, 6, 7)], ids=str)
def test_parser_and_codec_agree_on_every_case_of_the_tables(case: Accepted | Refused) -> None:
    first_byte, body = case.first_byte, case.body
    for version in VERSIONS:
        expected = (publish_verdict if first_byte >> 4 == 3 else codec_verdict)(first_byte, body, version)

        assert lane_verdict(first_byte, body, version) in (None, expected)


@pytest.mark.parametrize(
    ("first_byte", "body", "reason"),
    [
        (0x36, b"\x00\x01t\x00\x01\x00", 0x81),  # QoS 3
        (0x38, b"\x00\x01t\x00", 0x81),  # DUP with QoS 0
        (0x32, b"\x00\x01t\x00\x00\x00", 0x81),  # packet identifier 0
        (0x30, b"\x00\x00\x00", 0x82),  # no topic and no alias
        (0x30, b"\x00\x09t\x00", 0x81),  # a topic longer than the packet
        (0x30, b"\x00\x01t\x05\x01\x01", 0x81),  # properties longer than the packet
        (0x30, b"\x00\x01t\x80\x00", 0x81),  # a property length that could be shorter
        (0x30, b"\x00\x01t\x06\x26\x00\x01a\x00\x02", 0x81),  # a cut user property
        (0x30, b"\x00\x01t\x04\x01\x01\x01\x01", 0x82),  # a property twice
        (0x30, b"\x00\x01t\x05\x11\x00\x00\x00\x01", 0x81),  # a property of CONNECT
        (0x30, b"\x00\x01t\x02\x01\x02", 0x82),  # payload format 2
        (0x30, b"\x00\x01t\x02\x0b\x01", 0x82),  # a subscription identifier
        (0x30, b"\x00\x01t\x03\x23\x00\x00", 0x94),  # alias 0
        (0x30, b"\x00\x01t\x04\x08\x00\x01#", 0x90),  # a response topic with a wildcard
        (0x30, b"\x00\x01t\x04\x03\x00\x01\xff", 0x81),  # a content type that is not UTF-8
    ],
)
def test_each_invalid_publish_has_its_reason_code(first_byte: int, body: bytes, reason: int) -> None:
    assert lane_verdict(first_byte, body, MQTT5) == codec_verdict(first_byte, body, MQTT5) == reason


@given(packet_id=st.integers(1, 65535), kind=st.sampled_from(ACKNOWLEDGEMENTS), version=st.sampled_from(VERSIONS))
def test_a_plain_acknowledgement_is_read(packet_id: int, kind: PacketType, version: int) -> None:
    first_byte = kind << 4 | (2 if kind == PacketType.PUBREL else 0)
    parser = on_frame(bytes((first_byte, 2)) + packet_id.to_bytes(2, "big"))

    assert parser.parse_ack(version == MQTT5) == 0
    assert (parser.kind, parser.packet_id, parser.reason) == (kind, packet_id, 0)


@given(data=st.binary(max_size=8) | st.text(max_size=4).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b"\xc0\x80")
@example(b"\xe0\x80\x80")
@example(b"\xed\xa0\x80")
@example(b"\xed\x9f\xbf")
@example(b"\xf0\x8f\xbf\xbf")
@example(b"\xf4\x90\x80\x80")
@example(b"\xf4\x8f\xbf\xbf")
@example(b"\xef\xbf\xbf")
@example(b"a\xe2\x82")
def test_text_is_valid_utf8_without_nul(data: bytes) -> None:
    try:
        expected = "\0" not in data.decode()
    except UnicodeDecodeError:
        expected = False

    assert is_text(data) == expected


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        (b"a", 0), (b"/", 0), (b"a//b", 0), ("ü/€".encode(), 0), (b"a/b/c", 0),
        (b"", 0x90), (b"a/+", 0x90), (b"#", 0x90), (b"a#", 0x90), (b"a/b/c/d", 0x90),
        (b"a\0", 0x81), (b"\xff", 0x81), (b"+\xff", 0x81),
    ],
)  # fmt: skip
def test_topic_error_says_why_a_topic_cannot_be_published_to(topic: bytes, reason: int) -> None:
    assert topic_error(topic, 3) == reason


def test_scanned_values_outlive_the_buffer() -> None:
    buffer = bytearray(b"\x30\x05\x00\x01tok")
    parser = Parser()
    parser.load(buffer, len(buffer), 100)
    assert parser.next() == FRAME
    assert parser.parse_publish(False) == 0
    topic, payload, frame = parser.topic(), parser.payload(), parser.frame()

    buffer[:] = bytes(len(buffer))

    assert (topic, payload, frame) == (b"t", b"ok", b"\x30\x05\x00\x01tok")
