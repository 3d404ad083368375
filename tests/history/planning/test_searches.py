"""What is looked for in an epoch: nothing twice, nothing that cannot be there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.history.planning.searches import Searches
from braidmq.lane.records.records import encode_record
from braidmq.mqtt.topics import matches
from braidmq.storage.format.rows import EpochRow
from braidmq.storage.layouts import HashedLayout, Layout, LearnedLayout

TOPICS = ["a", "a/b", "a/c", "b/b", "b/c/d", "x/b", "x/1/y", "x/2/y", "x/3/y", "$SYS/a", "$SYS/b"]
FILTERS = ["#", "a", "a/#", "a/b", "+/b", "x/+/y", "x/#", "+", "+/+", "b/c/d", "$SYS/#", "nowhere", "x/2/y", "a/+", "+/+/y"]
LARGE = EpochRow(1, 9, 1_000_000, 1)

layouts = st.sampled_from(
    [lambda: HashedLayout((3, 2, 3)), lambda: HashedLayout((1, 1, 6), is_interleaved=True), lambda: LearnedLayout((2, 1))]
)


def hits(searches: Searches, layout: Layout, topic: str, epoch: EpochRow = LARGE) -> int:
    """How often a record of the topic is found."""
    value = encode_record(topic.encode(), b"", 0, False, "")
    index = layout.index(topic.encode())
    return sum(
        (each.query is None or each.query.matches(index))
        and each.wanted.matches(value)
        and not (each.excluded is not None and each.excluded.matches_topic(topic.encode()))
        for each in searches.ranges(epoch, layout.plan)
    )


@given(make=layouts, filters=st.lists(st.sampled_from(FILTERS), min_size=1, max_size=6, unique=True))
def test_each_record_that_a_filter_matches_is_found_once_and_no_other(make: type[Layout], filters: Sequence[str]) -> None:
    layout = make()
    for topic in TOPICS:
        layout.index(topic.encode())
    searches = Searches(filters)

    assert {topic: hits(searches, layout, topic) for topic in TOPICS} == {
        topic: int(any(matches(each, topic) for each in filters)) for topic in TOPICS
    }


def test_two_topics_with_one_index_are_looked_for_once() -> None:
    layout = HashedLayout((1, 7))
    one = "a/b"
    other = next(each for each in (f"x{number}/b" for number in range(99)) if layout.index(each.encode()) == layout.index(b"a/b"))
    searches = Searches([one, other])

    assert [hits(searches, layout, topic) for topic in (one, other)] == [1, 1]
    assert len(searches.ranges(LARGE, layout.plan)) == 1


def test_filters_that_another_one_covers_are_left_out() -> None:
    assert Searches(["a/b", "a/#", "a/+", "b", "b"]).filters == ("a/#", "b")
    assert Searches(["#", "a", "$SYS/x"]).filters == ("#", "$SYS/x")


@pytest.mark.parametrize(
    ("filters", "is_everything"), [(["#"], True), (["#", "a/b"], True), (["#", "$SYS/x"], False), (["+"], False)]
)
def test_only_the_filter_of_all_topics_is_everything(filters: list[str], is_everything: bool) -> None:
    assert Searches(filters).is_everything == is_everything


def test_an_epoch_without_the_patterns_of_a_filter_is_not_looked_at() -> None:
    layout = LearnedLayout((100, 100))
    here, there = layout.index(b"a/b")[:4], layout.index(b"c/d")[:4]
    searches = Searches(["a/+"])

    assert searches.ranges(EpochRow(1, 9, 1000, 1, frozenset([there])), layout.plan) == []
    assert len(searches.ranges(EpochRow(1, 9, 1000, 1, frozenset([here, there])), layout.plan)) == 1


def test_when_seeks_would_cost_more_than_the_epoch_all_of_it_is_looked_at() -> None:
    layout = LearnedLayout((100, 100))
    topics = [f"t/{number}" for number in range(50)]
    for topic in topics:
        layout.index(topic.encode())
    searches = Searches(topics)

    assert [each.query for each in searches.ranges(EpochRow(1, 9, 100, 1), layout.plan)] == [None]
    assert len(searches.ranges(EpochRow(1, 9, 100_000, 1), layout.plan)) == 50
