"""Topic names and filters against a brute-force reading of the specification."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import ProtocolViolation
from braidmq.mqtt.topics import (
    SubscriptionTarget,
    check_filter,
    check_topic,
    covers,
    matches,
    overlaps,
    parse_subscription,
)


def oracle(topic_filter: str) -> re.Pattern[str]:
    """The filter as a regular expression over topic names."""
    expression = re.escape(topic_filter).replace(r"\+", "[^/]*")
    expression = re.sub(r"(/|^)\\#$", lambda found: "(/.*)?" if found[1] else ".*", expression)
    dollar_rule = r"(?!\$)" if topic_filter[0] in "+#" else ""
    return re.compile(dollar_rule + expression, re.DOTALL)


def all_filters(depth: int) -> list[str]:
    return [
        "/".join((*levels, last))
        for size in range(depth)
        for levels in product(("a", "$x", "", "+"), repeat=size)
        for last in ("a", "$x", "", "+", "#")
        if size or last
    ]


# One level more than the filters have, and names that no filter mentions, so that inclusion among these topics is
# inclusion among all.
TOPICS = [
    topic for depth in range(1, 5) for levels in product(("a", "$x", "", "z", "$z"), repeat=depth) if (topic := "/".join(levels))
]
FILTERS = all_filters(3)
MATCHED = {topic_filter: frozenset(filter(oracle(topic_filter).fullmatch, TOPICS)) for topic_filter in FILTERS}


@pytest.mark.parametrize(
    ("topic_filter", "topic", "is_match"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/broker", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/monitor/Clients", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        ("a/+/b", "a/$x/b", True),
        ("ACCOUNTS", "Accounts", False),
    ],
)
def test_the_examples_of_the_specification_match_as_it_says(topic_filter: str, topic: str, is_match: bool) -> None:
    assert matches(topic_filter, topic) is is_match


def test_matching_agrees_with_brute_force() -> None:
    for topic_filter, matched in MATCHED.items():
        assert {topic for topic in TOPICS if matches(topic_filter, topic)} == matched, topic_filter


def test_inclusion_agrees_with_brute_force() -> None:
    wrong = [
        (wider, narrower)
        for wider, narrower in product(FILTERS, repeat=2)
        if covers(wider, narrower) != (MATCHED[narrower] <= MATCHED[wider])
    ]

    assert wrong == []


def test_overlap_agrees_with_brute_force() -> None:
    wrong = [(a, b) for a, b in product(FILTERS, repeat=2) if overlaps(a, b) == MATCHED[a].isdisjoint(MATCHED[b])]

    assert wrong == []


levels = st.sampled_from(("a", "b", "$x", ""))
filters = st.builds(
    lambda head, tail: "/".join((*head, *tail)),
    st.lists(levels | st.just("+"), max_size=7),
    st.sampled_from((("#",), ("+",), ("a",))),
)
names = st.lists(levels, min_size=1, max_size=8).map("/".join).filter(bool)


@given(filters, names)
def test_matching_agrees_with_brute_force_on_deeper_topics(topic_filter: str, topic: str) -> None:
    assert matches(topic_filter, topic) is (oracle(topic_filter).fullmatch(topic) is not None)


@given(filters, filters, names)
def test_inclusion_and_overlap_agree_with_every_single_topic(a: str, b: str, topic: str) -> None:
    if covers(a, b) and matches(b, topic):
        assert matches(a, topic)
    if matches(a, topic) and matches(b, topic):
        assert overlaps(a, b)


def test_topics_of_very_many_levels_are_matched_without_recursion() -> None:
    deep = "/".join("a" * 32_000)

    assert matches("a/#", deep)
    assert matches("/".join("+" * 32_000), deep)
    assert covers("+/#", deep)
    assert overlaps("/".join("+" * 32_000), deep)


@pytest.mark.parametrize("topic", ["a", "/", "//", "a b/$c", "$SYS/x", "\ufeff", "x" * 65_535, "é" * 32_767])
def test_a_good_topic_name_passes(topic: str) -> None:
    check_topic(topic)


@pytest.mark.parametrize("topic", ["", "+", "a/#", "a+", "a\0", "\ud800", "x" * 65_536, "é" * 32_768])
def test_a_bad_topic_name_is_invalid(topic: str) -> None:
    with pytest.raises(ProtocolViolation) as refused:
        check_topic(topic)

    assert refused.value.reason == 0x90


@pytest.mark.parametrize(
    "topic_filter",
    [
        "a",
        "#",
        "+",
        "/",
        "a/#",
        "/#",
        "+/+/#",
        "a/+/b",
        "/+",
        "$SYS/#",
        "$share/g/t",
        "$share/g//",
        "$share/g/#",
        "$exclusive/a/+",
    ],
)
def test_a_good_topic_filter_passes(topic_filter: str) -> None:
    check_filter(topic_filter)


@pytest.mark.parametrize(
    "topic_filter",
    [
        *("", "a/#/b", "a+", "+a", "#x", "a#", "##", "a/##", "#/", "#/#", "a/b+/c", "++", "a\0", "\ud800", "x" * 65_536),
        *("$share//t", "$share/g", "$share/g/", "$share/g+/t", "$share/#/t", "$share/", "$share/+/t", "$share/g/a#"),
        *("$exclusive/", "$exclusive/a+", "$exclusive/$share/g/t", "$share/g/$exclusive/t", "$share/g/$share/h/t"),
    ],
)
def test_a_bad_topic_filter_is_invalid(topic_filter: str) -> None:
    with pytest.raises(ProtocolViolation) as refused:
        check_filter(topic_filter)

    assert refused.value.reason == 0x8F


def test_the_number_of_levels_is_bounded() -> None:
    check_topic("a/b/c", levels_max=3)
    check_filter("a/+/#", levels_max=3)
    check_filter("$share/g/a/b/c", levels_max=3)

    for check in (check_topic, check_filter):
        with pytest.raises(ProtocolViolation):
            check("a/b/c/d", levels_max=3)
        with pytest.raises(ProtocolViolation):
            check("/" * 32_000)


@pytest.mark.parametrize(
    "topic_filter",
    [
        "$share/g", "$share/g/", "$share//t", "$share/+/t", "$exclusive/", "$replay/", "$replay/-1h", "$replay/-1h/",
        "$replay//t", "$replay/-1h/$share/g/t", "$replay/-1h/$replay/-2h/t", "$share/g/$replay/-1h", "$share/g/$replay//t",
        "$share/g/$replay/-1h/$replay/-2h/t", "$share/g/$replay/-1h/$exclusive/t", "$exclusive/$replay/-1h/t",
    ],
)  # fmt: skip
def test_incomplete_and_nested_prefixes_are_rejected(topic_filter: str) -> None:
    with pytest.raises(ProtocolViolation) as refused:
        parse_subscription(topic_filter)

    assert refused.value.reason == 0x8F


@pytest.mark.parametrize(
    ("topic_filter", "target"),
    [
        ("a/b", SubscriptionTarget("a/b")),
        ("$share/g/a/b", SubscriptionTarget("a/b", group="g")),
        ("$share/g//", SubscriptionTarget("/", group="g")),
        ("$share/g/$SYS/#", SubscriptionTarget("$SYS/#", group="g")),
        ("$exclusive/a/b", SubscriptionTarget("a/b", exclusive=True)),
        ("$replay/-24h/a/+/b", SubscriptionTarget("a/+/b", replay="-24h")),
        ("$replay/earliest//", SubscriptionTarget("/", replay="earliest")),
        ("$share/g/$replay/-24h/a/+/b", SubscriptionTarget("a/+/b", group="g", replay="-24h")),
        ("$share", SubscriptionTarget("$share")),
        ("$shared/g/t", SubscriptionTarget("$shared/g/t")),
        ("$exclusivea", SubscriptionTarget("$exclusivea")),
    ],
)
def test_the_prefix_of_a_subscription_is_taken_apart(topic_filter: str, target: SubscriptionTarget) -> None:
    assert parse_subscription(topic_filter) == target
