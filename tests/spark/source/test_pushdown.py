"""Filters of a query that are taken over: exactly, or also left to Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from braidmq.mqtt.topics import matches
from braidmq.spark.source.pushdown import Pushed, intersect, push

T = ("topic",)
MOMENT = datetime(2023, 11, 14, 22, 13, 20, 5, tzinfo=UTC)
AT = 1_700_000_000_000_005

levels = st.sampled_from(["", "a", "b", "$s"])
topics = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool)
filters = st.tuples(st.lists(st.one_of(levels, st.just("+")), max_size=3), st.sampled_from(["a", "+", "#", ""])).map(
    lambda parts: "/".join([*parts[0], parts[1]])
)
filters = filters.filter(bool)


@given(filters, filters, topics)
def test_an_intersection_matches_what_both_match(a: str, b: str, topic: str) -> None:
    both = intersect(a, b)

    assert (both is not None and matches(both, topic)) == (matches(a, topic) and matches(b, topic))


@pytest.mark.parametrize(
    ("offered", "expected"),
    [
        (EqualTo(T, "plant/1/temp"), Pushed(["plant/1/temp"])),
        (EqualNullSafe(T, "plant/1/temp"), Pushed(["plant/1/temp"])),
        (EqualTo(T, "elsewhere"), Pushed([])),
        (EqualTo(T, "plant/+/temp"), Pushed([])),
        (EqualTo(T, ""), Pushed([])),
        (In(T, ("plant/1", "plant/2", "other", "plant/1")), Pushed(["plant/1", "plant/2"])),
        (StringStartsWith(T, "plant/1/"), Pushed(["plant/1/+/#"])),
        (StringStartsWith(T, "other/"), Pushed([])),
        (IsNotNull(T), Pushed(["plant/#"])),
        (GreaterThan(("position",), 7), Pushed(["plant/#"], after=7)),
        (GreaterThanOrEqual(("position",), 7), Pushed(["plant/#"], after=6)),
        (LessThan(("position",), 7), Pushed(["plant/#"], until=6)),
        (LessThanOrEqual(("position",), 7), Pushed(["plant/#"], until=7)),
        (EqualTo(("position",), 7), Pushed(["plant/#"], after=6, until=7)),
        (GreaterThan(("store_timestamp",), MOMENT), Pushed(["plant/#"], after=AT)),
        (LessThan(("store_timestamp",), MOMENT), Pushed(["plant/#"], until=AT - 1)),
    ],
)
def test_predicates_that_the_service_evaluates_exactly_are_pushed_down(offered: Filter, expected: Pushed) -> None:
    assert push(["plant/#"], [offered]) == (expected, [])


@pytest.mark.parametrize(
    "offered",
    [
        IsNull(T),
        IsNotNull(("content_type",)),
        Not(EqualTo(T, "plant/1")),
        StringContains(T, "temp"),
        StringStartsWith(T, "pla"),
        StringStartsWith(T, "plant/+/"),
        EqualTo(("qos",), 1),
        EqualTo(("position",), None),
        GreaterThan(("store_timestamp",), datetime(2023, 11, 14)),
        In(T, tuple(f"plant/{number}" for number in range(101))),
        In(T, ("plant/1", None)),
        EqualTo(("user_properties", "name"), "a"),
    ],
)
def test_everything_else_is_left_to_spark(offered: Filter) -> None:
    pushed, left = push(["plant/#"], [offered])

    assert pushed == Pushed(["plant/#"])
    assert len(left) == 1
    assert left[0] is offered


def test_a_prefix_within_a_level_narrows_and_is_left_to_spark_too() -> None:
    offered = StringStartsWith(T, "plant/line")

    pushed, left = push(["+/+/temp", "plant/line7"], [offered])

    assert pushed == Pushed(["plant/+/temp", "plant/line7"])
    assert left == [offered]


def test_several_filters_narrow_together() -> None:
    offered = [GreaterThan(("position",), 3), LessThan(("position",), 9), LessThanOrEqual(("position",), 20), EqualTo(T, "a/b")]

    assert push(["a/+", "a/#"], offered) == (Pushed(["a/b"], after=3, until=8), [])


offers: Any = st.one_of(
    topics.map(lambda topic: EqualTo(T, topic)),
    st.lists(topics, max_size=3).map(lambda some: In(T, tuple(some))),
    st.text("ab/$+", max_size=5).map(lambda prefix: StringStartsWith(T, prefix)),
    st.tuples(
        st.sampled_from([EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]), st.integers(-2, 12), st.booleans()
    ).map(lambda each: each[0](("position",), each[1]) if each[2] else each[0](("store_timestamp",), moment_of(each[1]))),
)


def moment_of(position: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=position)


def holds(offered: Filter, topic: str, position: int) -> bool:
    attribute = vars(offered)["attribute"]  # each of the filters here has one, their base class does not say so
    value: Any = topic if attribute == T else position if attribute == ("position",) else moment_of(position)
    match offered:
        case EqualTo(_, wanted):
            return bool(value == wanted)
        case In(_, wanted):
            return value in wanted
        case StringStartsWith(_, prefix):
            return str(value).startswith(prefix)
        case GreaterThan(_, bound):
            return bool(value > bound)
        case GreaterThanOrEqual(_, bound):
            return bool(value >= bound)
        case LessThan(_, bound):
            return bool(value < bound)
        case LessThanOrEqual(_, bound):
            return bool(value <= bound)
    raise AssertionError(offered)


@given(st.lists(filters, min_size=1, max_size=3), st.lists(offers, max_size=4), topics, st.integers(1, 10))
def test_the_service_and_spark_together_return_exactly_the_queried_rows(
    wanted: list[str], offered: list[Filter], topic: str, position: int
) -> None:
    pushed, left = push(wanted, offered)

    is_read = any(matches(each, topic) for each in pushed.filters) and pushed.after < position <= (pushed.until or position)
    if pushed.until is not None and pushed.until <= 0:
        is_read = False
    is_shown = is_read and all(holds(each, topic, position) for each in left)

    assert is_shown == (any(matches(each, topic) for each in wanted) and all(holds(each, topic, position) for each in offered))
