"""Cutting a byte stream into packets, and fitting packets into a receiver's limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from braidmq.base.errors import ProtocolViolation
from braidmq.mqtt.codec import FrameSplitter, decode, encode, encode_fitting
from braidmq.mqtt.packets import Connack, Disconnect, Packet, Puback, Publish, Suback
from braidmq.mqtt.properties import Properties
from tests.mqtt.cases import ACCEPTED, Accepted

LENGTHS = [
    (0, b"\x00"),
    (127, b"\x7f"),
    (128, b"\x80\x01"),
    (16_383, b"\xff\x7f"),
    (16_384, b"\x80\x80\x01"),
    (2_097_151, b"\xff\xff\x7f"),
    (2_097_152, b"\x80\x80\x80\x01"),
]


@pytest.mark.parametrize(("size", "written"), LENGTHS)
def test_the_remaining_length_is_read_at_its_limits(size: int, written: bytes) -> None:
    body = bytes(size)

    assert FrameSplitter(3_000_000).feed(b"\x30" + written + body) == [(0x30, body)]


@pytest.mark.parametrize(("size", "written"), LENGTHS[1:])
def test_the_remaining_length_is_written_at_its_limits(size: int, written: bytes) -> None:
    frame = encode(Publish("t", bytes(size - 3)), 4)

    assert frame[: 1 + len(written)] == b"\x30" + written
    assert len(frame) == 1 + len(written) + size


@given(st.lists(st.sampled_from([case for case in ACCEPTED if 5 in case.versions]), max_size=6), st.data())
def test_packets_are_found_however_the_stream_is_cut(cases: list[Accepted], data: st.DataObject) -> None:
    stream = b"".join(case.frame for case in cases)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    splitter = FrameSplitter(1000)

    frames = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        frames += splitter.feed(stream[start:end])

    assert frames == [(case.first_byte, case.body) for case in cases]


def test_packets_are_found_byte_by_byte_across_a_long_length() -> None:
    splitter = FrameSplitter(1000)
    frame = b"\x30\xac\x02" + bytes(300)

    assert [splitter.feed(frame[at : at + 1]) for at in range(len(frame) - 1)] == [[]] * (len(frame) - 1)
    assert splitter.feed(frame[-1:]) == [(0x30, bytes(300))]


def test_bodies_are_bytes_for_any_buffer() -> None:
    for data in (b"\xe0\x01\x04", bytearray(b"\xe0\x01\x04"), memoryview(b"\xe0\x01\x04")):
        ((_, body),) = FrameSplitter(10).feed(data)
        assert type(body) is bytes


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x10\x80\x80\x80\x80\x01", 0x81),
        (b"\x10\xff\xff\xff\xff", 0x81),
        (b"\x10\x80\x00", 0x81),
        (b"\x10\xff\x80\x00", 0x81),
        (b"\x10\xff\xff\xff\x7f", 0x95),
        (b"\x10\x63", 0x95),
    ],
)
def test_a_bad_length_is_refused_before_any_byte_of_the_body(data: bytes, reason: int) -> None:
    with pytest.raises(ProtocolViolation) as refused:
        FrameSplitter(100).feed(data)

    assert refused.value.reason == reason


def test_the_limit_counts_the_header_too() -> None:
    assert FrameSplitter(100).feed(b"\x10\x62" + bytes(98)) == [(0x10, bytes(98))]


def test_packets_before_a_violation_are_returned_and_the_violation_is_kept() -> None:
    splitter = FrameSplitter(100)

    assert splitter.feed(b"\xc0\x00\x10\x80\x00") == [(0xC0, b"")]

    assert splitter.violation is not None
    with pytest.raises(ProtocolViolation):
        splitter.feed(b"\xc0\x00")


def test_the_limit_can_be_raised_between_packets() -> None:
    splitter = FrameSplitter(10)
    assert splitter.feed(b"\xc0\x00") == [(0xC0, b"")]

    splitter.frame_bytes_max = 100

    assert splitter.feed(b"\x30\x40" + bytes(64)) == [(0x30, bytes(64))]


TOLD = Properties(reason_string="because", user_properties=(("key", "value"),))
ANSWERS: list[Packet] = [Connack(0x87, False, TOLD), Puback(1, 0x87, TOLD), Suback(1, [0x87], TOLD), Disconnect(0x98, TOLD)]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_an_answer_loses_its_reason_string_then_its_user_properties(answer: Packet) -> None:
    whole = encode(answer, 5)
    without_text = encode(replace(answer, properties=replace(TOLD, reason_string=None)), 5)
    bare = encode(replace(answer, properties=Properties()), 5)

    assert encode_fitting(answer, 5, len(whole)) == whole
    assert encode_fitting(answer, 5, len(whole) - 1) == without_text
    assert encode_fitting(answer, 5, len(without_text) - 1) == bare
    assert encode_fitting(answer, 5, len(bare) - 1) is None


def test_a_shortened_answer_keeps_its_other_properties() -> None:
    frame = encode_fitting(Connack(0, False, replace(TOLD, receive_maximum=7)), 5, 10)

    assert frame is not None
    assert decode(frame[0], frame[2:], 5) == Connack(0, False, Properties(receive_maximum=7))


def test_a_message_is_sent_whole_or_not_at_all() -> None:
    message = Publish("t", b"x", properties=Properties(user_properties=(("key", "value"),)))
    size = len(encode(message, 5))

    assert encode_fitting(message, 5, size) is not None
    assert encode_fitting(message, 5, size - 1) is None
