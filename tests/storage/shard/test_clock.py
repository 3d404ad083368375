"""The clock of the log creeps after the wall clock and never jumps (S15)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from braidmq.storage.shard.clock import ALARM_US, SLEW_PPM, ShardClock, boot_us, wall_us
from tests.storage.log import NOON, Hands, Log

SECOND = 1_000_000
YEAR = 365 * 86_400 * SECOND


def test_s15_a_wall_clock_a_year_ahead_for_a_second_does_not_stamp_into_the_future() -> None:
    log = Log()
    log.append("t")
    log.hands.wall += YEAR

    log.hands.move(SECOND)
    alarm = log.shard._clock.check()
    (stamp,) = log.append("t")

    assert alarm is not None
    assert alarm.ahead_us > ALARM_US
    assert "ahead of" in alarm.reason
    assert NOON + SECOND <= stamp <= NOON + SECOND + SLEW_PPM


def test_the_alarm_ends_with_the_jump() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.wall -= YEAR
    assert clock.check() is not None

    hands.wall += YEAR

    assert clock.check() is None


def test_s15_a_wall_clock_behind_the_log_at_start_is_an_alarm_and_timestamps_continue_from_the_last() -> None:
    log = Log()
    (last,) = log.append("t")
    log.hands.wall -= 3600 * SECOND

    log = log.reopened()
    alarm = log.shard._clock.check()
    stamps = log.append("t", "t")

    assert alarm is not None
    assert alarm.ahead_us == -3600 * SECOND
    assert stamps == [last + 1, last + 2]


def test_the_alarm_at_start_ends_when_the_clock_has_caught_up() -> None:
    hands = Hands()
    clock = hands.clock()
    clock.recovered(NOON + SECOND)
    assert clock.check() is not None

    hands.move(2 * SECOND)

    assert clock.check() is None


def test_a_small_clock_difference_is_corrected_slowly() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.wall += 1_000

    for _ in range(10):
        hands.move(SECOND)
        assert clock.check() is None

    assert clock.now() == hands.wall


def test_time_continues_while_the_machine_is_suspended() -> None:
    hands = Hands()
    clock = hands.clock()

    hands.move(7200 * SECOND)

    assert clock.now() == NOON + 7200 * SECOND


@given(st.lists(st.tuples(st.integers(0, 10 * SECOND), st.integers(-YEAR, YEAR)), max_size=30))
def test_time_never_goes_back_and_never_jumps(steps: list[tuple[int, int]]) -> None:
    hands = Hands()
    clock = hands.clock()

    for passed, jump in steps:
        before = clock.now()
        hands.move(passed)
        hands.wall += jump
        clock.check()
        gained = clock.now() - before
        assert abs(gained - passed) <= passed * SLEW_PPM // 1_000_000
        assert gained >= 0


def test_the_clock_starts_at_the_wall_clock() -> None:
    clock = ShardClock()

    assert abs(clock.now() - wall_us()) < SECOND
    assert boot_us() > 0
