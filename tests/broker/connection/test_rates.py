"""Token buckets let through what the rate allows, and no more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.broker.connection.rates import TokenBucket


@given(rate=st.floats(0.5, 1000), steps=st.lists(st.floats(0, 3), min_size=1, max_size=100))
def test_no_window_of_time_admits_more_than_the_rate_and_one_burst(rate: float, steps: list[float]) -> None:
    bucket = TokenBucket(rate, 100.0)
    now = 100.0
    admitted: list[float] = []

    for step in steps:
        now += step
        if bucket.admit(now):
            admitted.append(now)

    for i, since in enumerate(admitted):
        for count, until in enumerate(admitted[i:], 1):
            assert count <= (until - since) * rate + max(rate, 1.0) + 1e-6


def test_a_steady_stream_below_the_rate_is_never_refused() -> None:
    bucket = TokenBucket(10.0, 0.0)

    assert all(bucket.admit(i * 0.11) for i in range(1000))


def test_a_burst_of_one_second_is_let_through_and_then_no_more() -> None:
    bucket = TokenBucket(5.0, 0.0)

    assert [bucket.admit(0.0) for _ in range(7)] == [True] * 5 + [False] * 2
    assert bucket.admit(0.2)
    assert not bucket.admit(0.2)


@pytest.mark.parametrize("rate", [0.0, 0])
def test_rate_zero_allows_everything(rate: float) -> None:
    bucket = TokenBucket(rate, 0.0)

    assert all(bucket.admit(0.0) for _ in range(1000))
    assert bucket.take(1e9, 0.0) == 0.0


def test_the_returned_wait_is_the_time_until_the_debt_is_paid() -> None:
    bucket = TokenBucket(10.0, 0.0)

    assert bucket.take(10, 0.0) == 0.0
    wait_s = bucket.take(25, 0.0)

    assert wait_s == pytest.approx(2.5)
    assert bucket.take(0, wait_s / 2) == pytest.approx(1.25)
    assert bucket.take(0, wait_s) == pytest.approx(0.0, abs=1e-9)


@given(rate=st.floats(1, 1000), takes=st.lists(st.floats(0, 5000), min_size=1, max_size=30))
def test_a_caller_that_waits_as_asked_never_exceeds_the_rate(rate: float, takes: list[float]) -> None:
    bucket = TokenBucket(rate, 0.0)
    now = 0.0

    for amount in takes:
        now += bucket.take(amount, now)

    # Everything taken but one burst has been waited for.
    assert sum(takes) <= now * rate + rate + 1e-3


def test_a_rate_below_one_a_second_still_admits_one() -> None:
    bucket = TokenBucket(0.5, 0.0)

    assert bucket.admit(0.0)
    assert not bucket.admit(1.0)
    assert bucket.admit(2.0)
