"""R8, R20: the order in which the home of a client id sends its events, whatever its nodes say, and when."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from braidmq.broker.connection import presence_events
from braidmq.broker.connection.presence_events import PresenceEvent, PresenceOrder, Version
from braidmq.mqtt.reasons import Reason


def online(version: int, node: str = "n1", at_ms: int = 1000) -> PresenceEvent:
    return PresenceEvent("c", node, (version, 0, 0, 0), True, at_ms, "ann", "10.0.0.1", 4000, "tcp:default", 5, 60, False)


def offline(version: int, node: str = "n1", at_ms: int = 1000) -> PresenceEvent:
    return online(version, node).over(Reason.SUCCESS, at_ms)


def told(events: list[PresenceEvent]) -> list[tuple[int, bool]]:
    return [(event.version[0], event.is_online) for event in events]


def test_events_of_one_connection_are_sent_as_they_come() -> None:
    order = PresenceOrder()

    assert order.take(online(1)) == [online(1)]
    assert order.take(offline(1)) == [offline(1)]
    assert order.take(online(2)) == [online(2)]
    assert len(order) == 1


def test_a_connection_is_over_before_the_next_one_is_announced() -> None:
    order = PresenceOrder()
    order.take(online(1, "n1"))

    first, second = order.take(online(2, "n2", at_ms=2000))

    assert first == online(1, "n1").over(Reason.SESSION_TAKEN_OVER, 2000)
    assert second == online(2, "n2", at_ms=2000)
    assert told(order.take(offline(1, "n1"))) == [(1, False)], "a late repeat, which its version shows"
    assert len(order) == 1, "and it ends nothing"


def test_a_repeat_of_an_announcement_is_not_sent_again() -> None:
    order = PresenceOrder()
    order.take(online(1))

    assert order.take(online(1)) == []
    assert order.repeats == 1


def test_the_end_of_a_connection_that_was_never_announced_is_sent() -> None:
    assert PresenceOrder().take(offline(3)) == [offline(3)]


def test_an_event_that_comes_after_those_of_a_newer_connection_is_sent_and_changes_nothing() -> None:
    order = PresenceOrder()
    order.take(online(2, "n2"))

    assert told(order.take(online(1, "n1"))) == [(1, True)]
    assert told(order.take(offline(1, "n1"))) == [(1, False)]
    assert order.take(offline(2, "n2")) == [offline(2, "n2")]
    assert not len(order)


def test_the_home_says_that_a_connection_is_over_whose_node_cannot() -> None:
    order = PresenceOrder()
    order.take(online(1, "n1"))

    assert order.ended("c", "n2", Reason.UNSPECIFIED_ERROR, 1500) == []
    assert order.ended("c", "n1", Reason.UNSPECIFIED_ERROR, 1500) == [online(1).over(Reason.UNSPECIFIED_ERROR, 1500)]
    assert order.ended("c", "n1", Reason.UNSPECIFIED_ERROR, 1500) == [], "once"


def test_no_client_leaves_later_than_it_comes_back() -> None:
    order = PresenceOrder()
    order.take(online(1, at_ms=5000))

    (left,) = order.take(offline(1, at_ms=4000))
    (back,) = order.take(online(2, at_ms=3000))

    assert left.at_ms == 5000
    assert back.at_ms == 5000


def test_clients_that_have_left_are_forgotten_beyond_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence_events, "LEFT_MAX", 3)
    order = PresenceOrder()

    for number in range(10):
        order.take(PresenceEvent(f"c{number}", "n1", (number,), False, 1000))

    assert len(order._left) == 3


@pytest.mark.parametrize("block", range(10))
def test_of_any_history_receivers_that_drop_lower_versions_see_each_connection_begin_and_end(block: int) -> None:
    for seed in range(block * 100, (block + 1) * 100):
        check_history(Random(seed))


def check_history(random: Random) -> None:
    """Connections on three nodes, each of which says what it has to say in its order, some of it late or twice."""
    order = PresenceOrder()
    last = random.randrange(1, 8)
    nodes: dict[str, list[PresenceEvent]] = {"n1": [], "n2": [], "n3": []}
    for version in range(1, last + 1):
        node = random.choice(list(nodes))
        at_ms = 1000 * version + random.choice((0, -3_600_000, 3_600_000)) * (node == "n3")
        nodes[node] += [online(version, node, at_ms)]
        if version < last:
            nodes[node] += [offline(version, node, at_ms + 500)]
    sent: list[PresenceEvent] = []
    while any(nodes.values()):
        node = random.choice([name for name, left in nodes.items() if left])
        event = nodes[node][0]
        sent += order.take(event)
        if random.random() < 0.8:  # else the answer is lost, and the node says it again
            nodes[node].pop(0)

    every = {(version, is_online) for version in range(1, last + 1) for is_online in (True, False)} - {(last, False)}
    assert set(told(sent)) == every, "at least once"
    highest: Version = (0,)
    seen: list[PresenceEvent] = []
    for event in sent:
        if event.version >= highest:
            highest = event.version
            seen.append(event)
    assert seen[-1].is_online
    assert seen[-1].version[0] == last
    for before, after in pairwise(seen):
        if after.is_online and before.version < after.version:
            assert not before.is_online, "the end of a connection comes before the beginning of the next one"
            assert before.at_ms <= after.at_ms
