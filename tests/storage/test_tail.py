"""The tail holds the newest records, says what it no longer has, and keeps to its bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from braidmq.lane.records import Record, encode_record
from braidmq.storage.tail import Tail


def record(timestamp: int, size: int = 0) -> Record:
    return Record(timestamp, encode_record(b"t", bytes(size), 1, False, "p"))


def test_it_answers_none_for_what_was_before_it() -> None:
    tail = Tail(100, 10_000)
    tail.extend([record(105)])

    assert tail.since(99) is None
    assert tail.since(100) is not None


@given(st.lists(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 300)), max_size=5), max_size=20), st.integers(0, 2_000))
def test_it_is_a_bounded_suffix_of_what_was_committed(batches: list[list[tuple[int, int]]], bytes_max: int) -> None:
    tail = Tail(10, bytes_max)
    oracle: list[Record] = []
    now = 10

    for batch in batches:
        added = []
        for step, size in batch:
            now += step
            added.append(record(now, size))
        tail.extend(added)
        oracle += added
        assert tail.size_bytes <= bytes_max

    for position in range(9, now + 2):
        expected = [each for each in oracle if each.timestamp > position] if position >= tail.start else None
        assert tail.since(position) == expected
    assert len(tail) == len(tail.since(tail.start) or [])


def test_the_number_of_records_in_one_answer_can_be_bounded() -> None:
    tail = Tail(0, 10_000)
    tail.extend([record(number) for number in range(1, 6)])

    assert [each.timestamp for each in tail.since(2, 2) or []] == [3, 4]


def test_a_record_larger_than_the_bound_leaves_it_empty() -> None:
    tail = Tail(0, 1_000)

    tail.extend([record(1), record(2, 5_000)])

    assert (len(tail), tail.start, tail.size_bytes) == (0, 2, 0)


def test_long_use_leaves_nothing_behind() -> None:
    tail = Tail(0, 2_000)

    for number in range(1, 10_000):
        tail.extend([record(number)])

    assert len(tail._records) < 2_100
