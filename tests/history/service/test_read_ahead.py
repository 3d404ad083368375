"""Batches that are made while others are sent."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from braidmq.history.service.read_ahead import read_ahead

SOON_S = 10.0


class Source:
    """Batches 1, 2, 3 ...; notes what was made, when, and that it was closed."""

    def __init__(self, count: int, problem: Exception | None = None) -> None:
        self.count = count
        self.problem = problem
        self.taken = 0
        self.taken_when_made: list[int] = []
        self.made = {number: threading.Event() for number in range(1, count + 1)}
        self.is_closed = False

    def batches(self) -> Generator[int, None, None]:
        try:
            for number in range(1, self.count + 1):
                self.taken_when_made.append(self.taken)
                self.made[number].set()
                yield number
            if self.problem is not None:
                raise self.problem
        finally:
            self.is_closed = True


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 50])
def test_all_batches_come_in_their_order(count: int) -> None:
    source = Source(count)

    assert list(read_ahead(source.batches())) == [*range(1, count + 1)]
    assert source.is_closed


def test_the_next_batch_is_made_before_it_is_asked_for() -> None:
    source = Source(9)
    ahead = read_ahead(source.batches())

    assert [next(ahead) for _ in range(3)] == [1, 2, 3]
    assert source.made[4].wait(SOON_S)

    ahead.close()


def test_no_more_than_one_batch_is_made_ahead() -> None:
    source = Source(200)

    for number in read_ahead(source.batches()):
        source.taken = number

    # What is being used when a batch is made was taken before the one in between.
    assert all(number - taken <= 3 for number, taken in enumerate(source.taken_when_made, 1))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 8])
def test_an_error_is_raised_after_the_batches_before_it(count: int) -> None:
    source = Source(count, problem=LookupError("gone"))
    ahead = read_ahead(source.batches())

    assert [next(ahead) for _ in range(count)] == [*range(1, count + 1)]
    with pytest.raises(LookupError, match="gone"):
        next(ahead)


@pytest.mark.parametrize("taken", [1, 2, 3, 5])
def test_a_reader_that_leaves_closes_what_it_read_from(taken: int) -> None:
    source = Source(9)
    ahead = read_ahead(source.batches())
    for _ in range(taken):
        next(ahead)

    ahead.close()

    assert source.is_closed
    assert not [each for each in threading.enumerate() if each.name == "history-reader"]
