"""Rows of several runs come as one, and the end is asked for with the last row of a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.lane.records.rows import Row, Rows

pytestmark = pytest.mark.smoke

ROW = st.tuples(st.binary(max_size=3), st.binary(max_size=3))


@given(runs=st.lists(st.lists(ROW, max_size=4), min_size=1, max_size=4))
def test_runs_follow_each_other_and_the_last_row_of_each_is_marked(runs: list[list[Row]]) -> None:
    told: list[Row | None] = []

    def next_run(last: Row | None) -> Iterator[Row] | None:
        told.append(last)
        return iter(runs[len(told)]) if len(told) < len(runs) else None

    rows = Rows(next_run, iter(runs[0]))

    assert list(rows) == [row for run in runs for row in run]
    assert next(rows, None) is None
    assert told == [run[-1] if run else None for run in runs]


def test_an_error_of_a_run_propagates_and_is_not_the_end() -> None:
    def broken() -> Iterator[Row]:
        yield b"k", b"v"
        raise OSError("damaged")

    rows = Rows(lambda last: None, broken())

    assert next(rows) == (b"k", b"v")
    with pytest.raises(OSError, match="damaged"):
        next(rows)


def test_an_error_of_next_run_propagates() -> None:
    def next_run(last: Row | None) -> Iterator[Row] | None:
        raise OSError("damaged")

    with pytest.raises(OSError, match="damaged"):
        next(Rows(next_run, iter(())))
