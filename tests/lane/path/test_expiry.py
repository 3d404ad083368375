"""When a message expires: on both clocks, in whole seconds, and the same for every way to the disk and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.lane.path.expiry import from_wall, seconds_left, to_wall
from braidmq.lane.path.message import Message, from_record
from braidmq.lane.records.records import Record, encode_record
from braidmq.storage.format.kept_messages import decode_message
from braidmq.storage.rows.messages import MessageRows

EXPIRY = b"\x02\x00\x00\x00\x64"


class Clocks:
    """Both clocks, standing still; in place of the real ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wall: float, now: float) -> None:
        self.wall, self.now = wall, now
        monkeypatch.setattr("braidmq.lane.path.expiry.time", lambda: self.wall)
        monkeypatch.setattr("braidmq.lane.path.expiry.monotonic", lambda: self.now)

    def rows(self) -> MessageRows:
        return MessageRows(lambda: self.wall, lambda: self.now)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch, wall=2_000_000.0, now=1000.0)


def expiring(expires_at: float) -> Message:
    message = Message(b"t", b"x", 1, False, "p")
    message.set_properties(EXPIRY, expires_at, 1)
    return message


def as_record(message: Message) -> Record:
    value = encode_record(
        message.topic, message.payload, message.qos, message.retain, message.publisher, message.properties,
        message.wall_expiry(), message.expiry_offset,
    )  # fmt: skip
    return Record(1, value)


@pytest.mark.parametrize(
    ("expires_at", "left"),
    [
        (0.0, -1),
        (999.0, 0),
        (1000.0, 0),
        (1000.001, 1),
        (1001.0, 1),
        (1001.001, 2),
        (1000.0 + 0xFFFFFFFF, 0xFFFFFFFF),
        (1e12, 0xFFFFFFFF),
    ],
)
def test_remaining_seconds_are_rounded_up_and_are_0_at_the_expiry(clocks: Clocks, expires_at: float, left: int) -> None:
    assert seconds_left(expires_at) == left
    assert expiring(expires_at).seconds_left() == left


@pytest.mark.parametrize(
    ("expires_at", "offset", "expires_us"),
    [
        (0.0, 1000.0, 0),  # never
        (500.0, 1000.0, 1_500_000_000),
        (0.0000014, 1.0, 1_000_001),  # to the nearest microsecond, down
        (0.0000016, 1.0, 1_000_002),  # and up
        (5.0, -5.0, 1),  # the zero of the wall clock, which would be never
        (5.0, -100.0, 1),  # before it
    ],
)
def test_an_expiry_crosses_to_the_wall_clock_at_the_nearest_moment(expires_at: float, offset: float, expires_us: int) -> None:
    assert to_wall(expires_at, offset) == expires_us


def test_an_expiry_before_the_start_of_the_monotonic_clock_has_passed() -> None:
    assert from_wall(0, 100.0) == 0.0
    assert from_wall(150_000_000, 100.0) == 50.0
    for expires_us in (1, 100_000_000):
        expires_at = from_wall(expires_us, 100.0)
        assert expires_at > 0.0
        assert seconds_left(expires_at) == 0


@given(st.floats(0.001, 1e7), st.floats(0, 4e9))
def test_an_expiry_survives_conversion_to_the_wall_clock_and_back(expires_at: float, offset: float) -> None:
    assert from_wall(to_wall(expires_at, offset), offset) == pytest.approx(expires_at, abs=2e-6)


@given(st.floats(1, 1e6), st.floats(0, 4e9), st.floats(0.0001, 1e6))
def test_a_record_and_a_row_of_the_same_message_expire_at_the_same_microsecond(now: float, wall: float, left_s: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clocks = Clocks(patch, wall, now)
        message = expiring(now + left_s)

        row, _ = decode_message(clocks.rows().row_of(message, None))

        assert as_record(message).expires_at == row.expires_at == message.wall_expiry()


def test_a_record_and_a_row_that_are_read_after_a_restart_have_the_same_time_left(clocks: Clocks) -> None:
    record = as_record(expiring(1100.0))
    row = clocks.rows().row_of(expiring(1100.0), None)

    clocks.wall += 29.5
    clocks.now = 5.0

    assert from_record(0, record).seconds_left() == 71
    assert clocks.rows().message_of(row, "it").message.seconds_left() == 71

    clocks.wall += 70.5

    assert from_record(0, record).seconds_left() == 0
    assert clocks.rows().message_of(row, "it").message.seconds_left() == 0


def test_messages_written_after_the_wall_clock_was_set_expire_by_the_new_time(clocks: Clocks) -> None:
    before = expiring(1100.0).wall_expiry()

    clocks.wall += 3600

    assert expiring(1100.0).wall_expiry() == before + 3600 * 1_000_000
