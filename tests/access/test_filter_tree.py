"""The tree answers exactly what the specification's functions answer for each filter in turn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from braidmq.access.filter_tree import FilterTree
from braidmq.mqtt import topics

# Few names, so that filters meet often.
names = st.sampled_from(["a", "b", "", "$s"])
topic_names = st.lists(names, min_size=1, max_size=4).map("/".join).filter(bool)
filters = (
    st.tuples(st.lists(st.one_of(names, st.just("+")), max_size=4), st.booleans())
    .map(lambda parts: "/".join([*parts[0], "#"] if parts[1] else parts[0]))
    .filter(bool)
)


def tree_of(topic_filters: list[str]) -> FilterTree:
    tree = FilterTree()
    for topic_filter in topic_filters:
        tree.add(topic_filter)
    return tree


@given(st.lists(filters, max_size=6), topic_names)
def test_matches_agrees_with_the_specification(topic_filters: list[str], topic: str) -> None:
    assert tree_of(topic_filters).matches(topic) == any(topics.matches(each, topic) for each in topic_filters)


@given(st.lists(filters, max_size=6), filters)
def test_covers_agrees_with_the_specification(topic_filters: list[str], asked: str) -> None:
    assert tree_of(topic_filters).covers(asked) == any(topics.covers(each, asked) for each in topic_filters)


@given(st.lists(filters, max_size=6), filters)
def test_overlaps_agrees_with_the_specification(topic_filters: list[str], asked: str) -> None:
    assert tree_of(topic_filters).overlaps(asked) == any(topics.overlaps(each, asked) for each in topic_filters)


def test_a_walk_is_not_slowed_down_by_the_number_of_filters() -> None:
    tree = tree_of([f"site/{number}/+/state" for number in range(20_000)])
    looked_up = []

    class Counting(str):
        __slots__ = ()

        def __hash__(self) -> int:
            looked_up.append(self)
            return super().__hash__()

    class Topic(str):
        __slots__ = ()

        def split(self, *_: object, **__: object) -> list[str]:
            return [Counting(level) for level in str.split(self, "/")]

    assert tree.matches(Topic("site/19999/x/state"))
    assert len(looked_up) <= 8
