"""The retained store against a plain dict that is searched from end to end."""

from __future__ import annotations

import gc
import sys
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.broker.messages.retained import LEVEL_BYTES, RetainedStore
from braidmq.lane.path.message import Message
from braidmq.mqtt.topics import matches

LEVELS = st.sampled_from(("a", "b", "", "$x"))
TOPICS = st.lists(LEVELS, min_size=1, max_size=3).map("/".join).filter(bool)


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(LEVELS | st.just("+"), max_size=3))
    if not levels or draw(st.booleans()):
        levels.append("#")
    return "/".join(levels) or "#"


DEEP = "/".join("abcdefghijklmno")  # 15 levels: what follows is around the depth below which levels have no nodes


@given(
    tails=st.lists(st.lists(LEVELS, min_size=1, max_size=4).map("/".join), min_size=1, max_size=15, unique=True),
    topic_filters=st.lists(filters() | TOPICS, min_size=1, max_size=10),
)
def test_matching_of_very_deep_topics_follows_the_specification(tails: list[str], topic_filters: list[str]) -> None:
    store = RetainedStore(0)
    topics = [f"{DEEP}/{tail}" for tail in tails]
    for topic in topics:
        store.put(message(topic), None)

    for each in topic_filters:
        for topic_filter in (each, f"{DEEP}/{each}", f"{DEEP}/+/{each}", f"+/{DEEP[2:]}/{each}"):
            assert found(store, topic_filter) == sorted(topic for topic in topics if matches(topic_filter, topic))
    for topic in topics:
        assert store.remove(topic.encode())
    assert found(store, "#") == []


