"""What every layout promises, held against `matches` and brute force with generated topics and filters."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import Corruption, UsageError
from braidmq.mqtt.topics import check_filter, check_topic, matches
from braidmq.storage.layouts import HashedLayout, Layout, LearnedLayout, Row, index_of, make_layout

# A cache of two topics hides nothing that is wrong beneath it.
TINY: Any = {"cached_topics_max": 2}


def heir() -> Layout:
    """A learned layout that begins with the wildcards of another."""
    parent = LearnedLayout((1, 2), **TINY)
    for topic in ("a/d1/c", "a/d2/c", "a/d3/c", "b/d1", "b/d2", "b/d3/c/c", "$x/d1", "$x/d2", "$x/d3", "$c/a", "c"):
        parent.index(topic.encode())
    return parent.inherit()


FORMS: dict[str, Callable[[], Layout]] = {
    "hashed": lambda: HashedLayout(**TINY),
    "hashed to 16 bytes": lambda: HashedLayout((16,) * 8, **TINY),
    "hashed to few bits": lambda: HashedLayout((1, 2, 3, 2), **TINY),
    "hashed as a whole": lambda: HashedLayout((8,), **TINY),
    "hashed and interleaved": lambda: HashedLayout((3, 9, 1, 3), is_interleaved=True, **TINY),
    "learned": lambda: LearnedLayout(**TINY),
    "learned, low thresholds": lambda: LearnedLayout((2, 1), **TINY),
    "learned, all vary": lambda: LearnedLayout((0,), **TINY),
    "learned, a small trie": lambda: LearnedLayout((3, 2), entries_max=12, **TINY),
    "learned, no trie": lambda: LearnedLayout(entries_max=0, **TINY),
    "inherited": heir,
}
NAMES = ("a", "b", "c", "", "$x", "d1", "d2", "d3", "d4", "ü")
each_form = pytest.mark.parametrize("make", FORMS.values(), ids=FORMS)


# Few names, so that filters meet topics often. Drawing a whole topic at once is what keeps these tests fast.
TOPICS = ["/".join(levels) for depth in (1, 2, 3) for levels in product(NAMES, repeat=depth) if any(levels) or depth > 1]
TOPICS += ["/".join([*"ab" * depth, *end]) for depth in (6, 7, 8, 9) for end in ("", "a", "b", "cc", ("$x", ""))]
# Around the depth at which layouts join levels, too; the last one stands for filters without #.
OPEN_FROM = (0, 1, 2, 3, 4, 15, 16, 17, 99)
topics = st.lists(st.sampled_from(TOPICS), min_size=1, max_size=25)
wildcards = st.tuples(st.sampled_from(TOPICS), st.integers(0, 7), st.sampled_from(OPEN_FROM))


def with_wildcards(topic: str, places: int, open_from: int) -> str:
    """A filter made of a topic: `places` says by its bits which levels become `+`, behind `open_from` levels comes `#`."""
    levels = ["+" if places >> number & 1 else level for number, level in enumerate(topic.split("/"))]
    if open_from <= len(levels):
        levels[open_from:] = ["#"]
    return "/".join(levels)


@st.composite
def topics_and_filters(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """Topics, and filters of which some are made of these topics."""
    published = draw(topics)
    drawn = draw(st.lists(wildcards, min_size=1, max_size=6))
    filters = {with_wildcards(published[0], *drawn[0][1:]), *(with_wildcards(*each) for each in drawn)}
    return published, ["#", "+", "+/#", "+/+", *sorted(filters)]


def test_the_generated_topics_and_filters_are_legal() -> None:
    for topic in TOPICS:
        check_topic(topic)
        for places, open_from in product(range(8), OPEN_FROM):
            check_filter(with_wildcards(topic, places, open_from))


def index_all(layout: Layout, published: Iterable[str]) -> dict[str, bytes]:
    return {topic: layout.index(topic.encode()) for topic in published}


@each_form
@given(topics_and_filters())
def test_a_plan_misses_no_topic_of_the_filter(make: Callable[[], Layout], drawn: tuple[list[str], list[str]]) -> None:
    published, filters = drawn
    layout = make()
    indexes = index_all(layout, published)

    for topic_filter in filters:
        queries = layout.plan(topic_filter)
        wanted = [topic for topic in published if matches(topic_filter, topic)]
        assert [topic for topic in wanted if not any(query.matches(indexes[topic]) for query in queries)] == []


@each_form
@given(topics_and_filters())
def test_queries_of_a_plan_are_sorted_and_share_no_index(make: Callable[[], Layout], drawn: tuple[list[str], list[str]]) -> None:
    published, filters = drawn
    layout = make()
    indexes = set(index_all(layout, published).values())

    for topic_filter in filters:
        queries = layout.plan(topic_filter)
        firsts = [query.first() for query in queries]
        assert firsts == sorted(firsts)
        assert [index for index in indexes if sum(query.matches(index) for query in queries) > 1] == []


@each_form
@given(topics_and_filters(), st.lists(st.binary(max_size=20), max_size=5))
def test_ratchet_leads_to_the_next_index_that_matches(
    make: Callable[[], Layout], drawn: tuple[list[str], list[str]], others: list[bytes]
) -> None:
    published, filters = drawn
    layout = make()
    indexes = sorted(set(index_all(layout, published).values()))
    starts = sorted({b"", *indexes, *(index + b"\0" for index in indexes), *others})

    for query in [query for topic_filter in filters for query in layout.plan(topic_filter)]:
        there = [index for index in indexes if query.matches(index)]
        before: bytes | None = b""
        for start in starts:
            reached = query.ratchet(start)
            ahead = there[bisect_left(there, start) :]
            if reached is None:
                assert ahead == []
            else:
                assert before is not None, "a ratchet went back"
                assert before <= reached
                assert start <= reached
                assert query.matches(reached)
                # Nothing that is there is skipped, and a match is not left.
                assert not ahead or reached <= ahead[0]
                assert not query.matches(start) or reached == start
            before = reached


@each_form
@given(topics, topics)
def test_a_topic_keeps_its_index_when_others_follow(make: Callable[[], Layout], published: list[str], later: list[str]) -> None:
    layout = make()
    indexes = index_all(layout, published)

    index_all(layout, later)

    assert index_all(layout, published) == indexes


@each_form
@given(topics)
def test_no_index_is_the_beginning_of_another(make: Callable[[], Layout], published: list[str]) -> None:
    indexes = sorted(set(index_all(make(), published).values()))

    # In sorted order the beginning of a string comes right before a string that begins with it.
    assert [pair for pair in pairwise(indexes) if pair[1].startswith(pair[0])] == []


@each_form
@given(topics_and_filters(), topics)
def test_a_layout_made_from_what_was_stored_is_the_same(
    make: Callable[[], Layout], drawn: tuple[list[str], list[str]], later: list[str]
) -> None:
    published, filters = drawn
    layout = make()
    rows: list[Row] = []
    indexes: dict[str, bytes] = {}
    for topic in published:
        indexes[topic] = layout.index(topic.encode())
        rows += layout.take_rows()

    again = make_layout(layout.name, layout.parameters(), reversed(rows), layout.next_id)

    assert again.parameters() == layout.parameters()
    assert index_all(again, published) == indexes
    assert again.take_rows() == []
    for topic_filter in filters:
        assert list(map(repr, again.plan(topic_filter))) == list(map(repr, layout.plan(topic_filter)))
    # From the same place they go on in the same way.
    assert index_all(again, later) == index_all(layout, later)
    assert again.take_rows() == layout.take_rows()
    assert again.next_id == layout.next_id


@each_form
@given(topics, topics)
def test_rows_of_a_failed_batch_are_written_with_the_next(
    make: Callable[[], Layout], published: list[str], later: list[str]
) -> None:
    layout = make()
    indexes = index_all(layout, published)

    layout.return_rows(layout.take_rows())
    indexes |= index_all(layout, later)
    rows = layout.take_rows()

    assert layout.take_rows() == []
    assert index_all(make_layout(layout.name, layout.parameters(), rows, layout.next_id), published + later) == indexes


@each_form
@given(topics, topics_and_filters())
def test_an_heir_fulfils_the_contract_from_the_start(
    make: Callable[[], Layout], known: list[str], drawn: tuple[list[str], list[str]]
) -> None:
    published, filters = drawn
    parent = make()
    index_all(parent, known)
    layout = parent.inherit()
    indexes = index_all(layout, published)

    again = make_layout(layout.name, layout.parameters(), layout.take_rows(), layout.next_id)

    assert layout.name == parent.name
    assert layout.parameters() == parent.parameters()
    assert layout.next_id >= parent.next_id
    assert index_all(again, published) == indexes
    for topic_filter in filters:
        wanted = [topic for topic in published if matches(topic_filter, topic)]
        queries = again.plan(topic_filter)
        assert [topic for topic in wanted if not any(query.matches(indexes[topic]) for query in queries)] == []


@each_form
def test_the_static_part_of_a_filter_is_the_common_prefix_of_its_matches(make: Callable[[], Layout]) -> None:
    layout = make()
    indexes = index_all(layout, [f"a/d{number}/c" for number in range(40)]).values()

    for query in layout.plan("a/+/c"):
        found = {index[:4] for index in indexes if query.matches(index)}
        assert query.static is None or found <= {query.static}


@pytest.mark.parametrize("name", ["hashed", "learned"])
def test_a_layout_created_by_name_has_default_parameters(name: str) -> None:
    layout = make_layout(name)

    assert layout.name == name
    assert make_layout(name, layout.parameters()).parameters() == layout.parameters()


@pytest.mark.parametrize("name", ["hashed", "learned"])
def test_parameters_of_a_newer_version_are_refused_with_a_hint(name: str) -> None:
    parameters = b"\xfe" + make_layout(name).parameters()[1:]

    with pytest.raises(UsageError, match=r"version 254, but .* supports 1: open it with the version of braidmq that wrote it"):
        make_layout(name, parameters)


@pytest.mark.parametrize("name", ["hashed", "learned"])
@pytest.mark.parametrize("spoil", [lambda good: good[:-1], lambda good: good + b"\0", lambda good: good[:2], lambda good: b"\0"])
def test_truncated_or_extended_parameters_are_corruption(name: str, spoil: Callable[[bytes], bytes]) -> None:
    parameters = spoil(make_layout(name).parameters())

    with pytest.raises(Corruption):
        make_layout(name, parameters)


def test_an_unknown_layout_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"there is no layout 'sorted': use one of hashed, learned"):
        make_layout("sorted")


def test_the_index_is_between_epoch_and_offset_of_a_key() -> None:
    assert index_of(b"\0" * 8 + b"an index" + b"\xff" * 4) == b"an index"
