"""The bound of a node's memory follows its configuration."""

from __future__ import annotations

from typing import Any

import pytest

from braidmq.base.config.sources import from_tables
from braidmq.operations.memory_bound import memory_bound

MIB = 1024 * 1024


def bound(
    connections: int = 100,
    sessions: int = 100,
    subscriptions: int = 0,
    filter_bytes: int = 0,
    packet_bytes: int = 0,
    **tables: Any,
) -> int:
    return memory_bound(
        from_tables(tables).settings,
        connections=connections,
        sessions=sessions,
        subscriptions=subscriptions,
        filter_bytes=filter_bytes,
        packet_bytes=packet_bytes,
    )


@pytest.mark.parametrize("key", ["held_bytes_max", "outboxes_bytes_max", "parts_bytes_max"])
def test_a_limit_of_the_whole_node_counts_with_its_bytes(key: str) -> None:
    assert bound(limits={key: 500 * MIB}) - bound(limits={key: 100 * MIB}) >= 400 * MIB


def test_retained_and_delayed_messages_count_by_what_is_in_memory() -> None:
    assert bound(retained={"bytes_max": 500 * MIB}) - bound(retained={"bytes_max": 100 * MIB}) >= 400 * MIB
    assert bound(delayed={"bytes_max": 500 * MIB}) == bound(delayed={"bytes_max": 100 * MIB}), "they are on disk"
    assert bound(delayed={"messages_max": 200_000}) > bound(delayed={"messages_max": 100_000})


def test_a_connection_counts_with_its_largest_packets_and_less_if_only_small_ones_are_sent() -> None:
    one = bound(connections=1001) - bound(connections=1000)

    assert 4 * MIB < one < 7 * MIB
    assert bound(connections=1001, packet_bytes=1000) - bound(connections=1000, packet_bytes=1000) < MIB


def test_a_session_counts_with_what_it_may_have_in_flight() -> None:
    small = bound(sessions=1001, mqtt={"inflight_max": 10}) - bound(sessions=1000, mqtt={"inflight_max": 10})
    large = bound(sessions=1001) - bound(sessions=1000)

    assert 10_000 < small < 30_000 < large < MIB
    assert bound(sessions=101, connections=101) - bound() > 300 * 1000, "what is in flight to a client that is here is at hand"
    assert bound(subscriptions=1000) > bound()


def test_a_connection_that_has_not_authenticated_counts_with_what_it_may_send() -> None:
    settings = from_tables({}).settings
    one = memory_bound(settings, connections=1, sessions=1, silent=1) - memory_bound(settings, connections=1, sessions=1)

    assert 64 * 1024 < one < 128 * 1024


def test_a_subscription_counts_with_the_bytes_of_its_filter() -> None:
    assert bound(subscriptions=1000, filter_bytes=50 * MIB) - bound(subscriptions=1000) >= 5 * 50 * MIB


def test_a_connection_counts_with_the_topics_of_its_aliases() -> None:
    few, many = ({"topic_alias_maximum": each, "topic_alias_maximum_out": each} for each in (10, 1010))
    one = bound(connections=1001, mqtt=few) - bound(connections=1000, mqtt=few)

    assert bound(connections=1001, mqtt=many) - bound(connections=1000, mqtt=many) - one >= 2 * 1000 * 512
