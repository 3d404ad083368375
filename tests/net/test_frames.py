"""Frames between nodes: any cut of the stream gives the same frames, and illegal lengths are refused at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.net.frames import BODY_BYTES_MAX, FRAME_BYTES_MAX, HEAD_BYTES, BadFrame, Frame, FrameBuffer, FrameKind, encode
from tests.net.frames_in import feed, frames_in

frames = st.builds(Frame, st.sampled_from(FrameKind), st.integers(0, 255), st.integers(0, 2**64 - 1), st.binary(max_size=300))


@given(st.lists(frames, max_size=5), st.lists(st.integers(1, 40), min_size=1))
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(sent: list[Frame], cuts: list[int]) -> None:
    stream = b"".join(encode(frame.kind, frame.destination, frame.body, frame.flags) for frame in sent)
    buffer = FrameBuffer()

    received: list[Frame] = []
    at = turn = 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        received += feed(buffer, stream[at : at + size])
        at, turn = at + size, turn + 1

    assert received == sent


def test_the_bytes_of_a_frame() -> None:
    assert encode(FrameKind.CALL, 5, b"ab", 1) == bytes.fromhex("0000000c02010000000000000005") + b"ab"


def test_the_largest_frame_is_legal() -> None:
    body = b"x" * BODY_BYTES_MAX

    (frame,) = frames_in(encode(FrameKind.RLOG, 1, body))

    assert frame.body == body


@pytest.mark.row("44")
@pytest.mark.parametrize("length", [0, HEAD_BYTES - 5, FRAME_BYTES_MAX - 3, 2**32 - 1])
def test_an_illegal_length_is_refused_before_the_rest_arrives(length: int) -> None:
    with pytest.raises(BadFrame, match="legal"):
        frames_in(length.to_bytes(4, "big"))


@pytest.mark.row("44")
def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(BadFrame, match="unknown kind of frame: 99"):
        frames_in(bytes.fromhex("0000000a63000000000000000000"))


def test_a_stranger_may_send_small_frames_only() -> None:
    buffer = FrameBuffer(4096)

    with pytest.raises(BadFrame):
        list(feed(buffer, encode(FrameKind.HELLO, 0, b"x" * 4096)[:20]))


def test_a_stranger_has_a_small_buffer_that_grows_when_it_is_known() -> None:
    buffer = FrameBuffer(4096)
    first = encode(FrameKind.HELLO, 0, b"x" * 100)
    large = encode(FrameKind.FEED, 7, b"y" * BODY_BYTES_MAX)
    assert len(buffer.room()) == 4096

    assert [frame.kind for frame in feed(buffer, first)] == [FrameKind.HELLO]
    buffer.allow(FRAME_BYTES_MAX)

    assert list(feed(buffer, large + first)) == [*frames_in(large), *frames_in(first)]


def test_a_body_is_not_copied() -> None:
    buffer = FrameBuffer()
    data = encode(FrameKind.FEED, 7, b"abc")
    room = buffer.room()
    room[: len(data)] = data
    buffer.fill(len(data))

    frame = buffer.next()

    assert frame is not None
    room[HEAD_BYTES] = ord("X")
    assert bytes(frame.body) == b"Xbc"
