"""Packets that are much work are done in pieces, so that others have their turn."""

from __future__ import annotations

import pytest

from braidmq.mqtt.packets import Suback, Subscribe, SubscribeOption, Unsuback, Unsubscribe
from tests.support.simulator.world import World


@pytest.mark.parametrize(("filter_levels", "is_at_once"), [(2, True), (100, False)])
def test_filters_with_many_levels_are_more_work_for_one_turn(filter_levels: int, is_at_once: bool) -> None:
    with World() as world:
        client = world.connect("c", expiry=0)
        # In less than 16 KiB, from which on packets are decoded in a thread.
        filters = ["/".join(["+", *("a" * (filter_levels - 2)), str(number)]) for number in range(40)]
        client.send(Subscribe(1, [SubscribeOption(each, 0) for each in filters]))
        client.connection.lane.flush()

        assert [type(packet) for packet in client.take()] == ([Suback] if is_at_once else [])
        assert [type(packet) for packet in client.receive()] == ([] if is_at_once else [Suback])
        client.send(Unsubscribe(2, filters))
        client.connection.lane.flush()

        assert [type(packet) for packet in client.take()] == ([Unsuback] if is_at_once else [])
        assert [type(packet) for packet in client.receive()] == ([] if is_at_once else [Unsuback])
