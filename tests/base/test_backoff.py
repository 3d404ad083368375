"""Pauses between attempts."""

from __future__ import annotations

from braidmq.base.backoff import Backoff


def test_pauses_double_up_to_the_maximum() -> None:
    backoff = Backoff(0.5, 3.0)

    assert [backoff.next() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_reset_begins_with_the_first_pause_again() -> None:
    backoff = Backoff(0.5, 3.0)
    backoff.next()
    backoff.next()

    backoff.reset()

    assert backoff.next() == 0.5


def test_spread_pauses_differ_and_stay_within_half_and_all_of_the_plain_ones() -> None:
    backoffs = [Backoff(1.0, 4.0, spread=True) for _ in range(100)]
    for longest in (1.0, 2.0, 4.0, 4.0):
        pauses = {backoff.next() for backoff in backoffs}

        assert len(pauses) > 50
        assert all(longest / 2 <= pause <= longest for pause in pauses)
