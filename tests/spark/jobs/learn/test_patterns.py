"""Patterns: which one a topic belongs to, what the topics of a history suggest, and what filters cost with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.base.errors import UsageError
from braidmq.mqtt.topics import matches
from braidmq.spark.jobs.framework.patterns import OTHER, make_patterns, read_patterns
from braidmq.spark.jobs.framework.sampling import evenly
from braidmq.spark.jobs.learn.patterns import TopicStats, entropy, example_filters, propose
from braidmq.spark.jobs.learn.seek_cost import compare
from braidmq.storage.layouts.learned import LearnedLayout, entry_of
from braidmq.storage.layouts.lessons import lesson_of
from braidmq.storage.layouts.lessons import patterns_of as patterns_in

LEVELS = st.sampled_from(["a", "b", "c", "$d", ""])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.builds(
    lambda levels, is_open: "/".join([*levels, "#"] if is_open else levels),
    st.lists(st.sampled_from(["a", "b", "c", "$d", "+"]), min_size=1, max_size=4),
    st.booleans(),
)


def stats(*topics: str, records: int = 10, shard: int = 0) -> list[TopicStats]:
    return [TopicStats(topic, records, shard=shard) for topic in topics]


def patterns_of(topics: Sequence[TopicStats]) -> list[str]:
    return sorted(each.pattern for each in propose(topics).patterns)


def test_a_topic_belongs_to_its_most_specific_pattern_in_any_order() -> None:
    given = ["plant/#", "plant/+/temp", "plant/x/temp", "+/x/temp", "#"]

    for order in (given, given[::-1]):
        patterns = make_patterns(order)
        assert patterns.of("plant/x/temp") == "plant/x/temp"
        assert patterns.of("plant/y/temp") == "plant/+/temp"
        assert patterns.of("plant/y/hum") == "plant/#"
        assert patterns.of("plant") == "plant/#"
        assert patterns.of("z/x/temp") == "+/x/temp"
        assert patterns.of("other") == OTHER
        assert patterns.of("$SYS/x/temp") == OTHER


@given(filters=st.lists(FILTERS, max_size=6), topic=TOPICS)
def test_each_topic_matches_its_pattern_or_no_pattern_at_all(filters: list[str], topic: str) -> None:
    found = make_patterns(filters).of(topic)

    if found == OTHER:
        assert not any(matches(each, topic) for each in filters if each != "#")
    else:
        assert matches(found, topic)


@pytest.mark.parametrize("pattern", ["", "a/#/b", "a+", "$share/g/a"])
def test_a_pattern_must_be_a_valid_topic_filter(pattern: str) -> None:
    with pytest.raises(UsageError):
        make_patterns([pattern])


def test_patterns_are_read_as_they_were_written(tmp_path: Path) -> None:
    patterns = make_patterns(["b/+", "a", "b/c"])
    patterns.write(tmp_path / "patterns")
    (tmp_path / "by hand").write_text("// comment\n\n b/+ \na\nb/c\n")

    assert read_patterns(tmp_path / "patterns") == read_patterns(tmp_path / "by hand") == patterns
    with pytest.raises(UsageError, match="cannot be read"):
        read_patterns(tmp_path / "nowhere")


def test_devices_vary_and_kinds_of_values_do_not() -> None:
    topics = stats(*(f"plant/dev{number}/{kind}" for number in range(40) for kind in ("temp", "hum")))

    assert patterns_of(topics) == ["plant/+/hum", "plant/+/temp"]


def test_few_devices_vary_too_if_they_are_used_evenly_and_look_alike() -> None:
    even = stats(*(f"plant/dev{number}/temp" for number in range(6)))
    uneven = [TopicStats(each.topic, 10_000 if number == 0 else 1) for number, each in enumerate(even)]

    assert patterns_of(even) == ["plant/+/temp"]
    assert len(patterns_of(uneven)) == 6


def test_a_name_with_its_own_structure_stays_a_separate_pattern() -> None:
    topics = stats("d/gateway/ports/1/state", *(f"d/{number}/{kind}" for number in range(30) for kind in ("temp", "hum")))

    assert patterns_of(topics) == ["d/+/hum", "d/+/temp", "d/gateway/ports/1/state"]


def test_topics_with_a_dollar_are_never_below_a_wildcard_at_the_first_level() -> None:
    topics = stats(*(f"{number}/x" for number in range(200)), *(f"$d{number}/x" for number in range(200)))

    found = patterns_of(topics)

    assert "+/x" in found
    assert all(each.startswith("$d") for each in found if each != "+/x")


def test_topics_deeper_than_patterns_are_cut_off() -> None:
    assert patterns_of(stats("/".join("x" * 20))) == ["/".join("x" * 16) + "/#"]


@settings(max_examples=200)
@given(st.lists(TOPICS, min_size=1, max_size=60), st.integers(0, 4))
def test_every_topic_belongs_to_a_proposed_pattern_and_all_records_are_counted(topics: list[str], room: int) -> None:
    proposal = propose(stats(*topics, records=3), (room, room))

    patterns = make_patterns(each.pattern for each in proposal.patterns)
    assert sum(each.records for each in proposal.patterns) == 3 * len(topics)
    assert sum(each.topics for each in proposal.patterns) == len(set(topics))
    assert all(matches(patterns.of(topic), topic) for topic in topics if patterns.of(topic) != OTHER)
    assert all(
        any(matches(each, topic) for each in patterns) or "#" in [p.pattern for p in proposal.patterns] for topic in topics
    )
    # The broker takes them as they are.
    lesson_of([each.pattern for each in proposal.patterns if not each.pattern.endswith("#")] or ["x"], proposal.thresholds)


@given(st.integers(1, 50), st.integers(1, 60))
def test_a_share_is_spread_evenly_from_the_first_on(length: int, count: int) -> None:
    chosen = evenly(range(length), count)

    assert len(chosen) == min(count, length)
    assert chosen[0] == 0
    gaps = {after - before for before, after in pairwise(chosen)}
    assert max(gaps, default=1) - min(gaps, default=1) <= 1
    assert min(gaps, default=1) >= 1


def test_entropy_is_that_of_the_shares() -> None:
    assert entropy([5, 5, 5, 5]) == pytest.approx(2.0)
    assert entropy([7]) == 0.0
    assert entropy([1, 3]) == pytest.approx(-(0.25 * math.log2(0.25) + 0.75 * math.log2(0.75)))


def test_fewer_patterns_cost_fewer_keys_where_a_filter_visits_them_all() -> None:
    topics = stats(*(f"plant/dev{number}/temp" for number in range(40)))
    before = {0: [*(f"plant/dev{number}/temp" for number in range(10)), "plant/+/temp"]}

    [all_of_them, one] = compare(["plant/+/temp", "plant/dev3/temp"], topics, before, ["plant/+/temp"], {0: 5})

    # 40 topics of 10 records; 11 patterns before and 1 after, each visited in 5 epochs.
    assert (all_of_them.records, all_of_them.keys_before, all_of_them.keys_after) == (400, 400 + 11 * 5, 400 + 5)
    # A name that was told apart has a pattern of its own, and shares one afterwards: one visit either way.
    assert (one.records, one.keys_before, one.keys_after) == (10, 15, 15)


def test_a_name_behind_an_open_level_costs_a_place_for_each_name_there() -> None:
    topics = stats(*(f"{site}/{device}/temp" for site in range(7) for device in range(3)))

    [cost] = compare(["+/2/temp"], topics, {0: ["+/+/temp"]}, ["+/+/temp"], {0: 2})

    assert cost.keys_before == cost.records + 7 * 2
    assert cost.per_hit_before == pytest.approx(84 / 70)


@settings(max_examples=200)
@given(
    topics=st.lists(
        st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4).map("/".join), min_size=1, max_size=60, unique=True
    ),
    names=st.lists(st.sampled_from("abcdef"), max_size=4),
    wildcards=st.integers(0, 3),
)
def test_the_estimate_visits_as_many_patterns_as_the_layout_plans_to(topics: list[str], names: list[str], wildcards: int) -> None:
    layout = LearnedLayout((3, 2))
    for topic in topics:
        layout.index(topic.encode())
    topic_filter = "/".join([*names, *["+"] * wildcards]) or "+"

    [cost] = compare([topic_filter], stats(*topics), {0: patterns_in(map(entry_of, layout.take_rows()))}, [], {0: 1})

    assert cost.records == 10 * sum(matches(topic_filter, topic) for topic in topics)
    assert cost.keys_before - cost.records == len(layout.plan(topic_filter))


def test_examples_ask_for_a_pattern_and_for_its_busiest_device() -> None:
    topics = [*stats(*(f"plant/dev{number}/temp" for number in range(20))), TopicStats("plant/dev7/temp", 50, shard=1)]

    assert example_filters(propose(topics), topics) == ["plant/+/temp", "plant/dev7/#"]
