"""What is measured of history is what is said."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.history import compare, rate_of


def test_a_reader_that_misses_rows_has_no_rate() -> None:
    with pytest.raises(RuntimeError, match="999 rows read instead of 1,000"):
        rate_of(1000, lambda: 999)


def test_two_measures_are_taken_in_turn_and_compared_by_turns() -> None:
    # In the second turn the machine was busy for both; the ratio of medians would be 0.5.
    order = []
    ours, theirs = iter([60.0, 10.0, 50.0]), iter([100.0, 20.0, 90.0])

    def take(name: str, values: Iterator[float]) -> float:
        order.append(name)
        return next(values)

    found = compare(3, lambda: take("ours", ours), lambda: take("theirs", theirs))

    assert order == ["ours", "theirs"] * 3
    assert found[:2] == (50.0, 90.0)
    assert found[2] == pytest.approx(50 / 90)