def test_a_search_without_matches_among_very_deep_topics_is_done_in_slices() -> None:
    store = RetainedStore(0)
    for number in range(2000):
        store.put(message(f"{DEEP}/p/{number}/x"), None)

    assert list(store.match(f"{DEEP}/p/+/y".encode())) == [None] * (2000 // 256)


def test_a_very_deep_topic_counts_only_levels_that_have_nodes() -> None:
    store = RetainedStore(0)
    deep = message("/".join("x" * 128))
    before = store.bytes_of(deep)

    store.put(deep, None)

    # 16 levels, and the rest as one.
    assert before - store.bytes_of(deep) == 17 * LEVEL_BYTES


def test_retained_messages_cost_no_more_nodes_for_very_many_levels() -> None:
    def count_blocks(levels: int) -> int:
        store = RetainedStore(0)
        messages = [message("/".join(f"{number}-{level}" for level in range(levels))) for number in range(200)]
        gc.collect()  # or what earlier tests have left goes away while the blocks are counted
        gc.disable()
        before = sys.getallocatedblocks()
        for each in messages:
            store.put(each, None)
        counted = sys.getallocatedblocks() - before
        gc.enable()
        return counted

    assert count_blocks(128) < count_blocks(16) * 1.5


def message(topic: str, payload: bytes = b"x", expires_in: float | None = None) -> Message:
    made = Message(topic.encode(), payload, 0, True, "p")
    if expires_in is not None:
        made.set_properties(b"\x02\x00\x00\x00\x01", monotonic() + expires_in, 1)
    return made


def found(store: RetainedStore, topic_filter: str) -> list[str]:
    return sorted(held.message.topic.decode() for held in store.match(topic_filter.encode()) if held is not None)


@given(
    steps=st.lists(st.tuples(st.booleans(), TOPICS, st.binary(min_size=1, max_size=5)), max_size=30),
    topic_filters=st.lists(filters() | TOPICS, min_size=1, max_size=10),
)
def test_matching_follows_the_specification(steps: list[tuple[bool, str, bytes]], topic_filters: list[str]) -> None:
    store = RetainedStore(0)
    model: dict[str, bytes] = {}

    for is_put, topic, payload in steps:
        if is_put:
            store.put(message(topic, payload), None)
            model[topic] = payload
        else:
            assert store.remove(topic.encode()) == (model.pop(topic, None) is not None)

    assert len(store) == len(model)
    assert store.payload_bytes == sum(map(len, model.values()))
    assert sorted(topic.decode() for topic in store.topics()) == sorted(model)
    for topic_filter in topic_filters:
        assert found(store, topic_filter) == sorted(topic for topic in model if matches(topic_filter, topic))
    for topic, payload in model.items():
        held = store.get(topic.encode())
        assert held is not None
        assert held.message.payload == payload


def test_a_full_store_rejects_new_topics_and_replaces_known_ones() -> None:
    store = RetainedStore(2)
    store.put(message("a"), None)
    store.put(message("b"), None)

    assert not store.has_place(message("c"))
    assert store.has_place(message("a"))
    store.put(message("a", b"new"), "user")

    held = store.get(b"a")
    assert held is not None
    assert (held.message.payload, held.user_name) == (b"new", "user")
    assert store.remove(b"b")
    assert store.has_place(message("c"))


def test_expired_messages_are_not_found() -> None:
    store = RetainedStore(0)
    for topic, expires_in in (("t/over", -1.0), ("t/fresh", 100.0), ("t/always", None)):
        store.put(message(topic, expires_in=expires_in), None)

    assert found(store, "t/+") == ["t/always", "t/fresh"]
    assert found(store, "t/over") == []
    assert store.get(b"t/over") is None


def test_expired_messages_are_removed_without_a_read() -> None:
    store = RetainedStore(0)
    now = monotonic()
    for i in range(10):
        store.put(message(f"t/{i}", expires_in=i), None)
    store.put(message("t/always"), None)
    store.put(message("t/1"), None)  # replaces one that would expire

    assert store.expire(now + 5.5, 100) == 5
    assert sorted(topic.decode() for topic in store.topics()) == ["t/1", "t/6", "t/7", "t/8", "t/9", "t/always"]
    assert store.expire(now + 100, 2) == 2
    assert store.expire(now + 100, 100) == 2
    assert store.payload_bytes == 2


def test_replacing_an_expiring_message_over_and_over_costs_no_memory() -> None:
    store = RetainedStore(0)

    for i in range(10_000):
        store.put(message("t", expires_in=1000 + i), None)

    assert len(store._expiring) < 3000
    assert store.expire(monotonic() + 10_000, 100) == 0
    assert store.expire(monotonic() + 20_000, 10_000) == 1


@pytest.mark.parametrize("change", ["put", "remove"])
def test_the_store_may_change_while_a_slow_client_is_served(change: str) -> None:
    store = RetainedStore(0)
    for i in range(50):
        store.put(message(f"a/{i}/x"), None)
    served: set[str] = set()

    for n, held in enumerate(store.match(b"a/#")):
        if held is not None:
            assert held.message.topic.decode() not in served, "served twice"
            served.add(held.message.topic.decode())
        if change == "put":
            store.put(message(f"a/{n}/new"), None)
        else:
            store.remove(b"a/%d/x" % (49 - n))

    untouched = {f"a/{i}/x" for i in range(50)} if change == "put" else {f"a/{i}/x" for i in range(25)}
    assert served >= untouched


def test_a_long_search_without_a_hit_pauses_now_and_then() -> None:
    store = RetainedStore(0)
    for i in range(5000):
        store.put(message(f"a/{i}/x"), None)

    steps = list(store.match(b"a/+/y"))

    assert set(steps) == {None}
    assert len(steps) >= 10


def test_the_brokers_own_messages_do_not_take_clients_places() -> None:
    store = RetainedStore(2)

    for number in range(5):
        store.put(message(f"$SYS/{number}"), None)

    for topic in ("a", "b"):
        assert store.has_place(message(topic))
        store.put(message(topic), "u")
    assert not store.has_place(message("c"))
    assert store.has_place(message("$SYS/6"))
    store.remove(b"$SYS/0")
    assert not store.has_place(message("c"))
    store.remove(b"a")
    assert store.has_place(message("c"))
