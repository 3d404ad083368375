"""Which subscriptions of a session match a record, and the cost of finding them among many."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.broker.reading.matcher import Matcher
from braidmq.broker.shared.group import Group
from braidmq.lane.flows.log_flow import LogFlow
from braidmq.lane.path.state import State
from braidmq.lane.routing.delivery_rules import merge
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.topics import matches

CLIENT_ID = "own"
SHARDS = 2


class Asked(NamedTuple):
    """A subscription as a client asks for it."""

    topic_filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    identifiers: bytes
    starts: tuple[int, ...]
    is_left_out: bool  # it has a group, or reads the log for itself
    written_twice: bool  # in another form: $exclusive/FILTER beside FILTER


class Read(NamedTuple):
    """What counts of a record."""

    shard: int
    timestamp: int
    topic: str
    publisher: str


levels = st.sampled_from(["", "a", "b", "$x"])
topics = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool)
filters = st.builds(
    lambda parts, end: "/".join([*parts, *end]),
    st.lists(levels | st.just("+"), max_size=4),
    st.sampled_from([[], ["#"]]),
).filter(bool)
askings = st.builds(
    Asked,
    filters,
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
    st.sampled_from([b"", b"\x0b\x01", b"\x0b\x02"]),
    st.lists(st.integers(1, 4), max_size=SHARDS).map(tuple),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([False, False, False, True]),
)
reads = st.builds(Read, st.integers(0, SHARDS - 1), st.integers(1, 5), topics, st.sampled_from([CLIENT_ID, "other"]))


def session_of(askings: list[Asked], positions: list[int]) -> Any:
    """A session with these subscriptions that is behind."""
    flow = LogFlow(CLIENT_ID, State(1000, 1000), 10, 1000, False, True)
    flow.positions = positions
    subscriptions: dict[str, Subscription] = {}
    starts: dict[str, tuple[int, ...]] = {}
    for asked in askings:
        for written in (asked.topic_filter, f"$exclusive/{asked.topic_filter}")[: 1 + asked.written_twice]:
            subscription = Subscription(
                flow,
                asked.topic_filter.encode(),
                asked.qos,
                asked.no_local,
                asked.retain_as_published,
                asked.identifiers + written[:1].encode(),
                mock.Mock(spec=Group) if asked.is_left_out and asked.qos else None,
            )
            subscription.is_behind = asked.is_left_out and not asked.qos
            subscriptions[written], starts[written] = subscription, asked.starts
    return SimpleNamespace(client_id=CLIENT_ID, flow=flow, subscriptions=subscriptions, starts=starts)


def found_one_after_the_other(session: Any, read: Read) -> Subscription | None:
    """What `Matcher.find` has to find, by looking at every subscription."""
    wanted = []
    for written, each in session.subscriptions.items():
        start = session.starts[written]
        if each.group is not None or each.is_behind or not matches(each.topic_filter.decode(), read.topic):
            continue
        if read.shard < len(start) and read.timestamp <= start[read.shard]:
            continue
        if not (each.no_local and read.publisher == session.client_id):
            wanted.append(each)
    return merge(wanted)


def described(subscription: Subscription | None) -> tuple[object, ...] | None:
    if subscription is None:
        return None
    each = subscription
    echo = None if each.echo is None else described(each.echo)
    return each.topic_filter, each.qos, each.no_local, each.retain_as_published, each.identifiers, echo


@given(
    st.lists(askings, max_size=12, unique_by=lambda asked: asked.topic_filter),
    st.lists(reads, max_size=12),
    st.lists(st.integers(1, 4), min_size=SHARDS, max_size=SHARDS),
)
def test_the_matcher_finds_what_checking_every_filter_finds(asked: list[Asked], read: list[Read], positions: list[int]) -> None:
    session = session_of(asked, positions)
    matcher = Matcher(session)
    assert matcher.take_in(math.inf)

    for each in read:
        # What a session reads is above its positions.
        above = each._replace(timestamp=positions[each.shard] + each.timestamp)
        found = matcher.find(above.shard, above.timestamp, above.topic.encode(), above.publisher)
        assert described(found) == described(found_one_after_the_other(session, above))
    taken_in = [each for each in session.subscriptions.values() if each.group is None and not each.is_behind]
    assert sorted(matcher.filters) == sorted({each.topic_filter.decode() for each in taken_in})


def test_many_filters_are_added_over_many_turns() -> None:
    asked = [Asked(f"x/{number}/+", 1, False, False, b"", (), False, False) for number in range(1000)]
    matcher = Matcher(session_of(asked, [0] * SHARDS))
    turns = 1
    while not matcher.take_in(deadline=0.0):
        turns += 1

    assert turns >= 1000 // 50
    found = matcher.find(0, 1, b"x/999/t", "other")
    assert found is not None
    assert found.topic_filter == b"x/999/+"


def calls_of(work: Callable[[], object]) -> int:
    """How many functions are called, compiled ones of the lane counted as one each."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("form", ["x/{}/+", "x/{}/#", "+/{}/t", "x/{}/t"])
def test_a_new_topic_costs_the_same_among_many_filters_as_among_few(form: str) -> None:
    def calls_among(count: int) -> int:
        asked = [Asked(form.format(number), 1, False, False, b"", (), False, False) for number in range(count)]
        matcher = Matcher(session_of(asked, [0] * SHARDS))
        assert matcher.take_in(math.inf)
        return calls_of(lambda: matcher.find(0, 1, b"x/3/t", "other"))

    assert calls_among(10_000) == calls_among(10)
