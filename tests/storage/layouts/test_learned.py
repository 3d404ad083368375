"""The learned layout: what it learns when, what it writes, where its bounds are."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import Corruption, UsageError
from braidmq.lane.records.topic_index import EVERY_INDEX, level_key
from braidmq.lane.records.topic_trie import DEPTH_MAX, NAME_BYTES_MAX
from braidmq.mqtt.topics import matches
from braidmq.storage.layouts import LearnedLayout, Row
from braidmq.storage.layouts.learned import QUERIES_MAX


def learn(layout: LearnedLayout, *topics: str) -> list[bytes]:
    return [layout.index(topic.encode()) for topic in topics]


def found_by(layout: LearnedLayout, topic_filter: str, topics: list[str]) -> set[str]:
    """The topics whose indexes the plan leads to, whether they match or not."""
    queries = layout.plan(topic_filter)
    return {topic for topic in topics if any(query.matches(layout.index(topic.encode())) for query in queries)}


def test_rows_and_indexes_have_the_documented_bytes() -> None:
    layout = LearnedLayout((2, 1))

    indexes = learn(layout, "a/b", "a/c", "$d")

    name = level_key(b"c")
    assert indexes == [bytes.fromhex("00000004"), bytes.fromhex("00000006") + name, bytes.fromhex("00000008")]
    # version, kind (exact, varying, end), parent, name
    assert [(key.hex(), value) for key, value in layout.take_rows()] == [
        ("00000002", bytes.fromhex("01 00 00000000") + b"a"),
        ("00000003", bytes.fromhex("01 00 00000002") + b"b"),
        ("00000004", bytes.fromhex("01 02 00000003")),
        ("00000005", bytes.fromhex("01 01 00000002")),
        ("00000006", bytes.fromhex("01 02 00000005")),
        ("00000007", bytes.fromhex("01 00 00000001") + b"$d"),
        ("00000008", bytes.fromhex("01 02 00000007")),
    ]
    assert layout.next_id == 9


def test_parameters_have_the_documented_bytes() -> None:
    # version, entries at most, number of thresholds, thresholds
    assert LearnedLayout((100, 10), entries_max=65_536).parameters() == bytes.fromhex("01 00010000 02 0064 000a")


def test_the_first_hundred_names_at_the_root_and_ten_below_are_distinguished() -> None:
    at_root, below = LearnedLayout(), LearnedLayout()

    varying_at_root = [len(index) for index in learn(at_root, *(f"name{number}" for number in range(103)))]
    varying_below = [len(index) for index in learn(below, *(f"top/name{number}" for number in range(13)))]

    assert varying_at_root == [4] * 100 + [8] * 3
    assert varying_below == [4] * 10 + [8] * 3


def test_a_name_learned_early_stays_exact_after_its_level_has_become_variable() -> None:
    layout = LearnedLayout((100, 1), cached_topics_max=2)
    first, *_ = learn(layout, "devices/d0/temp", "devices/d1/temp", "devices/d2/temp")

    assert learn(layout, "devices/d0/temp") == [first]
    assert [query.first() for query in layout.plan("devices/d0/temp")] == [first]


def test_topics_of_one_pattern_share_a_static_part_and_are_found_together() -> None:
    layout = LearnedLayout()
    topics = [f"devices/{number}/{name}" for number in range(50) for name in ("temperature", "pressure")]
    topics.append("other_topic/heartbeat")
    indexes = dict(zip(topics, learn(layout, *topics), strict=True))

    late = [indexes[f"devices/{number}/temperature"] for number in range(10, 50)]
    assert {index[:4] for index in late} == {late[0][:4]}
    assert found_by(layout, "devices/+/temperature", topics) == {each for each in topics if each.endswith("/temperature")}
    assert found_by(layout, "devices/33/temperature", topics) == {"devices/33/temperature"}
    # Ten exact ones and the pattern.
    assert len(layout.plan("devices/+/temperature")) == 11


def test_the_end_of_a_topic_is_never_a_wildcard() -> None:
    layout = LearnedLayout((0,))
    topics = ["x", "x/y", "x/y/z"]
    learn(layout, *topics)

    assert found_by(layout, "+", topics) == {"x"}
    assert found_by(layout, "+/+", topics) == {"x/y"}
    assert found_by(layout, "x/#", topics) == set(topics)


def test_wildcards_at_the_first_level_do_not_lead_to_dollar_topics() -> None:
    layout = LearnedLayout((1,))
    topics = ["a/up", "b/up", "c/up", "$SYS/up", "$other/up", "$third/up"]
    learn(layout, *topics)

    assert found_by(layout, "+/up", topics) == {"a/up", "b/up", "c/up"}
    assert found_by(layout, "$third/+", topics) == {"$third/up"}


def test_names_too_long_to_be_learned_vary_at_once() -> None:
    layout = LearnedLayout()

    longest, too_long = learn(layout, "a/" + "x" * NAME_BYTES_MAX, "b/" + "x" * (NAME_BYTES_MAX + 1))

    assert (len(longest), len(too_long)) == (4, 8)
    assert max(len(value) for _, value in layout.take_rows()) == 6 + NAME_BYTES_MAX


def test_levels_below_the_deepest_are_joined_into_one() -> None:
    layout = LearnedLayout((0,))
    head = "/".join("h" * DEPTH_MAX)
    topics = [head, f"{head}/x", f"{head}/x/y", f"{head}/x/z", f"{head}/x/z" * 100]

    indexes = learn(layout, *topics)

    assert [len(index) for index in indexes] == [4 + 4 * DEPTH_MAX] + [8 + 4 * DEPTH_MAX] * 4
    assert indexes[2][-4:] == level_key(b"x/y")
    assert found_by(layout, f"{head}/x/y", topics) == {f"{head}/x/y"}
    assert found_by(layout, f"{head}/#", topics) == set(topics)
    assert found_by(layout, f"{head}/x/+", topics) >= {f"{head}/x/y", f"{head}/x/z"}
    assert found_by(layout, f"{head}/x/#", topics) == set(topics[1:])
    assert found_by(layout, head, topics) == {head}


def test_a_filter_for_everything_needs_one_query() -> None:
    layout = LearnedLayout()
    learn(layout, *(f"{number}/b" for number in range(200)))

    assert layout.plan("#") == [EVERY_INDEX]
    assert layout.plan("+/#") == [EVERY_INDEX]


@pytest.mark.parametrize(("patterns", "queries"), [(QUERIES_MAX, QUERIES_MAX), (QUERIES_MAX + 1, 1)])
@pytest.mark.parametrize("topic_filter", ["a/+", "a/#"])
def test_a_filter_that_matches_too_many_patterns_becomes_one_query(patterns: int, queries: int, topic_filter: str) -> None:
    layout = LearnedLayout((QUERIES_MAX * 2,))
    learn(layout, *(f"a/{number}" for number in range(patterns)))

    plan = layout.plan(topic_filter)

    assert len(plan) == queries
    assert (plan == [EVERY_INDEX]) is (queries == 1)


def test_a_filter_without_learned_patterns_needs_no_query() -> None:
    layout = LearnedLayout()
    learn(layout, "a/b")

    assert layout.plan("a/c") == []
    assert layout.plan("b/#") == []
    assert layout.plan("a") == []


def test_a_plan_is_rebuilt_after_something_was_learned() -> None:
    layout = LearnedLayout()
    learn(layout, "a/b")
    plan = layout.plan("a/+")
    assert layout.plan("a/+") is plan

    learn(layout, "a/c")

    assert len(plan) == 1
    assert len(layout.plan("a/+")) == 2


def random_topics(count: int, seed: int) -> list[str]:
    """Topics without any structure to learn."""
    chance = random.Random(seed)
    return ["/".join(str(chance.randrange(1000)) for _ in range(chance.randint(1, 5))) for _ in range(count)]


def test_a_full_trie_stays_within_its_bound_and_still_finds_everything() -> None:
    layout = LearnedLayout(entries_max=400, cached_topics_max=2)
    topics = random_topics(2000, seed=1)
    indexes = learn(layout, *topics)

    assert layout.entries == 400
    assert len(layout.take_rows()) == 400
    assert max(map(len, indexes)) == 4 + 4 * 5
    assert learn(layout, *topics) == indexes
    for topic_filter in [*topics[::100], "+/+", "5/+/#", "+/7/+", topics[-1].split("/")[0] + "/#"]:
        wanted = {topic for topic in topics if matches(topic_filter, topic)}
        assert found_by(layout, topic_filter, topics) >= wanted


def test_levels_vary_at_once_when_a_trie_is_three_quarters_full() -> None:
    layout = LearnedLayout((1000,), entries_max=80)
    learn(layout, *(f"n{number}" for number in range(30)))  # two entries each: the name and the end
    assert layout.entries == 60

    index, another = learn(layout, "late/one", "late/two")

    assert len(index) == 4 + 4 * 2
    assert index[:8] == another[:8]
    assert index[8:] == level_key(b"one")


def test_overflowing_topics_are_distinguished_by_their_number_of_levels() -> None:
    layout = LearnedLayout(entries_max=0)
    deep = "/".join("d" * (DEPTH_MAX + 3))
    topics = ["a", "a/b", "a/b/c", "$a/b", deep]
    learn(layout, *topics)

    assert found_by(layout, "a/b", topics) == {"a/b"}
    assert found_by(layout, "+/b", topics) == {"a/b"}
    assert found_by(layout, "a/#", topics) == {"a", "a/b", "a/b/c"}
    assert found_by(layout, "$a/#", topics) == {"$a/b"}
    assert found_by(layout, deep, topics) == {deep}
    assert found_by(layout, "d/#", topics) == {deep}
    assert layout.next_id == 2


def test_an_heir_begins_with_the_paths_that_vary_and_no_others() -> None:
    parent = LearnedLayout()
    learn(parent, *(f"devices/{number}/temperature" for number in range(30)), "other_topic/heartbeat", "devices/status")

    layout = parent.inherit()

    rows = layout.take_rows()
    assert [value[6:] for _, value in rows if value[1] == 0] == [b"devices", b"temperature"]
    assert [value[1] for _, value in rows].count(1) == 1
    learn(layout, *(f"devices/{number}/temperature" for number in range(30)))
    assert len(layout.plan("devices/+/temperature")) == 1


def test_an_heir_learns_from_parameters_of_its_own() -> None:
    parent = LearnedLayout()

    layout = parent.inherit(LearnedLayout((1, 1)).parameters())
    learn(layout, "a", "b", "c")

    assert layout.parameters() == LearnedLayout((1, 1)).parameters()
    assert len(layout.plan("+")) == 2


@pytest.mark.parametrize("names", [50, 120])
def test_an_heir_takes_over_no_more_than_half_of_its_bound(names: int) -> None:
    parent = LearnedLayout((names, 0), entries_max=10_000)
    learn(parent, *(f"{number}/x/y" for number in range(names)))
    assert parent.inherit().entries == names * 3

    layout = parent.inherit(LearnedLayout((names, 0), entries_max=200).parameters())

    assert layout.entries == 100
    # What is nearest to the root comes first.
    assert sum(value[2:6] == b"\0" * 4 for _, value in layout.take_rows()) == min(names, 100)


def test_the_last_numbers_are_never_given_to_entries() -> None:
    layout = LearnedLayout((1,), next_id=0xFFFFFF00 - 2)
    topics = ["a", "b", "b/c"]

    indexes = learn(layout, *topics)

    assert indexes[0] == bytes.fromhex("FFFFFEFF")
    assert layout.next_id == 0xFFFFFF00
    assert [found_by(layout, topic, topics) for topic in topics] == [{"a"}, {"b"}, {"b/c"}]


def test_ids_continue_from_the_counter_of_the_shard() -> None:
    layout = LearnedLayout(next_id=1000)
    learn(layout, "a")
    rows = layout.take_rows()

    assert [key for key, _ in rows] == [(1000).to_bytes(4, "big"), (1001).to_bytes(4, "big")]
    assert layout.inherit().next_id == 1002
    # A row says as much as the counter.
    assert LearnedLayout(rows=rows).next_id == 1002
    assert LearnedLayout(rows=rows, next_id=5000).next_id == 5000


def row(number: int, kind: int, parent: int, name: bytes = b"", version: int = 1) -> Row:
    return number.to_bytes(4, "big"), bytes((version, kind)) + parent.to_bytes(4, "big") + name


@pytest.mark.parametrize(
    "rows",
    [
        [row(3, 0, 2, b"a")],
        [row(2, 0, 0, b"a"), row(3, 0, 0, b"a")],
        [row(2, 1, 0), row(3, 1, 0)],
        [row(2, 2, 0), row(3, 2, 0)],
        [row(2, 2, 0), row(3, 0, 2, b"a")],
        [row(2, 4, 0)],
        [row(2, 2, 0, b"a")],
        [row(1, 0, 0, b"a")],
        [row(0xFFFFFF00, 0, 0, b"a")],
        [row(2 + depth, 1, 1 + depth if depth else 0) for depth in range(DEPTH_MAX + 1)],
        [(b"\0\0\2", row(2, 0, 0, b"a")[1])],
        [(b"\0\0\0\2", b"\1\0\0\0\0")],
        [(b"\0\0\0\2", b"")],
    ],
    ids=[
        "a parent that is not there",
        "a name twice",
        "two varying edges",
        "two ends",
        "below an end",
        "an unknown kind",
        "an end with a name",
        "the number of a root",
        "a reserved number",
        "deeper than a trie can be",
        "a short key",
        "a short value",
        "an empty value",
    ],
)
def test_rows_that_do_not_form_a_trie_are_corruption(rows: list[Row]) -> None:
    with pytest.raises(Corruption):
        LearnedLayout(rows=rows)


def test_rows_of_a_newer_version_are_refused_with_a_hint() -> None:
    with pytest.raises(UsageError, match=r"version 2, but this version of braidmq supports 1"):
        LearnedLayout(rows=[row(2, 0, 0, b"a", version=2)])


@pytest.mark.parametrize(("thresholds", "entries_max"), [((), 10), ((70_000,), 10), ((-1,), 10), ((1,), -1), ((1,), 1 << 24)])
def test_parameters_that_cannot_be_stored_are_refused(thresholds: tuple[int, ...], entries_max: int) -> None:
    with pytest.raises(UsageError):
        LearnedLayout(thresholds, entries_max=entries_max)


@given(st.lists(st.lists(st.integers(0, 6).map(str), min_size=1, max_size=4).map("/".join), min_size=1), st.data())
def test_rows_up_to_any_batch_restore_the_layout_of_that_batch(topics: list[str], data: st.DataObject) -> None:
    layout = LearnedLayout((2, 1), entries_max=data.draw(st.integers(0, 30)))
    rows: list[Row] = []
    written = data.draw(st.integers(0, len(topics)))
    for topic in topics[:written]:
        learn(layout, topic)
        rows += layout.take_rows()
    next_id = layout.next_id
    learn(layout, *topics[written:])  # never written

    again = LearnedLayout.from_parameters(layout.parameters(), rows, next_id)

    assert learn(again, *topics[:written]) == learn(layout, *topics[:written])
    assert again.take_rows() == []
