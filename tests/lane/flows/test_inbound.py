"""The packet ids of QoS 2 messages that a client has not released, against a plain set."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from braidmq.lane.flows.inbound import Inbound

IDS = st.integers(1, 65535) | st.integers(1, 600)


@given(
    first=st.sets(IDS, max_size=400),
    steps=st.lists(st.tuples(st.booleans(), IDS), max_size=100),
    releases_all=st.booleans(),
    last=st.sets(IDS, max_size=400),
)
def test_received_ids_behave_like_a_set(
    first: set[int], steps: list[tuple[bool, int]], releases_all: bool, last: set[int]
) -> None:
    inbound, model = Inbound(), set(first)
    for packet_id in first:
        assert inbound.receive(packet_id)

    for is_received, packet_id in steps:
        if is_received:
            assert inbound.receive(packet_id) == (packet_id not in model)
            model.add(packet_id)
        else:
            assert inbound.forget_received(packet_id) == (packet_id in model)
            model.discard(packet_id)
    for packet_id in list(model) if releases_all else ():
        assert inbound.forget_received(packet_id)
        model.discard(packet_id)
    for packet_id in last:
        assert inbound.receive(packet_id) == (packet_id not in model)
    model |= last

    assert sorted(inbound.received_ids()) == sorted(model)
    assert [inbound.is_receiving(packet_id) for packet_id in (1, 255, 256, 257, 65535)] == [
        packet_id in model for packet_id in (1, 255, 256, 257, 65535)
    ]
    inbound.forget_all_received()
    assert inbound.received_ids() == []


def test_many_received_ids_take_one_bit_each() -> None:
    inbound = Inbound()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for packet_id in range(1, 65536):
            inbound.receive(packet_id)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert len(inbound.received_ids()) == 65535
    assert taken < 16_384


def test_ids_whose_messages_may_still_be_rejected_are_not_settled() -> None:
    inbound = Inbound()
    inbound.receive(1)
    inbound.expect_commit(2)
    inbound.expect_commit(3)

    inbound.end_pending(3)

    assert sorted(inbound.settled_ids()) == [1, 3]
    assert sorted(inbound.received_ids()) == [1, 2, 3]
