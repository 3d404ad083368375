"""Filters with wildcards against a naive list, in any order of adding and removing; and what finding them costs."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from braidmq.lane.flows.flow import Flow
from braidmq.lane.path.state import State
from braidmq.lane.routing.filter_trie import FilterTrie
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.topics import matches

# Few names that begin alike, so that filters part in the middle of a chain and in the middle of a name.
NAMES = st.sampled_from(("a", "aa", "ab", "", "$x", "b"))
TOPICS = st.lists(NAMES, min_size=1, max_size=7).map("/".join).filter(bool)


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(NAMES | st.just("+"), min_size=1, max_size=7))
    if draw(st.booleans()) or not any(levels):
        levels.append("#")
    return draw(st.sampled_from(("/".join(levels), "/".join(levels), "#")))


STATE = State(1, 1)
OWNERS = [Flow(f"flow{number}", STATE, 0, 0, False) for number in range(3)]


def put(trie: FilterTrie, topic_filter: bytes, owner: int = 0) -> int:
    return trie.put(topic_filter, Subscription(OWNERS[owner], topic_filter, 0))


def names(found: Iterable[Subscription]) -> list[str]:
    return sorted(each.topic_filter.decode() for each in found)


class Tries(RuleBasedStateMachine):
    """The trie agrees with the model after any additions and removals."""

    def __init__(self) -> None:
        super().__init__()
        self.trie = FilterTrie()
        self.model: dict[tuple[str, int], str] = {}

    @rule(topic_filter=filters(), owner=st.integers(0, 2))
    def add(self, topic_filter: str, owner: int) -> None:
        others = sum(topic_filter == other for other, _ in self.model)
        expected = -1 if (topic_filter, owner) in self.model else others
        assert put(self.trie, topic_filter.encode(), owner) == expected
        self.model[topic_filter, owner] = topic_filter

    @rule(data=st.data())
    def remove_one_that_is_there(self, data: st.DataObject) -> None:
        if self.model:
            topic_filter, owner = key = data.draw(st.sampled_from(sorted(self.model)))
            del self.model[key]
            left = sum(topic_filter == other for other, _ in self.model)
            assert self.trie.remove(topic_filter.encode(), OWNERS[owner]) == left

    @rule(topic_filter=filters())
    def remove_one_that_is_not_there(self, topic_filter: str) -> None:
        if (topic_filter, 0) not in self.model:
            assert self.trie.remove(topic_filter.encode(), OWNERS[0]) == -1

    @rule(topic=TOPICS)
    def match(self, topic: str) -> None:
        found = self.trie.match(topic.encode())
        assert names(found) == sorted(each for each in self.model.values() if matches(each, topic))

    @invariant()
    def everything_is_listed(self) -> None:
        assert names(self.trie.values()) == sorted(self.model.values())


TestTries = Tries.TestCase
TestTries.settings = settings(settings.get_profile("default"), max_examples=150, stateful_step_count=40, deadline=None)


@given(wanted=st.lists(filters(), min_size=1, max_size=30), topics=st.lists(TOPICS, min_size=1, max_size=10))
def test_matching_follows_the_specification(wanted: list[str], topics: list[str]) -> None:
    trie = FilterTrie()
    for topic_filter in wanted:
        put(trie, topic_filter.encode())

    for topic in topics:
        assert names(trie.match(topic.encode())) == sorted({each for each in wanted if matches(each, topic)})


@given(wanted=st.lists(filters(), min_size=1, max_size=20, unique=True), order=st.randoms(use_true_random=False))
def test_matching_in_an_emptied_trie_costs_as_much_as_in_a_new_one(wanted: list[str], order: random.Random) -> None:
    trie = FilterTrie()
    for topic_filter in wanted:
        put(trie, topic_filter.encode())
    order.shuffle(wanted)
    for topic_filter in wanted:
        assert trie.remove(topic_filter.encode(), OWNERS[0]) == 0

    before = trie.visited
    assert trie.match(b"a/a/a") == []
    assert trie.visited - before == 1


def test_a_deep_filter_needs_no_more_nodes_than_a_short_one() -> None:
    def count_blocks(levels: int) -> int:
        trie = FilterTrie()
        filters = [b"/".join(b"%d" % number for _ in range(levels)) + b"/#" for number in range(500)]
        before = sys.getallocatedblocks()
        for topic_filter in filters:
            put(trie, topic_filter)
        return sys.getallocatedblocks() - before

    assert count_blocks(127) < count_blocks(2) * 1.5


def visits(filters: set[bytes], topic: bytes) -> int:
    trie = FilterTrie()
    for topic_filter in filters:
        put(trie, topic_filter)
    before = trie.visited
    trie.match(topic)
    return trie.visited - before


def patterns(count: int, levels: int, end: str) -> set[bytes]:
    """Filters of ``+`` and one name, every one of which fits a topic of that name all the way, but for its end."""
    chance = random.Random(1)
    found: set[bytes] = set()
    while len(found) < count:
        found.add(("/".join(chance.choice("+a") for _ in range(levels)) + end).encode())
    return found


def test_the_cost_of_matching_grows_with_filters_and_not_with_their_levels() -> None:
    filters = patterns(2000, 100, "/z")

    # 2000 filters have at most 4000 nodes, and 200 bytes each to compare.
    assert visits(filters, b"/".join([b"a"] * 101)) <= 4000 + 2000 * 200 // 32


def test_filters_with_another_number_of_levels_are_not_visited() -> None:
    filters = patterns(2000, 100, "/z")

    assert visits(filters, b"/".join([b"a"] * 120)) <= 4000
    assert visits(filters, b"/".join([b"a"] * 12)) <= 4000
