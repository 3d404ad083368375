"""The clock of deadlines: pauses and the grace after them do not count, everything else does."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.deadline_clock import BEAT_S, GAP_S_MAX, GRACE_S_MAX, DeadlineClock, time_since_boot, wait_fairly


class Source:
    """Time that only the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def beat(clock: DeadlineClock, source: Source, seconds: float) -> float:
    """Let this much time pass while the clock is read as it should be; the reading at the end."""
    end = source.now + seconds
    while source.now < end:
        source.now = min(end, source.now + BEAT_S)
        clock()
    return clock()


def test_without_pauses_it_runs_with_the_machine() -> None:
    source = Source()
    clock = DeadlineClock(source)

    assert beat(clock, source, 60) == pytest.approx(1060.0)
    assert clock.pauses == 0


@pytest.mark.parametrize("paused_s", [GAP_S_MAX + 0.01, 4.0, 60.0, 86_400.0])
def test_pauses_and_the_grace_after_them_do_not_count(paused_s: float) -> None:
    source = Source()
    clock = DeadlineClock(source)
    source.now += paused_s
    grace_s = min(paused_s - GAP_S_MAX, GRACE_S_MAX)

    assert clock() == 1000.0
    assert beat(clock, source, grace_s - 0.005) == 1000.0
    assert beat(clock, source, BEAT_S + 5) == pytest.approx(1005.0, abs=BEAT_S + 0.02)
    assert clock.pauses == 1
    assert clock.paused_s == pytest.approx(paused_s)


def test_a_process_that_is_always_too_slow_still_judges_in_the_end() -> None:
    source = Source()
    clock = DeadlineClock(source)

    for _ in range(1000):
        source.now += 30.0
        clock()

    assert clock() > 1010.0


@given(st.lists(st.one_of(st.floats(0, 2), st.floats(0, 1000)), max_size=60))
def test_it_never_moves_back_or_ahead_of_the_machine(gaps: list[float]) -> None:
    source = Source()
    clock = DeadlineClock(source)
    before = clock()

    for gap_s in gaps:
        source.now += gap_s
        now = clock()
        assert before <= now <= before + min(gap_s, GAP_S_MAX) + 1e-9
        before = now


def test_time_in_which_the_machine_is_suspended_is_seen() -> None:
    assert time_since_boot() >= monotonic() - 1.0


def test_an_answer_that_came_during_a_pause_is_in_time() -> None:
    source = Source()

    async def ask() -> bool:
        answer = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()

        def go_on() -> None:
            source.now += 3600  # the deadline is long past, and the answer is behind the timer
            loop.call_later(0.01, loop.call_soon, answer.set_result, None)

        loop.call_soon(go_on)
        return await wait_fairly(answer, 0.005, source)

    assert asyncio.run(ask())


def test_an_answer_that_does_not_come_is_not_waited_for_longer_than_allowed() -> None:
    async def ask() -> bool:
        return await wait_fairly(asyncio.get_running_loop().create_future(), 0.02)

    assert not asyncio.run(ask())
