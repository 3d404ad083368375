"""The tail holds the newest records, says what it no longer has, and keeps to its bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.lane.records.records import Record, TopicFilters, encode_record
from braidmq.storage.shard.tail import Tail
from braidmq.storage.shard.tail_block import BLOCK_RECORDS, TopicSearch


def record(timestamp: int, size: int = 0) -> Record:
    return Record(timestamp, encode_record(b"t", bytes(size), 1, False, "p"))


def test_the_tail_returns_none_for_earlier_positions() -> None:
    tail = Tail(100, 10_000)
    tail.extend([record(105)])

    assert tail.since(99) is None
    assert tail.since(100) is not None


@given(st.lists(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 300)), max_size=5), max_size=20), st.integers(0, 2_000))
def test_the_tail_is_a_bounded_suffix_of_the_committed_records(batches: list[list[tuple[int, int]]], bytes_max: int) -> None:
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


def test_long_use_leaks_nothing() -> None:
    tail = Tail(0, 2_000)

    for number in range(1, 10_000):
        tail.extend([record(number)])

    assert sum(len(block.records) for block in tail._blocks) <= BLOCK_RECORDS


# Searching by topic

TOPICS = ["a", "a/b", "a/b/c", "a/bc", "b/1/t", "b/2/t", "b/2/u", "$x/1"]
FILTERS = ["a", "a/b", "a/#", "a/b/#", "a/+", "b/+/t", "b/2/+", "$x/#", "none", "none/#"]


def never() -> bool:
    return False


def searched(tail: Tail, filters: list[str], position: int) -> list[int] | None:
    """The timestamps that a reader gets out of as many searches as it takes."""
    matcher = TopicFilters([each.encode() for each in filters], True)
    search = TopicSearch(filters, matcher)
    assert search.is_selective
    found: list[int] = []
    watermark = 1_000_000  # of a family whose neighbours have later records
    while position < watermark:
        answer = tail.search(search, position, watermark, never)
        if answer is None:
            return None
        records, upto = answer
        assert upto > position
        found += [each.timestamp for each in records if matcher.matches(each.value)]
        position = upto
    return found


@given(
    st.lists(st.lists(st.sampled_from(TOPICS), max_size=30), max_size=8),
    st.lists(st.sampled_from(FILTERS), min_size=1, max_size=3),
    st.sampled_from([400, 2_000, 20_000]),
    st.data(),
)
def test_a_search_finds_what_a_pass_over_all_records_finds(
    batches: list[list[str]], filters: list[str], bytes_max: int, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("braidmq.storage.shard.tail.BLOCK_RECORDS", 5)
        tail = Tail(0, bytes_max)
        now = 0
        matcher = TopicFilters([each.encode() for each in filters], True)
        for batch in batches:
            tail.extend([on_topic(now + place, topic) for place, topic in enumerate(batch, 1)])
            now += len(batch)
            position = data.draw(st.integers(tail.start, max(now, tail.start)))

            expected = [each.timestamp for each in tail.since(position) or [] if matcher.matches(each.value)]
            for _ in range(3):  # without an index, with a new one, with an old one
                assert searched(tail, filters, position) == expected


def on_topic(timestamp: int, topic: str) -> Record:
    return Record(timestamp, encode_record(topic.encode(), b"", 1, False, "p"))


def test_a_search_returns_none_for_positions_before_the_tail() -> None:
    tail = Tail(100, 10_000)
    tail.extend([on_topic(105, "a")])

    assert tail.search(search_for("a"), 99, 105, never) is None
    assert tail.search(search_for("a"), 100, 105, never) is not None


def search_for(*filters: str) -> TopicSearch:
    return TopicSearch(filters, TopicFilters([each.encode() for each in filters], True))


def test_after_the_first_reader_others_are_given_their_own_records_only() -> None:
    tail = Tail(0, 10_000_000)
    tail.extend([on_topic(number, f"t/{number % 100}") for number in range(1, 1_001)])

    given_first, _ = tail.search(search_for("t/7"), 0, 1_000, never) or ([], 0)
    given_next, upto = tail.search(search_for("t/8"), 0, 1_000, never) or ([], 0)

    assert len(given_first) == 1_000
    assert [each.timestamp for each in given_next] == list(range(8, 1_001, 100))
    assert upto == 1_000


def test_an_index_counts_as_memory_of_the_tail_and_goes_with_its_records() -> None:
    tail = Tail(0, 1_000_000)
    tail.extend([on_topic(number, f"t/{number}") for number in range(1, 1_001)])
    before = tail.size_bytes

    for _ in range(2):
        tail.search(search_for("t/7"), 0, 1_000, never)
    indexed = tail.size_bytes
    for number in range(1_001, 20_001):
        tail.extend([on_topic(number, "x")])

    assert indexed > before + 1_000 * len("t/1000")
    assert tail.size_bytes <= tail.bytes_max
    assert tail.size_bytes == sum(len(each.value) + 160 for each in tail.since(tail.start) or [])


def test_a_search_ends_with_the_time() -> None:
    tail = Tail(0, 100_000_000)
    last = 3 * BLOCK_RECORDS
    tail.extend([on_topic(number, "x") for number in range(1, last + 1)])
    for number in range(3):
        tail.search(search_for("x"), number * BLOCK_RECORDS, last, never)  # each block has had a reader

    assert tail.search(search_for("y"), 0, last, lambda: True) == ([], BLOCK_RECORDS)
    assert tail.search(search_for("y"), 0, last, never) == ([], last)


@pytest.mark.parametrize("topic_filter", ["#", "+/a", "+", "+/#"])
def test_filters_that_begin_with_a_wildcard_are_not_searched_for(topic_filter: str) -> None:
    assert not search_for("a", topic_filter).is_selective
