"""Learning the topics anew: when it is worth it, what it gains, and that nothing is lost by it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.base.errors import UsageError
from braidmq.mqtt.topics import matches
from braidmq.storage.format.rows import EpochLimits
from braidmq.storage.layouts.contract import Query
from braidmq.storage.layouts.learned import LearnedLayout, entry_of
from braidmq.storage.layouts.lessons import PATTERNS_MAX, Lesson, learn_from, patterns_of
from braidmq.storage.layouts.lessons import lesson_of as given_lesson
from braidmq.storage.log import LogOptions
from tests.storage.message_log import Stage


def lesson_of(layout: LearnedLayout) -> Lesson:
    return learn_from(map(entry_of, layout.take_rows()), layout.entries_max // 2)


def learned(*topics: str, thresholds: tuple[int, ...] = (100, 10)) -> LearnedLayout:
    layout = LearnedLayout(thresholds)
    for topic in topics:
        layout.index(topic.encode())
    return layout


def test_names_distinguished_only_by_their_early_arrival_become_a_wildcard_in_the_heir() -> None:
    topics = [f"acme/site{site}/line{line}/speed" for site in range(20) for line in range(20)]
    layout = learned(*topics)
    lesson = lesson_of(layout)
    # Ten sites and one pattern for all others, and the same for the lines of each.
    assert lesson.before == 11 * 11
    assert lesson.after == 1
    assert lesson.is_worth_it

    heir = layout.inherit_lesson(lesson)
    for topic in topics:
        heir.index(topic.encode())

    assert len(layout.plan("acme/site3/#")) == 11
    assert len(heir.plan("acme/site3/#")) == 1
    assert len(heir.plan("acme/+/+/speed")) == 1


def test_a_name_with_a_structure_of_its_own_stays_told_apart() -> None:
    devices = [f"d/{number}/{kind}" for number in range(30) for kind in ("temp", "hum")]
    layout = learned("d/gateway/ports/1/state", *devices)
    heir = layout.inherit_lesson(lesson_of(layout))
    for topic in ("d/gateway/ports/1/state", *devices):
        heir.index(topic.encode())

    assert len(heir.plan("d/+/temp")) == 1
    assert len(heir.plan("d/#")) == 3


def test_levels_that_do_not_vary_teach_nothing() -> None:
    lesson = lesson_of(learned("a/b", "a/c", "b/d/e"))

    assert (lesson.before, lesson.after, list(lesson.entries)) == (3, 3, [])
    assert not lesson.is_worth_it


def test_ends_of_topics_at_several_depths_are_counted_once_where_they_come_together() -> None:
    layout = learned("x/1", "x/1/deep", "x/2", "x/3", "x/3/deep", thresholds=(10, 2))

    lesson = lesson_of(layout)

    # x/1, x/1/deep, x/2, x/+, x/+/deep become x/+ and x/+/deep.
    assert (lesson.before, lesson.after) == (5, 2)


def test_topics_with_a_dollar_keep_their_root() -> None:
    topics = [f"$d/{number}/x" for number in range(20)] + [f"e/{number}/x" for number in range(20)]
    layout = learned(*topics)
    heir = layout.inherit_lesson(lesson_of(layout))
    for topic in topics:
        heir.index(topic.encode())

    assert [len(heir.plan(each)) for each in ("$d/+/x", "e/+/x", "+/+/x")] == [1, 1, 1]


def test_the_heir_is_the_same_after_a_restart() -> None:
    topics = [f"acme/site{site}/line{line}/speed" for site in range(15) for line in range(15)]
    layout = learned(*topics)
    heir = layout.inherit_lesson(lesson_of(layout))
    indexes = [heir.index(topic.encode()) for topic in topics]

    again = LearnedLayout.from_parameters(heir.parameters(), heir.take_rows(), heir.next_id)

    assert [again.index(topic.encode()) for topic in topics] == indexes
    assert again.take_rows() == []


NAMES = st.sampled_from("abcdefgh")
TOPICS = st.lists(st.lists(NAMES, min_size=1, max_size=4).map("/".join), min_size=1, max_size=60)
FILTERS = st.lists(st.sampled_from("abcdefgh+"), min_size=1, max_size=4).map("/".join)


@settings(max_examples=150, deadline=None)
@given(topics=TOPICS, later=TOPICS, filters=st.lists(FILTERS, min_size=1, max_size=5), is_open=st.booleans())
def test_an_heir_finds_every_topic_and_is_never_worse(
    topics: list[str], later: list[str], filters: list[str], is_open: bool
) -> None:
    layout = learned(*topics, thresholds=(3, 2))
    lesson = lesson_of(layout)
    heir = layout.inherit_lesson(lesson)
    indexes = {topic: heir.index(topic.encode()) for topic in (*topics, *later)}

    for topic_filter in (f"{each}/#" if is_open else each for each in filters):
        plan: list[Query] = heir.plan(topic_filter)
        for topic, index in indexes.items():
            if matches(topic_filter, topic):
                assert any(query.matches(index) for query in plan)
    assert lesson.after <= lesson.before


def test_relearning_begins_a_generation_that_is_read_with_fewer_seeks_and_loses_nothing(tmp_path: Path) -> None:
    topics = [f"acme/site{site}/line{line}/speed" for site in range(15) for line in range(15)]
    with Stage(tmp_path, shards=1, options=LogOptions(tail_bytes_max=0, limits=EpochLimits(count_max=300))) as stage:
        for topic in topics:
            stage.append("a", topic, topic.encode())
        stage.settle()
        gain = stage.log.relearn_gain()
        assert gain.is_worth_it
        assert gain.reason == "121 topic patterns would become 1"

        stage.log.relearn(gain)
        for topic in topics:
            stage.append("a", topic, topic.encode())
        stage.settle()

        assert stage.payloads("acme/site3/#") == [each.encode() for each in topics if "/site3/" in each] * 2
        assert [(each.number, each.records) for each in stage.log.generations()] == [(1, 225), (2, 225)]
        assert not stage.log.relearn_gain().is_worth_it
    with Stage(tmp_path, shards=1, options=LogOptions(tail_bytes_max=0)) as stage:
        assert stage.payloads("acme/+/line7/speed") == [each.encode() for each in topics if "/line7/" in each] * 2


def test_relearning_that_is_not_worth_it_changes_nothing(tmp_path: Path) -> None:
    with Stage(tmp_path, layout="learned") as stage:
        stage.publish("a", "t", b"1")
        stage.log.relearn()

        assert {each.number for each in stage.log.generations()} == {1}
    with Stage(tmp_path, layout="hashed") as stage:
        stage.publish("a", "t", b"1")
        assert not stage.log.relearn_gain().is_worth_it
        stage.log.relearn()


def test_generations_are_listed_with_what_is_in_them(tmp_path: Path) -> None:
    with Stage(tmp_path, shards=2) as stage:
        for number in range(10):
            stage.append(f"c{number}", "t", b"x")
        stage.settle()
        stage.log.add_generation("hashed")
        for number in range(6):
            stage.append(f"c{number}", "t", b"x")
        stage.settle()

        listed = stage.log.generations()
        assert [(each.shard, each.number, each.layout) for each in listed] == [
            (0, 1, "learned"),
            (0, 2, "hashed"),
            (1, 1, "learned"),
            (1, 2, "hashed"),
        ]
        assert [sum(each.records for each in listed if each.number == number) for number in (1, 2)] == [10, 6]
        assert sum(each.size_bytes for each in listed) == stage.log.stats().size_bytes
        assert listed[1].parameters == "16, 16, 16, 16 bits per level, one after the other"


def test_the_oldest_generation_can_be_dropped_and_no_other(tmp_path: Path) -> None:
    with Stage(tmp_path, shards=2) as stage:
        for shard_client in ("a", "b", "c", "d"):
            stage.publish(shard_client, "t", b"old")
        stage.log.add_generation("learned")
        stage.publish("a", "t", b"new")
        for number in (2, 3):
            with pytest.raises(UsageError):
                stage.log.drop_generation(number)
        assert len(stage.payloads("#")) == 5

        stage.log.drop_generation(1)

        assert stage.payloads("#") == [b"new"]
        assert {each.number for each in stage.log.generations()} == {2}
    with Stage(tmp_path, shards=2) as stage:
        assert stage.payloads("#") == [b"new"]
        assert {each.number for each in stage.log.generations()} == {2}


def test_a_generation_without_records_is_dropped_too(tmp_path: Path) -> None:
    with Stage(tmp_path, shards=3) as stage:
        stage.publish("a", "t", b"old")
        stage.log.add_generation("learned")
        stage.log.drop_generation(1)
        stage.log.add_generation("hashed")
        stage.log.drop_generation(2)

        assert {each.number for each in stage.log.generations()} == {3}
        stage.publish("a", "t", b"new")
        assert stage.payloads("#") == [b"new"]


def test_a_given_lesson_makes_the_named_levels_vary_from_the_first_topic_on() -> None:
    patterns = ["plant/+/+/temp", "plant/+/alarm", "+/status", "$d/+"]
    heir = LearnedLayout().inherit_lesson(given_lesson(patterns, (7, 3)))
    topics = ["plant/l1/d1/temp", "plant/l2/d2/temp", "plant/l1/alarm", "x/status", "$d/1", "$d/2", "plant/l3/new/speed"]
    indexes = {topic: heir.index(topic.encode()) for topic in topics}

    assert len({indexes[topic][:4] for topic in topics[:2]}) == 1
    assert [len(heir.plan(each)) for each in ("plant/+/+/temp", "plant/#", "$d/+")] == [1, 3, 1]
    assert "7, 3 names per level" in heir.describe()
    assert patterns_of(map(entry_of, heir.take_rows())) == sorted([*patterns, "plant/+/+/speed"])


@pytest.mark.parametrize(
    "patterns",
    [[], ["a/#"], ["a/b+"], [""], ["/".join("a" * 17)], ["x" * 256], ["a"] * (PATTERNS_MAX + 1)],
    ids=["none", "open", "no filter", "empty", "deep", "long name", "many"],
)
def test_an_invalid_lesson_is_rejected(patterns: list[str]) -> None:
    with pytest.raises(UsageError):
        given_lesson(patterns)


@settings(max_examples=100, deadline=None)
@given(patterns=st.lists(FILTERS, min_size=1, max_size=20), topics=TOPICS, filters=st.lists(FILTERS, min_size=1, max_size=5))
def test_with_given_patterns_no_topic_is_missed_and_a_restart_changes_nothing(
    patterns: list[str], topics: list[str], filters: list[str]
) -> None:
    heir = learned(*topics, thresholds=(3, 2)).inherit_lesson(given_lesson(patterns, (2, 1)))
    indexes = {topic: heir.index(topic.encode()) for topic in topics}

    again = LearnedLayout.from_parameters(heir.parameters(), heir.take_rows(), heir.next_id)

    assert {topic: again.index(topic.encode()) for topic in topics} == indexes
    for topic_filter in filters:
        plan: list[Query] = heir.plan(topic_filter)
        assert all(any(query.matches(indexes[each]) for query in plan) for each in topics if matches(topic_filter, each))


def test_patterns_given_to_a_log_are_used_and_listed(tmp_path: Path) -> None:
    topics = [f"acme/site{site}/speed" for site in range(12)]
    with Stage(tmp_path, shards=1) as stage:
        for topic in topics:
            stage.append("a", topic, b"old")
        stage.settle()
        assert len(stage.log.patterns()[0]) == 11

        stage.log.teach(given_lesson(["acme/+/speed"]))
        for topic in topics:
            stage.append("a", topic, b"new")
        stage.settle()

        assert stage.log.patterns() == {0: ["acme/+/speed"]}
        assert stage.payloads("acme/site3/#") == [b"old", b"new"]
    with Stage(tmp_path, shards=1) as stage:
        assert stage.payloads("acme/+/speed") == [b"old"] * 12 + [b"new"] * 12


def test_a_log_with_a_fixed_layout_rejects_lessons_and_continues(tmp_path: Path) -> None:
    with Stage(tmp_path, layout="hashed") as stage:
        stage.publish("a", "t", b"1")
        with pytest.raises(UsageError, match="learns no patterns"):
            stage.log.teach(given_lesson(["t/+"]))
        stage.publish("a", "t", b"2")

        assert stage.payloads("#") == [b"1", b"2"]
        assert not any(stage.log.patterns().values())
